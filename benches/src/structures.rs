//! The structures under comparison, behind one face: what a lane of events does, and what a reader asks.
//!
//! Each gets its own owned form of an event and of a request, made before the clock starts; letting go of an
//! event is part of applying it. All of them read events from the same kind of channel, because the peer's
//! loop that does so cannot be bypassed.

mod dynamo;
mod kv_index;
mod lane;
mod ours;
mod router_event;

use std::any::Any;
use std::sync::Arc;

use dynamo_kv_router::protocols::OverlapScores;

pub use dynamo::{Crtc, Positional};
pub use kv_index::KvIndex;
pub use lane::{Lane, Queue};
pub use ours::Ours;

use crate::event::{Event, Request};

/// What a lane calls when it comes to a mark in its queue, on its own thread.
pub type Mark = Box<dyn FnOnce() + Send>;

/// How a request is put and answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// By block hashes, answered in the structure's own compact form.
    Native,
    /// By sequence hashes where the structure can, answered likewise.
    BySequence,
    /// By block hashes, answered as Dynamo's hash map.
    Scores,
}

/// Something that keeps a mark alive until the lane has come to it.
pub type Keep = Box<dyn Any + Send>;

/// A structure that answers which target holds how many leading blocks of a request.
pub trait Structure: Send + Sync + Sized + 'static {
    /// What it is called in rows and tables.
    const NAME: &'static str;
    /// An event in its own form, or a mark.
    type Step: Send + 'static;
    /// A request in its own form.
    type Query: Send + Sync;
    /// What one reading thread keeps between lookups.
    type Reader: Send;

    /// An empty one, for events of targets below `targets`.
    fn new(targets: u32) -> Self;
    /// `event` in its own form.
    fn step(&self, event: &Event) -> Self::Step;
    /// A step that calls `mark`.
    fn mark(mark: Mark) -> (Self::Step, Keep);
    /// Applies what comes in until the other side hangs up.
    fn run_lane(&self, steps: flume::Receiver<Self::Step>);
    /// `request` in its own form.
    fn query(request: &Request) -> Self::Query;
    /// Reads all hashes that a lookup `how` may read of `query`, and answers something that depends on them.
    fn read_by(query: &Self::Query, how: How) -> u64;
    /// A reader.
    fn reader(self: &Arc<Self>) -> Self::Reader;
    /// Looks `query` up by the hashes of its blocks and leaves the structure's native answer with `reader`.
    fn native(reader: &mut Self::Reader, query: &Self::Query);
    /// The same by sequence hashes, where the structure can.
    fn by_sequence(reader: &mut Self::Reader, query: &Self::Query) {
        Self::native(reader, query);
    }
    /// The same answer as the hash map that Dynamo's router reads.
    fn scores(reader: &mut Self::Reader, query: &Self::Query) -> OverlapScores;
    /// Leading blocks that each of `targets` targets holds, by the last native answer.
    fn depths(reader: &mut Self::Reader, targets: u32) -> Vec<u32>;
}

/// What `scores` says of each target.
pub fn depths(scores: &OverlapScores, targets: u32) -> Vec<u32> {
    let depth = |target| router_event::depth(scores, target);
    (0..targets).map(depth).collect()
}

/// Ranks of a worker, in every fleet of these comparisons.
pub const RANKS: u32 = 8;
