//! The blocks of the requests that each target serves, each once: what Dynamo counts as decode load.

use std::collections::HashMap;

use domain::{DecisionId, SequenceHash, Target};

/// Blocks of all requests on their way, some 30 bytes each. Requests beyond are not counted.
const MAX_BLOCKS: usize = 1 << 22;

/// How many requests carry each block, by target.
#[derive(Debug, Default)]
pub(crate) struct ActiveBlocks {
    targets: HashMap<Target, HashMap<SequenceHash, u32>>,
    requests: HashMap<DecisionId, (Target, Vec<SequenceHash>)>,
    blocks: usize,
}

impl ActiveBlocks {
    /// The blocks active at a target, and how many leading ones of a request are among them.
    pub(crate) fn at(&self, target: &Target, hashes: &[SequenceHash]) -> (u32, u32) {
        let Some(active) = self.targets.get(target) else {
            return (0, 0);
        };
        // Whoever carries a block carries all before it.
        let joined = hashes.partition_point(|it| active.contains_key(it));
        let count = |it: usize| u32::try_from(it).unwrap_or(u32::MAX);
        (count(active.len()), count(joined))
    }

    /// A request is served at `target`.
    pub(crate) fn begin(&mut self, id: DecisionId, target: &Target, hashes: &[SequenceHash]) {
        self.end(id);
        if MAX_BLOCKS - self.blocks < hashes.len() {
            return;
        }
        self.blocks += hashes.len();
        let active = self.targets.entry(target.clone()).or_default();
        for hash in hashes {
            *active.entry(*hash).or_default() += 1;
        }
        self.requests.insert(id, (target.clone(), hashes.to_vec()));
    }

    /// A request has ended.
    pub(crate) fn end(&mut self, id: DecisionId) {
        let Some((target, hashes)) = self.requests.remove(&id) else {
            return;
        };
        self.blocks -= hashes.len();
        let Some(active) = self.targets.get_mut(&target) else {
            return;
        };
        for hash in hashes {
            if let Some(count) = active.get_mut(&hash) {
                *count -= 1;
                if *count == 0 {
                    active.remove(&hash);
                }
            }
        }
        if active.is_empty() {
            self.targets.remove(&target);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// A request's hashes: all begin alike, and part at some block for good.
    fn hashes(prefix: u64, parts_at: u64, length: u64) -> Vec<SequenceHash> {
        let own = 1_000 * (10 * prefix + parts_at + 1);
        let block = |it: u64| if it < parts_at { it } else { it + own };
        (0..length).map(|it| SequenceHash::new(block(it))).collect()
    }

    proptest! {
        #[test]
        fn what_is_active_is_the_union_of_what_is_served(
            steps in prop::collection::vec((0..6_u128, 0..2_u64, 1..4_u64, 0..6_u64, 0..9_u64, any::<bool>()), 0..40)
        ) {
            let target = |rank: u64| format!("w1#1/{rank}").parse::<Target>().expect("a target");
            let mut blocks = ActiveBlocks::default();
            let mut naive: HashMap<u128, (u64, Vec<SequenceHash>)> = HashMap::new();
            for (id, rank, prefix, parts_at, length, ends) in steps {
                if ends {
                    blocks.end(DecisionId::new(id));
                    naive.remove(&id);
                } else {
                    let hashes = hashes(prefix, parts_at, length);
                    blocks.begin(DecisionId::new(id), &target(rank), &hashes);
                    naive.insert(id, (rank, hashes));
                }
                let asked = hashes(1, 3, 8);
                for rank in 0..2 {
                    let served = naive.values().filter(|it| it.0 == rank);
                    let union: BTreeSet<SequenceHash> = served.flat_map(|it| it.1.clone()).collect();
                    let joined = asked.iter().take_while(|it| union.contains(it)).count();
                    let (active, found) = blocks.at(&target(rank), &asked);
                    prop_assert_eq!(active as usize, union.len());
                    prop_assert_eq!(found as usize, joined);
                }
            }
            for id in 0..6 {
                blocks.end(DecisionId::new(id));
            }
            prop_assert_eq!(blocks.blocks, 0);
            prop_assert!(blocks.targets.is_empty() && blocks.requests.is_empty());
        }
    }
}
