//! Seeded numbers: the same seed makes the same streams on every machine.

/// The finaliser of splitmix64: spreads `value` over all 64 bits.
pub fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A splitmix64 generator.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The generator of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(mix(seed))
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `bound`, which is not zero.
    pub fn below(&mut self, bound: usize) -> usize {
        assert!(0 < bound, "no number is below zero");
        (self.number() % bound as u64) as usize
    }

    /// Whether a case that comes up in `percent` of all draws came up.
    pub fn percent(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}
