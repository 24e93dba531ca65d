//! Policies that others have published, as they describe them.

mod blind;

pub(crate) use blind::{power_of_two, random, round_robin, target_round_robin};
