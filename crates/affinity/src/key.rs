//! The key a binding is kept under: an id says nothing to who reads the table's keys without the secret.

use std::fmt;
use std::str::FromStr;

use xxhash_rust::xxh3::{xxh3_128_with_secret, xxh3_128_with_seed};

use crate::ConversationKey;

/// The shortest secret, in bytes: less can be guessed.
const MIN_SECRET_BYTES: usize = 16;
/// Bytes of xxh3's own secret; it takes at least 136.
const EXPANDED_BYTES: usize = 192;
const DIGEST_BYTES: usize = 16;

/// The secret of a deployment's binding keys, equal for all of its processes.
#[derive(Clone)]
pub struct BindingSecret([u8; EXPANDED_BYTES]);

/// A secret that can be guessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a secret of {bytes} bytes is too short: use at least {MIN_SECRET_BYTES}")]
pub struct SecretTooShort {
    bytes: usize,
}

impl BindingSecret {
    /// Expands `secret`: digest i of the result is its xxh3-128 with seed i, little endian. Refuses fewer
    /// than 16 bytes.
    pub fn new(secret: &[u8]) -> Result<Self, SecretTooShort> {
        if secret.len() < MIN_SECRET_BYTES {
            return Err(SecretTooShort {
                bytes: secret.len(),
            });
        }
        let mut expanded = [0; EXPANDED_BYTES];
        for (seed, digest) in (0..).zip(expanded.chunks_exact_mut(DIGEST_BYTES)) {
            digest.copy_from_slice(&xxh3_128_with_seed(secret, seed).to_le_bytes());
        }
        Ok(Self(expanded))
    }
}

impl fmt::Debug for BindingSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BindingSecret(..)")
    }
}

/// Names one binding: xxh3-128, under the secret, of tenant, model and conversation, each led by its length
/// in bytes as a little-endian u32.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BindingKey([u8; DIGEST_BYTES]);

impl BindingKey {
    /// The key of one conversation.
    pub fn of(key: &ConversationKey, secret: &BindingSecret) -> Self {
        let parts = [
            key.tenant.as_str(),
            key.model.as_str(),
            key.conversation.as_str(),
        ];
        let mut framed = Vec::with_capacity(parts.iter().map(|part| 4 + part.len()).sum());
        for part in parts {
            // An id is at most 256 bytes long.
            framed.extend_from_slice(&(part.len() as u32).to_le_bytes());
            framed.extend_from_slice(part.as_bytes());
        }
        Self(xxh3_128_with_secret(&framed, &secret.0).to_be_bytes())
    }

    /// Reads a key of the table; none when it is not 16 bytes.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// As the table has it: big endian.
    pub const fn to_bytes(self) -> [u8; DIGEST_BYTES] {
        self.0
    }
}

impl fmt::Display for BindingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for BindingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text that is no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a binding's key is 32 hexadecimal digits")]
pub struct InvalidKey;

impl FromStr for BindingKey {
    type Err = InvalidKey;

    fn from_str(text: &str) -> Result<Self, InvalidKey> {
        let digits =
            text.len() == 2 * DIGEST_BYTES && text.bytes().all(|it| it.is_ascii_hexdigit());
        let key = u128::from_str_radix(text, 16).ok().filter(|_| digits);
        key.map(|it| Self(it.to_be_bytes())).ok_or(InvalidKey)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(tenant: &str, model: &str, conversation: &str) -> ConversationKey {
        ConversationKey {
            tenant: tenant.parse().unwrap(),
            model: model.parse().unwrap(),
            conversation: conversation.parse().unwrap(),
        }
    }

    fn secret(text: &str) -> BindingSecret {
        BindingSecret::new(text.as_bytes()).unwrap()
    }

    #[test]
    fn a_key_is_the_same_in_every_release() {
        let key = BindingKey::of(&key("acme", "llama", "c-1"), &secret("0123456789abcdef"));
        assert_eq!(format!("{key:?}"), "16f52f980c0a5008e1e2a3677d803caa");
        assert_eq!(BindingKey::from_bytes(&key.to_bytes()), Some(key));
        assert_eq!(key.to_string().parse(), Ok(key));
        for text in ["", "16f5", "+6f52f980c0a5008e1e2a3677d803caa"] {
            assert_eq!(text.parse::<BindingKey>(), Err(InvalidKey));
        }
        assert_eq!(BindingKey::from_bytes(b"short"), None);
    }

    #[test]
    fn ids_cannot_be_shifted_across_their_borders() {
        let secret = secret("0123456789abcdef");
        let keys = [
            key("ab", "c", "d"),
            key("a", "bc", "d"),
            key("a", "b", "cd"),
            key("b", "a", "cd"),
        ];
        let hashes = keys.map(|key| BindingKey::of(&key, &secret));
        for (index, hash) in hashes.iter().enumerate() {
            assert!(!hashes[..index].contains(hash));
        }
    }

    #[test]
    fn another_secret_gives_other_keys_and_a_short_one_is_refused() {
        let key = key("a", "b", "c");
        assert_ne!(
            BindingKey::of(&key, &secret("0123456789abcdef")),
            BindingKey::of(&key, &secret("0123456789abcdeF"))
        );
        assert!(BindingSecret::new(b"0123456789abcde").is_err());
        assert!(!format!("{:?}", secret("0123456789abcdef")).contains('0'));
    }
}
