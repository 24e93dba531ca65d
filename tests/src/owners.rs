//! Who owns the rank of a conversation: on the wire, in the bindings, and where its turns run.

mod drive;
mod figures;

use clap::Args;
use domain::Endpoint;
use engine_sim::{Conversations, Dialect, Misbehaviour};
use serde::Serialize;

use self::figures::{Case, Owned, Row, Said};
use crate::bindings::Watch;
use crate::report::Report;
use crate::world::{Form, Plan, Tables};

const NAME: &str = "owners";
/// How many workers, and ranks of each.
const WORKERS: u32 = 2;
const RANKS: u32 = 4;
/// How many router replicas take the turns, one after another.
const ROUTERS: usize = 2;
/// How many times faster than real time the engines are.
const SPEED_UP: f64 = 10.0;

/// Whether engines that own ranks are asked for none and followed, and others are asked for the bound one every time.
#[derive(Args)]
pub(crate) struct Options {
    /// Conversations in each case.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=5_000))]
    conversations: u32,
    /// Turns of each, at least two.
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(2..=50))]
    turns: u32,
    /// What prompts are drawn from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// The summary.
#[derive(Serialize)]
struct Figures {
    cases: usize,
    held: usize,
    /// Where the engine owns ranks.
    ranks_on_the_wire: u64,
    confirmed_within_ms: f64,
    kept_share: f64,
    /// Where the router does.
    turns_without_their_rank: u64,
    /// Where the engine ignores them.
    most_changes: u64,
    errors: u64,
}

/// Runs the scenario.
pub(crate) async fn run(options: Options, form: Form) -> anyhow::Result<Report> {
    let mut rows = Vec::new();
    for case in cases() {
        rows.push(one(case, &options, &form).await?);
    }
    report(rows)
}

fn cases() -> Vec<Case> {
    let ignoring = Misbehaviour {
        ignore_rank: [Endpoint::Completions].into(),
        ..Misbehaviour::default()
    };
    let plain = Misbehaviour::default;
    vec![
        Case::new(
            "engine owned",
            Dialect::TensorRtLlm,
            Owned::ByEngine,
            plain(),
        ),
        Case::new("router owned", Dialect::Vllm, Owned::ByRouter, plain()),
        Case::new("router owned", Dialect::Sglang, Owned::ByRouter, plain()),
        Case::new(
            "rank ignored",
            Dialect::Vllm,
            Owned::InVain,
            ignoring.clone(),
        ),
        Case::new("rank ignored", Dialect::Sglang, Owned::InVain, ignoring),
    ]
}

async fn one(case: Case, options: &Options, form: &Form) -> anyhow::Result<Row> {
    let conversations: Option<Conversations> = match case.owned {
        Owned::ByEngine => Some("engine".parse()?),
        Owned::ByRouter | Owned::InVain => None,
    };
    let plan = Plan {
        workers: WORKERS,
        engine: engine_sim::Config {
            engine: case.engine,
            dp_size: RANKS,
            speed_up: SPEED_UP,
            misbehave: case.misbehave.clone(),
            conversations,
            ..engine_sim::Config::default()
        },
        routers: ROUTERS,
        router: router_api::Config::default(),
        tables: Tables::Shared,
        seed: options.seed,
        form: form.clone(),
    };
    let measured = plan.run(async |world| {
        let watch = Watch::begin(&world.bus()).await?;
        let what = format!("{} by {}", case.name, case.engine.name());
        let sent = drive::run(world, &what, options, case.owned.pause()).await?;
        let said = Said {
            moved: world.counted("rankway_rebinds_total").await?,
            excursions: world.counted("rankway_excursions_total").await?,
        };
        let seen = (watch.end().await?, world.served().await?);
        Ok((sent, seen, said))
    });
    let (sent, (history, served), said) = measured.await?;
    Ok(Row::new(&case, &sent, &history, &served, said))
}

fn report(rows: Vec<Row>) -> anyhow::Result<Report> {
    let of = |owned| rows.iter().filter(move |it| it.owned == owned);
    let figures = Figures {
        cases: rows.len(),
        held: rows.iter().filter(|it| it.holds()).count(),
        ranks_on_the_wire: of(Owned::ByEngine).map(|it| it.asked).sum(),
        confirmed_within_ms: of(Owned::ByEngine)
            .map(|it| it.confirmed_ms_max)
            .fold(0.0, f64::max),
        kept_share: of(Owned::ByEngine)
            .map(|it| it.kept_share)
            .fold(1.0, f64::min),
        turns_without_their_rank: of(Owned::ByRouter)
            .map(|it| it.requests - it.asked_bound)
            .sum(),
        most_changes: of(Owned::InVain)
            .map(|it| it.most_changes)
            .max()
            .unwrap_or(0),
        errors: rows.iter().map(|it| it.errors).sum(),
    };
    let said = format!(
        "{} of {} cases held: engines that own ranks were sent {}, their bindings stood at the rank that ran within \
         {:.0} ms of the first token, and {:.4} of the later turns ran there; of the turns of the others {} went out \
         without their rank, and where it was ignored a conversation changed at most {} times",
        figures.held,
        figures.cases,
        figures.ranks_on_the_wire,
        figures.confirmed_within_ms,
        figures.kept_share,
        figures.turns_without_their_rank,
        figures.most_changes
    );
    let ok = figures.held == figures.cases && figures.cases > 0;
    Ok(Report::new(NAME, ok, said, &figures)?.with_rows(rows)?)
}
