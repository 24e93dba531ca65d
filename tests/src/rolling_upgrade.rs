//! Every process replaced, one after the other, while conversations go on; then a worker taken away.

mod balancer;
mod scale_in;

use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use engine_sim::Dialect;
use serde::Serialize;
use service_kit::CancellationToken;
use tokio::time::{Instant, sleep};

use self::balancer::Balancer;
use self::scale_in::ScaledIn;
use crate::apart::{Kind, Shape};
use crate::report::{Report, progress};
use crate::steady::{Steady, Tally};
use crate::truth;
use crate::world::{Form, Plan, Tables, World};

const NAME: &str = "rolling-upgrade";
/// How many workers, and ranks of each.
const WORKERS: u32 = 2;
const RANKS: u32 = 4;
/// Longer than the longest stream.
const DRAIN_SECONDS: u64 = 25;
/// Tokens of the longest answers: about ten seconds.
const LONG: u32 = 1_000;
/// How many of those at once, none as long as another.
const LONGS: u32 = 10;
/// How long a process that is started may take to be ready: a busy machine's start.
const READY_PATIENCE: Duration = Duration::from_secs(60);
/// Between one replacement and the next.
const SETTLE: Duration = Duration::from_millis(500);
/// How long the index may take to be what the engines hold, to be measured at all.
const TRUTH_PATIENCE: Duration = Duration::from_secs(20);

