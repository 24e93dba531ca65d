//! A cursor over msgpack bytes: borrows, never recurses, never allocates.

use rmp::Marker;

/// A position in msgpack bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor<'a> {
    rest: &'a [u8],
}

/// What stands at a position: a whole scalar, or the head of something with elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Item<'a> {
    Nil,
    Bool,
    Unsigned(u64),
    /// Below zero.
    Negative(i64),
    Float(f64),
    /// Not yet checked to be UTF-8.
    Text(&'a [u8]),
    Binary(&'a [u8]),
    /// This many values follow.
    Array(usize),
    /// This many pairs follow.
    Map(usize),
    Extension,
}

/// Why bytes are not msgpack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// They end inside a value, or promise more values than there are bytes.
    #[error("the bytes end inside a value")]
    Truncated,
    /// They hold the one byte that begins no value.
    #[error("the byte 0xc1 begins no value")]
    Reserved,
}

impl Item<'_> {
    /// What it is, for error messages.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Nil => "nil",
            Self::Bool => "a boolean",
            Self::Unsigned(_) | Self::Negative(_) => "an integer",
            Self::Float(_) => "a float",
            Self::Text(_) => "a text",
            Self::Binary(_) => "bytes",
            Self::Array(_) => "an array",
            Self::Map(_) => "a map",
            Self::Extension => "an extension",
        }
    }
}

