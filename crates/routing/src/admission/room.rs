//! When a target is past its limit, and what is left below it.

use std::time::Duration;

/// What a target may have before it, for another request to go there at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// So long a prefill; none is no limit.
    pub work: Option<Duration>,
    /// So many requests; none is no limit.
    pub requests: Option<u32>,
}

impl Limit {
    /// Whether it limits anything.
    pub const fn is_some(&self) -> bool {
        self.work.is_some() || self.requests.is_some()
    }

    /// What is left at a target that computes `rate` tokens per second and has `tokens` to compute, with so many
    /// requests; nothing where it is at either limit.
    pub(crate) fn left(&self, rate: f64, tokens: f64, requests: u32) -> Room {
        let room = Room {
            tokens: self
                .work
                .map_or(f64::INFINITY, |it| it.as_secs_f64() * rate - tokens),
            requests: self
                .requests
                .map_or(u32::MAX, |it| it.saturating_sub(requests)),
        };
        match room.is_some() {
            true => room,
            false => Room::NONE,
        }
    }
}

/// What targets may still be given.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Room {
    /// Tokens to compute. A request that finds any goes, however long it is: no target would be given one that is
    /// longer than the limit otherwise.
    pub tokens: f64,
    /// Requests.
    pub requests: u32,
}

impl Room {
    /// None at all.
    pub const NONE: Self = Self {
        tokens: 0.0,
        requests: 0,
    };
    /// No end of it.
    pub const ALL: Self = Self {
        tokens: f64::INFINITY,
        requests: u32::MAX,
    };

    /// Whether there is room for another request.
    pub const fn is_some(self) -> bool {
        0.0 < self.tokens && 0 < self.requests
    }

    /// That of two targets together.
    #[must_use]
    pub(crate) const fn and(self, other: Self) -> Self {
        Self {
            tokens: self.tokens + other.tokens,
            requests: self.requests.saturating_add(other.requests),
        }
    }

    /// What is left of it after requests that have to compute so many tokens.
    #[must_use]
    pub(crate) fn after(self, tokens: f64, requests: usize) -> Self {
        let requests = u32::try_from(requests).unwrap_or(u32::MAX);
        Self {
            tokens: self.tokens - tokens,
            requests: self.requests.saturating_sub(requests),
        }
    }
}
