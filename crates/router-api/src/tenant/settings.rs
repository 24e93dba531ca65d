//! What is set of tenants. Keys are hashed as they are read, and nothing shows them.

use std::collections::BTreeSet;
use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

use domain::TenantId;
use ring::digest;
use routing::admission::Priority;
use serde::de::{self, Deserializer};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};

use super::MAX_KEYS;

/// What stands for a secret that is set.
const HIDDEN: &str = "***";
/// Begins a key of which only the hash is given.
const HASHED: &str = "sha256:";
/// The shortest secret, in bytes: less can be guessed.
const MIN_SECRET_BYTES: usize = 16;

/// A tenant and the keys that name it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TenantConfig {
    /// Its name, as bindings and metrics say it.
    #[serde(
        deserialize_with = "crate::config::tenant",
        serialize_with = "crate::config::tenant_name"
    )]
    pub name: TenantId,
    /// Its API keys, at least one.
    pub keys: Vec<ApiKey>,
    /// Whether its requests are refused while the affinity store is silent, rather than placed without it.
    #[serde(default)]
    pub fail_closed: bool,
    /// Its share against the other tenants' where requests wait in a router, in tokens to compute.
    #[serde(default = "one")]
    pub weight: NonZeroU32,
    /// The highest priority that its requests may have; what asks for more counts as that. By default that of requests
    /// which ask for none: it may put its own requests back, but not before those of other tenants.
    #[serde(
        default,
        deserialize_with = "crate::admission::priority",
        serialize_with = "crate::admission::priority_number"
    )]
    pub highest_priority: Priority,
}

const fn one() -> NonZeroU32 {
    NonZeroU32::MIN
}

impl TenantConfig {
    /// One that has no keys yet, and the defaults of everything else.
    pub const fn new(name: TenantId) -> Self {
        Self {
            name,
            keys: Vec::new(),
            fail_closed: false,
            weight: one(),
            highest_priority: Priority::NORMAL,
        }
    }
}

/// An API key, as its SHA-256. Written as it is, or as `sha256:` and 64 hexadecimal digits.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ApiKey([u8; digest::SHA256_OUTPUT_LEN]);

/// What salts are made under, equal for all routers of a deployment; never shown.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct SaltSecret(String);

/// A text that is no API key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidKey {
    /// It cannot stand in a header.
    #[error("a key is one word of printable ASCII characters")]
    Word,
    /// It begins as a hash does.
    #[error("sha256: is followed by 64 hexadecimal digits, the SHA-256 of the key")]
    Hash,
}

/// Tenants that cannot be told apart, or not be kept apart. None of its texts contains a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTenants {
    /// Two have one name.
    #[error("router.tenants: {0} is there twice: give it all its keys at one place")]
    Twice(TenantId),
    /// One can never be told.
    #[error("router.tenants: {0} has no keys: give it one, or leave it out")]
    NoKeys(TenantId),
    /// Two have one key.
    #[error("router.tenants: {0} and {1} have a key in common")]
    SharedKey(TenantId, TenantId),
    /// There are too many.
    #[error("router.tenants: there are more than {MAX_KEYS} keys")]
    TooMany,
    /// The secret can be guessed.
    #[error("router.salt_secret: use at least {MIN_SECRET_BYTES} bytes")]
    ShortSecret,
    /// There is no secret.
    #[error(
        "set router.salt_secret (RANKWAY_ROUTER__SALT_SECRET), equal for all routers: tenants' caches are kept apart \
         under it"
    )]
    NoSecret,
}

/// Refuses tenants that cannot be told apart, and a secret that can be guessed.
pub(crate) fn check(
    tenants: &[TenantConfig],
    secret: Option<&SaltSecret>,
) -> Result<(), InvalidTenants> {
    let mut names = BTreeSet::new();
    let mut keys = std::collections::BTreeMap::new();
    for tenant in tenants {
        let name = &tenant.name;
        if !names.insert(name) {
            return Err(InvalidTenants::Twice(name.clone()));
        }
        if tenant.keys.is_empty() {
            return Err(InvalidTenants::NoKeys(name.clone()));
        }
        for key in &tenant.keys {
            if let Some(other) = keys.insert(key, name).filter(|it| *it != name) {
                return Err(InvalidTenants::SharedKey(other.clone(), name.clone()));
            }
        }
    }
    if MAX_KEYS < keys.len() {
        return Err(InvalidTenants::TooMany);
    }
    match secret {
        Some(secret) if secret.0.len() < MIN_SECRET_BYTES => Err(InvalidTenants::ShortSecret),
        Some(_) | None => Ok(()),
    }
}

