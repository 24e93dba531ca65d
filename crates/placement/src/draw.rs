//! Numbers drawn from a recorded seed, and the pseudo-random order that routers agree on without talking.

use domain::Target;

/// A generator: SplitMix64 (Steele, Lea and Flood 2014). Enough for drawing candidates, not for secrets.
pub(crate) struct Draw(u64);

impl Draw {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Any number.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `bound`, which is above zero. The bias of the multiplication is below 2^-32 for any
    /// number of candidates.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        assert!(bound > 0, "a draw needs something to draw from");
        let scaled = (u128::from(self.next()) * bound as u128) >> 64;
        usize::try_from(scaled).expect("below a usize")
    }

    /// A number from 0 up to, but not, 1.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Two different numbers below `bound`, or the only one twice.
    pub(crate) fn two_below(&mut self, bound: usize) -> (usize, usize) {
        let first = self.below(bound);
        if bound == 1 {
            return (first, first);
        }
        let second = self.below(bound - 1);
        (first, if second < first { second } else { second + 1 })
    }
}

const fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// The weight of `target` for `key` in rendezvous hashing: the candidate with the highest weight wins, and
/// the loss of one moves only its own keys. The epoch does not count: a restart keeps the order.
pub(crate) fn rendezvous(key: u64, target: &Target) -> u64 {
    let bytes = target.worker.as_str().bytes();
    let worker = bytes.fold(key, |hash, byte| mix(hash ^ u64::from(byte)));
    mix(worker.wrapping_add(u64::from(target.dp_rank.get()) << 8 | 0xff))
}
