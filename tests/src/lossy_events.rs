//! Events of engines that are lost, overtaken and repeated on their way: whether the index is what the engines hold
//! once all is quiet.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use engine_sim::{Dialect, Misbehaviour};
use serde::{Deserialize, Serialize};
use service_kit::CancellationToken;
use tokio::time::{Instant, sleep};

use crate::client::{Ask, Client, Http};
use crate::report::{Report, progress};
use crate::steady::{Steady, Tally, Turn};
use crate::truth;
use crate::world::{Form, Plan, Tables, World, sum_of};

const NAME: &str = "lossy-events";
/// How many workers, and ranks of each.
const WORKERS: u32 = 2;
const RANKS: u32 = 4;
/// Tokens that one rank holds: what lives at once, and not much of what has ended.
const RANK_TOKENS: u32 = 6_000;
/// Within which the index is to be what the engines hold.
const GOAL: Duration = Duration::from_secs(2);
/// How long it is looked.
const PATIENCE: Duration = Duration::from_secs(20);
/// Before the end of the load the events of one worker are cut off until at least one is lost, looked for so often.
const CUT: Duration = Duration::from_millis(50);
/// How long that may take, while requests run.
const CUT_PATIENCE: Duration = Duration::from_secs(5);

/// Whether the index is right soon after events were lost, overtaken and repeated.
#[derive(Args)]
pub(crate) struct Options {
    /// For how many seconds conversations are held in each case.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(2..=3600))]
    seconds: u64,
    /// What is lost, and the conversations, are drawn from it.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// One case.
#[derive(Clone, Debug, Serialize)]
struct Row {
    engine: &'static str,
    page_size: u32,
    /// Whether requests for a replay were lost too.
    lossy_replays: bool,
    requests: u64,
    errors: u64,
    messages: u64,
    lost: u64,
    /// Of those, the last ones of a worker before the quiet.
    lost_last: u64,
    overtaken: u64,
    repeated: u64,
    gaps: u64,
    replays: u64,
    replay_requests_lost: u64,
    resets: u64,
    /// From the last answer until the index was what the engines hold; none where it did not come to be.
    equal_after_ms: Option<u64>,
}

#[derive(Serialize)]
struct Figures {
    seed: u64,
    messages: u64,
    lost: u64,
    resets: u64,
    errors: u64,
    worst_equal_after_ms: Option<u64>,
}

/// What became of messages on their way, of all ranks of some engines.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
struct Line {
    sent: u64,
    lost: u64,
    late: u64,
    repeated: u64,
    requests: u64,
    requests_lost: u64,
}

#[derive(Deserialize)]
struct LineAnswer {
    ranks: Vec<Line>,
}

/// Runs the scenario.
pub(crate) async fn run(options: Options, form: Form) -> anyhow::Result<Report> {
    let mut rows = Vec::new();
    for lossy_replays in [false, true] {
        for (engine, page_size) in [(Dialect::Vllm, 16), (Dialect::Sglang, 1)] {
            let case = rows.len() + 1;
            progress(format_args!(
                "{case}/4 {} pages of {page_size}",
                engine.name()
            ));
            let plan = plan(&options, &form, engine, page_size, lossy_replays);
            let row = plan.run(async |world| measure(world, &options).await);
            rows.push(Row {
                engine: engine.name(),
                page_size,
                lossy_replays,
                ..row.await?
            });
        }
    }
    report(&options, rows)
}

fn plan(
    options: &Options,
    form: &Form,
    engine: Dialect,
    page_size: u32,
    lossy_replays: bool,
) -> Plan {
    Plan {
        workers: WORKERS,
        engine: engine_sim::Config {
            engine,
            dp_size: RANKS,
            block_size: page_size,
            kv_blocks: RANK_TOKENS / page_size,
            max_model_len: Some(RANK_TOKENS / 2),
            misbehave: Misbehaviour {
                lossy_events: true,
                lossy_replays,
                ..Misbehaviour::default()
            },
            ..engine_sim::Config::default()
        },
        routers: 2,
        router: router_api::Config::default(),
        tables: Tables::Shared,
        seed: options.seed,
        form: form.clone(),
    }
}

async fn measure(world: &World, options: &Options) -> anyhow::Result<Row> {
    let http = Http::default();
    let client = Arc::new(Client::of(world.routers()));
    let steady = Steady {
        name: "lossy".to_owned(),
        at_once: 48,
        turns: 6,
        grows: 200,
        osl: 16,
        pause: Duration::from_millis(150),
        seed: options.seed,
    };
    let end = CancellationToken::new();
    let ask = move |turn: Turn| {
        let client = client.clone();
        async move {
            let ask = Ask {
                path: "/v1/completions",
                conversation: Some(&turn.conversation),
                request_id: &turn.request_id,
                body: turn.body,
            };
            client.ask(ask).await.map(drop)
        }
    };
    let cut_off = world.engines()[0];
    let ending = async {
        sleep(Duration::from_secs(options.seconds).saturating_sub(CUT)).await;
        http.post(&format!("http://{cut_off}/debug/events?cut=1"))
            .await?;
        let before = lines(&http, &[cut_off]).await?;
        let looked = Instant::now();
        loop {
            sleep(CUT).await;
            let now = lines(&http, &[cut_off]).await?;
            if before.lost < now.lost || CUT_PATIENCE < looked.elapsed() {
                break;
            }
        }
        end.cancel();
        anyhow::Ok(before)
    };
    let (tally, before) = tokio::join!(steady.run(ask, end.clone()), ending);
    let (tally, before) = (tally?, before?);
    tally.log();
    // Nothing is published any more: only what is asked for comes.
    http.post(&format!("http://{cut_off}/debug/events?cut=0"))
        .await?;
    let equal = truth::index_equals(world, PATIENCE).await;
    if let Err(why) = &equal {
        tracing::error!(why = format!("{why:#}"), "the index is wrong");
    }
    let lost_last = lines(&http, &[cut_off]).await?.lost - before.lost;
    let all = lines(&http, world.engines()).await?;
    row(world, &tally, all, lost_last, equal.ok()).await
}

async fn row(
    world: &World,
    tally: &Tally,
    all: Line,
    lost_last: u64,
    equal: Option<Duration>,
) -> anyhow::Result<Row> {
    let counted = truth::ingest_metrics(world).await?;
    let sum = |metric: &str, label: &str| {
        let lines = counted.lines().filter(|it| it.contains(label));
        let lines: Vec<&str> = lines.collect();
        sum_of(&lines.join("\n"), metric) as u64
    };
    Ok(Row {
        engine: "",
        page_size: 0,
        lossy_replays: false,
        requests: tally.requests,
        errors: tally.failed + tally.broken,
        messages: all.sent,
        lost: all.lost,
        lost_last,
        overtaken: all.late,
        repeated: all.repeated,
        gaps: sum("rankway_event_gaps_total", ""),
        replays: all.requests,
        replay_requests_lost: all.requests_lost,
        resets: sum("rankway_events_total", "result=\"reset\""),
        equal_after_ms: equal.map(|it| u64::try_from(it.as_millis()).unwrap_or(u64::MAX)),
    })
}

async fn lines(http: &Http, engines: &[SocketAddr]) -> anyhow::Result<Line> {
    let mut all = Line::default();
    for engine in engines {
        let answer: LineAnswer = http.get(&format!("http://{engine}/debug/events")).await?;
        for it in answer.ranks {
            all.sent += it.sent;
            all.lost += it.lost;
            all.late += it.late;
            all.repeated += it.repeated;
            all.requests += it.requests;
            all.requests_lost += it.requests_lost;
        }
    }
    Ok(all)
}

fn report(options: &Options, rows: Vec<Row>) -> anyhow::Result<Report> {
    let sum = |of: fn(&Row) -> u64| rows.iter().map(of).sum();
    let worst: Option<Vec<u64>> = rows.iter().map(|it| it.equal_after_ms).collect();
    let worst = worst.and_then(|it| it.into_iter().max());
    let figures = Figures {
        seed: options.seed,
        messages: sum(|it| it.messages),
        lost: sum(|it| it.lost),
        resets: sum(|it| it.resets),
        errors: sum(|it| it.errors),
        worst_equal_after_ms: worst,
    };
    let in_time = worst.is_some_and(|it| u128::from(it) <= GOAL.as_millis());
    let last = rows.iter().all(|it| 0 < it.lost_last);
    let ok = in_time && last && figures.errors == 0;
    let said = match worst {
        _ if !last => {
            "no last message was lost, so nothing was shown: let it run for longer".to_owned()
        }
        None => "the index did not come to be what the engines hold".to_owned(),
        Some(worst) => format!(
            "with {} of {} messages lost the index was what the engines hold at most {worst} ms after the last answer, \
             {} than {} ms; {} requests failed",
            figures.lost,
            figures.messages,
            if in_time { "not later" } else { "later" },
            GOAL.as_millis(),
            figures.errors,
        ),
    };
    Ok(Report::new(NAME, ok, said, &figures)?.with_rows(rows)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_holds_where_last_messages_were_lost_and_the_index_is_right_in_time() {
        let ok = |equal_after_ms, lost_last, errors| {
            let options = Options {
                seconds: 2,
                seed: 1,
            };
            let row = Row {
                engine: "vllm",
                page_size: 16,
                lossy_replays: false,
                requests: 10,
                errors,
                messages: 100,
                lost: 5,
                lost_last,
                overtaken: 1,
                repeated: 1,
                gaps: 1,
                replays: 1,
                replay_requests_lost: 0,
                resets: 0,
                equal_after_ms,
            };
            report(&options, vec![row]).unwrap().ok()
        };
        assert!(ok(Some(2_000), 1, 0));
        assert!(!ok(Some(2_001), 1, 0));
        assert!(!ok(None, 1, 0));
        assert!(!ok(Some(5), 0, 0));
        assert!(!ok(Some(5), 1, 1));
    }
}
