//! What Dynamo's structures take and answer.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Wake, Waker};

use dynamo_kv_router::indexer::WorkerTask;
use dynamo_kv_router::protocols::{
    ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheRemoveData, KvCacheStoreData,
    KvCacheStoredBlockData, LocalBlockHash, OverlapScores, RouterEvent, WorkerWithDpRank,
};
use tokio::sync::oneshot;

use super::{Keep, Mark, RANKS};
use crate::event::{Change, Event, Request};

/// The peers' name of `target`.
pub(super) fn worker(target: u32) -> WorkerWithDpRank {
    WorkerWithDpRank::new(u64::from(target / RANKS), target % RANKS)
}

pub(super) fn task(event: &Event) -> WorkerTask {
    let data = match &event.change {
        Change::Stored { parent, blocks } => KvCacheEventData::Stored(KvCacheStoreData {
            parent_hash: parent.map(ExternalSequenceBlockHash),
            start_position: None,
            blocks: blocks
                .iter()
                .map(|block| KvCacheStoredBlockData {
                    block_hash: ExternalSequenceBlockHash(block.name),
                    tokens_hash: LocalBlockHash(block.content),
                    mm_extra_info: None,
                })
                .collect(),
        }),
        Change::Removed(names) => KvCacheEventData::Removed(KvCacheRemoveData {
            block_hashes: names
                .iter()
                .copied()
                .map(ExternalSequenceBlockHash)
                .collect(),
        }),
        Change::Cleared => KvCacheEventData::Cleared,
    };
    let worker = worker(event.target);
    let event = KvCacheEvent {
        event_id: 0,
        data,
        dp_rank: worker.dp_rank,
    };
    WorkerTask::Event(RouterEvent::new(worker.worker_id, event))
}

pub(super) fn query(request: &Request) -> Vec<LocalBlockHash> {
    request
        .content
        .iter()
        .copied()
        .map(LocalBlockHash)
        .collect()
}

pub(super) fn depth(scores: &OverlapScores, target: u32) -> u32 {
    scores.scores.get(&worker(target)).copied().unwrap_or(0)
}

/// Calls a mark when it is woken.
struct OnWake(Mutex<Option<Mark>>);

impl Wake for OnWake {
    fn wake(self: Arc<Self>) {
        let mark = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mark) = mark {
            mark();
        }
    }
}

/// A flush that the lane answers by waking, on its own thread, whoever waits for the answer.
pub(super) fn flush(mark: Mark) -> (WorkerTask, Keep) {
    let (sender, mut receiver) = oneshot::channel();
    let waker = Waker::from(Arc::new(OnWake(Mutex::new(Some(mark)))));
    let polled = Pin::new(&mut receiver).poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending(), "nobody has answered yet");
    (WorkerTask::Flush(sender), Box::new(receiver))
}
