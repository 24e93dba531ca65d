//! Any bytes are a history: what a fuzzer gives, or a generator of random bytes.

use domain::{BlockHash, DpRank, Epoch, Target, Tier};

use super::history::{Named, Step, Stored, namespace, worker};
use super::naive::TIERS;

/// Reads numbers off bytes; 0 when they have ended.
pub(crate) struct Bytes<'a>(pub(crate) &'a [u8]);

impl Bytes<'_> {
    /// Every step that the bytes say, each with a prefix to ask for after it.
    pub(crate) fn history(mut self) -> Vec<(Step, Vec<BlockHash>)> {
        let mut history = Vec::new();
        while let Some(step) = self.step() {
            history.push((step, self.path()));
        }
        history
    }

    fn below(&mut self, end: u8) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        first % end
    }

    fn target(&mut self) -> Target {
        Target {
            worker: worker(u32::from(self.below(2))),
            epoch: Epoch::new(1 + u64::from(self.below(2))),
            dp_rank: DpRank::new(u32::from(self.below(3))),
        }
    }

    fn tier(&mut self) -> Tier {
        TIERS[usize::from(self.below(8).saturating_sub(5))]
    }

    /// A few stretches of blocks.
    fn path(&mut self) -> Vec<BlockHash> {
        let mut path = Vec::new();
        for _ in 0..=self.below(3) {
            let kind = u64::from(self.below(2));
            let len = u64::from(1 + self.below(20));
            path.extend((0..len).map(|it| BlockHash::new(100 * kind + it)));
        }
        path
    }

    fn named(&mut self) -> Named {
        let path = self.path();
        Named {
            target: self.target(),
            group: u32::from(self.below(8) / 7),
            from: usize::from(self.below(60)) % path.len(),
            path,
            alias: u64::from(self.below(8).saturating_sub(5)),
        }
    }

    /// The next step; none when the bytes have ended.
    fn step(&mut self) -> Option<Step> {
        if self.0.is_empty() {
            return None;
        }
        Some(match self.below(16) {
            0..=7 => {
                let named = self.named();
                Step::Store(Stored {
                    target: named.target,
                    group: named.group,
                    from: if self.below(2) == 0 { 0 } else { named.from },
                    path: named.path,
                    alias: named.alias,
                    tier: self.tier(),
                    namespace: namespace(self.below(4) / 3),
                })
            }
            8..=11 => Step::Remove(self.named(), self.tier()),
            12 => Step::Retier(self.named(), self.tier(), self.tier()),
            13 => match self.below(6) {
                0 => Step::Clear(self.target()),
                1 => Step::Reset(self.target()),
                2 => Step::Fence(worker(u32::from(self.below(2))), Epoch::new(2)),
                3 => Step::Sweep(usize::from(self.below(50))),
                _ => Step::Reclaim(usize::from(self.below(50))),
            },
            _ => Step::Reload(self.target()),
        })
    }
}
