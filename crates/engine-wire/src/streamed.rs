//! What one streamed event means, whichever form its fields came in.

use std::sync::Arc;

use domain::Tier;

use crate::event::cut;
use crate::fields::{Field, Fields};
use crate::msgpack::{Broken, Cursor, Item};
use crate::{Event, EventError, Lora, Medium, Removed, SpecKind, Stored};

/// Takes one whole event; only broken framing is an error, everything else is an event of its own.
pub(crate) fn decode_event(cursor: &mut Cursor<'_>) -> Result<Event, Broken> {
    let event = match Fields::take(cursor)? {
        None => Err(EventError::Untagged),
        Some(fields) => event(&fields),
    };
    Ok(event.unwrap_or_else(|why| Event::Malformed { why }))
}

fn event(fields: &Fields<'_>) -> Result<Event, EventError> {
    match fields.tag {
        b"BlockStored" => stored(fields).map(Event::Stored),
        b"BlockRemoved" => removed(fields).map(Event::Removed),
        b"AllBlocksCleared" => Ok(Event::Cleared),
        unknown => Ok(Event::Unknown {
            tag: cut(&String::from_utf8_lossy(unknown)).to_owned(),
        }),
    }
}

fn removed(fields: &Fields<'_>) -> Result<Removed, EventError> {
    Ok(Removed {
        block_hashes: fields.require("block_hashes")?.hashes()?,
        medium: medium(fields)?,
        group: fields.number("group_idx")?,
    })
}

fn stored(fields: &Fields<'_>) -> Result<Stored, EventError> {
    let block_hashes = fields.require("block_hashes")?.hashes()?;
    let parent = fields.get("parent_block_hash")?;
    let block_size = fields.require("block_size")?.number()?;
    let (lora, slot_salt) = lora_and_slot_salt(fields)?;
    let mut marks = Marks::default();
    if let Some(extra_keys) = fields.get("extra_keys")? {
        marks.read_extra_keys(extra_keys, lora.as_ref(), parent.is_some())?;
    }
    if let Some(mm_keys) = fields.get("mm_keys")? {
        marks.read_mm_keys(mm_keys)?;
    }
    let salt = match fields.text("cache_salt")? {
        Some(salt) => Some(salt),
        None => slot_salt.or(marks.salt),
    };
    let (mut token_ids, count) = tokens(fields.require("token_ids")?, block_size)?;
    if let Some(block) = marks.first_opaque_block {
        token_ids.truncate(block.saturating_mul(block_size as usize));
    }
    Ok(Stored {
        opaque_tokens: count - token_ids.len(),
        block_hashes,
        parent: parent.map(|field| field.hash()).transpose()?,
        token_ids,
        block_size,
        medium: medium(fields)?,
        group: fields.number("group_idx")?,
        spec_kind: fields.text("kv_cache_spec_kind")?.map(SpecKind::named),
        lora,
        salt: salt.filter(|salt| !salt.is_empty()).map(Arc::from),
        session: fields.text("session_id")?.map(Arc::from),
    })
}

fn medium(fields: &Fields<'_>) -> Result<Medium, EventError> {
    if fields.text("locality")? == Some("REMOTE") {
        return Ok(Medium::Remote);
    }
    Ok(match fields.text("medium")? {
        // Engines that do not say it keep blocks in GPU memory only.
        None => Medium::Tier(Tier::Gpu),
        Some(name) => Medium::named(name),
    })
}

