//! What things are called on NATS: subjects, streams, and keys as the last token of a subject.
//!
//! The partition 3 of the topic `kv-events` is the subject `rankway.kv-events.v1.3` and, where it is durable, the
//! stream `rankway_kv-events_v1_3`; the table `bindings` is the stream `rankway_bindings_v1`, and each of its keys
//! the subject `rankway.bindings.v1.<key>`.

use bus::{Key, Partition, Table};
use bytes::Bytes;

/// Begins a byte that is written as two hexadecimal digits.
const ESCAPE: u8 = b'=';

/// The names under one prefix.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    prefix: String,
}

impl Names {
    /// Names that begin with `prefix`, if that is a word that NATS takes in subjects and streams.
    pub(crate) fn new(prefix: &str) -> Option<Self> {
        let plain = !prefix.is_empty() && prefix.bytes().all(is_plain);
        plain.then(|| Self {
            prefix: prefix.to_owned(),
        })
    }

    /// The subject of a partition.
    pub(crate) fn subject(&self, at: &Partition) -> String {
        format!("{}.{}.v1.{}", self.prefix, at.topic, at.index)
    }

    /// The stream of a durable partition.
    pub(crate) fn stream(&self, at: &Partition) -> String {
        format!("{}_{}_v1_{}", self.prefix, at.topic, at.index)
    }

    /// The stream of a table.
    pub(crate) fn table(&self, table: &Table) -> String {
        format!("{}_{}_v1", self.prefix, table.0)
    }

    /// The subject of a key, or with `*` that of all.
    pub(crate) fn of_table(&self, table: &Table, key: &str) -> String {
        format!("{}.{}.v1.{key}", self.prefix, table.0)
    }

    /// A subject to which nobody listens.
    pub(crate) fn nobody(&self) -> String {
        format!("{}.nobody", self.prefix)
    }
}

/// A key as one token. Letters, digits, `-` and `_` stand for themselves.
pub(crate) fn token(key: &Key) -> String {
    let mut token = String::with_capacity(key.0.len() + 2);
    for &byte in &key.0 {
        if is_plain(byte) {
            token.push(char::from(byte));
        } else {
            token.push_str(&format!("{}{byte:02X}", char::from(ESCAPE)));
        }
    }
    if token.is_empty() {
        // A token has at least one byte.
        token.push(char::from(ESCAPE));
    }
    token
}

/// The key of a subject that ends in a [`token`], or nothing where somebody else wrote it.
pub(crate) fn key(subject: &str) -> Option<Key> {
    let token = subject.rsplit('.').next()?.as_bytes();
    if token == [ESCAPE] {
        return Some(Key(Bytes::new()));
    }
    let mut key = Vec::with_capacity(token.len());
    let mut rest = token;
    while let Some((&byte, later)) = rest.split_first() {
        rest = later;
        if byte == ESCAPE {
            let (digits, later) = rest.split_at_checked(2)?;
            let digits = std::str::from_utf8(digits).ok()?;
            key.push(u8::from_str_radix(digits, 16).ok()?);
            rest = later;
        } else {
            key.push(byte);
        }
    }
    Some(Key(key.into()))
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_one_token_and_comes_back() {
        let all: Vec<u8> = (0..=255).collect();
        let keys: [&[u8]; 6] = [b"", b"=", b"w1", b"127.0.0.1:8000/3", b".*> \r\n\0", &all];
        for bytes in keys {
            let original = Key(Bytes::copy_from_slice(bytes));
            let token = token(&original);
            assert!(!token.is_empty() && !token.contains(['.', '*', '>', ' ', '\r', '\n', '\0']));
            assert_eq!(key(&format!("rankway.t.v1.{token}")), Some(original));
        }
    }

    #[test]
    fn a_subject_that_somebody_else_wrote_is_no_key() {
        for token in ["=4", "=zz", "a=", "=é1"] {
            assert_eq!(key(&format!("rankway.t.v1.{token}")), None, "{token}");
        }
    }

    #[test]
    fn a_prefix_that_nats_would_take_apart_is_refused() {
        for prefix in ["", "a.b", "a b", "*", ">"] {
            assert!(Names::new(prefix).is_none(), "{prefix:?}");
        }
        assert!(Names::new("rankway").is_some());
    }
}
