//! The fields of one streamed event: a tagged map, or a tagged array whose positions are the fields in historical order.
//!
//! vLLM sends arrays up to 0.23 and maps since, SGLang arrays up to 0.5.19, TensorRT-LLM only maps. Fields
//! were added at the end and absent ones mean nil, so one table of names serves every version.

use domain::EngineHash;

use crate::EventError;
use crate::msgpack::{Broken, Cursor, Item};

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
/// Fields of a removal in the array form's order, each also one of a store.
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

impl From<Broken> for EventError {
    /// Cannot happen to a value whose framing has been checked, and is no reason to panic.
    fn from(_: Broken) -> Self {
        Self::Untagged
    }
}

/// The fields of one event, each one whole msgpack value, in the order of [`STORED`].
pub(crate) struct Fields<'a> {
    pub tag: &'a [u8],
    values: [Option<&'a [u8]>; STORED.len()],
}

impl<'a> Fields<'a> {
    /// Takes one whole value; none when it is not an event.
    pub(crate) fn take(cursor: &mut Cursor<'a>) -> Result<Option<Self>, Broken> {
        let mut whole = *cursor;
        match cursor.item()? {
            Item::Array(elements) if elements > 0 => Self::take_array(cursor, elements),
            Item::Map(pairs) => Self::take_map(cursor, pairs),
            _ => {
                whole.value()?;
                *cursor = whole;
                Ok(None)
            }
        }
    }

    fn take_array(cursor: &mut Cursor<'a>, elements: usize) -> Result<Option<Self>, Broken> {
        let (tag, _) = cursor.element()?;
        let layout = match tag {
            Item::Text(b"BlockStored") => &STORED[..STORED_POSITIONS],
            Item::Text(b"BlockRemoved") => &REMOVED[..],
            _ => &[],
        };
        let mut values = [None; STORED.len()];
        for position in 1..elements {
            let value = cursor.value()?;
            let name = layout.get(position - 1);
            if let Some(index) = name.and_then(|name| index_of(name.as_bytes())) {
                values[index] = Some(value);
            }
        }
        let Item::Text(tag) = tag else {
            return Ok(None);
        };
        Ok(Some(Self { tag, values }))
    }

    fn take_map(cursor: &mut Cursor<'a>, pairs: usize) -> Result<Option<Self>, Broken> {
        let mut tag = None;
        let mut values = [None; STORED.len()];
        for _ in 0..pairs {
            let (key, _) = cursor.element()?;
            let value = cursor.value()?;
            match key {
                Item::Text(b"type") => tag = Some(value),
                Item::Text(name) => {
                    if let Some(index) = index_of(name) {
                        values[index] = Some(value);
                    }
                }
                _ => {}
            }
        }
        let Some(Item::Text(tag)) = tag.map(|tag| Cursor::new(tag).item()).transpose()? else {
            return Ok(None);
        };
        Ok(Some(Self { tag, values }))
    }

    /// The field's first item, and what follows it; none where it is absent or nil.
    pub(crate) fn get(&self, name: &'static str) -> Result<Option<Field<'a>>, EventError> {
        let index = index_of(name.as_bytes());
        let Some(value) = index.and_then(|index| self.values[index]) else {
            return Ok(None);
        };
        let mut rest = Cursor::new(value);
        Ok(match rest.item()? {
            Item::Nil => None,
            item => Some(Field { name, item, rest }),
        })
    }

    pub(crate) fn require(&self, name: &'static str) -> Result<Field<'a>, EventError> {
        self.get(name)?.ok_or(EventError::Missing { field: name })
    }

    pub(crate) fn text(&self, name: &'static str) -> Result<Option<&'a str>, EventError> {
        self.get(name)?.map(|field| field.text()).transpose()
    }

    pub(crate) fn number(&self, name: &'static str) -> Result<Option<u32>, EventError> {
        self.get(name)?.map(|field| field.number()).transpose()
    }
}

fn index_of(name: &[u8]) -> Option<usize> {
    STORED.iter().position(|known| known.as_bytes() == name)
}

/// One item of one field, and what follows it inside the field.
#[derive(Clone, Copy)]
pub(crate) struct Field<'a> {
    pub name: &'static str,
    pub item: Item<'a>,
    pub rest: Cursor<'a>,
}

impl<'a> Field<'a> {
    pub(crate) fn unexpected(&self) -> EventError {
        EventError::Type {
            field: self.name,
            found: self.item.name(),
        }
    }

    pub(crate) fn text(&self) -> Result<&'a str, EventError> {
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

    pub(crate) fn number(&self) -> Result<u32, EventError> {
        let range = EventError::Range { field: self.name };
        match self.item {
            Item::Unsigned(value) => u32::try_from(value).map_err(|_| range),
            Item::Negative(_) => Err(range),
            _ => Err(self.unexpected()),
        }
    }

    pub(crate) fn hash(&self) -> Result<EngineHash, EventError> {
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
    pub(crate) fn elements(
        mut self,
    ) -> Result<impl Iterator<Item = Result<Self, EventError>>, EventError> {
        let Item::Array(count) = self.item else {
            return Err(self.unexpected());
        };
        Ok((0..count).map(move |_| {
            let (item, rest) = self.rest.element()?;
            Ok(Self { item, rest, ..self })
        }))
    }

    pub(crate) fn hashes(self) -> Result<Vec<EngineHash>, EventError> {
        if matches!(self.item, Item::Array(count) if count > MAX_BLOCKS) {
            return Err(EventError::TooLong {
                field: self.name,
                limit: MAX_BLOCKS,
            });
        }
        self.elements()?.map(|element| element?.hash()).collect()
    }
}
