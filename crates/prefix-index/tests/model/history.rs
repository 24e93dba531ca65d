//! Histories of events, applied to the index and to the model, and compared after every step.

use std::collections::BTreeMap;

use domain::{
    BlockHash, BlockSize, Depths, EngineHash, Epoch, KvOp, ModelName, Namespace, OverlapGroup,
    ResetReason, SequenceHash, StoredBlock, StoredBlocks, Target, Tier, WorkerId, sequence_hashes,
};
use prefix_index::{Carried, Overlap, PrefixIndex, Size, Sparse, Window};

use super::naive::{Model, TIERS};

const ENOUGH: usize = 1 << 20;

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Store(Stored),
    Remove(Named, Tier),
    Retier(Named, Tier, Tier),
    Clear(Target),
    Reset(Target),
    Fence(WorkerId, Epoch),
    /// Takes the target out and puts it back from its snapshot.
    Reload(Target),
    Record(Namespace, Vec<BlockHash>),
    Sweep(usize),
    /// Leaves so many of the blocks that nobody holds where they are.
    Reclaim(usize),
}

/// The blocks of `path` beyond `from`, whose parent is the block before.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) target: Target,
    pub(crate) group: u32,
    pub(crate) path: Vec<BlockHash>,
    pub(crate) from: usize,
    pub(crate) alias: u64,
    pub(crate) tier: Tier,
    pub(crate) namespace: Namespace,
}

/// The blocks of `path` from `from` on.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    pub(crate) target: Target,
    pub(crate) group: u32,
    pub(crate) path: Vec<BlockHash>,
    pub(crate) from: usize,
    pub(crate) alias: u64,
}

pub(crate) fn worker(number: u32) -> WorkerId {
    WorkerId::new(&format!("w{number}")).unwrap()
}

pub(crate) fn namespace(number: u8) -> Namespace {
    Namespace {
        model: ModelName::new("m").unwrap(),
        lora: None,
        salt: (number != 0).then(|| "s".into()),
        block_size: BlockSize::new(16).unwrap(),
    }
}

/// The engine's name for a path: mostly one a path; with alias 1 a second one, and with alias 2 one that
/// many paths share. Odd ones are bytes.
fn engine_hash(path: &[BlockHash], alias: u64) -> EngineHash {
    let own = sequence_hashes(path).last().unwrap().get();
    match alias {
        0 => EngineHash::Int(own),
        1 => EngineHash::Bytes(own.to_le_bytes().as_slice().into()),
        _ => EngineHash::Int(path.len() as u64),
    }
}

impl Named {
    fn engine_hashes(&self) -> Vec<EngineHash> {
        let depths = self.from + 1..=self.path.len();
        depths
            .map(|depth| engine_hash(&self.path[..depth], self.alias))
            .collect()
    }
}

impl Stored {
    fn op(&self) -> KvOp {
        let block = |depth: usize| StoredBlock {
            engine_hash: engine_hash(&self.path[..depth], self.alias),
            block_hash: self.path[depth - 1],
        };
        KvOp::Stored(StoredBlocks {
            group: self.group,
            parent: (0 < self.from).then(|| engine_hash(&self.path[..self.from], self.alias)),
            blocks: (self.from + 1..=self.path.len()).map(block).collect(),
            tier: self.tier,
            namespace: self.namespace.clone(),
            session: None,
        })
    }
}

/// The real thing beside the model.
struct Both {
    index: PrefixIndex,
    carried: Carried,
    model: Model,
}

impl Both {
    fn apply(&mut self, target: &Target, op: &KvOp) {
        let applied = self.index.apply(target, op).ok();
        assert_eq!(applied, self.model.apply(target, op), "{target} {op:?}");
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Store(stored) => self.apply(&stored.target.clone(), &stored.op()),
            Step::Remove(named, tier) => {
                let op = KvOp::Removed {
                    group: named.group,
                    engine_hashes: named.engine_hashes(),
                    tier,
                };
                self.apply(&named.target, &op);
            }
            Step::Retier(named, from, to) => {
                let op = KvOp::Retiered {
                    group: named.group,
                    engine_hashes: named.engine_hashes(),
                    from,
                    to,
                };
                self.apply(&named.target, &op);
            }
            Step::Clear(target) => self.apply(&target, &KvOp::Cleared),
            Step::Reset(target) => {
                let reason = ResetReason::ReplayGone;
                self.apply(&target, &KvOp::Reset { reason });
            }
            Step::Fence(worker, epoch) => {
                self.index.fence(&worker, epoch);
                self.model.fence(&worker, epoch);
            }
            Step::Reload(target) => {
                if let Some(snapshot) = self.index.snapshot(&target) {
                    self.index.forget(&target);
                    self.index.restore(&target, &snapshot).unwrap();
                }
            }
            Step::Record(namespace, path) => {
                self.carried.record(&namespace, &sequence_hashes(&path));
                self.model.record(&namespace, &path);
            }
            Step::Sweep(budget) => {
                self.index.sweep(budget);
            }
            Step::Reclaim(ghosts) => {
                self.index.reclaim(ghosts);
                assert!(self.index.memory().ghosts <= ghosts);
            }
        }
    }

    fn compare(&self, path: &[BlockHash]) {
        let hashes = sequence_hashes(path);
        for namespace in [namespace(0), namespace(1)] {
            let overlap = self.index.overlap(&namespace, &hashes);
            assert_eq!(overlap.groups, self.model.groups(&namespace, path));
            assert_eq!(overlap.stored, self.model.stored(&namespace, path));
            self.compare_forms(&namespace, path, &hashes, &overlap);
            let carried = self.carried.depth(&namespace, &hashes);
            assert_eq!(carried, self.model.carried(&namespace, path));
        }
    }
}

