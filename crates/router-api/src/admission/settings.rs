//! What is set of admission.

use std::num::NonZeroU32;
use std::time::Duration;

use routing::admission::{Bounds, Limit, Priority};
use serde::de::{self, Deserializer};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};

/// When requests wait in the router, how many of them, and for how long.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct AdmissionConfig {
    /// A rank with so many milliseconds of prefill before it is past its limit, unless its engine says that nothing
    /// waits there; 0 is no limit.
    ///
    /// Generous: what an engine has waiting costs nothing, since routers know of it, and while it has anything it is
    /// busy. Only who goes next cannot be changed there any more.
    pub limit_ms: u64,
    /// A rank with so many requests is past its limit, too; none is no limit.
    pub limit_requests: Option<NonZeroU32>,
    /// Requests that may wait for one model. Two bytes: what one request more costs grows with those that wait.
    ///
    /// The default is a thousand: with bodies of half a megabyte, as long conversations have, they take half of what
    /// bodies may take in memory.
    pub max_waiting: u16,
    /// How long a request may wait, in milliseconds. Shorter than proxies and clients wait for the head of an answer.
    pub max_wait_ms: u32,
}

impl Default for AdmissionConfig {
    fn default() -> Self {
        Self {
            limit_ms: 30_000,
            limit_requests: None,
            max_waiting: 1_000,
            max_wait_ms: 30_000,
        }
    }
}

impl AdmissionConfig {
    pub(super) fn limit(&self) -> Limit {
        Limit {
            work: (0 < self.limit_ms).then(|| Duration::from_millis(self.limit_ms)),
            requests: self.limit_requests.map(NonZeroU32::get),
        }
    }

    pub(super) fn bounds(&self) -> Bounds {
        Bounds {
            max_waiting: self.max_waiting.into(),
            max_wait: Duration::from_millis(self.max_wait_ms.into()),
        }
    }
}

pub(crate) fn priority<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Priority, D::Error> {
    let number = i64::deserialize(deserializer)?;
    let (lowest, highest) = (Priority::LOWEST.get(), Priority::HIGHEST.get());
    let why = || format!("{number} is no priority: they are from {lowest} to {highest}");
    Priority::new(number).ok_or_else(|| de::Error::custom(why()))
}

pub(crate) fn priority_number<S: Serializer>(
    priority: &Priority,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_i8(priority.get())
}
