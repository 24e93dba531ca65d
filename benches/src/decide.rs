//! `decide`: what a decision of the router costs on one core, from token ids in memory to where the request goes.
//!
//! One thread does all of it: block hashes and their chain, what the indexer answers, the binding, the decision with
//! its reservation, and, for each request that comes, the first token and the end of one that came before.

mod text;
mod world;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use domain::{block_hashes, prefix_hashes, sequence_hashes};
use serde_json::{json, value::RawValue};

use self::text::{BLOCK, TOKENS, prompt};
use self::world::{RANKS, WORKERS, World};
use crate::clock::{Ticks, median, percentile, resident, thread_cpu};
use crate::contest::Kind;
use crate::report::{Row, tables};

/// Of a hundred decisions 99 take less, in microseconds.
const GOAL_P99: f64 = 1_000.0;
/// And so many are made in a second.
const GOAL_RATE: f64 = 5_000.0;
/// Requests until as many are on their way as always.
const WARM_UP: usize = 10_000;

/// What `decide` does.
#[derive(Clone, Debug, clap::Args)]
pub struct Settings {
    /// One JSON object a line on standard output, and the table on standard error.
    #[arg(long)]
    pub json: bool,
    /// A tenth of the conversations and of the requests.
    #[arg(long)]
    pub quick: bool,
    /// Live conversations.
    #[arg(long, default_value_t = 10_000)]
    pub conversations: usize,
    /// Decisions of a round.
    #[arg(long, default_value_t = 4_000)]
    pub requests: usize,
    /// Rounds; figures are the medians of theirs.
    #[arg(long, default_value_t = 5)]
    pub rounds: usize,
}

/// Times of one part of all decisions of a round, in microseconds.
type Part = Vec<f64>;

/// Times of one round.
#[derive(Default)]
struct Round {
    parts: BTreeMap<&'static str, Part>,
    /// Seconds of it that were spent deciding, by the wall and by the CPU.
    wall: f64,
    cpu: f64,
}

/// Measures, prints, and answers whether both goals are reached in CPU time.
pub fn run(settings: &Settings) -> anyhow::Result<bool> {
    let start = Instant::now();
    let note = |text: &str| eprintln!("[{:>4} s] {text}", start.elapsed().as_secs());
    let fewer = |number: usize| number / if settings.quick { 10 } else { 1 };
    let (conversations, requests) = (fewer(settings.conversations), fewer(settings.requests));
    note(&format!(
        "filling the index with {conversations} conversations"
    ));
    let before = resident()?;
    let index = text::index(conversations);
    let mut world = World::new(index.reader(), conversations);
    note("warming up");
    let ticks = Ticks::calibrate();
    let mut bench = Bench {
        world: &mut world,
        ticks,
        tokens: Vec::new(),
    };
    bench.round(WARM_UP);
    let gigabytes = resident()?.saturating_sub(before) as f64 / 1e9;
    let mut rounds = Vec::new();
    for number in 1..=settings.rounds.max(1) {
        note(&format!("round {number}"));
        rounds.push(bench.round(requests));
    }
    let alone = bench.alone(requests / 10);
    let (open, reserved) = world.load();
    note(&format!(
        "{open} requests on their way, {reserved} reservations, {gigabytes:.1} GB"
    ));
    let figures = Figures::of(&rounds);
    let rows = rows(&rounds, &alone, &figures);
    let ok = figures.p99_cpu < GOAL_P99 && GOAL_RATE <= figures.rate_cpu && world.wrong == 0;
    print(
        settings.json,
        &rows,
        &figures.summary(ok, world.wrong, gigabytes),
    );
    Ok(ok)
}

/// What the goals are about: medians of the rounds, and the best one by the wall.
struct Figures {
    p99_cpu: f64,
    p99_wall: f64,
    p99_wall_best: f64,
    rate_cpu: f64,
    rate_wall: f64,
    rate_wall_best: f64,
}

impl Figures {
    fn of(rounds: &[Round]) -> Self {
        let all = |of: &dyn Fn(&Round) -> f64| rounds.iter().map(of).collect::<Vec<f64>>();
        let p99 = |name: &'static str| all(&|it| percentile(&mut it.parts[name].clone(), 99));
        let best =
            |values: Vec<f64>, better: fn(f64, f64) -> f64| values.into_iter().reduce(better);
        let count = |it: &Round| it.parts["decision"].len() as f64;
        let wall = || all(&|it| count(it) / it.wall);
        Self {
            p99_cpu: median(p99("decision, CPU")),
            p99_wall: median(p99("decision")),
            p99_wall_best: best(p99("decision"), f64::min).unwrap_or(f64::NAN),
            rate_cpu: median(all(&|it| count(it) / it.cpu)),
            rate_wall: median(wall()),
            rate_wall_best: best(wall(), f64::max).unwrap_or(f64::NAN),
        }
    }

    fn summary(&self, ok: bool, wrong: u64, gigabytes: f64) -> serde_json::Value {
        json!({
            "bench": "decide",
            "ok": ok,
            "p99_us": {"cpu": self.p99_cpu, "wall": self.p99_wall, "wall_best_round": self.p99_wall_best},
            "decisions_per_second": {
                "cpu": self.rate_cpu, "wall": self.rate_wall, "wall_best_round": self.rate_wall_best,
            },
            "goal_p99_us": GOAL_P99,
            "goal_decisions_per_second": GOAL_RATE,
            "wrong": wrong,
            "gigabytes": gigabytes,
        })
    }
}

struct Bench<'a> {
    world: &'a mut World,
    ticks: Ticks,
    tokens: Vec<u32>,
}

