//! A worker taken away: drained, and stopped once it is said that nothing is left there.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::ensure;
use serde::{Deserialize, Serialize};
use service_kit::CancellationToken;
use tokio::time::{Instant, sleep};

use super::balancer::Balancer;
use super::{LONG, Options, millis};
use crate::apart::Kind;
use crate::client::Http;
use crate::report::progress;
use crate::steady::{Steady, Tally, Turn};
use crate::world::World;

/// The worker taken away, and its number.
const AWAY: (&str, usize) = ("w1", 0);
/// Long streams over both workers, half of them there.
const STREAMS: u32 = 40;
/// From when on no new conversation may begin there.
const TAKES_HOLD: Duration = Duration::from_millis(100);
/// How long it may take until nothing is left there: longer than the longest stream.
const EMPTY_PATIENCE: Duration = Duration::from_secs(60);
/// For how long conversations go on without it.
const WITHOUT: Duration = Duration::from_secs(3);
/// How often it is looked.
const POLL: Duration = Duration::from_millis(50);

/// What happened.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ScaledIn {
    /// Long streams that ran there when it was drained.
    pub(super) streams_there: usize,
    /// Conversations that began there although they were sent more than 100 ms after the drain.
    pub(super) new_there_later: usize,
    /// The last conversation that began there, counted from when the drain was asked for.
    pub(super) last_new_there_ms: Option<u64>,
    /// From then until all routers said that nothing was left there; none where they did not.
    pub(super) drained_after_ms: Option<u64>,
}

impl ScaledIn {
    /// Whether it was as it should be.
    pub(super) const fn holds(&self) -> bool {
        0 < self.streams_there && self.new_there_later == 0 && self.drained_after_ms.is_some()
    }

    pub(super) fn said(&self) -> String {
        let took = match self.drained_after_ms {
            Some(after) => format!("was said to be empty after {after} ms"),
            None => "was never said to be empty".to_owned(),
        };
        format!(
            "{took}, with {} streams at first and {} new conversations later than {} ms",
            self.streams_there,
            self.new_there_later,
            TAKES_HOLD.as_millis()
        )
    }
}

#[derive(Deserialize)]
struct Workers {
    workers: Vec<KnownWorker>,
}

#[derive(Deserialize)]
struct KnownWorker {
    id: String,
    drains: Vec<KnownDrain>,
}

#[derive(Deserialize)]
struct KnownDrain {
    empty_since_seconds: Option<f64>,
}

/// Runs it under load, and what became of that.
pub(super) async fn run(
    world: &World,
    balancer: &Arc<Balancer>,
    options: &Options,
) -> anyhow::Result<(ScaledIn, Tally)> {
    progress(format_args!("take {} away", AWAY.0));
    let (end, begun) = (CancellationToken::new(), CancellationToken::new());
    let fresh = Steady {
        name: "fresh".to_owned(),
        at_once: options.conversations,
        turns: 2,
        grows: 100,
        osl: 8,
        pause: POLL,
        seed: options.seed,
    };
    let streams = Steady {
        name: "stream".to_owned(),
        at_once: STREAMS,
        turns: 1,
        osl: LONG,
        ..fresh.clone()
    };
    // When each conversation began.
    let sent: Arc<Mutex<Vec<(String, Instant)>>> = Arc::default();
    let (asks, noting) = (balancer.asks(), sent.clone());
    let ask = move |turn: Turn| {
        let mut sent = noting.lock().unwrap_or_else(PoisonError::into_inner);
        sent.push((turn.request_id.clone(), Instant::now()));
        asks(turn)
    };
    let taking = async {
        let taken = take(world, &begun).await;
        end.cancel();
        taken
    };
    let following = balancer.clone().follow(end.clone());
    let (fresh, streams, taken, ()) = tokio::join!(
        fresh.run(ask, end.clone()),
        streams.run(balancer.asks(), begun.clone()),
        taking,
        following,
    );
    let ((drained, drained_after, there), mut tally) = (taken?, fresh?);
    tally.add(streams?);
    let began_there = |it: &&(String, Instant)| there.contains(&it.0) && it.0.ends_with(".0");
    let sent = sent.lock().unwrap_or_else(PoisonError::into_inner);
    let after: Vec<Duration> = sent
        .iter()
        .filter(began_there)
        .filter_map(|it| it.1.checked_duration_since(drained))
        .collect();
    let scaled_in = ScaledIn {
        streams_there: there.iter().filter(|it| it.starts_with("stream-")).count(),
        new_there_later: after.iter().filter(|it| TAKES_HOLD < **it).count(),
        last_new_there_ms: after.iter().max().copied().map(millis),
        drained_after_ms: drained_after.map(millis),
    };
    Ok((scaled_in, tally))
}

/// Drains the worker while long streams run there, and stops it once it is said to be empty: when it was drained, how
/// long that took, and which requests it has served.
async fn take(
    world: &World,
    begun: &CancellationToken,
) -> anyhow::Result<(Instant, Option<Duration>, Vec<String>)> {
    // Streams begin one after another, and run for longer than that.
    sleep(Duration::from_secs(2)).await;
    begun.cancel();
    let http = Http::default();
    let routers: Vec<_> = world
        .processes()
        .into_iter()
        .flat_map(|it| it.of(Kind::Router))
        .map(|it| it.admin)
        .collect();
    ensure!(!routers.is_empty(), "there is no router to be told");
    let drained = Instant::now();
    let url = format!(
        "http://{}/api/v1/workers/{}/drain?move=true",
        routers[0], AWAY.0
    );
    http.post(&url).await?;
    let mut said = None;
    while said.is_none() && drained.elapsed() < EMPTY_PATIENCE {
        sleep(POLL).await;
        let mut empty = 0;
        for router in &routers {
            let workers: Workers = http.get(&format!("http://{router}/api/v1/workers")).await?;
            let mut of_it = workers.workers.iter().filter(|it| it.id == AWAY.0);
            let is_empty =
                |it: &KnownWorker| it.drains.iter().any(|it| it.empty_since_seconds.is_some());
            empty += usize::from(of_it.any(is_empty));
        }
        said = (empty == routers.len()).then(|| drained.elapsed());
    }
    let served = world.served().await?.swap_remove(AWAY.1);
    let there = served.into_iter().filter_map(|it| it.request_id).collect();
    if said.is_some() {
        world.stop_engine(AWAY.1);
        sleep(WITHOUT).await;
    }
    Ok((drained, said, there))
}
