//! Rankway's prefix index.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use domain::{
    BlockHash, BlockSize, DpRank, EngineHash, Epoch, KvOp, ModelName, Namespace, SequenceHash,
    StoredBlock, StoredBlocks, Target, Tier, WorkerId,
};
use dynamo_kv_router::protocols::OverlapScores;
use prefix_index::{Answer, NamespaceKey, PrefixIndex};

use super::{How, Keep, Mark, RANKS, Structure, router_event};
use crate::event::{Change, Event, Request};

/// Blocks remembered after nobody holds them any more, so that ceilings can be told.
const DEPARTED: usize = 1 << 20;

/// The prefix index as the indexer runs it.
pub struct Ours {
    /// Taken by the lane while it runs.
    writer: Mutex<Option<PrefixIndex>>,
    reader: prefix_index::Reader,
    targets: Vec<Target>,
    namespace: Namespace,
    /// How often a target was emptied, after which slots may mean other targets.
    cleared: AtomicU64,
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
    blocks: Vec<BlockHash>,
    sequence: Vec<SequenceHash>,
}

/// A reader with its last answer.
pub struct Reader {
    of: Arc<Ours>,
    reader: prefix_index::Reader,
    namespace: NamespaceKey,
    answer: Answer,
    /// The target of each slot, as far as it was asked for.
    targets: Vec<Option<u32>>,
    /// The state of [`Ours::cleared`] that they are of.
    cleared: u64,
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
        let index = PrefixIndex::new(DEPARTED);
        Self {
            reader: index.reader(),
            writer: Mutex::new(Some(index)),
            cleared: AtomicU64::new(0),
            targets: (0..targets).map(target).collect(),
            namespace: Namespace {
                model: ModelName::new("model").expect("a plain name"),
                lora: None,
                salt: None,
                block_size: BlockSize::new(16).expect("not zero"),
            },
        }
    }

    fn step(&self, event: &Event) -> Step {
        Step::Apply(event.target, self.op(event))
    }

    fn mark(mark: Mark) -> (Step, Keep) {
        (Step::Mark(mark), Box::new(()))
    }

    fn run_lane(&self, steps: flume::Receiver<Step>) {
        let writer = || self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let mut index = writer().take().expect("a structure has one lane");
        while let Ok(step) = steps.recv() {
            match step {
                Step::Apply(target, op) => {
                    let applied = index.apply(&self.targets[target as usize], &op);
                    applied.expect("no target is fenced");
                    if matches!(op, KvOp::Cleared) {
                        self.cleared.fetch_add(1, Ordering::Release);
                    }
                }
                Step::Mark(mark) => mark(),
            }
        }
        *writer() = Some(index);
    }

    fn query(request: &Request) -> Query {
        Query {
            blocks: request
                .content
                .iter()
                .copied()
                .map(BlockHash::new)
                .collect(),
            sequence: request.sequence.clone(),
        }
    }

    fn read_by(query: &Query, how: How) -> u64 {
        match how {
            How::BySequence => query.sequence.iter().fold(0, |all, it| all ^ it.get()),
            How::Native | How::Scores => query.blocks.iter().fold(0, |all, it| all ^ it.get()),
        }
    }

    fn reader(self: &Arc<Self>) -> Reader {
        let reader = self.reader.clone();
        Reader {
            of: Arc::clone(self),
            namespace: reader.key(&self.namespace),
            reader,
            answer: Answer::new(),
            targets: Vec::new(),
            cleared: 0,
        }
    }

    fn native(it: &mut Reader, query: &Query) {
        it.reader
            .lookup(it.namespace, query.blocks.as_slice(), &mut it.answer);
    }

    fn by_sequence(it: &mut Reader, query: &Query) {
        it.reader
            .lookup(it.namespace, query.sequence.as_slice(), &mut it.answer);
    }

    fn scores(it: &mut Reader, query: &Query) -> OverlapScores {
        Self::native(it, query);
        let mut scores = OverlapScores::new();
        let held = it.answer.groups().flat_map(|(_, bits)| bits);
        scores
            .scores
            .reserve(held.map(|it| it.count_ones() as usize).sum());
        it.refresh();
        for (depths, bits) in it.answer.groups() {
            for slot in slots(bits) {
                let target = target_of(&it.of, &it.reader, &it.answer, &mut it.targets, slot);
                scores
                    .scores
                    .insert(router_event::worker(target), depths.gpu);
            }
        }
        scores
    }

    fn depths(it: &mut Reader, targets: u32) -> Vec<u32> {
        let mut held = vec![0; targets as usize];
        it.refresh();
        for (depths, bits) in it.answer.groups() {
            for slot in slots(bits) {
                let target = target_of(&it.of, &it.reader, &it.answer, &mut it.targets, slot);
                held[target as usize] = depths.gpu;
            }
        }
        held
    }
}

impl Ours {
    /// `event` as the log carries it.
    pub fn op(&self, event: &Event) -> KvOp {
        match &event.change {
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
        }
    }
}

impl Reader {
    /// Forgets which slots mean which targets where that may have changed.
    fn refresh(&mut self) {
        let cleared = self.of.cleared.load(Ordering::Acquire);
        if self.cleared != cleared {
            self.cleared = cleared;
            self.targets.clear();
        }
    }
}

/// The slots of a set.
fn slots(bits: &[u64]) -> impl Iterator<Item = u32> {
    bits.iter().zip(0_u32..).flat_map(|(word, at)| {
        let mut left = *word;
        std::iter::from_fn(move || {
            let bit = left.trailing_zeros();
            left &= left.wrapping_sub(1);
            (bit < 64).then_some(64 * at + bit)
        })
    })
}

/// The dense number of the target that `slot` of `answer` means.
fn target_of(
    of: &Ours,
    reader: &prefix_index::Reader,
    answer: &Answer,
    known: &mut Vec<Option<u32>>,
    slot: u32,
) -> u32 {
    let slot_at = slot as usize;
    if let Some(Some(target)) = known.get(slot_at) {
        return *target;
    }
    let target = reader.target_of(answer, slot).expect("no target goes away");
    let number = number_of(&target);
    assert_eq!(of.targets[number as usize], target);
    known.resize(known.len().max(slot_at + 1), None);
    known[slot_at] = Some(number);
    number
}

/// The dense number of `target`.
fn number_of(target: &Target) -> u32 {
    let digits = target.worker.as_str().trim_start_matches('w');
    let worker: u32 = digits.parse().expect("as it was named");
    worker * RANKS + target.dp_rank.get()
}
