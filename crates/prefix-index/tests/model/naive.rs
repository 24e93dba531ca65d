//! The naive model: for each target, full prefixes by the engine's names, and nothing clever.

use std::collections::{BTreeMap, BTreeSet};

use domain::{
    BlockHash, Depths, EngineHash, Epoch, KvOp, Namespace, OverlapGroup, StoredBlocks, Target,
    Tier, WorkerId, sequence_hashes,
};
use prefix_index::{Applied, Claims, RankSummary};
use xxhash_rust::xxh3::xxh3_64;

pub(crate) const TIERS: [Tier; 3] = [Tier::Gpu, Tier::Host, Tier::Disk];

/// A namespace and every block from the first.
type Prefix = (Namespace, Vec<BlockHash>);

#[derive(Default)]
pub(crate) struct Model {
    pub(crate) ranks: BTreeMap<Target, Rank>,
    fences: BTreeMap<WorkerId, Epoch>,
    ever: BTreeSet<Prefix>,
    carried: BTreeSet<Prefix>,
}

pub(crate) struct Rank {
    names: BTreeMap<(u32, EngineHash), (Prefix, BTreeMap<Tier, u32>)>,
    pub(crate) claims: Claims,
}

/// A name of bytes is the same as the integer that is its xxh3-64.
fn name(group: u32, engine_hash: &EngineHash) -> (u32, EngineHash) {
    let number = match engine_hash {
        EngineHash::Int(number) => *number,
        EngineHash::Bytes(bytes) => xxh3_64(bytes),
    };
    (group, EngineHash::Int(number))
}

impl Model {
    /// None if fenced.
    pub(crate) fn apply(&mut self, target: &Target, op: &KvOp) -> Option<Applied> {
        if self
            .fences
            .get(&target.worker)
            .is_some_and(|it| target.epoch < *it)
        {
            return None;
        }
        let rank = self.ranks.entry(target.clone()).or_insert(Rank {
            names: BTreeMap::new(),
            claims: Claims::Complete,
        });
        let mut applied = Applied::default();
        match op {
            KvOp::Stored(stored) => rank.store(stored, &mut applied, &mut self.ever),
            KvOp::Removed {
                group,
                engine_hashes,
                tier,
            } => {
                for engine_hash in engine_hashes {
                    match rank.take(name(*group, engine_hash), *tier) {
                        Some(_) => applied.removed += 1,
                        None => applied.unknown += 1,
                    }
                }
            }
            KvOp::Retiered {
                group,
                engine_hashes,
                from,
                to,
            } => {
                for engine_hash in engine_hashes {
                    let name = name(*group, engine_hash);
                    match rank.take(name.clone(), *from) {
                        Some(prefix) => {
                            let entry = rank.names.entry(name).or_insert((prefix, BTreeMap::new()));
                            *entry.1.entry(*to).or_default() += 1;
                            applied.retiered += 1;
                        }
                        None => applied.unknown += 1,
                    }
                }
            }
            KvOp::Cleared => {
                rank.names.clear();
                rank.claims = Claims::Complete;
            }
            KvOp::Reset { .. } => {
                rank.names.clear();
                rank.claims = Claims::Partial { announced: 0 };
            }
        }
        Some(applied)
    }

    pub(crate) fn fence(&mut self, worker: &WorkerId, epoch: Epoch) {
        let fence = self.fences.entry(worker.clone()).or_insert(epoch);
        *fence = (*fence).max(epoch);
        let fence = *fence;
        self.ranks
            .retain(|target, _| target.worker != *worker || fence <= target.epoch);
    }

    pub(crate) fn record(&mut self, namespace: &Namespace, blocks: &[BlockHash]) {
        for depth in 1..=blocks.len() {
            self.carried
                .insert((namespace.clone(), blocks[..depth].to_vec()));
        }
    }

    pub(crate) fn carried(&self, namespace: &Namespace, blocks: &[BlockHash]) -> u32 {
        run(blocks, |prefix| {
            self.carried.contains(&(namespace.clone(), prefix.to_vec()))
        })
    }

    pub(crate) fn stored(&self, namespace: &Namespace, blocks: &[BlockHash]) -> u32 {
        run(blocks, |prefix| {
            self.ever.contains(&(namespace.clone(), prefix.to_vec()))
        })
    }

