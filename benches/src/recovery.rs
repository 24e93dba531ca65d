//! `recovery`: a full indexer is killed in the middle of its work and started again.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use serde_json::json;

use crate::clock::median;
use crate::contest::Kind;
use crate::event::{Event, Naming};
use crate::fleet::{Fleet, Shape};
use crate::report::{Row, tables};
use crate::rounds::{Rounds, turns};
use crate::scratch::{Scratch, bytes_in, copy};
use crate::served::{DEPTH, WORKERS};
use crate::structures::Queue;

/// How long a start may take.
const GOAL: f64 = 5.0;
/// How long the indexer goes on once it is full, before it is killed.
const AT_WORK: Duration = Duration::from_secs(2);

/// What `recovery` does.
#[derive(Clone, Debug, clap::Args)]
pub struct Settings {
    /// One JSON object a line on standard output, and the tables on standard error.
    #[arg(long)]
    pub json: bool,
    /// A tenth of the memberships.
    #[arg(long)]
    pub quick: bool,
    /// (rank, block) pairs over seven workers.
    #[arg(long, default_value_t = 2_300_000)]
    pub memberships: usize,
    /// Times it is started over what the killed one has left.
    #[arg(long, default_value_t = 3)]
    pub rounds: usize,
}

/// Measures, prints, and answers whether every start was right and their median within the goal.
pub fn run(settings: &Settings) -> anyhow::Result<bool> {
    let memberships = settings.memberships / if settings.quick { 10 } else { 1 };
    let start = Instant::now();
    let note = |text: &str| eprintln!("[{:>4} s] {text}", start.elapsed().as_secs());
    let mut rounds = Rounds::default();
    let killed = kill_and_start(memberships, settings.rounds, &note, &mut rounds)?;
    note("what each structure takes for the same events, without a log, a store or a network");
    rebuild(memberships, settings.rounds, &mut rounds);
    let rows = rounds.rows(WORKERS, DEPTH);
    let seconds = median(killed.seconds.clone());
    let ok = killed.right && seconds <= GOAL;
    let verdict = format!(
        "killed with {memberships} memberships over {WORKERS} workers: right again after {seconds:.2} s \
         (goal {GOAL} s), digests equal: {}\n",
        killed.right
    );
    let text = tables(&rows, &Kind::ALL) + "\n" + &verdict;
    if settings.json {
        eprintln!("{text}");
        rows.iter().map(Row::json).for_each(|it| println!("{it}"));
        let summary = json!({
            "bench": "recovery", "ok": ok, "memberships": memberships, "seconds": seconds,
            "goal_seconds": GOAL, "digests_equal": killed.right,
        });
        println!("{summary}");
    } else {
        println!("{text}");
    }
    Ok(ok)
}

struct Killed {
    seconds: Vec<f64>,
    right: bool,
}

fn kill_and_start(
    memberships: usize,
    times: usize,
    note: &dyn Fn(&str),
    rounds: &mut Rounds,
) -> anyhow::Result<Killed> {
    let scratch = Scratch::new("recovery").context("make a folder for the log and the store")?;
    let left = scratch.path().join("left");
    note("filling an indexer through its log");
    let mut service = Served::start("fill", &left, memberships)?;
    let payload: f64 = service.line("level")?.parse()?;
    sizes(&service, &left, payload, rounds)?;
    std::thread::sleep(AT_WORK);
    drop(service);
    let mut killed = Killed {
        seconds: Vec::new(),
        right: true,
    };
    for time in 1..=times {
        // A start tidies up: the next one has to find what the kill has left.
        let folder = scratch.path().join(format!("start-{time}"));
        copy(&left, &folder).context("copy what the killed indexer has left")?;
        let begun = Instant::now();
        let mut service = Served::start("restart", &folder, memberships)?;
        let cpu: f64 = service.line("ready")?.parse()?;
        let seconds = begun.elapsed().as_secs_f64();
        killed.right &= service.line("equal")? == "true";
        note(&format!(
            "started, {time} of {times}: {seconds:.2} s, of which {cpu:.2} s of CPU time"
        ));
        rounds.note("its CPU time until then", "CPU s", Kind::Ours, cpu);
        rounds.note(
            "from start after kill -9 to ready",
            "s",
            Kind::Ours,
            seconds,
        );
        killed.seconds.push(seconds);
    }
    Ok(killed)
}

/// What the filled store takes on the disk, and what was written for it, over the bytes of the log's records.
fn sizes(service: &Served, folder: &Path, payload: f64, rounds: &mut Rounds) -> anyhow::Result<()> {
    let held = bytes_in(&folder.join("index"))? as f64;
    rounds.note(
        "store on disk over payload",
        "bytes/byte",
        Kind::Ours,
        held / payload,
    );
    let io = std::fs::read_to_string(format!("/proc/{}/io", service.child.id()));
    // Not every system tells.
    let Ok(io) = io else { return Ok(()) };
    let written = io.lines().find_map(|it| it.strip_prefix("write_bytes: "));
    let written: f64 = written.context("find write_bytes")?.parse()?;
    let of_log = bytes_in(&folder.join("log"))? as f64;
    let over = (written - of_log) / payload;
    rounds.note(
        "written beside the log over payload",
        "bytes/byte",
        Kind::Ours,
        over,
    );
    Ok(())
}

fn rebuild(memberships: usize, times: usize, rounds: &mut Rounds) {
    let shape = Shape {
        targets: WORKERS,
        depth: DEPTH,
        memberships,
    };
    let fleet = Fleet::new(shape, Naming::Foreign, 2026);
    let events: Vec<Event> = fleet.stores(2026).collect();
    for round in 0..times {
        for kind in turns(&Kind::ALL, round) {
            let cpu = kind.start(WORKERS, Queue::Unbounded).apply(&events);
            let case = "all events again, from memory";
            rounds.note(case, "CPU s", kind, cpu.as_secs_f64());
        }
    }
}

/// A process that serves, and is killed when this is dropped.
struct Served {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Served {
    fn start(deed: &str, folder: &Path, memberships: usize) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("find this program")?;
        let mut child = Command::new(program)
            .args(["service", deed])
            .arg(folder)
            .arg(memberships.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .context("start an indexer")?;
        let output = child.stdout.take().context("read what the indexer says")?;
        Ok(Self {
            child,
            lines: BufReader::new(output),
        })
    }

    /// What the next line says after `word`, with which it has to begin.
    fn line(&mut self, word: &str) -> anyhow::Result<String> {
        let mut line = String::new();
        self.lines.read_line(&mut line)?;
        match line.strip_prefix(word) {
            Some(rest) => Ok(rest.trim().to_owned()),
            None => bail!("the indexer ended or said {line:?} in place of {word:?}"),
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
