//! Identifiers, each its own type.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The longest text id, in bytes.
const MAX_ID_BYTES: usize = 256;
/// The longest worker id, in bytes.
const MAX_WORKER_ID_BYTES: usize = 128;

/// Why a text is not an id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidId {
    /// It has no characters.
    #[error("an id cannot be empty")]
    Empty,
    /// It has too many bytes.
    #[error("an id of {bytes} bytes is longer than {limit}")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// The longest allowed.
        limit: usize,
    },
    /// It holds a character outside the id's alphabet.
    #[error("an id cannot contain {0:?}")]
    Character(char),
    /// It is not the hexadecimal form of a decision id.
    #[error("a decision id is 32 hexadecimal digits")]
    NotHexadecimal,
}

fn checked(text: &str, limit: usize, allowed: fn(char) -> bool) -> Result<Arc<str>, InvalidId> {
    if text.is_empty() {
        return Err(InvalidId::Empty);
    }
    if text.len() > limit {
        return Err(InvalidId::TooLong {
            bytes: text.len(),
            limit,
        });
    }
    match text.chars().find(|character| !allowed(*character)) {
        Some(character) => Err(InvalidId::Character(character)),
        None => Ok(Arc::from(text)),
    }
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $limit:expr, $allowed:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks length and alphabet.
            pub fn new(text: &str) -> Result<Self, InvalidId> {
                checked(text, $limit, $allowed).map(Self)
            }

            /// Its text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;

            fn from_str(text: &str) -> Result<Self, InvalidId> {
                Self::new(text)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

fn in_worker_id(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '.' | '_' | ':' | '-')
}

fn printable(character: char) -> bool {
    !character.is_control()
}

text_id!(
    /// One engine instance: a configured name, else `host:port`. At most 128 bytes of `[A-Za-z0-9._:-]`.
    WorkerId, MAX_WORKER_ID_BYTES, in_worker_id
);
text_id!(
    /// One running service process. At most 128 bytes of `[A-Za-z0-9._:-]`.
    InstanceId, MAX_WORKER_ID_BYTES, in_worker_id
);
text_id!(
    /// The name by which clients ask for a model. At most 256 printable bytes.
    ModelName, MAX_ID_BYTES, printable
);
text_id!(
    /// Whose request it is. At most 256 printable bytes.
    TenantId, MAX_ID_BYTES, printable
);
text_id!(
    /// The unit of affinity: one growing dialogue. At most 256 printable bytes.
    ConversationId, MAX_ID_BYTES, printable
);

/// The incarnation of a worker: a restart under the same id has a higher one and fences the lower.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Epoch(u64);

impl Epoch {
    /// The first incarnation.
    pub const FIRST: Self = Self(1);

    /// Wraps a number read from the wire.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Its number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The incarnation after this one. Saturates.
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An engine's global attention data-parallel rank, as its events say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DpRank(u32);

impl DpRank {
    /// Wraps a rank number.
    pub const fn new(rank: u32) -> Self {
        Self(rank)
    }

    /// Its number.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for DpRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The number a publisher gave one batch of one rank's events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventSeq(u64);

impl EventSeq {
    /// Wraps a sequence number.
    pub const fn new(seq: u64) -> Self {
        Self(seq)
    }

    /// Its number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The one that follows. Saturates.
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for EventSeq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One routing decision. Its text form is 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DecisionId(u128);

impl DecisionId {
    /// Wraps a number, unique by whoever made it.
    pub const fn new(number: u128) -> Self {
        Self(number)
    }

    /// Its number.
    pub const fn get(self) -> u128 {
        self.0
    }
}

impl fmt::Display for DecisionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for DecisionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for DecisionId {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(InvalidId::NotHexadecimal);
        }
        u128::from_str_radix(text, 16)
            .map(Self)
            .map_err(|_| InvalidId::NotHexadecimal)
    }
}