    pub(crate) fn groups(&self, namespace: &Namespace, blocks: &[BlockHash]) -> Vec<OverlapGroup> {
        let mut groups: BTreeMap<Depths, Vec<Target>> = BTreeMap::new();
        for (target, rank) in &self.ranks {
            let through = |tier| {
                let held = rank.prefixes(tier);
                run(blocks, |prefix| {
                    held.contains(&(namespace.clone(), prefix.to_vec()))
                })
            };
            let depths = Depths {
                gpu: through(Tier::Gpu),
                host: through(Tier::Host),
                disk: through(Tier::Disk),
            };
            if 0 < depths.disk {
                groups.entry(depths).or_default().push(target.clone());
            }
        }
        let deepest_first = groups.into_iter().rev();
        deepest_first
            .map(|(depths, targets)| OverlapGroup { targets, depths })
            .collect()
    }

    pub(crate) fn summaries(&self) -> Vec<RankSummary> {
        let summary = |(target, rank): (&Target, &Rank)| {
            let held = rank.prefixes(Tier::Disk);
            let digest = |(_, blocks): &Prefix| {
                let sequence = *sequence_hashes(blocks).last().unwrap();
                sequence.digest_term()
            };
            RankSummary {
                target: target.clone(),
                blocks: held.len() as u64,
                digest: held.iter().map(digest).fold(0, u64::wrapping_add),
                claims: rank.claims,
            }
        };
        self.ranks.iter().map(summary).collect()
    }
}

impl Rank {
    fn store(&mut self, stored: &StoredBlocks, applied: &mut Applied, ever: &mut BTreeSet<Prefix>) {
        let mut blocks = Vec::new();
        if let Some(parent) = &stored.parent {
            match self.names.get(&name(stored.group, parent)) {
                Some(((namespace, prefix), _)) if *namespace == stored.namespace => {
                    blocks.clone_from(prefix);
                }
                _ => {
                    applied.orphans += stored.blocks.len() as u64;
                    self.claims = Claims::Partial { announced: 0 };
                    return;
                }
            }
        }
        for block in &stored.blocks {
            blocks.push(block.block_hash);
            let prefix = (stored.namespace.clone(), blocks.clone());
            ever.insert(prefix.clone());
            let had = self.in_tier(stored.tier).contains(&prefix);
            applied.duplicates += u64::from(had);
            applied.stored += u64::from(!had);
            let entry = self
                .names
                .entry(name(stored.group, &block.engine_hash))
                .or_insert_with(|| (prefix.clone(), BTreeMap::new()));
            if entry.0 != prefix {
                applied.renamed += 1;
                *entry = (prefix, BTreeMap::new());
            }
            *entry.1.entry(stored.tier).or_default() += 1;
        }
        if let (Claims::Partial { announced }, Tier::Gpu) = (&mut self.claims, stored.tier) {
            *announced += stored.blocks.len() as u64;
        }
    }

    fn take(&mut self, name: (u32, EngineHash), tier: Tier) -> Option<Prefix> {
        let (prefix, copies) = self.names.get_mut(&name)?;
        let count = copies.get_mut(&tier)?;
        *count -= 1;
        if *count == 0 {
            copies.remove(&tier);
        }
        let prefix = prefix.clone();
        if copies.is_empty() {
            self.names.remove(&name);
        }
        Some(prefix)
    }

    fn in_tier(&self, tier: Tier) -> BTreeSet<Prefix> {
        let held = self
            .names
            .values()
            .filter(|(_, copies)| copies.contains_key(&tier));
        held.map(|(prefix, _)| prefix.clone()).collect()
    }

    /// What it holds in any tier up to `last`.
    fn prefixes(&self, last: Tier) -> BTreeSet<Prefix> {
        let tiers = TIERS.into_iter().filter(|tier| *tier <= last);
        tiers.flat_map(|tier| self.in_tier(tier)).collect()
    }
}

fn run(blocks: &[BlockHash], held: impl Fn(&[BlockHash]) -> bool) -> u32 {
    let depth = (1..=blocks.len())
        .take_while(|depth| held(&blocks[..*depth]))
        .count();
    depth as u32
}
