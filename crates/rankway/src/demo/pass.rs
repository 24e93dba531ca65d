//! One policy's pass: fresh engines, fresh services, the same conversations.

use std::sync::Arc;
use std::time::Duration;

use accounting::Totals;
use anyhow::Context as _;
use domain::WorkerId;
use engine_sim::EngineSim;
use engine_wire::vllm;
use fleet_sim::Conversation;
use placement::Policy;
use rankway::progress::{Progress, ProgressLine};
use rankway::suite::{Suite, SuiteConfig};
use service_kit::{Ended, Process};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use worker_adapter::{EngineUrl, WorkerConfig};

use super::QUIET;
use super::driver::{Driver, Tally};
use crate::client::JsonClient;
use crate::index_api::{self, HeldAnswer};
use crate::report::{PolicyReport, Quantiles};

/// The model's name at the engines.
const MODEL: &str = "demo-model";
/// Prompt tokens one rank computes in a second.
const PREFILL_RATE: f64 = 24_000.0;
/// How long the services may take to find the engines and be ready.
const READY_PATIENCE: Duration = Duration::from_secs(30);
/// How often the index is compared with the engines until it has caught up.
const COMPARE_PERIOD: Duration = Duration::from_millis(100);

/// The size of the demo's fleet.
pub(super) struct Fleet {
    pub(super) engines: u32,
    pub(super) ranks: u32,
    pub(super) block_size: u32,
    /// Of each rank.
    pub(super) kv_blocks: u32,
    pub(super) routers: u32,
    pub(super) seed: u64,
}

/// One policy's place in the demo.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) policy: Policy,
    /// From 0.
    pub(super) number: usize,
    pub(super) of: usize,
    /// When the first began.
    pub(super) started: Instant,
}

/// What a pass measured.
pub(super) struct PassReport {
    pub(super) policy: PolicyReport,
    pub(super) index_equals_engines: bool,
    later_turns: u64,
    kept: u64,
    /// Bindings that were moved, with a reason, while the pass ran.
    moved: u64,
    /// Turns that went elsewhere for once while their binding stayed.
    excursions: u64,
}

impl PassReport {
    /// Whether each later turn, at another router, found its conversation where the turn before left it, but
    /// for bindings that moved for a reason and turns that went elsewhere for once, there and back.
    pub(super) fn bindings_were_shared(&self) -> bool {
        let explained = self.moved + 2 * self.excursions;
        self.later_turns > 0 && self.later_turns - self.kept <= explained
    }

    /// Where later turns went, in words; none where the engines chose the ranks.
    pub(super) fn describe(&self) -> Option<String> {
        if self.later_turns == 0 {
            return None;
        }
        let mut text = format!(
            "{} of {} later turns stayed on their rank",
            self.kept, self.later_turns
        );
        if self.moved > 0 {
            text += &format!(", {} bindings moved for a reason", self.moved);
        }
        if self.excursions > 0 {
            text += &format!(
                ", {} turns went elsewhere for once (waiting would have cost more, or the machine was too busy to ask in time)",
                self.excursions
            );
        }
        Some(text)
    }
}

/// Runs one policy; none when interrupted.
pub(super) async fn run(
    place: Place,
    fleet: &Fleet,
    conversations: &[Conversation],
) -> anyhow::Result<Option<PassReport>> {
    let folder = tempfile::tempdir().context("make a temporary data folder")?;
    let process = Process::default();
    let mut urls = Vec::new();
    for number in 0..fleet.engines {
        let engine = EngineSim::bind(engine_config(fleet, number)).await?;
        urls.push(format!("http://{}", engine.http_addr()));
        process.spawn("fake engine", engine.run(process.shutdown()));
    }
    let workers = urls
        .iter()
        .enumerate()
        .map(|(number, url)| worker(number, url));
    let router = router_api::Config {
        listen: ([127, 0, 0, 1], 0).into(),
        policy: place.policy,
        ..router_api::Config::default()
    };
    let config = SuiteConfig {
        data_dir: folder.path().to_owned(),
        adapter: worker_adapter::Config {
            workers: workers.collect::<Result<_, _>>()?,
        },
        affinity_secret: None,
        routers: vec![router; fleet.routers as usize],
    };
    let suite = Suite::start(config, &process).await?;
    let measured = process
        .run_until(measure(place, &suite, &urls, conversations))
        .await;
    suite.close().await;
    match measured? {
        Ended::Done(report) => Ok(Some(report)),
        Ended::Signal => Ok(None),
    }
}

fn engine_config(fleet: &Fleet, number: u32) -> engine_sim::Config {
    engine_sim::Config {
        listen: ([127, 0, 0, 1], 0).into(),
        model: MODEL.to_owned(),
        dp_size: fleet.ranks,
        block_size: fleet.block_size,
        kv_blocks: fleet.kv_blocks,
        pass_tokens: 2048,
        prefill_tokens_per_second: PREFILL_RATE,
        step_base_ms: 4.0,
        kv_events_port: Some(0),
        replay_port: Some(0),
        seed: fleet.seed ^ u64::from(number),
        ..engine_sim::Config::default()
    }
}

