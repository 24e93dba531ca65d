//! An index that says what a test wants.

use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use contracts::rpc::{
    CallError, DumpStream, Index, LocateRequest, OverlapAnswer, OverlapRequest, Shard, TargetDigest,
};
use domain::{Depths, DpRank, OverlapGroup, SequenceHash, Target};
use futures::StreamExt;
use tokio::time::{Instant, sleep};

#[derive(Default)]
pub(crate) struct FakeIndex {
    /// What it answers; none never answers.
    answer: Mutex<Option<OverlapAnswer>>,
    pub(crate) asked: Mutex<Vec<OverlapRequest>>,
    located: Mutex<Located>,
}

/// Where any prefix is looked for and found.
#[derive(Clone, Debug, Default)]
pub(crate) enum Located {
    /// Nowhere yet.
    #[default]
    NotYet,
    /// Nowhere by any deadline.
    InVain,
    /// On these ranks.
    On(Vec<u32>),
    /// On this rank, but for one prefix that is nowhere yet.
    OnBut(u32, SequenceHash),
}

impl FakeIndex {
    /// Everything is cold.
    pub(crate) fn cold() -> Self {
        Self {
            answer: Mutex::new(Some(OverlapAnswer::default())),
            asked: Mutex::default(),
            located: Mutex::default(),
        }
    }

    /// `target` holds so many leading blocks of every request.
    pub(crate) fn hold(&self, target: &str, blocks: u32) {
        let target: Target = target.parse().unwrap();
        let group = OverlapGroup {
            targets: vec![target],
            depths: Depths {
                gpu: blocks,
                host: blocks,
                disk: blocks,
            },
        };
        *self.answer.lock().unwrap() = Some(OverlapAnswer {
            groups: vec![group],
            ceiling: blocks,
            stored: blocks,
            ..OverlapAnswer::default()
        });
    }

    /// From now on nothing is said of `target`, as by an index whose only shard there is does not follow it.
    pub(crate) fn lose(&self, target: &Target) {
        let shards = [0, 1].map(|it| Shard::new(it, 2).unwrap());
        let mut unknown = shards.into_iter().map(Shard::unknown);
        let mut answer = self.answer.lock().unwrap();
        answer.as_mut().unwrap().unknown = unknown.find(|it| it.contains(target)).unwrap();
    }

    /// From now on every prefix is found so, also by those who wait for it.
    pub(crate) fn locate(&self, located: Located) {
        *self.located.lock().unwrap() = located;
    }

    pub(crate) fn fall_silent(&self) {
        *self.answer.lock().unwrap() = None;
    }
}

#[async_trait]
impl Index for FakeIndex {
    async fn overlap(&self, request: OverlapRequest) -> Result<OverlapAnswer, CallError> {
        self.asked.lock().unwrap().push(request);
        let answer = self.answer.lock().unwrap().clone();
        match answer {
            Some(answer) => Ok(answer),
            None => std::future::pending().await,
        }
    }

    async fn locate(&self, request: LocateRequest) -> Result<Vec<DpRank>, CallError> {
        let deadline = Instant::now() + request.deadline;
        loop {
            let located = self.located.lock().unwrap().clone();
            match located {
                Located::OnBut(rank, missing) if request.hashes.last() != Some(missing) => {
                    return Ok(vec![DpRank::new(rank)]);
                }
                Located::On(ranks) => return Ok(ranks.into_iter().map(DpRank::new).collect()),
                Located::NotYet | Located::OnBut(..) if Instant::now() < deadline => {
                    sleep(Duration::from_millis(5)).await;
                }
                Located::NotYet | Located::OnBut(..) | Located::InVain => return Ok(Vec::new()),
            }
        }
    }

    async fn digests(&self) -> Result<Vec<TargetDigest>, CallError> {
        Ok(Vec::new())
    }

    async fn dump(&self) -> Result<DumpStream, CallError> {
        Ok(futures::stream::empty().boxed())
    }
}
