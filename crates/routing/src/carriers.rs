//! What requests that are still on their way carry: no rank can have announced it yet.

use std::collections::HashMap;
use std::sync::Arc;

use domain::{ModelName, SequenceHash};

/// Blocks of all requests on their way that no rank had announced when they were placed: 8 MiB of hashes. What does
/// not fit counts as carried by a request that has ended.
const MAX_BLOCKS: usize = 1 << 20;
/// Every so many blocks of a prompt there is one by which its carriers are found.
const STRIDE: usize = 64;

/// The blocks that this router's requests on their way carry, and which of them carry what.
#[derive(Debug, Default)]
pub(crate) struct Carriers {
    models: HashMap<ModelName, HashMap<SequenceHash, Vec<Part>>>,
    blocks: usize,
}

/// What one request carries: the blocks of its prompt from one place on.
#[derive(Clone, Debug)]
struct Part {
    from: usize,
    blocks: Arc<[SequenceHash]>,
}

/// What one request carries, until it is given back.
#[derive(Debug, Default)]
pub(crate) struct Carried(Option<(ModelName, Part)>);

impl Part {
    /// Blocks by which it is found: its first, and every one whose place in the prompt is a multiple of the stride.
    fn marks(&self) -> impl Iterator<Item = SequenceHash> {
        let aligned = self.from.next_multiple_of(STRIDE) - self.from;
        let first = self.blocks.first().filter(|_| aligned != 0);
        let others = self.blocks.iter().skip(aligned).step_by(STRIDE);
        first.into_iter().chain(others).copied()
    }

    fn has(&self, place: usize, block: SequenceHash) -> bool {
        let own = place.checked_sub(self.from);
        own.and_then(|it| self.blocks.get(it)) == Some(&block)
    }
}

impl Carriers {
    /// A request that carries the blocks of `prompt` from `from` on is on its way; none are kept if they do not fit.
    pub(crate) fn carry(
        &mut self,
        model: &ModelName,
        prompt: &[SequenceHash],
        from: usize,
    ) -> Carried {
        let blocks = prompt.get(from..).unwrap_or_default();
        if blocks.is_empty() || MAX_BLOCKS - self.blocks < blocks.len() {
            return Carried::default();
        }
        self.blocks += blocks.len();
        let part = Part {
            from,
            blocks: blocks.into(),
        };
        let of_model = self.models.entry(model.clone()).or_default();
        for mark in part.marks() {
            of_model.entry(mark).or_default().push(part.clone());
        }
        Carried(Some((model.clone(), part)))
    }

    /// The request has ended.
    pub(crate) fn give_back(&mut self, carried: Carried) {
        let Some((model, part)) = carried.0 else {
            return;
        };
        self.blocks -= part.blocks.len();
        let Some(of_model) = self.models.get_mut(&model) else {
            return;
        };
        for mark in part.marks() {
            let Some(parts) = of_model.get_mut(&mark) else {
                continue;
            };
            let same = |it: &Part| Arc::ptr_eq(&it.blocks, &part.blocks);
            if let Some(at) = parts.iter().position(same) {
                parts.swap_remove(at);
            }
            if parts.is_empty() {
                of_model.remove(&mark);
            }
        }
        if of_model.is_empty() {
            self.models.remove(&model);
        }
    }

    /// Whether a request on its way carries the last of these first blocks of a prompt.
    pub(crate) fn is_carried(&self, model: &ModelName, prompt: &[SequenceHash]) -> bool {
        let (Some(of_model), Some(place)) = (self.models.get(model), prompt.len().checked_sub(1))
        else {
            return false;
        };
        // Whoever carries it has its first block, or one at a multiple of the stride, no further before it than that.
        let near = &prompt[place / STRIDE * STRIDE..];
        let parts = near.iter().filter_map(|it| of_model.get(it)).flatten();
        parts.into_iter().any(|it| it.has(place, prompt[place]))
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

    /// The prompt of a name: it has the first blocks of that of name 0 up to its fork.
    fn prompt(name: u64, blocks: usize) -> Vec<SequenceHash> {
        let fork = (name * 37) as usize;
        let of = |place: usize| if place < fork { 0 } else { name };
        let hash = |place| SequenceHash::new(of(place) * 1_000 + place as u64);
        (0..blocks).map(hash).collect()
    }

    proptest! {
        #[test]
        fn what_is_carried_is_what_those_on_their_way_carry_and_nothing_is_left(
            steps in prop::collection::vec((0..2_u8, 0..5_u64, 0..200_usize, 0..90_usize, any::<prop::sample::Index>(), any::<bool>()), 0..40)
        ) {
            let mut carriers = Carriers::default();
            let mut live: Vec<(u8, Vec<SequenceHash>, Carried)> = Vec::new();
            for (of_model, name, from, count, which, ends) in steps {
                if ends && !live.is_empty() {
                    let (_, _, carried) = live.swap_remove(which.index(live.len()));
                    carriers.give_back(carried);
                } else {
                    let prompt = prompt(name, from + count);
                    let carried = carriers.carry(&model(of_model), &prompt, from);
                    live.push((of_model, prompt[from..].to_vec(), carried));
                }
                for (of_model, name) in [(0, 0), (0, 1), (0, 3), (1, 2), (1, 4)] {
                    let asked = prompt(name, 290);
                    let mut depths = (1..=asked.len()).step_by(7);
                    let differs = depths.find(|depth| {
                        let mut carrying = live.iter().filter(|it| it.0 == of_model);
                        let expected = carrying.any(|it| it.1.contains(&asked[depth - 1]));
                        carriers.is_carried(&model(of_model), &asked[..*depth]) != expected
                    });
                    prop_assert_eq!(differs, None);
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
        let all = carriers.carry(&model(0), &hashes, 0);
        let one = SequenceHash::new(u64::MAX);
        let none = carriers.carry(&model(1), &[one], 0);
        assert!(!carriers.is_carried(&model(1), &[one]));
        carriers.give_back(none);
        assert_eq!(carriers.len(), MAX_BLOCKS);
        carriers.give_back(all);
        let kept = carriers.carry(&model(1), &[one], 0);
        assert!(carriers.is_carried(&model(1), &[one]));
        carriers.give_back(kept);
        assert_eq!(carriers.len(), 0);
    }
}
