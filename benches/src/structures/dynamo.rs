//! Dynamo's structures: the compressed radix tree that its router runs, and the index by position of its blog.

use std::sync::Arc;

use dynamo_kv_router::indexer::WorkerTask;
use dynamo_kv_router::indexer::positional::SearchMode;
use dynamo_kv_router::protocols::{LocalBlockHash, OverlapScores};
use dynamo_kv_router::{ConcurrentRadixTreeCompressed, PositionalIndexer, SyncIndexer};

use super::{How, Keep, Mark, Structure, router_event};
use crate::event::{Event, Request};

/// The jump that Dynamo's own benchmark takes by default.
const JUMP: usize = 8;

/// `ConcurrentRadixTreeCompressed` of dynamo-kv-router.
pub type Crtc = Dynamo<ConcurrentRadixTreeCompressed>;

/// `PositionalIndexer` of dynamo-kv-router, striding by 8.
pub type Positional = Dynamo<PositionalIndexer>;

/// One of Dynamo's structures.
pub struct Dynamo<I>(I);

/// How one is made.
pub trait Make: SyncIndexer {
    /// What it is called in rows and tables.
    const NAME: &'static str;
    /// An empty one.
    fn make() -> Self;
}

impl Make for ConcurrentRadixTreeCompressed {
    const NAME: &'static str = "crtc";

    fn make() -> Self {
        Self::new()
    }
}

impl Make for PositionalIndexer {
    const NAME: &'static str = "positional";

    fn make() -> Self {
        Self::new_with_mode(JUMP, SearchMode::Strided)
    }
}

impl<I: Make> Structure for Dynamo<I> {
    const NAME: &'static str = I::NAME;
    type Step = WorkerTask;
    type Query = Vec<LocalBlockHash>;
    type Reader = (Arc<Self>, OverlapScores);

    fn new(_targets: u32) -> Self {
        Self(I::make())
    }

    fn step(&self, event: &Event) -> WorkerTask {
        router_event::task(event)
    }

    fn mark(mark: Mark) -> (WorkerTask, Keep) {
        router_event::flush(mark)
    }

    fn run_lane(&self, steps: flume::Receiver<WorkerTask>) {
        let ran = self.0.worker(steps, None);
        ran.expect("its loop ends when the channel does");
    }

    fn query(request: &Request) -> Self::Query {
        router_event::query(request)
    }

    fn read_by(query: &Self::Query, _: How) -> u64 {
        query.iter().fold(0, |all, it| all ^ it.0)
    }

    fn reader(self: &Arc<Self>) -> Self::Reader {
        (Arc::clone(self), OverlapScores::new())
    }

    fn native(reader: &mut Self::Reader, query: &Self::Query) {
        reader.1 = reader.0.0.find_matches(query, false);
    }

    fn scores(reader: &mut Self::Reader, query: &Self::Query) -> OverlapScores {
        reader.0.0.find_matches(query, false)
    }

    fn depths(reader: &mut Self::Reader, targets: u32) -> Vec<u32> {
        super::depths(&reader.1, targets)
    }
}
