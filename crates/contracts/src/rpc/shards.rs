//! Several shards as one index.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use domain::{Depths, DpRank, OverlapGroup, Target};
use futures::StreamExt;
use futures::future::join_all;
use futures::stream::{self, FuturesUnordered};
use tokio::time::timeout;

use super::{
    CallError, DumpStream, Index, LocateRequest, OverlapAnswer, OverlapRequest, TargetDigest,
};

/// All shards of an index. They are asked side by side, and one that is silent makes its part of the fleet
/// unknown, not empty.
pub struct Shards {
    shards: Vec<Arc<dyn Index>>,
    deadline: Duration,
}

impl Shards {
    /// How long routers wait for the slowest shard. It is less than the 50 ms that they wait for the index as a whole, by
    /// what merging and a busy machine may take: then those that have answered count, and the late one is unknown.
    pub const DEADLINE: Duration = Duration::from_millis(40);

    /// Asks `shards`, and goes on without those that have not answered an overlap within `deadline`: less than
    /// the caller's own patience, such as [`Self::DEADLINE`].
    pub fn new(shards: Vec<Arc<dyn Index>>, deadline: Duration) -> Self {
        Self { shards, deadline }
    }
}

impl OverlapAnswer {
    /// What several shards say, as if one index had said it. What none of them knows of stays unknown. None if
    /// there are no answers.
    pub fn merge(answers: impl IntoIterator<Item = Self>) -> Option<Self> {
        answers.into_iter().reduce(|mut merged, other| {
            merged.groups = merge_groups(merged.groups, other.groups);
            merged.ceiling = merged.ceiling.max(other.ceiling);
            merged.stored = merged.stored.max(other.stored);
            merged.not_ready.extend(other.not_ready);
            merged.not_ready.sort();
            merged.not_ready.dedup();
            merged.unknown = merged.unknown.and(&other.unknown);
            merged.index_age = merged.index_age.max(other.index_age);
            merged
        })
    }
}

/// The targets of both by what they hold, deepest first. Of a target that both name the deeper one counts.
fn merge_groups(one: Vec<OverlapGroup>, other: Vec<OverlapGroup>) -> Vec<OverlapGroup> {
    let mut held: BTreeMap<Target, Depths> = BTreeMap::new();
    for OverlapGroup { targets, depths } in one.into_iter().chain(other) {
        for target in targets {
            let known = held.entry(target).or_insert(depths);
            *known = depths.max(*known);
        }
    }
    let mut by_depth: BTreeMap<Depths, Vec<Target>> = BTreeMap::new();
    for (target, depths) in held {
        by_depth.entry(depths).or_default().push(target);
    }
    let deepest_first = by_depth.into_iter().rev();
    deepest_first
        .map(|(depths, targets)| OverlapGroup { targets, depths })
        .collect()
}

fn silent() -> CallError {
    CallError::DeadlineExceeded { service: "indexer" }
}

#[async_trait]
impl Index for Shards {
    async fn overlap(&self, request: OverlapRequest) -> Result<OverlapAnswer, CallError> {
        let ask = |shard: &Arc<dyn Index>| {
            let (shard, request) = (shard.clone(), request.clone());
            async move {
                let asked = timeout(self.deadline, shard.overlap(request)).await;
                asked.unwrap_or_else(|_| Err(silent()))
            }
        };
        let mut answers = Vec::new();
        let mut failure = None;
        for answer in join_all(self.shards.iter().map(ask)).await {
            match answer {
                Ok(answer) => answers.push(answer),
                Err(why) => failure = Some(why),
            }
        }
        let none = || failure.unwrap_or_else(silent);
        OverlapAnswer::merge(answers).ok_or_else(none)
    }

    /// Where a rank is found the other shards are asked once more, for what they hold at that moment. One that
    /// is silent beyond the request's deadline is not waited for.
    async fn locate(&self, request: LocateRequest) -> Result<Vec<DpRank>, CallError> {
        let patience = request.deadline.saturating_add(self.deadline);
        let ask = |(number, shard): (usize, &Arc<dyn Index>), request: &LocateRequest| {
            let (shard, request) = (shard.clone(), request.clone());
            async move {
                let located = timeout(patience, shard.locate(request)).await;
                (number, located.unwrap_or_else(|_| Err(silent())))
            }
        };
        let shards = || self.shards.iter().enumerate();
        let mut asked: FuturesUnordered<_> = shards().map(|it| ask(it, &request)).collect();
        let mut failure = None;
        while let Some((found_by, answer)) = asked.next().await {
            let mut ranks = match answer {
                Ok(ranks) if ranks.is_empty() => continue,
                Ok(ranks) => ranks,
                Err(why) => {
                    failure = Some(why);
                    continue;
                }
            };
            let at_once = LocateRequest {
                deadline: Duration::ZERO,
                ..request.clone()
            };
            let others = shards().filter(|(number, _)| *number != found_by);
            let others = others.map(|it| timeout(self.deadline, ask(it, &at_once)));
            // Found is found: one that is silent now takes nothing away.
            for (_, also) in join_all(others).await.into_iter().flatten() {
                ranks.extend(also.unwrap_or_default());
            }
            ranks.sort_unstable();
            ranks.dedup();
            return Ok(ranks);
        }
        failure.map_or(Ok(Vec::new()), Err)
    }

    async fn digests(&self) -> Result<Vec<TargetDigest>, CallError> {
        let answers = join_all(self.shards.iter().map(|it| it.digests())).await;
        let answers: Vec<Vec<TargetDigest>> = answers.into_iter().collect::<Result<_, _>>()?;
        let mut digests: Vec<TargetDigest> = answers.into_iter().flatten().collect();
        digests.sort_by(|one, other| one.target.cmp(&other.target));
        Ok(digests)
    }

    /// One shard's dump after the other's.
    async fn dump(&self) -> Result<DumpStream, CallError> {
        let dumps = join_all(self.shards.iter().map(|it| it.dump())).await;
        let dumps: Vec<DumpStream> = dumps.into_iter().collect::<Result<_, _>>()?;
        Ok(stream::iter(dumps).flatten().boxed())
    }
}
