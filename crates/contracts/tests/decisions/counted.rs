//! What engines say of a rank, and what a router counts by itself, drawn.

use domain::Timestamp;
use placement::{Gauge, Stuck, Tally};
use proptest::prelude::*;

use super::{target, tokens};

/// A gauge with numbers as long as they get.
pub(crate) const FULL: Gauge = Gauge {
    running: 1_000,
    waiting: 1_000,
    kv_used: 0.1 + 0.2,
};

prop_compose! {
    pub(crate) fn gauge(number: BoxedStrategy<f64>)(counts: [u32; 2], kv_used in number) -> Gauge {
        let [running, waiting] = counts;
        Gauge { running, waiting, kv_used }
    }
}

prop_compose! {
    pub(crate) fn tally(number: BoxedStrategy<f64>)(
        counts: [u32; 3],
        assigned in number,
        cold_at in prop::option::of(any::<u64>().prop_map(Timestamp::from_micros)),
    ) -> Tally {
        let [conversations, active_blocks, joined_blocks] = counts;
        Tally { conversations, active_blocks, joined_blocks, assigned, cold_at }
    }
}

prop_compose! {
    pub(crate) fn stuck()(target in target(), turns: u32, isl in tokens()) -> Stuck {
        Stuck { target, turns, isl }
    }
}
