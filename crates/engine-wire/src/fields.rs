//! One streamed event: a tagged map, or a tagged array whose positions are the fields in historical order.
//!
//! vLLM sends arrays up to 0.23 and maps since, SGLang arrays up to 0.5.19, TensorRT-LLM only maps. Fields
//! were added at the end and absent ones mean nil, so one table of names serves every version.

use std::sync::Arc;

use domain::{EngineHash, Tier};

use crate::event::cut;
use crate::msgpack::{Broken, Cursor, Item};
use crate::{Event, EventError, Lora, Medium, Removed, SpecKind, Stored};

/// Fields of a store, those of the array form first and in its order (position 0 is the tag).
const STORED: [&str; 16] = [
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    // SGLang 0.5.18 and 0.5.19 have a map with the salt here.
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "kv_cache_spec_sliding_window",
    "locality",
    "ownership",
    "session_id",
    "cache_salt",
    "mm_keys",
];
/// How many of them the array form has.
const STORED_POSITIONS: usize = 14;
/// Fields of a removal, all of them in the array form's order.
const REMOVED: [&str; 5] = [
    "block_hashes",
    "medium",
    "group_idx",
    "locality",
    "ownership",
];

/// The most blocks in one event: a context of a million tokens in pages of one.
const MAX_BLOCKS: usize = 1 << 20;
/// The longest engine hash, in bytes; a SHA-512 in hexadecimal has 128.
const MAX_HASH_BYTES: usize = 256;
/// The longest name, salt or session id, in bytes.
const MAX_TEXT_BYTES: usize = 4096;

/// Reads one event from its whole value, whose framing has been checked.
pub(crate) fn decode_event(value: &[u8]) -> Event {
    event(value).unwrap_or_else(|why| Event::Malformed { why })
}

fn event(value: &[u8]) -> Result<Event, EventError> {
    match tag(value)? {
        b"BlockStored" => stored(&Fields::of(value, &STORED, STORED_POSITIONS)?).map(Event::Stored),
        b"BlockRemoved" => {
            removed(&Fields::of(value, &REMOVED, REMOVED.len())?).map(Event::Removed)
        }
        b"AllBlocksCleared" => Ok(Event::Cleared),
        unknown => Ok(Event::Unknown {
            tag: cut(&String::from_utf8_lossy(unknown)).to_owned(),
        }),
    }
}

impl From<Broken> for EventError {
    /// Cannot happen to a value whose framing has been checked, and is no reason to panic.
    fn from(_: Broken) -> Self {
        Self::Untagged
    }
}

fn tag(value: &[u8]) -> Result<&[u8], EventError> {
    let mut cursor = Cursor::new(value);
    match cursor.item()? {
        Item::Array(elements) if elements > 0 => {
            if let Item::Text(tag) = cursor.item()? {
                return Ok(tag);
            }
        }
        Item::Map(pairs) => {
            for _ in 0..pairs {
                let key = Cursor::new(cursor.value()?).item()?;
                let value = cursor.value()?;
                if let (Item::Text(b"type"), Item::Text(tag)) = (key, Cursor::new(value).item()?) {
                    return Ok(tag);
                }
            }
        }
        _ => {}
    }
    Err(EventError::Untagged)
}

/// The fields of one event, each one whole msgpack value, in the order of `names`.
struct Fields<'a> {
    names: &'static [&'static str],
    values: Vec<Option<&'a [u8]>>,
}