/// Whether every process can be replaced, and a worker taken away, without a failed request or a broken stream.
#[derive(Args)]
pub(crate) struct Options {
    /// How many short conversations go on at once; there are long ones besides.
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    conversations: u32,
    /// What the prompts are drawn from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// One process, replaced.
#[derive(Clone, Debug, Serialize)]
struct Row {
    service: String,
    /// From SIGTERM to its end.
    ended_ms: u64,
    /// Whether it said that all was well.
    ended_well: bool,
    /// From its start anew until it was ready.
    ready_ms: u64,
    /// Of a router, the last request that it was sent, counted from SIGTERM; none where none was sent then.
    last_sent_ms: Option<u64>,
}

#[derive(Serialize)]
struct Figures {
    seed: u64,
    requests: u64,
    failed: u64,
    broken: u64,
    replaced: usize,
    /// From the last answer until the index was what the engines hold.
    equal_after_ms: Option<u64>,
    #[serde(flatten)]
    scaled_in: ScaledIn,
}

/// Runs the scenario; the form has to be that of services apart.
pub(crate) async fn run(options: Options, form: Form) -> anyhow::Result<Report> {
    let form = match form {
        Form::Together => Form::Together,
        Form::Apart(shape) => Form::Apart(Shape {
            // A second ingest would be a second publisher of every rank, which is refused.
            ingests: 1,
            indexers: 2,
            affinities: 2,
            adapters: 2,
            ..shape
        }),
    };
    let plan = Plan {
        workers: WORKERS,
        engine: engine_sim::Config {
            engine: Dialect::Vllm,
            dp_size: RANKS,
            kv_blocks: 2_048,
            ..engine_sim::Config::default()
        },
        routers: 2,
        router: router_api::Config {
            drain_seconds: DRAIN_SECONDS,
            ..router_api::Config::default()
        },
        tables: Tables::Shared,
        seed: options.seed,
        form,
    };
    let (figures, rows) = plan
        .run(async |world| measure(world, &options).await)
        .await?;
    report(figures, rows)
}

async fn measure(world: &mut World, options: &Options) -> anyhow::Result<(Figures, Vec<Row>)> {
    let balancer = Arc::new(Balancer::before(world.apart()?));
    let end = CancellationToken::new();
    let following = balancer.clone().follow(end.clone());
    let replacing = async {
        let loaded = load(&balancer, options, &end);
        let replaced = async {
            let replaced = replace_all(world, &balancer).await;
            end.cancel();
            replaced
        };
        tokio::join!(loaded, replaced)
    };
    let ((), (tally, rows)) = tokio::join!(following, replacing);
    let (mut tally, rows) = (tally?, rows?);
    progress(format_args!("compare the index with the engines"));
    let equal = truth::index_equals(world, TRUTH_PATIENCE).await;
    if let Err(why) = &equal {
        tracing::error!(why = format!("{why:#}"), "the index is wrong");
    }
    let (scaled_in, meanwhile) = scale_in::run(world, &balancer, options).await?;
    tally.add(meanwhile);
    tally.log();
    let figures = Figures {
        seed: options.seed,
        requests: tally.requests,
        failed: tally.failed,
        broken: tally.broken,
        replaced: rows.len(),
        equal_after_ms: equal.ok().map(millis),
        scaled_in,
    };
    Ok((figures, rows))
}

/// Short and long conversations until the end.
async fn load(
    balancer: &Arc<Balancer>,
    options: &Options,
    end: &CancellationToken,
) -> anyhow::Result<Tally> {
    let short = Steady {
        name: "short".to_owned(),
        at_once: options.conversations,
        turns: 6,
        grows: 100,
        osl: 24,
        pause: Duration::from_millis(150),
        seed: options.seed,
    };
    // Of lengths of their own, so that at any moment some are under way.
    let long = (1..=LONGS).map(|number| Steady {
        name: format!("long-{number}"),
        at_once: 1,
        turns: 2,
        osl: LONG * number / LONGS,
        ..short.clone()
    });
    let long: Vec<Steady> = long.collect();
    let long = long.iter().map(|it| it.run(balancer.asks(), end.clone()));
    let long = futures::future::try_join_all(long);
    let (short, long) = tokio::join!(short.run(balancer.asks(), end.clone()), long);
    let mut all = short?;
    long?.into_iter().for_each(|it| all.add(it));
    Ok(all)
}

/// Ends each process but NATS and starts it again, as a newer one would be.
async fn replace_all(world: &mut World, balancer: &Balancer) -> anyhow::Result<Vec<Row>> {
    let services = &mut world.apart()?.services;
    let mut rows = Vec::new();
    for it in services.iter_mut().filter(|it| it.kind != Kind::Nats) {
        sleep(SETTLE).await;
        progress(format_args!("replace {}", it.name()));
        let told = Instant::now();
        let ended = it.daemon.end().await?;
        let ended_ms = millis(told.elapsed());
        let last_sent = it.api.and_then(|api| balancer.last_sent(api));
        let started = Instant::now();
        it.daemon.start()?;
        it.ready(READY_PATIENCE).await?;
        rows.push(Row {
            service: it.name().to_owned(),
            ended_ms,
            ended_well: ended.success(),
            ready_ms: millis(started.elapsed()),
            last_sent_ms: last_sent
                .and_then(|it| it.checked_duration_since(told))
                .map(millis),
        });
    }
    // A router that is back gets its share again.
    sleep(2 * SETTLE).await;
    Ok(rows)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn report(figures: Figures, rows: Vec<Row>) -> anyhow::Result<Report> {
    let well = rows.iter().filter(|it| it.ended_well).count();
    let ok = figures.failed + figures.broken == 0
        && well == rows.len()
        && figures.equal_after_ms.is_some()
        && figures.scaled_in.holds();
    let said = format!(
        "of {} requests {} failed and {} broke off while {} processes were replaced ({} of them ended well) and a worker \
         was taken away, which {}",
        figures.requests,
        figures.failed,
        figures.broken,
        rows.len(),
        well,
        figures.scaled_in.said(),
    );
    Ok(Report::new(NAME, ok, said, &figures)?.with_rows(rows)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_holds_where_nothing_failed_and_all_ended_well() {
        let ok = |failed, broken, ended_well, equal_after_ms, new_late| {
            let figures = Figures {
                seed: 1,
                requests: 100,
                failed,
                broken,
                replaced: 1,
                equal_after_ms,
                scaled_in: ScaledIn {
                    streams_there: 20,
                    new_there_later: new_late,
                    last_new_there_ms: Some(12),
                    drained_after_ms: Some(9_000),
                },
            };
            let row = Row {
                service: "router-1".to_owned(),
                ended_ms: 1_000,
                ended_well,
                ready_ms: 300,
                last_sent_ms: Some(90),
            };
            report(figures, vec![row]).unwrap().ok()
        };
        assert!(ok(0, 0, true, Some(10), 0));
        assert!(!ok(1, 0, true, Some(10), 0));
        assert!(!ok(0, 1, true, Some(10), 0));
        assert!(!ok(0, 0, false, Some(10), 0));
        assert!(!ok(0, 0, true, None, 0));
        assert!(!ok(0, 0, true, Some(10), 1));
    }
}