fn worker(number: usize, url: &str) -> anyhow::Result<WorkerConfig> {
    Ok(WorkerConfig {
        id: Some(WorkerId::new(&format!("engine-{}", number + 1))?),
        ..WorkerConfig::at(url.parse::<EngineUrl>()?)
    })
}

async fn measure(
    place: Place,
    suite: &Suite,
    urls: &[String],
    conversations: &[Conversation],
) -> anyhow::Result<PassReport> {
    let policy = place.policy;
    suite.ready(READY_PATIENCE).await?;
    let mut tally = converse(place, suite, conversations).await?;
    tally.ttft.sort_unstable();
    let client = JsonClient::of_engines();
    let index_equals_engines = caught_up(suite, &client, urls).await?;
    let mut totals = Totals::default();
    for router in &suite.routers {
        totals.merge(&router.totals());
    }
    let moved = suite.routers.iter().map(|it| it.rebinds()).sum();
    let excursions = suite.routers.iter().map(|it| it.excursions()).sum();
    let work = work_max_over_mean(&client, urls).await?;
    if let Some(example) = tally.examples.first() {
        anyhow::bail!(
            "{} turns failed under {}, such as: {example}",
            tally.errors,
            policy.name()
        );
    }
    let ttft = Quantiles::of(&tally.ttft);
    Ok(PassReport {
        policy: PolicyReport::new(policy, tally.errors, &totals, ttft, work),
        index_equals_engines,
        later_turns: tally.later_turns,
        kept: tally.kept,
        moved,
        excursions,
    })
}

async fn converse(
    place: Place,
    suite: &Suite,
    conversations: &[Conversation],
) -> anyhow::Result<Tally> {
    let addresses = suite.routers.iter().map(|it| it.address()).collect();
    let driver = Arc::new(Driver::new(addresses, MODEL));
    // Bounded by the turns of the workload.
    let (sender, mut results) = mpsc::unbounded_channel();
    let mut running = JoinSet::new();
    for (number, conversation) in conversations.iter().enumerate() {
        running.spawn(
            driver
                .clone()
                .converse(number, conversation.clone(), sender.clone()),
        );
    }
    drop(sender);
    let turns = || conversations.iter().flat_map(|it| &it.turns);
    let total = turns().count();
    let all_tokens: usize = turns().map(|it| it.prompt.len()).sum();
    let what = format!("{}/{} {}", place.number + 1, place.of, place.policy);
    let mut tally = Tally::default();
    let mut line = ProgressLine::since(place.started);
    let (mut done, mut tokens) = (0, 0);
    while let Some(result) = results.recv().await {
        done += 1;
        tokens += result.tokens;
        tally.add(result);
        let part = tokens as f64 / all_tokens.max(1) as f64;
        line.show(&Progress {
            what: &what,
            done,
            total,
            share: (place.number as f64 + part) / place.of as f64,
            details: &live_details(suite, &tally),
        });
    }
    drop(line);
    while let Some(ended) = running.join_next().await {
        ended.context("join a conversation")?;
    }
    Ok(tally)
}

fn live_details(suite: &Suite, tally: &Tally) -> String {
    let mut totals = Totals::default();
    for router in &suite.routers {
        totals.merge(&router.totals());
    }
    let ratio = totals.realised_over_ceiling();
    let ratio = ratio.map_or("-".to_owned(), |it| format!("{it:.3}"));
    format!(", {ratio} of the ceiling, {} errors", tally.errors)
}

/// Whether the index comes to hold exactly what the engines hold, soon after they fell quiet.
async fn caught_up(suite: &Suite, client: &JsonClient, urls: &[String]) -> anyhow::Result<bool> {
    let deadline = Instant::now() + QUIET;
    loop {
        let index = index_api::read(&*suite.index).await?;
        let mut equal = true;
        for (number, url) in urls.iter().enumerate() {
            let held: HeldAnswer = client.get(&format!("{url}/debug/kv_blocks")).await?;
            let ranks = index_api::compare(&format!("engine-{}", number + 1), &held, &index);
            equal &= ranks.iter().all(|it| it.equal);
        }
        if equal || Instant::now() >= deadline {
            return Ok(equal);
        }
        tokio::time::sleep(COMPARE_PERIOD).await;
    }
}

/// Prompt tokens the busiest rank computed over the mean of all, by the engines' own counters.
async fn work_max_over_mean(client: &JsonClient, urls: &[String]) -> anyhow::Result<Option<f64>> {
    let mut computed = Vec::new();
    for url in urls {
        let text = client.get_text(&format!("{url}/metrics")).await?;
        for gauges in vllm::parse_metrics(&text).ranks.values() {
            let asked = gauges.prefix_queries.unwrap_or_default();
            let found = gauges.prefix_hits.unwrap_or_default();
            computed.push(asked.saturating_sub(found).as_f64());
        }
    }
    let total: f64 = computed.iter().sum();
    let most = computed.iter().copied().fold(0.0, f64::max);
    Ok((total > 0.0).then(|| most * computed.len() as f64 / total))
}
