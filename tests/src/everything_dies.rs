//! Conversations go on while every process behind them, and the bus between those, is killed once and comes back.

mod deaths;
mod figures;
mod last;
mod timeline;
mod traffic;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use engine_sim::Dialect;
use tokio::time::{Instant, timeout};

use self::deaths::Deaths;
use self::figures::{Bindings, Figures};
use self::last::Last;
use self::timeline::{Observed, Timeline};
use self::traffic::{Traffic, Turns};
use crate::apart::Shape;
use crate::bindings::Watch;
use crate::report::{Report, progress};
use crate::truth;
use crate::world::{Form, Plan, Tables, World};

const NAME: &str = "everything-dies";
/// How many workers, and ranks of each.
const WORKERS: u32 = 2;
const RANKS: u32 = 4;
/// Blocks of one rank: so few that the last turns displace others' blocks.
const KV_BLOCKS: u32 = 2_048;
/// How long all may take to be ready when everything has died.
const READY_PATIENCE: Duration = Duration::from_secs(60);
/// How long the index may take to be the engines' truth for it to be measured at all.
const TRUTH_PATIENCE: Duration = Duration::from_secs(30);
/// How long answers may still take when the time is over.
const LAST_ANSWERS: Duration = Duration::from_secs(60);

/// Whether requests, bindings and the index survive that every process and NATS is killed once, under load.
#[derive(Args)]
pub(crate) struct Options {
    /// For how long conversations go on, in seconds; all that dies does so in the meantime.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(10..=3600))]
    seconds: u32,
    /// How many conversations go on at once.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=2_000))]
    conversations: u32,
    /// One affinity store and one indexer instead of two.
    #[arg(long)]
    single: bool,
    /// Freeze everything once (SIGSTOP) instead of killing it.
    #[arg(long)]
    freeze: bool,
    /// What the order of deaths, their times and all prompts are drawn from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl Options {
    fn duration(&self) -> Duration {
        Duration::from_secs(self.seconds.into())
    }
}

/// Runs the scenario; the form has to be that of services apart.
pub(crate) async fn run(options: Options, form: Form) -> anyhow::Result<Report> {
    let several = if options.single { 1 } else { 2 };
    let form = match form {
        Form::Together => Form::Together,
        Form::Apart(shape) => Form::Apart(Shape {
            // A second ingest would be a second publisher of every rank, which is refused.
            ingests: 1,
            indexers: several,
            affinities: several,
            adapters: 2,
            ..shape
        }),
    };
    let plan = Plan {
        workers: WORKERS,
        engine: engine_sim::Config {
            engine: Dialect::Vllm,
            dp_size: RANKS,
            kv_blocks: KV_BLOCKS,
            ..engine_sim::Config::default()
        },
        routers: 2,
        router: router_api::Config::default(),
        tables: Tables::Shared,
        seed: options.seed,
        form,
    };
    let (figures, timeline) = plan
        .run(async |world| measure(world, &options).await)
        .await?;
    figures.report(timeline)
}

async fn measure(world: &mut World, options: &Options) -> anyhow::Result<(Figures, Timeline)> {
    let bus = world.bus();
    let watch = Watch::begin(&bus).await?;
    let traffic = Arc::new(Traffic::new(world.routers(), options));
    let began = Instant::now();
    let deaths = Deaths::draw(options, world.apart()?);
    let (observer, events) = timeline::observer(world.apart()?);
    progress(format_args!(
        "{} conversations for {} s",
        options.conversations, options.seconds
    ));
    let deadly = async {
        let turns = traffic::run(&traffic, options, began, events.clone());
        let turns = timeout(options.duration() + LAST_ANSWERS, turns);
        let died = deaths.run(&mut world.apart()?.services, began, events.clone());
        let (turns, died) = tokio::join!(turns, died);
        died?;
        let turns = turns.context("answers take too long")?;
        progress(format_args!("wait until all are ready again"));
        world.apart()?.ready(READY_PATIENCE).await?;
        anyhow::Ok(turns)
    };
    let (turns, observed): (Turns, Observed) = observer.during(deadly).await?;
    progress(format_args!("compare the index with the engines"));
    let truth = truth::index_equals(world, TRUTH_PATIENCE).await;
    let truth = truth.inspect_err(|error| tracing::error!("{error:#}")).ok();
    progress(format_args!("one last turn of each conversation"));
    let last = Last::run(&traffic, world).await?;
    let history = watch.end().await?;
    let table = Watch::begin(&bus).await?.end().await?;
    let bindings = Bindings::new(&history, &table, &world.served().await?);
    let figures = Figures::new(options, &observed, turns, (last, bindings), truth);
    Ok((figures, Timeline::new(began, observed)))
}