/// The adapter, and the salt where SGLang's array form has it in the adapter's place.
fn lora_and_slot_salt<'a>(
    fields: &Fields<'a>,
) -> Result<(Option<Lora>, Option<&'a str>), EventError> {
    let number = match fields.get("lora_id")? {
        None => None,
        Some(field) => match field.item {
            Item::Unsigned(id) => {
                Some(i64::try_from(id).map_err(|_| EventError::Range { field: "lora_id" })?)
            }
            Item::Negative(id) => Some(id),
            _ => return Err(field.unexpected()),
        },
    };
    let unnamed = number.map(Lora::Unnamed);
    let Some(slot) = fields.get("lora_name")? else {
        return Ok((unnamed, None));
    };
    let Item::Map(pairs) = slot.item else {
        let name = slot.text()?;
        let named = (!name.is_empty()).then(|| Lora::Named(name.into()));
        return Ok((named.or(unnamed), None));
    };
    let mut rest = slot.rest;
    let mut salt = None;
    for _ in 0..pairs {
        let (key, _) = rest.element()?;
        let (item, rest) = rest.element()?;
        if key == Item::Text(b"cache_salt") {
            let name = "cache_salt";
            let field = Field { name, item, rest };
            salt = (field.item != Item::Nil)
                .then(|| field.text())
                .transpose()?;
        }
    }
    Ok((unnamed, salt))
}

/// The leading tokens that describe content, and how many tokens there are in all. A token that is no number
/// (TensorRT-LLM's digest of an image) makes its block and all after it opaque.
fn tokens(field: Field<'_>, block_size: u32) -> Result<(Vec<u32>, usize), EventError> {
    let Item::Array(count) = field.item else {
        return Err(field.unexpected());
    };
    let mut token_ids = Vec::with_capacity(count);
    let mut rest = field.rest;
    for _ in 0..count {
        if let Some(token) = rest.number() {
            token_ids.push(token);
            continue;
        }
        let (item, mut inside) = rest.element()?;
        match item {
            Item::Text(_) | Item::Binary(_) => {
                let block = token_ids.len().checked_div(block_size as usize);
                token_ids.truncate(block.unwrap_or(0) * block_size as usize);
                break;
            }
            // A pair of neighbours.
            Item::Array(2) => {
                let (item, rest) = inside.element()?;
                token_ids.push(
                    Field {
                        item,
                        rest,
                        ..field
                    }
                    .number()?,
                );
            }
            _ => token_ids.push(Field { item, ..field }.number()?),
        }
    }
    Ok((token_ids, count))
}

/// What the extra keys of a store's blocks say.
#[derive(Default)]
struct Marks<'a> {
    salt: Option<&'a str>,
    first_opaque_block: Option<usize>,
}

impl<'a> Marks<'a> {
    /// vLLM's keys, one list for each block: the adapter's name first, then what stands for images and the
    /// like as an identifier and an offset (a pair, or one after the other), then in a sequence's first block
    /// the salt, then digests of embeddings as bytes.
    fn read_extra_keys(
        &mut self,
        blocks: Field<'a>,
        lora: Option<&Lora>,
        has_parent: bool,
    ) -> Result<(), EventError> {
        for (index, block) in blocks.elements()?.enumerate() {
            let block = block?;
            if block.item == Item::Nil {
                continue;
            }
            let mut salt = None;
            let mut opaque = false;
            for (position, key) in block.elements()?.enumerate() {
                let key = key?;
                let Item::Text(_) = key.item else {
                    // An offset takes the text before it for an identifier.
                    opaque = true;
                    if matches!(key.item, Item::Unsigned(_) | Item::Negative(_)) {
                        salt = None;
                    }
                    continue;
                };
                let text = key.text()?;
                if position == 0 && matches!(lora, Some(Lora::Named(name)) if **name == *text) {
                    continue;
                }
                opaque |= salt.replace(text).is_some();
            }
            if index == 0 && !has_parent {
                self.salt = salt;
            } else {
                opaque |= salt.is_some();
            }
            if opaque {
                self.mark_opaque(index);
            }
        }
        Ok(())
    }

    /// TensorRT-LLM's keys, one list for each block.
    fn read_mm_keys(&mut self, blocks: Field<'a>) -> Result<(), EventError> {
        for (index, block) in blocks.elements()?.enumerate() {
            if !matches!(block?.item, Item::Nil | Item::Array(0)) {
                self.mark_opaque(index);
            }
        }
        Ok(())
    }

    fn mark_opaque(&mut self, block: usize) {
        let first = self.first_opaque_block.get_or_insert(block);
        *first = block.min(*first);
    }
}
