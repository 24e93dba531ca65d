//! What requests that are still on their way carry: no rank can have announced it yet.

use std::collections::HashMap;

use domain::{ModelName, SequenceHash};

/// Blocks of all requests on their way that no rank had announced when they were placed: 32 MiB of hashes. What does
/// not fit counts as carried by a request that has ended.
const MAX_BLOCKS: usize = 1 << 20;

/// The blocks that this router's requests on their way carry, and how many of them carry each.
#[derive(Debug, Default)]
pub(crate) struct Carriers {
    models: HashMap<ModelName, HashMap<SequenceHash, u32>>,
    blocks: usize,
}

/// What one request carries, until it is given back.
#[derive(Debug, Default)]
pub(crate) struct Carried {
    model: Option<ModelName>,
    blocks: Vec<SequenceHash>,
}

impl Carriers {
    /// A request that carries these blocks is on its way; none are kept if they do not fit.
    pub(crate) fn carry(&mut self, model: &ModelName, blocks: &[SequenceHash]) -> Carried {
        if blocks.is_empty() || MAX_BLOCKS - self.blocks < blocks.len() {
            return Carried::default();
        }
        self.blocks += blocks.len();
        let of_model = self.models.entry(model.clone()).or_default();
        for block in blocks {
            *of_model.entry(*block).or_default() += 1;
        }
        Carried {
            model: Some(model.clone()),
            blocks: blocks.to_vec(),
        }
    }

    /// The request has ended.
    pub(crate) fn give_back(&mut self, carried: Carried) {
        let Some(model) = carried.model else {
            return;
        };
        self.blocks -= carried.blocks.len();
        let Some(of_model) = self.models.get_mut(&model) else {
            return;
        };
        for block in carried.blocks {
            if let Some(count) = of_model.get_mut(&block) {
                *count -= 1;
                if *count == 0 {
                    of_model.remove(&block);
                }
            }
        }
        if of_model.is_empty() {
            self.models.remove(&model);
        }
    }

    /// Whether a request on its way carries the prefix that ends with this block.
    pub(crate) fn is_carried(&self, model: &ModelName, block: SequenceHash) -> bool {
        let of_model = self.models.get(model);
        of_model.is_some_and(|it| it.contains_key(&block))
    }

    /// How many blocks are kept.
    pub(crate) const fn len(&self) -> usize {
        self.blocks
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn model(name: u8) -> ModelName {
        format!("m{name}").parse().expect("a short plain name")
    }

    proptest! {
        #[test]
        fn what_is_carried_is_what_those_on_their_way_carry_and_nothing_is_left(
            steps in prop::collection::vec((0..2_u8, 0..20_u64, 0..12_u64, any::<prop::sample::Index>(), any::<bool>()), 0..60)
        ) {
            let mut carriers = Carriers::default();
            let mut live: Vec<(u8, Vec<u64>, Carried)> = Vec::new();
            for (name, from, count, which, ends) in steps {
                if ends && !live.is_empty() {
                    let (_, _, carried) = live.swap_remove(which.index(live.len()));
                    carriers.give_back(carried);
                } else {
                    let blocks: Vec<u64> = (from..from + count).collect();
                    let hashes: Vec<_> = blocks.iter().copied().map(SequenceHash::new).collect();
                    let carried = carriers.carry(&model(name), &hashes);
                    live.push((name, blocks, carried));
                }
                for name in 0..2 {
                    for block in 0..32 {
                        let mut carrying = live.iter().filter(|it| it.0 == name);
                        let expected = carrying.any(|it| it.1.contains(&block));
                        let found = carriers.is_carried(&model(name), SequenceHash::new(block));
                        prop_assert_eq!(found, expected);
                    }
                }
            }
            for (_, _, carried) in live {
                carriers.give_back(carried);
            }
            prop_assert_eq!(carriers.len(), 0);
            prop_assert!(carriers.models.is_empty());
        }
    }

    #[test]
    fn what_does_not_fit_is_not_kept() {
        let mut carriers = Carriers::default();
        let hashes: Vec<_> = (0..MAX_BLOCKS as u64).map(SequenceHash::new).collect();
        let all = carriers.carry(&model(0), &hashes);
        let one = SequenceHash::new(u64::MAX);
        let none = carriers.carry(&model(1), &[one]);
        assert!(!carriers.is_carried(&model(1), one));
        carriers.give_back(none);
        assert_eq!(carriers.len(), MAX_BLOCKS);
        carriers.give_back(all);
        let kept = carriers.carry(&model(1), &[one]);
        assert!(carriers.is_carried(&model(1), one));
        carriers.give_back(kept);
        assert_eq!(carriers.len(), 0);
    }
}