impl Both {
    /// Other ways to ask the same.
    fn compare_forms(
        &self,
        namespace: &Namespace,
        path: &[BlockHash],
        hashes: &[SequenceHash],
        overlap: &Overlap,
    ) {
        let reader = self.index.reader();
        assert_eq!(reader.overlap(namespace, path), *overlap);
        for every in [16, 32] {
            let places = (every..=hashes.len()).step_by(every);
            let last = (!hashes.len().is_multiple_of(every)).then_some(hashes.len());
            let given: Vec<SequenceHash> = places.chain(last).map(|it| hashes[it - 1]).collect();
            let sparse = Sparse::new(every as u32, hashes.len() as u32, &given).unwrap();
            let answer = reader.overlap(namespace, sparse);
            let best_of = |groups: &[OverlapGroup]| groups.iter().map(|it| it.depths.disk).max();
            let deepest = best_of(&answer.groups).unwrap_or(0);
            let best = best_of(&overlap.groups).unwrap_or(0);
            assert!(best / every as u32 * every as u32 <= deepest && deepest <= best);
            assert_eq!(answer.groups, cut(&overlap.groups, deepest));
            if deepest != 0 && deepest.is_multiple_of(every as u32) {
                let (before, after) = hashes.split_at(deepest as usize);
                let after = &after[..after.len().min(every)];
                let window = Window::new(deepest, *before.last().unwrap(), after).unwrap();
                assert_eq!(reader.overlap(namespace, window).groups, overlap.groups);
            }
        }
    }
}

/// `groups` as far as `depth`.
fn cut(groups: &[OverlapGroup], depth: u32) -> Vec<OverlapGroup> {
    let mut cut: BTreeMap<Depths, Vec<Target>> = BTreeMap::new();
    for OverlapGroup { targets, depths } in groups {
        let depths = Depths {
            gpu: depths.gpu.min(depth),
            host: depths.host.min(depth),
            disk: depths.disk.min(depth),
        };
        if 0 < depths.disk {
            cut.entry(depths)
                .or_default()
                .extend(targets.iter().cloned());
        }
    }
    let deepest_first = cut.into_iter().rev();
    deepest_first
        .map(|(depths, mut targets)| {
            targets.sort();
            OverlapGroup { targets, depths }
        })
        .collect()
}

pub(crate) fn check(steps: &[(Step, Vec<BlockHash>)]) {
    let mut both = Both {
        index: PrefixIndex::new(ENOUGH),
        carried: Carried::new(ENOUGH),
        model: Model::default(),
    };
    for (step, path) in steps {
        both.step(step.clone());
        both.compare(path);
    }
    let summaries: Vec<_> = both.index.ranks().collect();
    assert_eq!(summaries, both.model.summaries());

    let targets: Vec<Target> = both.model.ranks.keys().cloned().collect();
    for (number, target) in targets.iter().enumerate() {
        match number % 2 {
            0 => both.apply(target, &KvOp::Cleared),
            _ => remove_one_by_one(&mut both, target),
        }
        let left = both.index.rank(target).unwrap();
        assert_eq!((left.blocks, left.digest), (0, 0));
    }
    while both.index.sweep(1000) {}
    let nothing_but_targets = Size {
        targets: targets.len(),
        ..Size::default()
    };
    assert_eq!(both.index.size(), nothing_but_targets);
    both.index.reclaim(0);
    let memory = both.index.memory();
    assert_eq!((memory.names, memory.odd_names), (0, 0));
    // The set of slots in use.
    assert!(memory.used <= 64, "{memory:?}");
}

fn remove_one_by_one(both: &mut Both, target: &Target) {
    for held in both.index.snapshot(target).unwrap().blocks {
        let copies = [held.copies.gpu, held.copies.host, held.copies.disk];
        for (tier, copies) in TIERS.into_iter().zip(copies) {
            let op = KvOp::Removed {
                group: held.group,
                engine_hashes: vec![held.engine_hash.clone(); copies as usize],
                tier,
            };
            both.apply(target, &op);
        }
    }
}
