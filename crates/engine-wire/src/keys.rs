//! By what a server is known that says something in a way nobody can read: the keys of its answer, whatever their
//! values.

use std::collections::BTreeMap;

use serde::de::IgnoredAny;

/// Whether `body` is a JSON object with any of `keys`.
pub(crate) fn has_any(body: &[u8], keys: &[&str]) -> bool {
    let object = serde_json::from_slice::<BTreeMap<String, IgnoredAny>>(body);
    object.is_ok_and(|object| keys.iter().any(|key| object.contains_key(*key)))
}