impl<'a> Fields<'a> {
    fn of(
        value: &'a [u8],
        names: &'static [&'static str],
        positions: usize,
    ) -> Result<Self, EventError> {
        let mut values = vec![None; names.len()];
        let mut cursor = Cursor::new(value);
        match cursor.item()? {
            Item::Array(elements) => {
                cursor.value()?;
                for position in 1..elements {
                    let value = cursor.value()?;
                    if position <= positions {
                        values[position - 1] = Some(value);
                    }
                }
            }
            Item::Map(pairs) => {
                for _ in 0..pairs {
                    let key = Cursor::new(cursor.value()?).item()?;
                    let value = cursor.value()?;
                    let Item::Text(key) = key else { continue };
                    if let Some(index) = names.iter().position(|name| name.as_bytes() == key) {
                        values[index] = Some(value);
                    }
                }
            }
            _ => return Err(EventError::Untagged),
        }
        Ok(Self { names, values })
    }

    /// The field's first item, and what follows it; none where it is absent or nil.
    fn get(&self, name: &'static str) -> Result<Option<Field<'a>>, EventError> {
        let index = self.names.iter().position(|known| *known == name);
        let Some(value) = index.and_then(|index| self.values[index]) else {
            return Ok(None);
        };
        let mut rest = Cursor::new(value);
        Ok(match rest.item()? {
            Item::Nil => None,
            item => Some(Field { name, item, rest }),
        })
    }

    fn require(&self, name: &'static str) -> Result<Field<'a>, EventError> {
        self.get(name)?.ok_or(EventError::Missing { field: name })
    }

    fn text(&self, name: &'static str) -> Result<Option<&'a str>, EventError> {
        self.get(name)?.map(|field| field.text()).transpose()
    }

    fn number(&self, name: &'static str) -> Result<Option<u32>, EventError> {
        self.get(name)?.map(|field| field.number()).transpose()
    }
}

/// One item of one field, and what follows it inside the field.
#[derive(Clone, Copy)]
struct Field<'a> {
    name: &'static str,
    item: Item<'a>,
    rest: Cursor<'a>,
}

impl<'a> Field<'a> {
    fn unexpected(&self) -> EventError {
        EventError::Type {
            field: self.name,
            found: self.item.name(),
        }
    }

    fn text(&self) -> Result<&'a str, EventError> {
        let Item::Text(bytes) = self.item else {
            return Err(self.unexpected());
        };
        if bytes.len() > MAX_TEXT_BYTES {
            return Err(EventError::TooLong {
                field: self.name,
                limit: MAX_TEXT_BYTES,
            });
        }
        str::from_utf8(bytes).map_err(|_| self.unexpected())
    }

    fn number(&self) -> Result<u32, EventError> {
        let range = EventError::Range { field: self.name };
        match self.item {
            Item::Unsigned(value) => u32::try_from(value).map_err(|_| range),
            Item::Negative(_) => Err(range),
            _ => Err(self.unexpected()),
        }
    }

    fn hash(&self) -> Result<EngineHash, EventError> {
        let bytes = match self.item {
            Item::Unsigned(value) => return Ok(EngineHash::Int(value)),
            Item::Negative(value) => return Ok(EngineHash::Int(value.cast_unsigned())),
            Item::Binary(bytes) | Item::Text(bytes) => bytes,
            _ => return Err(self.unexpected()),
        };
        if bytes.len() > MAX_HASH_BYTES {
            return Err(EventError::TooLong {
                field: self.name,
                limit: MAX_HASH_BYTES,
            });
        }
        Ok(EngineHash::Bytes(bytes.into()))
    }

    /// The items of an array, each with what follows it.
    fn elements(mut self) -> Result<impl Iterator<Item = Result<Self, EventError>>, EventError> {
        let Item::Array(count) = self.item else {
            return Err(self.unexpected());
        };
        Ok((0..count).map(move |_| {
            let mut element = Cursor::new(self.rest.value()?);
            let item = element.item()?;
            Ok(Self {
                name: self.name,
                item,
                rest: element,
            })
        }))
    }

    fn hashes(self) -> Result<Vec<EngineHash>, EventError> {
        if matches!(self.item, Item::Array(count) if count > MAX_BLOCKS) {
            return Err(EventError::TooLong {
                field: self.name,
                limit: MAX_BLOCKS,
            });
        }
        self.elements()?.map(|element| element?.hash()).collect()
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
        let key = Cursor::new(rest.value()?).item()?;
        let mut value = Cursor::new(rest.value()?);
        if key == Item::Text(b"cache_salt") {
            let field = Field {
                name: "cache_salt",
                item: value.item()?,
                rest: value,
            };
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
    for element in field.elements()? {
        let mut element = element?;
        match element.item {
            Item::Text(_) | Item::Binary(_) => {
                let block = token_ids
                    .len()
                    .checked_div(block_size as usize)
                    .unwrap_or(0);
                token_ids.truncate(block * block_size as usize);
                break;
            }
            // A pair of neighbours.
            Item::Array(2) => {
                element.item = element.rest.item()?;
                token_ids.push(element.number()?);
            }
            _ => token_ids.push(element.number()?),
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