impl<'a> Cursor<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) const fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    /// Reads a scalar, or the head of an array or map, after which its elements follow. The number of
    /// elements promised is at most the number of bytes left.
    pub(crate) fn item(&mut self) -> Result<Item<'a>, Broken> {
        let [marker] = self.take()?;
        let item = match Marker::from_u8(marker) {
            Marker::FixPos(value) => Item::Unsigned(value.into()),
            Marker::U8 => Item::Unsigned(u8::from_be_bytes(self.take()?).into()),
            Marker::U16 => Item::Unsigned(u16::from_be_bytes(self.take()?).into()),
            Marker::U32 => Item::Unsigned(u32::from_be_bytes(self.take()?).into()),
            Marker::U64 => Item::Unsigned(u64::from_be_bytes(self.take()?)),
            Marker::FixNeg(value) => signed(value.into()),
            Marker::I8 => signed(i8::from_be_bytes(self.take()?).into()),
            Marker::I16 => signed(i16::from_be_bytes(self.take()?).into()),
            Marker::I32 => signed(i32::from_be_bytes(self.take()?).into()),
            Marker::I64 => signed(i64::from_be_bytes(self.take()?)),
            Marker::F32 => Item::Float(f32::from_be_bytes(self.take()?).into()),
            Marker::F64 => Item::Float(f64::from_be_bytes(self.take()?)),
            Marker::Null => Item::Nil,
            Marker::True | Marker::False => Item::Bool,
            Marker::FixStr(length) => Item::Text(self.bytes(length.into())?),
            Marker::Str8 | Marker::Str16 | Marker::Str32 => Item::Text(self.sized(marker, 0xd9)?),
            Marker::Bin8 | Marker::Bin16 | Marker::Bin32 => Item::Binary(self.sized(marker, 0xc4)?),
            Marker::FixArray(length) => Item::Array(self.promised(length.into(), 1)?),
            Marker::Array16 => {
                let length = u16::from_be_bytes(self.take()?);
                Item::Array(self.promised(length.into(), 1)?)
            }
            Marker::Array32 => {
                let length = u32::from_be_bytes(self.take()?);
                Item::Array(self.promised(length, 1)?)
            }
            Marker::FixMap(length) => Item::Map(self.promised(length.into(), 2)?),
            Marker::Map16 => {
                let length = u16::from_be_bytes(self.take()?);
                Item::Map(self.promised(length.into(), 2)?)
            }
            Marker::Map32 => {
                let length = u32::from_be_bytes(self.take()?);
                Item::Map(self.promised(length, 2)?)
            }
            Marker::FixExt1 => self.extension(1)?,
            Marker::FixExt2 => self.extension(2)?,
            Marker::FixExt4 => self.extension(4)?,
            Marker::FixExt8 => self.extension(8)?,
            Marker::FixExt16 => self.extension(16)?,
            Marker::Ext8 | Marker::Ext16 | Marker::Ext32 => {
                let length = self.length(marker, 0xc7)?;
                self.extension(length)?
            }
            Marker::Reserved => return Err(Broken::Reserved),
        };
        Ok(item)
    }

    /// Takes one whole value, elements and all, as bytes.
    pub(crate) fn value(&mut self) -> Result<&'a [u8], Broken> {
        let start = self.rest;
        let mut pending = 1_usize;
        while pending > 0 {
            pending -= 1;
            if self.number().is_some() {
                continue;
            }
            let elements = match self.item()? {
                Item::Array(values) => values,
                Item::Map(pairs) => pairs.saturating_mul(2),
                _ => continue,
            };
            pending = pending.saturating_add(elements);
            if pending > self.rest.len() {
                return Err(Broken::Truncated);
            }
        }
        Ok(&start[..start.len() - self.rest.len()])
    }

    /// Takes a number from 0 to 2^32 - 1 if one stands here: token ids are most of what engines send.
    pub(crate) fn number(&mut self) -> Option<u32> {
        let (number, rest) = match self.rest {
            [byte @ 0x00..=0x7f, rest @ ..] => (u32::from(*byte), rest),
            [0xcc, byte, rest @ ..] => (u32::from(*byte), rest),
            [0xcd, high, low, rest @ ..] => (u16::from_be_bytes([*high, *low]).into(), rest),
            [0xce, a, b, c, d, rest @ ..] => (u32::from_be_bytes([*a, *b, *c, *d]), rest),
            _ => return None,
        };
        self.rest = rest;
        Some(number)
    }

    /// Takes one whole value: its first item, and a cursor over its elements.
    pub(crate) fn element(&mut self) -> Result<(Item<'a>, Self), Broken> {
        let mut whole = *self;
        let item = self.item()?;
        let inside = *self;
        if matches!(item, Item::Array(_) | Item::Map(_)) {
            whole.value()?;
            *self = whole;
        }
        Ok((item, inside))
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Broken> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(Broken::Truncated)?;
        self.rest = rest;
        Ok(*taken)
    }

    fn bytes(&mut self, length: usize) -> Result<&'a [u8], Broken> {
        let (taken, rest) = self
            .rest
            .split_at_checked(length)
            .ok_or(Broken::Truncated)?;
        self.rest = rest;
        Ok(taken)
    }

    /// Bytes behind a length whose width `marker` tells: one byte for `first`, then two, then four.
    fn sized(&mut self, marker: u8, first: u8) -> Result<&'a [u8], Broken> {
        let length = self.length(marker, first)?;
        self.bytes(length)
    }

    fn length(&mut self, marker: u8, first: u8) -> Result<usize, Broken> {
        let length = match marker - first {
            0 => u8::from_be_bytes(self.take()?).into(),
            1 => u16::from_be_bytes(self.take()?).into(),
            _ => u32::from_be_bytes(self.take()?),
        };
        Ok(length as usize)
    }

    fn promised(&self, elements: u32, bytes_each: usize) -> Result<usize, Broken> {
        let elements = elements as usize;
        if elements.saturating_mul(bytes_each) > self.rest.len() {
            return Err(Broken::Truncated);
        }
        Ok(elements)
    }

    fn extension(&mut self, length: usize) -> Result<Item<'a>, Broken> {
        let [_kind] = self.take()?;
        self.bytes(length)?;
        Ok(Item::Extension)
    }
}

fn signed(value: i64) -> Item<'static> {
    u64::try_from(value).map_or(Item::Negative(value), Item::Unsigned)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Broken, Cursor};

    proptest! {
        #[test]
        fn values_end_where_an_independent_reader_ends_them(
            bytes in proptest::collection::vec(prop_oneof![any::<u8>(), 0x80..0xe0_u8], 0..48),
        ) {
            let mut ours = Cursor::new(&bytes);
            let mut theirs = &bytes[..];
            let read = rmpv::decode::read_value_ref(&mut theirs);
            match ours.value() {
                Ok(value) => {
                    prop_assert!(read.is_ok());
                    prop_assert_eq!(value.len(), bytes.len() - theirs.len());
                    prop_assert_eq!(ours.rest, theirs);
                }
                // The independent reader takes the reserved byte for nil.
                Err(Broken::Reserved) => {}
                Err(Broken::Truncated) => prop_assert!(read.is_err() || bytes.contains(&0xc1)),
            }
        }
    }
}