impl Bench<'_> {
    /// So many requests.
    fn round(&mut self, requests: usize) -> Round {
        let mut round = Round::default();
        for _ in 0..requests {
            let conversation = self.world.next();
            prompt(conversation, self.world.turn(), &mut self.tokens);
            self.request(conversation, &mut round);
        }
        round
    }

    fn request(&mut self, conversation: usize, round: &mut Round) {
        let Self {
            world,
            ticks,
            tokens,
        } = self;
        let mut note = |name, nanoseconds: f64| {
            round.parts.entry(name).or_default().push(nanoseconds / 1e3);
            nanoseconds
        };
        let (mut hashes, mut view, mut binding, mut decision) = (Vec::new(), None, None, None);
        let began = thread_cpu();
        let mut wall = note(
            "hash",
            ticks.time(|| {
                hashes = prefix_hashes(tokens, world::block_size(), world::seed());
            }),
        );
        let mut ceiling = 0;
        wall += note("ceiling", ticks.time(|| ceiling = world.ceiling(&hashes)));
        wall += note(
            "overlap",
            ticks.time(|| view = Some(world.overlap(&hashes, ceiling))),
        );
        wall += note(
            "binding",
            ticks.time(|| binding = world.binding(conversation)),
        );
        wall += note(
            "decide",
            ticks.time(|| {
                let request = world.request(conversation, hashes);
                let view = view.take().expect("the index has answered");
                decision = Some(world.decide(&request, view, binding.as_deref()));
            }),
        );
        wall += note(
            "bind and keep",
            ticks.time(|| {
                world.enter(conversation, decision.take().expect("a decision was made"));
            }),
        );
        let cpu = thread_cpu().saturating_sub(began);
        note("decision", wall);
        note("decision, CPU", nanoseconds(cpu));
        let began = thread_cpu();
        let end = note(
            "first token and end of another",
            ticks.time(|| world.proceed()),
        );
        let cpu = cpu + thread_cpu().saturating_sub(began);
        round.wall += (wall + end) / 1e9;
        round.cpu += cpu.as_secs_f64();
    }

    /// What is a part of the above, or none of it, each by itself.
    fn alone(&mut self, times: usize) -> BTreeMap<&'static str, Part> {
        let mut parts = BTreeMap::<&'static str, Part>::new();
        for _ in 0..times.max(10) {
            let conversation = self.world.next();
            prompt(conversation, self.world.turn(), &mut self.tokens);
            let mut blocks = Vec::new();
            let mut note = |name, nanoseconds: f64| {
                parts.entry(name).or_default().push(nanoseconds / 1e3);
            };
            let (size, seed) = (world::block_size(), world::seed());
            note(
                "hash, blocks alone",
                self.ticks
                    .time(|| blocks = block_hashes(&self.tokens, size, seed)),
            );
            note(
                "hash, chain alone",
                self.ticks.time(|| {
                    std::hint::black_box(sequence_hashes(&blocks));
                }),
            );
            let body = json!({"model": "m", "prompt": self.tokens}).to_string();
            let mut read = Vec::new();
            note(
                "JSON of the body, no part of a decision",
                self.ticks.time(|| read = parsed(&body)),
            );
            assert_eq!(read, self.tokens, "JSON keeps numbers");
        }
        parts
    }
}

/// The token ids of a body, read as the router reads them: the field first, then its numbers.
fn parsed(body: &str) -> Vec<u32> {
    #[derive(serde::Deserialize)]
    struct Body<'a> {
        #[serde(borrow)]
        prompt: &'a RawValue,
    }
    let body: Body<'_> = serde_json::from_str(body).expect("written a moment ago");
    serde_json::from_str(body.prompt.get()).expect("written a moment ago")
}

fn nanoseconds(time: Duration) -> f64 {
    time.as_nanos() as f64
}

fn rows(rounds: &[Round], alone: &BTreeMap<&'static str, Part>, figures: &Figures) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut push = |case: String, figure: f64| {
        rows.push(Row {
            case,
            targets: WORKERS * RANKS,
            depth: TOKENS / BLOCK,
            unit: "us",
            of: BTreeMap::from([(Kind::Ours, figure)]),
        });
    };
    let of_rounds = |name: &str, percent: usize| {
        let of = |it: &Round| percentile(&mut it.parts[name].clone(), percent);
        median(rounds.iter().map(of).collect())
    };
    for name in ["decision", "decision, CPU"] {
        push(format!("{name}, p50"), of_rounds(name, 50));
        push(format!("{name}, p99"), of_rounds(name, 99));
    }
    push(
        "decision, p99 of the best round".to_owned(),
        figures.p99_wall_best,
    );
    push("a request whole, mean".to_owned(), 1e6 / figures.rate_wall);
    push(
        "a request whole, mean of the best round".to_owned(),
        1e6 / figures.rate_wall_best,
    );
    push(
        "a request whole, CPU, mean".to_owned(),
        1e6 / figures.rate_cpu,
    );
    let parts = [
        "hash",
        "ceiling",
        "overlap",
        "binding",
        "decide",
        "bind and keep",
        "first token and end of another",
    ];
    for name in parts {
        push(format!("{name}, p50"), of_rounds(name, 50));
        push(format!("{name}, p99"), of_rounds(name, 99));
    }
    for (name, part) in alone {
        push(format!("{name}, p50"), median(part.clone()));
    }
    rows
}

fn print(as_json: bool, rows: &[Row], summary: &serde_json::Value) {
    let text = tables(rows, &[Kind::Ours]);
    if as_json {
        eprintln!("{text}");
        rows.iter().for_each(|it| println!("{}", it.json()));
        println!("{summary}");
    } else {
        println!("{text}\n{summary}");
    }
}
