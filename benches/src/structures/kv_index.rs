//! SMG's chain index.

use std::sync::Arc;

use dynamo_kv_router::protocols::OverlapScores;
use kv_index::{ChainBlockMap, ChainIndex, ContentHash, SequenceHash, StoredBlock};

use super::{How, Keep, Mark, Structure, router_event};
use crate::event::{Change, Event, Request};

/// `ChainIndex` of kv-index, told how many targets there are.
pub struct KvIndex {
    index: ChainIndex,
    targets: u32,
}

/// What its lane takes.
pub enum Step {
    /// A change of one target's cache.
    Apply(u32, KvIndexEvent),
    /// A mark.
    Mark(Mark),
}

/// An event as its methods take it.
pub enum KvIndexEvent {
    /// Blocks after a parent.
    Stored(Option<SequenceHash>, Vec<StoredBlock>),
    /// Blocks that are gone.
    Removed(Vec<SequenceHash>),
    /// All are.
    Cleared,
}

/// A reader with its native answer: the depth of each target.
pub struct Reader {
    of: Arc<KvIndex>,
    depths: Vec<u32>,
}

impl Structure for KvIndex {
    const NAME: &'static str = "kv_index";
    type Step = Step;
    type Query = Vec<ContentHash>;
    type Reader = Reader;

    fn new(targets: u32) -> Self {
        let index = ChainIndex::with_max_workers(targets as usize);
        for target in 0..targets {
            let id = index.intern_worker(&target.to_string());
            assert_eq!(id.ok(), Some(target), "it hands ids out densely");
        }
        Self { index, targets }
    }

    fn step(&self, event: &Event) -> Step {
        let own = match &event.change {
            Change::Stored { parent, blocks } => {
                let block = |it: &crate::event::Block| StoredBlock {
                    seq_hash: SequenceHash(it.name),
                    content_hash: ContentHash(it.content),
                };
                KvIndexEvent::Stored(parent.map(SequenceHash), blocks.iter().map(block).collect())
            }
            Change::Removed(names) => {
                KvIndexEvent::Removed(names.iter().copied().map(SequenceHash).collect())
            }
            Change::Cleared => KvIndexEvent::Cleared,
        };
        Step::Apply(event.target, own)
    }

    fn mark(mark: Mark) -> (Step, Keep) {
        (Step::Mark(mark), Box::new(()))
    }

    fn run_lane(&self, steps: flume::Receiver<Step>) {
        let mut maps: Vec<ChainBlockMap> =
            (0..self.targets).map(|_| ChainBlockMap::new()).collect();
        while let Ok(step) = steps.recv() {
            match step {
                Step::Apply(target, event) => {
                    let map = &mut maps[target as usize];
                    match event {
                        KvIndexEvent::Stored(parent, blocks) => self
                            .index
                            .apply_stored(target, &blocks, parent, map)
                            .unwrap_or_else(|why| eprintln!("kv_index: {why}")),
                        KvIndexEvent::Removed(names) => {
                            self.index.apply_removed(target, &names, map);
                        }
                        KvIndexEvent::Cleared => self.index.apply_cleared(target, map),
                    }
                }
                Step::Mark(mark) => mark(),
            }
        }
    }

    fn query(request: &Request) -> Self::Query {
        request.content.iter().copied().map(ContentHash).collect()
    }

    fn read_by(query: &Self::Query, _: How) -> u64 {
        query.iter().fold(0, |all, it| all ^ it.0)
    }

    fn reader(self: &Arc<Self>) -> Reader {
        Reader {
            of: Arc::clone(self),
            depths: vec![0; self.targets as usize],
        }
    }

    fn native(reader: &mut Reader, query: &Self::Query) {
        let depths = &mut reader.depths;
        depths.fill(0);
        reader.of.index.score_into(
            query,
            |content| content.0,
            false,
            |target, depth| depths[target as usize] = depth,
        );
    }

    fn scores(reader: &mut Reader, query: &Self::Query) -> OverlapScores {
        let mut scores = OverlapScores::new();
        reader.of.index.score_into(
            query,
            |content| content.0,
            false,
            |target, depth| {
                scores.scores.insert(router_event::worker(target), depth);
            },
        );
        scores
    }

    fn depths(reader: &mut Reader, targets: u32) -> Vec<u32> {
        reader.depths[..targets as usize].to_vec()
    }
}
