//! What the index holds beside what the engines say that they hold, which is the truth.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::bail;
use serde::Deserialize;
use tokio::time::{Instant, sleep};

use crate::apart::{Kind, Service};
use crate::client::Http;
use crate::world::World;

/// How often both are compared.
const POLL: Duration = Duration::from_millis(20);

/// What an engine says of one of its ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
struct Held {
    blocks: u64,
    /// 16 hexadecimal digits.
    digest: String,
}

#[derive(Deserialize)]
struct HeldAnswer {
    ranks: BTreeMap<u32, Held>,
}

/// What an index says of a target.
#[derive(Clone, Debug, Deserialize)]
struct Indexed {
    worker: String,
    epoch: u64,
    dp_rank: u32,
    #[serde(flatten)]
    held: Held,
}

#[derive(Deserialize)]
struct IndexAnswer {
    targets: Vec<Indexed>,
}

/// Waits until every index says of every rank what its engine says, and how long that took. After `patience` it is an
/// error that names the ranks that differ.
pub(crate) async fn index_equals(world: &World, patience: Duration) -> anyhow::Result<Duration> {
    let began = Instant::now();
    loop {
        let different = Truth::of(world).await?.differing(world).await?;
        if different.is_empty() {
            return Ok(began.elapsed());
        }
        if patience < began.elapsed() {
            bail!(
                "{patience:?} after all was quiet the index differs: {}",
                different.join(", ")
            );
        }
        sleep(POLL).await;
    }
}

/// What all ingests count, as texts of Prometheus.
pub(crate) async fn ingest_metrics(world: &World) -> anyhow::Result<String> {
    let at = match world.processes() {
        Some(_) => processes(world, Kind::Ingest).map(|it| it.admin).collect(),
        // All services in this process count in one place, which its first router shows.
        None => world.routers()[..1].to_vec(),
    };
    let http = Http::default();
    let mut text = String::new();
    for address in at {
        text += &http.get_text(&format!("http://{address}/metrics")).await?;
    }
    Ok(text)
}

/// The processes that do one kind's work.
fn processes(world: &World, kind: Kind) -> impl Iterator<Item = &Service> {
    let all = world.processes().into_iter();
    all.flat_map(move |it| it.of(kind).chain(it.of(Kind::Up)))
}

/// What the engines hold at one moment, by worker and rank.
pub(crate) struct Truth(BTreeMap<(String, u32), Held>);

impl Truth {
    /// Asks all engines.
    pub(crate) async fn of(world: &World) -> anyhow::Result<Self> {
        let http = Http::default();
        let mut held = BTreeMap::new();
        for (number, engine) in world.engines().iter().enumerate() {
            let url = format!("http://{engine}/debug/kv_blocks");
            let answer: HeldAnswer = http.get(&url).await?;
            let of_engine = answer.ranks.into_iter();
            held.extend(of_engine.map(|(rank, held)| ((format!("w{}", number + 1), rank), held)));
        }
        Ok(Self(held))
    }

    /// Blocks of all ranks.
    pub(crate) fn blocks(&self) -> u64 {
        self.0.values().map(|it| it.blocks).sum()
    }

    /// The ranks of which an index says something else.
    pub(crate) async fn differing(&self, world: &World) -> anyhow::Result<Vec<String>> {
        let mut different = Vec::new();
        for targets in indexed(world, &Http::default()).await? {
            let known = newest(targets);
            for (rank, held) in &self.0 {
                let known = known.get(rank).cloned().unwrap_or_default();
                // A rank that has said nothing holds nothing.
                let equal = known == *held || (known.blocks, held.blocks) == (0, 0);
                if !equal {
                    let (worker, dp_rank) = rank;
                    different.push(format!(
                        "{worker}/{dp_rank} has {} blocks, {} in the index",
                        held.blocks, known.blocks
                    ));
                }
            }
        }
        Ok(different)
    }
}

/// What each of the indexes says.
async fn indexed(world: &World, http: &Http) -> anyhow::Result<Vec<Vec<Indexed>>> {
    let mut all = Vec::new();
    if let Some(suite) = world.suite() {
        let digests = suite.index.digests().await?.into_iter();
        let targets = digests.map(|it| Indexed {
            worker: it.target.worker.to_string(),
            epoch: it.target.epoch.get(),
            dp_rank: it.target.dp_rank.get(),
            held: Held {
                blocks: it.blocks,
                digest: format!("{:016x}", it.digest),
            },
        });
        all.push(targets.collect());
    }
    for indexer in processes(world, Kind::Indexer) {
        let url = format!("http://{}/api/v1/index", indexer.admin);
        let answer: IndexAnswer = http.get(&url).await?;
        all.push(answer.targets);
    }
    Ok(all)
}

/// Of each rank what is held in its newest incarnation.
fn newest(mut targets: Vec<Indexed>) -> BTreeMap<(String, u32), Held> {
    targets.sort_by_key(|it| it.epoch);
    let by_rank = targets.into_iter();
    by_rank
        .map(|it| ((it.worker, it.dp_rank), it.held))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{Held, IndexAnswer, newest};

    #[test]
    fn of_each_rank_the_newest_incarnation_counts() {
        let target = |epoch: u64, dp_rank: u32, blocks: u64| {
            format!(
                r#"{{"target":"","worker":"w1","epoch":{epoch},"dp_rank":{dp_rank},"blocks":{blocks},
                    "digest":"{blocks:016x}","state":"ready"}}"#
            )
        };
        let targets = [target(2, 0, 7), target(1, 0, 9), target(1, 1, 3)].join(",");
        let answer: IndexAnswer =
            serde_json::from_str(&format!(r#"{{"targets":[{targets}]}}"#)).unwrap();

        let newest = newest(answer.targets);
        let held = |blocks: u64| Held {
            blocks,
            digest: format!("{blocks:016x}"),
        };
        assert_eq!(newest[&("w1".to_owned(), 0)], held(7));
        assert_eq!(newest[&("w1".to_owned(), 1)], held(3));
    }
}
