//! Who holds how much of a request's prefix.

use crate::{Target, Tier};

/// Leading blocks a target holds, cumulative by tier: `gpu` counts the leading run that is all in GPU
/// memory, `host` the run in GPU or host memory, `disk` the run in any tier. `gpu <= host <= disk`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Depths {
    /// Leading blocks in GPU memory.
    pub gpu: u32,
    /// Leading blocks in GPU or host memory.
    pub host: u32,
    /// Leading blocks in any tier.
    pub disk: u32,
}

impl Depths {
    /// The leading run reachable through tiers up to `tier`, in blocks.
    pub const fn through(self, tier: Tier) -> u32 {
        match tier {
            Tier::Gpu => self.gpu,
            Tier::Host => self.host,
            Tier::Disk => self.disk,
        }
    }
}

/// The targets that hold exactly this much.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverlapGroup {
    /// In ascending order.
    pub targets: Vec<Target>,
    /// What each of them holds.
    pub depths: Depths,
}
