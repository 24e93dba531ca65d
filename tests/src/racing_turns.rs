//! First turns of one conversation at several routers at the same instant: is it bound twice?

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use engine_sim::Dialect;
use fleet_sim::Random;
use futures::future::join_all;
use rankway::progress::{Progress, ProgressLine};
use serde::Serialize;
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::bindings::{History, Watch};
use crate::client::{Ask, Client};
use crate::report::Report;
use crate::world::{Form, MODEL, Plan, Served, Tables, World};

const NAME: &str = "racing-turns";
/// How many workers, and ranks of each: 16 in all.
const WORKERS: u32 = 4;
const RANKS: u32 = 4;
/// How many times faster than real time the engines are: the race is the routers'.
const SPEED_UP: f64 = 20.0;
/// Tokens of a prompt.
const PROMPT: usize = 96;
/// Conversations that race at one time.
const CONCURRENT: usize = 16;
/// How many further turns a conversation has that was not bound by its first ones.
const FURTHER: u32 = 3;
/// How long all of it may take.
const PATIENCE: Duration = Duration::from_secs(600);

/// Whether first turns that race at several routers bind their conversation once.
#[derive(Args)]
pub(crate) struct Options {
    /// How many conversations; the first turn of each is sent to two routers or more at the same instant.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    races: u32,
    /// How many router replicas [default: 4, or 3 processes of their own]
    #[arg(long, value_parser = clap::value_parser!(u32).range(2..=6))]
    routers: Option<u32>,
    /// What prompts and choices are drawn from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// The summary.
#[derive(Debug, Serialize)]
struct Figures {
    seed: u64,
    routers: u32,
    races: u32,
    requests: u64,
    errors: u64,
    /// Conversations confirmed at a second target without a move.
    double_bindings: u64,
    /// Conversations that are bound nowhere after the race, every turn of theirs decided without the store of bindings;
    /// and those that are not after further turns either.
    unbound_by_race: u64,
    unbound: u64,
    /// Requests that ran elsewhere than where their conversation is bound, and turns that routers say to have sent so:
    /// for once, or because the store of bindings was late.
    beside: u64,
    beside_said: u64,
    moved: u64,
    /// Changes of the table of bindings, and how many of them were overtaken before they could be seen.
    changes: u64,
    changes_unseen: u64,
    seconds: f64,
}

/// Runs the scenario.
pub(crate) async fn run(options: Options, form: Form) -> anyhow::Result<Report> {
    let routers = options.routers.unwrap_or(match form {
        Form::Together => 4,
        Form::Apart(_) => 3,
    });
    let plan = Plan {
        workers: WORKERS,
        engine: engine_sim::Config {
            engine: Dialect::Vllm,
            dp_size: RANKS,
            speed_up: SPEED_UP,
            ..engine_sim::Config::default()
        },
        routers: usize::try_from(routers)?,
        router: router_api::Config::default(),
        tables: Tables::Shared,
        seed: options.seed,
        form,
    };
    let figures = plan
        .run(async |world| measure(world, routers, &options).await)
        .await?;
    report(&figures)
}

async fn measure(world: &World, routers: u32, options: &Options) -> anyhow::Result<Figures> {
    let began = Instant::now();
    let watch = Watch::begin(&world.bus()).await?;
    let raced = timeout(PATIENCE, race(world, options)).await;
    let (mut requests, mut errors) = raced.context("it takes too long")??;
    let seconds = began.elapsed().as_secs_f64();
    let mut left = unbound(&table(world).await?, options.races);
    let unbound_by_race = left.len() as u64;
    for further in 1..=FURTHER {
        if left.is_empty() {
            break;
        }
        let (sent, failed) = further_turns(world, &left, further).await;
        (requests, errors) = (requests + sent, errors + failed);
        left = unbound(&table(world).await?, options.races);
    }
    let history = watch.end().await?;
    let ran = places(&world.served().await?);
    let degraded = world.counted("rankway_degraded_decisions_total").await?;
    let excursions = world.counted("rankway_excursions_total").await?;
    Ok(Figures {
        seed: options.seed,
        routers,
        races: options.races,
        requests,
        errors,
        double_bindings: history.double_bindings(),
        unbound_by_race,
        unbound: left.len() as u64,
        beside: beside(&history, &ran),
        // Counters count whole things.
        beside_said: (degraded + excursions) as u64,
        moved: world.counted("rankway_rebinds_total").await? as u64,
        changes: history.changes(),
        changes_unseen: history.unseen(world.revision_step()),
        seconds,
    })
}

fn report(figures: &Figures) -> anyhow::Result<Report> {
    let ok = figures.errors == 0
        && figures.double_bindings == 0
        && figures.unbound == 0
        && figures.unbound_by_race <= figures.beside_said
        && figures.beside <= figures.beside_said;
    let said = format!(
        "{} requests raced for {} conversations at {} routers: {} were bound twice, {} requests failed, {} ran beside \
         their binding",
        figures.requests,
        figures.races,
        figures.routers,
        figures.double_bindings,
        figures.errors,
        figures.beside
    );
    Ok(Report::new(NAME, ok, said, figures)?)
}

/// Lets all race; how many requests were sent, and how many failed.
async fn race(world: &World, options: &Options) -> anyhow::Result<(u64, u64)> {
    // One client for each router.
    let routers = world.routers().into_iter();
    let clients: Arc<[Client]> = routers.map(|it| Client::of(vec![it])).collect();
    let lanes = Arc::new(Semaphore::new(CONCURRENT));
    let mut running = JoinSet::new();
    let mut line = ProgressLine::since(Instant::now());
    let (mut requests, mut errors) = (0, 0);
    let total = usize::try_from(options.races)?;
    for number in 0..options.races {
        let lane = lanes.clone().acquire_owned().await?;
        let random = Random::new(options.seed << 32 | u64::from(number));
        let clients = clients.clone();
        running.spawn(async move {
            let ended = first_turns(&clients, number, random).await;
            drop(lane);
            ended
        });
        while let Some(ended) = running.try_join_next() {
            let (sent, failed) = ended.context("join a race")?;
            (requests, errors) = (requests + sent, errors + failed);
        }
        let done = usize::try_from(number)?;
        line.show(&Progress {
            what: NAME,
            done,
            total,
            share: done as f64 / total as f64,
            details: "",
        });
    }
    while let Some(ended) = running.join_next().await {
        let (sent, failed) = ended.context("join a race")?;
        (requests, errors) = (requests + sent, errors + failed);
    }
    Ok((requests, errors))
}

/// One conversation's first turn at two routers or more; how many were sent and how many failed.
async fn first_turns(clients: &[Client], number: u32, mut random: Random) -> (u64, u64) {
    let id = conversation(number);
    let prompt: Vec<u64> = (0..PROMPT).map(|_| random.next_u64() % 32_000).collect();
    let body = json!({"model": MODEL, "prompt": prompt, "max_tokens": 2, "ignore_eos": true});
    let body = bytes::Bytes::from(body.to_string());
    let first = random.next_u64() as usize;
    let racers = 2 + number as usize % (clients.len() - 1);
    let asked = (0..racers).map(|racer| {
        let client = &clients[(first % clients.len() + racer) % clients.len()];
        let (id, body) = (&id, body.clone());
        async move {
            let request_id = format!("{id}.{racer}");
            let ask = Ask {
                path: "/v1/completions",
                conversation: Some(id),
                request_id: &request_id,
                body,
            };
            client.ask(ask).await.map(drop)
        }
    });
    let answers = join_all(asked).await;
    let failed = answers.into_iter().filter_map(Result::err);
    let failed = failed.inspect(|error| {
        tracing::error!(error = format!("{error:#}"), "a request failed");
    });
    (racers as u64, failed.count() as u64)
}

fn conversation(number: u32) -> String {
    format!("race-{number}")
}

/// Where the requests of each conversation ran, as `worker/rank`.
fn places(served: &[Vec<Served>]) -> BTreeMap<String, Vec<String>> {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (worker, requests) in (1..).zip(served) {
        for request in requests {
            let id = request.request_id.as_deref();
            if let Some((conversation, _)) = id.and_then(|it| it.rsplit_once('.')) {
                let place = format!("w{worker}/{}", request.dp_rank);
                places
                    .entry(conversation.to_owned())
                    .or_default()
                    .push(place);
            }
        }
    }
    places
}

/// One more turn of some conversations, one after another; how many were sent and how many failed.
async fn further_turns(world: &World, conversations: &[u32], number: u32) -> (u64, u64) {
    let client = Client::of(world.routers());
    let mut failed = 0;
    for conversation in conversations {
        let id = self::conversation(*conversation);
        let request_id = format!("{id}.further{number}");
        let prompt = [*conversation; PROMPT];
        let body =
            json!({"model": MODEL, "prompt": &prompt[..], "max_tokens": 2, "ignore_eos": true});
        let answer = client.ask(Ask {
            path: "/v1/completions",
            conversation: Some(&id),
            request_id: &request_id,
            body: body.to_string().into(),
        });
        if let Err(error) = answer.await {
            tracing::error!(error = format!("{error:#}"), "a request failed");
            failed += 1;
        }
    }
    (conversations.len() as u64, failed)
}

/// The bindings as they are now.
async fn table(world: &World) -> anyhow::Result<History> {
    Watch::begin(&world.bus()).await?.end().await
}

/// Conversations that are not bound now.
fn unbound(history: &History, races: u32) -> Vec<u32> {
    let all = history.by_conversation();
    let bound: BTreeSet<&str> = all
        .iter()
        .filter(|(_, steps)| steps.last().is_some_and(|it| it.binding.is_some()))
        .map(|(conversation, _)| *conversation)
        .collect();
    let missing = (0..races).filter(|it| !bound.contains(conversation(*it).as_str()));
    missing.collect()
}

/// Requests that ran elsewhere than at any target their conversation was ever bound to.
fn beside(history: &History, ran: &BTreeMap<String, Vec<String>>) -> u64 {
    let all = history.by_conversation();
    let mut beside = 0;
    for (conversation, places) in ran {
        let steps = all.get(conversation.as_str()).copied().unwrap_or_default();
        let targets = steps
            .iter()
            .filter_map(|it| Some(&it.binding.as_ref()?.target));
        let bound: BTreeSet<String> = targets
            .map(|it| format!("{}/{}", it.worker, it.dp_rank))
            .collect();
        beside += places.iter().filter(|it| !bound.contains(*it)).count() as u64;
    }
    beside
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures() -> Figures {
        Figures {
            seed: 1,
            routers: 4,
            races: 10,
            requests: 30,
            errors: 0,
            double_bindings: 0,
            unbound_by_race: 0,
            unbound: 0,
            beside: 0,
            beside_said: 0,
            moved: 0,
            changes: 40,
            changes_unseen: 0,
            seconds: 1.0,
        }
    }

    #[test]
    fn nothing_may_be_bound_twice_or_fail_or_run_beside_its_binding_unsaid() {
        let ok = |change: fn(&mut Figures)| {
            let mut figures = figures();
            change(&mut figures);
            report(&figures).unwrap().ok()
        };
        assert!(ok(|_| {}));
        assert!(!ok(|it| it.errors = 1));
        assert!(!ok(|it| it.double_bindings = 1));
        assert!(!ok(|it| it.unbound = 1));
        assert!(!ok(|it| it.unbound_by_race = 1));
        assert!(ok(|it| (it.unbound_by_race, it.beside_said) = (1, 1)));
        assert!(!ok(|it| it.beside = 1));
        assert!(ok(|it| (it.beside, it.beside_said) = (1, 1)));
    }
}
