//! What the process that keeps the bindings is told and answers, one JSON object a line.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What it is told.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Tell {
    /// A turn of each of these conversations; answered by [`Turns`].
    Turns(Span),
    /// First turns from this conversation on, until it is killed; every even one to its end, every odd one until it
    /// is bound. Answered by the conversations' numbers, each once it is bound.
    TurnsUntilKilled(u64),
    /// Looks where these conversations are bound; answered by [`Found`].
    Find(Vec<u64>),
}

/// Conversations by their numbers, the last one excluded.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) struct Span {
    pub(super) from: u64,
    pub(super) to: u64,
}

/// What came of the turns of a span.
#[derive(Serialize, Deserialize)]
pub(super) struct Turns {
    pub(super) acquire_us: Quantiles,
    pub(super) seconds: f64,
    /// Calls that were answered by an error.
    pub(super) errors: u64,
    /// Memory of the process that is resident, in bytes.
    pub(super) resident: u64,
    /// Bindings that have made room for others since the process began.
    pub(super) displaced: u64,
}

/// Where conversations are bound.
#[derive(Serialize, Deserialize)]
pub(super) struct Found {
    /// Those that are bound nowhere.
    pub(super) lost: Vec<u64>,
    /// How many are bound elsewhere than they were.
    pub(super) moved: u64,
    pub(super) errors: u64,
}

/// Of how long something took, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Quantiles {
    pub(super) p50: u32,
    pub(super) p99: u32,
}

impl Quantiles {
    /// Those of some times, at least one.
    pub(super) fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let at = |share: usize| {
            let rank = (times.len() * share).div_ceil(100).max(1);
            u32::try_from(times[rank - 1].as_micros()).unwrap_or(u32::MAX)
        };
        Self {
            p50: at(50),
            p99: at(99),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_the_smallest_times_that_so_many_do_not_exceed() {
        let times = |range: std::ops::RangeInclusive<u64>| range.map(Duration::from_micros).rev();
        let of = |range| Quantiles::of(times(range).collect());
        assert_eq!(of(1..=1), Quantiles { p50: 1, p99: 1 });
        assert_eq!(of(1..=4), Quantiles { p50: 2, p99: 4 });
        assert_eq!(of(1..=1_000), Quantiles { p50: 500, p99: 990 });
    }
}