impl ApiKey {
    pub(crate) const fn digest(&self) -> [u8; digest::SHA256_OUTPUT_LEN] {
        self.0
    }
}

impl FromStr for ApiKey {
    type Err = InvalidKey;

    fn from_str(text: &str) -> Result<Self, InvalidKey> {
        if let Some(digits) = text.strip_prefix(HASHED) {
            return hash(digits).map(Self).ok_or(InvalidKey::Hash);
        }
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(InvalidKey::Word);
        }
        let hash = digest::digest(&digest::SHA256, text.as_bytes());
        let hash = hash.as_ref().try_into();
        Ok(Self(hash.expect("a SHA-256 has as many bytes")))
    }
}

fn hash(digits: &str) -> Option<[u8; digest::SHA256_OUTPUT_LEN]> {
    let mut hash = [0; digest::SHA256_OUTPUT_LEN];
    if digits.len() != 2 * hash.len() || !digits.bytes().all(|it| it.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, pair) in hash.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(hash)
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

impl Serialize for ApiKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(HIDDEN)
    }
}

impl<'de> Deserialize<'de> for ApiKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

impl SaltSecret {
    /// Hides `text`.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SaltSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

impl Serialize for SaltSecret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(HIDDEN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str, keys: &[&str]) -> TenantConfig {
        TenantConfig {
            keys: keys.iter().map(|it| it.parse().unwrap()).collect(),
            ..TenantConfig::new(name.parse().unwrap())
        }
    }

    #[test]
    fn tenants_that_cannot_be_told_apart_are_refused() {
        let check = |tenants: &[TenantConfig]| super::check(tenants, None).err();
        let [a, b]: [TenantId; 2] = ["a", "b"].map(|it| it.parse().unwrap());
        assert_eq!(
            check(&[tenant("a", &["1", "1"]), tenant("b", &["2"])]),
            None
        );
        let twice = check(&[tenant("a", &["1"]), tenant("a", &["2"])]);
        assert_eq!(twice, Some(InvalidTenants::Twice(a.clone())));
        let none = check(&[tenant("a", &[])]);
        assert_eq!(none, Some(InvalidTenants::NoKeys(a.clone())));
        let hash = digest::digest(&digest::SHA256, b"1");
        let hash: String = hash.as_ref().iter().map(|it| format!("{it:02X}")).collect();
        let shared = check(&[
            tenant("a", &["1"]),
            tenant("b", &[&format!("sha256:{hash}")]),
        ]);
        assert_eq!(shared, Some(InvalidTenants::SharedKey(a, b)));
        let short = super::check(&[], Some(&SaltSecret::new("0123456789abcde")));
        assert_eq!(short, Err(InvalidTenants::ShortSecret));
        let many: Vec<String> = (0..=MAX_KEYS).map(|it| it.to_string()).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(check(&[tenant("a", &many)]), Some(InvalidTenants::TooMany));
    }

    #[test]
    fn a_text_that_no_header_carries_is_no_key() {
        for text in ["", "two words", "tab\t", "n\u{e4}h"] {
            assert_eq!(text.parse::<ApiKey>(), Err(InvalidKey::Word), "{text}");
        }
        let short = format!("sha256:{}", "0".repeat(63));
        let wrong = format!("sha256:{}", "+0".repeat(32));
        for text in ["sha256:", &short, &wrong] {
            assert_eq!(text.parse::<ApiKey>(), Err(InvalidKey::Hash), "{text}");
        }
    }

    #[test]
    fn what_is_shown_of_tenants_has_no_key_and_no_secret() {
        let tenant = tenant("a", &["a-key-of-a"]);
        let secret = SaltSecret::new("0123456789abcdef");
        let shown = serde_json::to_string(&(&tenant, &secret)).unwrap();
        let shown = format!("{shown} {tenant:?} {secret:?}");
        assert!(
            !shown.contains("a-key") && !shown.contains("0123"),
            "{shown}"
        );
        assert_eq!(shown.matches(HIDDEN).count(), 4, "{shown}");
    }
}
