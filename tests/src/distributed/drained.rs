//! How fast events come from the engines to the index: what reads them is frozen, the engines are filled, and then it has
//! all to make up for.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde::Deserialize;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::{Both, Options};
use crate::apart::Kind;
use crate::client::{Ask, Client, Http};
use crate::report::progress;
use crate::steady::Steady;
use crate::truth::{self, Truth};
use crate::world::World;

/// Requests that fill the engines in a round: some seconds, which is less than leases hold.
const REQUESTS: u64 = 4_000;
/// Of those, so many at once.
const AT_ONCE: u64 = 16;
/// How long the index may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often it is looked whether it has all.
const POLL: Duration = Duration::from_millis(10);

/// How fast it was, as the round of the median.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    pub(super) blocks_per_second: f64,
    /// Of events, one for each pass of a rank.
    pub(super) messages_per_second: f64,
}

#[derive(Deserialize)]
struct Events {
    ranks: Vec<Published>,
}

#[derive(Deserialize)]
struct Published {
    sent: u64,
}

/// Of one process and of services apart, in turn.
pub(super) async fn measure(both: &mut Both<'_>, options: &Options) -> anyhow::Result<[Rate; 2]> {
    let mut rates = [Vec::new(), Vec::new()];
    for round in 1..=options.rounds.min(3) {
        progress(format_args!("events, round {round}"));
        rates[0].push(once(both.together, Kind::Up, (round, options)).await?);
        rates[1].push(once(both.apart, Kind::Ingest, (round, options)).await?);
    }
    Ok(rates.map(|mut it| {
        it.sort_by(|one: &Rate, other| one.blocks_per_second.total_cmp(&other.blocks_per_second));
        it[it.len() / 2]
    }))
}

/// From when those of a kind go on to when the index has all.
async fn once(
    world: &World,
    frozen: Kind,
    (round, options): (u32, &Options),
) -> anyhow::Result<Rate> {
    truth::index_equals(world, PATIENCE).await?;
    let before = (Truth::of(world).await?.blocks(), published(world).await?);
    let processes = world.processes().context("services are not apart")?;
    let frozen: Vec<_> = processes.of(frozen).collect();
    for it in &frozen {
        it.daemon.freeze().await?;
    }
    let filled = fill(world, round, options).await;
    let truth = Truth::of(world).await?;
    let began = Instant::now();
    for it in &frozen {
        it.daemon.resume().await?;
    }
    filled?;
    while !truth.differing(world).await?.is_empty() {
        ensure!(
            began.elapsed() < PATIENCE,
            "the index does not come to have all"
        );
        sleep(POLL).await;
    }
    let seconds = began.elapsed().as_secs_f64();
    let blocks = truth.blocks().saturating_sub(before.0);
    let messages = published(world).await?.saturating_sub(before.1);
    Ok(Rate {
        blocks_per_second: blocks as f64 / seconds,
        messages_per_second: messages as f64 / seconds,
    })
}

/// Messages that all engines have published.
async fn published(world: &World) -> anyhow::Result<u64> {
    let http = Http::default();
    let mut sent = 0;
    for engine in world.engines() {
        let events: Events = http.get(&format!("http://{engine}/debug/events")).await?;
        sent += events.ranks.iter().map(|it| it.sent).sum::<u64>();
    }
    Ok(sent)
}

/// Fills the engines, without anybody between.
async fn fill(world: &World, round: u32, options: &Options) -> anyhow::Result<()> {
    let steady = Steady {
        name: "fill".to_owned(),
        at_once: 1,
        turns: 1,
        grows: 256,
        osl: 1,
        pause: Duration::ZERO,
        seed: options.seed ^ (u64::from(round) << 40),
    };
    let client = Arc::new(Client::of(world.engines().to_vec()));
    let mut asking = JoinSet::new();
    for first in 0..AT_ONCE {
        let (steady, client) = (steady.clone(), client.clone());
        asking.spawn(async move {
            for number in (first..REQUESTS).step_by(AT_ONCE as usize) {
                let turn = steady.first_turn(number);
                let ask = Ask {
                    path: "/v1/completions",
                    conversation: None,
                    request_id: &turn.request_id,
                    body: turn.body,
                };
                client.ask(ask).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(asked) = asking.join_next().await {
        asked?.context("fill the engines")?;
    }
    Ok(())
}
