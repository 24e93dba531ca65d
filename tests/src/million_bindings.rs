//! What a million bindings cost, and that none of those acknowledged is lost when their process is killed.

mod child;
mod keeper;
mod told;

use std::fs;
use std::io;
use std::path::Path;

use anyhow::Context as _;
use clap::Args;
use serde::Serialize;

use self::child::Child;
use self::told::{Found, Span, Tell, Turns};
use crate::report::{Report, progress};

pub(crate) use self::keeper::{Options as KeeperOptions, keep};

const NAME: &str = "million-bindings";
/// How many conversations a process has bound before it is killed while it binds more, at least.
const ACKNOWLEDGED: u64 = 20_000;
/// How many are looked for at once, for the lines between the processes to stay short.
const FOUND_AT_ONCE: usize = 100_000;
/// How many bindings the store may have whose bound is tried.
const BOUND: u64 = 50_000;
/// By how many that is exceeded.
const BEYOND: u64 = 25_000;

/// What a million bindings cost in time, memory and on disk, and whether any is lost when the process is killed.
#[derive(Args)]
pub(crate) struct Options {
    /// How many conversations are bound.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1_000..=10_000_000))]
    bindings: u64,
    /// How often the process is killed while it binds more.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=100))]
    kills: u64,
}

/// The summary.
#[derive(Default, Serialize)]
struct Figures {
    bindings: u64,
    fresh_acquire_us_p50: u32,
    fresh_acquire_us_p99: u32,
    existing_acquire_us_p50: u32,
    existing_acquire_us_p99: u32,
    fresh_turns_per_second: f64,
    /// What the process grew by, and what one has that was started over what it left.
    memory_bytes_per_binding: u64,
    memory_bytes_per_binding_after_restart: u64,
    disk_bytes_per_binding: u64,
    /// From the start of a process to its first answer.
    restart_seconds: f64,
    kills: u64,
    acknowledged: u64,
    lost: u64,
    moved: u64,
    /// Of those idle longest, as many as were too many; and of the others.
    displaced: u64,
    displaced_too_early: u64,
    errors: u64,
}

pub(crate) async fn run(options: Options) -> anyhow::Result<Report> {
    let folder = tempfile::tempdir().context("make a temporary data folder")?;
    let mut figures = Figures {
        bindings: options.bindings,
        ..Figures::default()
    };
    let full = folder.path().join("full");
    figures.fill(&full, &options).await?;
    figures.kill(&full, &options).await?;
    figures.exceed(&folder.path().join("bounded")).await?;
    let ok = figures.lost == 0
        && figures.moved == 0
        && figures.errors == 0
        && figures.displaced == BEYOND
        && figures.displaced_too_early == 0;
    let said = format!(
        "of {} conversations bound before {} kills {} were lost and {} moved; beyond the bound {} of {BEYOND} made \
         room, {} too early; {} calls failed",
        figures.acknowledged,
        figures.kills,
        figures.lost,
        figures.moved,
        figures.displaced,
        figures.displaced_too_early,
        figures.errors
    );
    Ok(Report::new(NAME, ok, said, &figures)?)
}

impl Figures {
    /// Binds all, and kills the process at rest.
    async fn fill(&mut self, folder: &Path, options: &Options) -> anyhow::Result<()> {
        let all = options.bindings;
        let mut child = Child::start(folder, capacity(options)).await?;
        progress(format_args!("bind {all} conversations"));
        let fresh = child.turns(0, all).await?;
        self.take(&fresh);
        self.fresh_acquire_us_p50 = fresh.acquire_us.p50;
        self.fresh_acquire_us_p99 = fresh.acquire_us.p99;
        self.fresh_turns_per_second = all as f64 / fresh.seconds;
        self.memory_bytes_per_binding = fresh.resident.saturating_sub(child.resident) / all;
        progress(format_args!("a second turn of every tenth"));
        let existing = child.turns(0, all / 10).await?;
        self.take(&existing);
        self.existing_acquire_us_p50 = existing.acquire_us.p50;
        self.existing_acquire_us_p99 = existing.acquire_us.p99;
        let bytes = bytes_in(folder).context("measure the folder")?;
        self.disk_bytes_per_binding = bytes / all;
        let empty = child.resident;
        child.kill().await?;

        let mut child = Child::start(folder, capacity(options)).await?;
        self.restart_seconds = child.ready_seconds;
        self.memory_bytes_per_binding_after_restart = child.resident.saturating_sub(empty) / all;
        progress(format_args!("look for all of them after the kill"));
        self.look_for(&mut child, &(0..all).collect::<Vec<_>>())
            .await?;
        self.kills += 1;
        child.kill().await
    }

    /// Kills processes while they bind.
    async fn kill(&mut self, folder: &Path, options: &Options) -> anyhow::Result<()> {
        let mut first = options.bindings;
        for number in 1..=options.kills {
            progress(format_args!(
                "kill {number} of {} while it binds",
                options.kills
            ));
            let child = Child::start(folder, capacity(options)).await?;
            // At another moment each time.
            let least = ACKNOWLEDGED + number * 997;
            let acknowledged = child.kill_while_it_binds(first, least).await?;
            first = acknowledged.iter().max().map_or(first, |it| it + 1_000);
            let mut child = Child::start(folder, capacity(options)).await?;
            self.look_for(&mut child, &acknowledged).await?;
            self.kills += 1;
            child.kill().await?;
        }
        Ok(())
    }

    /// Binds more than there may be.
    async fn exceed(&mut self, folder: &Path) -> anyhow::Result<()> {
        progress(format_args!(
            "bind {} where there is room for {BOUND}",
            BOUND + BEYOND
        ));
        let mut child = Child::start(folder, BOUND).await?;
        let turns = child.turns(0, BOUND + BEYOND).await?;
        self.take(&turns);
        self.displaced = turns.displaced;
        // Those bound at one time have no order.
        let newest: Vec<u64> = (BEYOND + keeper::CALLERS..BOUND + BEYOND).collect();
        let found: Found = child.ask(&Tell::Find(newest)).await?;
        self.displaced_too_early = found.lost.len() as u64;
        self.errors += found.errors;
        child.kill().await
    }

    async fn look_for(&mut self, child: &mut Child, numbers: &[u64]) -> anyhow::Result<()> {
        self.acknowledged += numbers.len() as u64;
        for some in numbers.chunks(FOUND_AT_ONCE) {
            let found: Found = child.ask(&Tell::Find(some.to_vec())).await?;
            self.lost += found.lost.len() as u64;
            self.moved += found.moved;
            self.errors += found.errors;
        }
        Ok(())
    }

    fn take(&mut self, turns: &Turns) {
        self.errors += turns.errors;
    }
}

impl Child {
    async fn turns(&mut self, from: u64, to: u64) -> anyhow::Result<Turns> {
        self.ask(&Tell::Turns(Span { from, to })).await
    }
}

/// Room for all that are bound.
const fn capacity(options: &Options) -> u64 {
    2 * options.bindings + 10_000_000
}

/// Bytes that the files in a folder take, with the folders in it.
fn bytes_in(folder: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        bytes += match metadata.is_dir() {
            true => bytes_in(&entry.path())?,
            false => metadata.len(),
        };
    }
    Ok(bytes)
}
