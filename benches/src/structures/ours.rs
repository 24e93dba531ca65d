//! Rankway's prefix index.

use std::num::NonZeroU32;
use std::sync::{Arc, PoisonError, RwLock};

use domain::{
    BlockHash, BlockSize, DpRank, EngineHash, Epoch, KvOp, ModelName, Namespace, OverlapGroup,
    SequenceHash, StoredBlock, StoredBlocks, Target, Tier, WorkerId,
};
use dynamo_kv_router::protocols::OverlapScores;
use prefix_index::PrefixIndex;

use super::{Keep, Mark, RANKS, Structure, router_event};
use crate::event::{Change, Event, Request};

/// Departed blocks remembered, as many as a deployment does by default.
const DEPARTED: usize = 1 << 20;

/// The prefix index as the indexer runs it.
pub struct Ours {
    index: RwLock<PrefixIndex>,
    targets: Vec<Target>,
    namespace: Namespace,
}

/// What its lane takes.
pub enum Step {
    /// A change of one target's cache.
    Apply(u32, KvOp),
    /// A mark.
    Mark(Mark),
}

/// A request under both kinds of hashes.
pub struct Query {
    sequence: Vec<SequenceHash>,
}

/// A reader with its last answer.
pub struct Reader {
    of: Arc<Ours>,
    groups: Vec<OverlapGroup>,
}

impl Structure for Ours {
    const NAME: &'static str = "ours";
    type Step = Step;
    type Query = Query;
    type Reader = Reader;

    fn new(targets: u32) -> Self {
        let target = |number: u32| Target {
            worker: WorkerId::new(&format!("w{:04}", number / RANKS)).expect("a plain id"),
            epoch: Epoch::new(1),
            dp_rank: DpRank::new(number % RANKS),
        };
        Self {
            index: RwLock::new(PrefixIndex::new(DEPARTED)),
            targets: (0..targets).map(target).collect(),
            namespace: Namespace {
                model: ModelName::new("model").expect("a plain name"),
                lora: None,
                salt: None,
                block_size: BlockSize::new(NonZeroU32::MIN.get() * 16).expect("not zero"),
            },
        }
    }

    fn step(&self, event: &Event) -> Step {
        let op = match &event.change {
            Change::Stored { parent, blocks } => KvOp::Stored(StoredBlocks {
                group: 0,
                parent: parent.map(EngineHash::Int),
                blocks: blocks
                    .iter()
                    .map(|it| StoredBlock {
                        engine_hash: EngineHash::Int(it.name),
                        block_hash: BlockHash::new(it.content),
                    })
                    .collect(),
                tier: Tier::Gpu,
                namespace: self.namespace.clone(),
                session: None,
            }),
            Change::Removed(names) => KvOp::Removed {
                group: 0,
                engine_hashes: names.iter().copied().map(EngineHash::Int).collect(),
                tier: Tier::Gpu,
            },
            Change::Cleared => KvOp::Cleared,
        };
        Step::Apply(event.target, op)
    }

    fn mark(mark: Mark) -> (Step, Keep) {
        (Step::Mark(mark), Box::new(()))
    }

    fn run_lane(&self, steps: flume::Receiver<Step>) {
        while let Ok(step) = steps.recv() {
            match step {
                Step::Apply(target, op) => {
                    let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
                    let applied = index.apply(&self.targets[target as usize], &op);
                    applied.expect("no target is fenced");
                }
                Step::Mark(mark) => mark(),
            }
        }
    }

    fn query(request: &Request) -> Query {
        Query {
            sequence: request.sequence.clone(),
        }
    }

    fn reader(self: &Arc<Self>) -> Reader {
        Reader {
            of: Arc::clone(self),
            groups: Vec::new(),
        }
    }

    fn native(reader: &mut Reader, query: &Query) {
        let of = &reader.of;
        let index = of.index.read().unwrap_or_else(PoisonError::into_inner);
        reader.groups = index.overlap(&of.namespace, &query.sequence).groups;
    }

    fn scores(reader: &mut Reader, query: &Query) -> OverlapScores {
        Self::native(reader, query);
        let mut scores = OverlapScores::new();
        for group in &reader.groups {
            for target in &group.targets {
                let number = number_of(target);
                scores
                    .scores
                    .insert(router_event::worker(number), group.depths.gpu);
            }
        }
        scores
    }

    fn depth(reader: &Reader, target: u32) -> u32 {
        let wanted = &reader.of.targets[target as usize];
        let group = |it: &&OverlapGroup| it.targets.contains(wanted);
        reader
            .groups
            .iter()
            .find(group)
            .map_or(0, |it| it.depths.gpu)
    }
}

/// The dense number of `target`.
fn number_of(target: &Target) -> u32 {
    let digits = target.worker.as_str().trim_start_matches('w');
    let worker: u32 = digits.parse().expect("as it was named");
    worker * RANKS + target.dp_rank.get()
}
