//! Flags of `rankway sim`.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use placement::Policies;

use super::values::{number, policies, whole};

/// Replicas of a simulated router.
const ROUTERS: RangeInclusive<u64> = 1..=64;
/// Seconds that a load may be old.
const LOAD_AGE: RangeInclusive<f64> = 0.01..=600.0;
/// The most seeds of one run: a mean over more says nothing more.
const MAX_SEEDS: usize = 1_000;

#[derive(Args)]
#[command(after_help = "\
Workloads:
  W1  coding agents (AgentX figures)      W6         W1 with one system prompt for all
  W2  coding agents (Codex figures)       W6-salted  the same under a salt for each tenant
  W3  three traces from --trace-dir       W7         rollouts in steps (GRPO)
  W4  tenants with long prompts           W8         W1 with restarts, a drain, a new worker
  W5  conversations about code            W9, W10    W1 with lossy events, with cut-off routers
  W3-conversation, W3-conversation-32, W3-synthetic, W3-agentic: one of the traces
  W1-tight, W5-tight: the same where the caches do not hold all that is asked for again
  capacity, scattered, lossy: three causes of the same loss, told apart by the waterfall
  herding: 1, 4 and 16 routers that know a load 1, 5 and 15 s old, under dynamo, lpwl and kv

Each runs on the fleet that it is meant for. Under kv a rank computes, or waits for a sibling that does,
five sixths of the time in W1, W6 and W3-synthetic, three quarters in W3-conversation, nine tenths and
more in W2 and W7. W4 and W5 decode nearly all the time; the load of W4 is its peak, that of W3-agentic
its first two minutes. In a table, * marks the Pareto front: no other policy has both a lower median
TTFT and a higher share of the ceiling.

Examples:
  rankway sim                                          a first look, in less than a minute
  rankway sim --workload W7 --policy dynamo,kv --html sim.html
  rankway sim --all --trace-dir traces --html sim.html --json
  rankway sim --workload W1 --ablation                 what each term of our cost is worth")]
pub(crate) struct SimArgs {
    /// Compare all policies over W1, W3, W4, W5, W6 and W7, and judge ours; needs --trace-dir
    #[arg(long, conflicts_with = "workload")]
    pub(crate) all: bool,
    /// Workloads to run, comma-separated or repeated [default: W4,W1]
    #[arg(
        long,
        value_name = "NAME",
        value_delimiter = ',',
        env = "RANKWAY_SIM_WORKLOAD"
    )]
    pub(crate) workload: Vec<String>,
    #[arg(
        long,
        help = policies("Policies to compare [default: all],"),
        env = "RANKWAY_SIM_POLICY"
    )]
    pub(crate) policy: Vec<Policies>,
    /// Run kv as it is and with each of its terms switched off, instead of --policy; without --workload over all
    #[arg(long, conflicts_with_all = ["policy", "all"])]
    pub(crate) ablation: bool,
    /// Seeds to take the mean over, as 6-10 or 6,8; 1-5 are what our numbers were tuned on [default: 6, 6-10 with --all]
    #[arg(long, value_name = "SEEDS", env = "RANKWAY_SIM_SEEDS")]
    pub(crate) seeds: Option<Seeds>,
    /// Router replicas [default: the workload's own, mostly 1]
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        value_parser = whole::<u32>(ROUTERS),
        env = "RANKWAY_SIM_ROUTERS"
    )]
    pub(crate) routers: Option<u32>,
    /// How old a load is that routers read from engines, in seconds [default: 0.5]
    #[arg(
        long,
        value_name = "SECONDS",
        allow_negative_numbers = true,
        value_parser = number(LOAD_AGE),
        env = "RANKWAY_SIM_LOAD_AGE"
    )]
    pub(crate) load_age: Option<f64>,
    /// Requests of each workload, of a trace its first ones [default: what the workload is meant to have]
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        value_parser = whole::<usize>(1..=10_000_000),
        env = "RANKWAY_SIM_REQUESTS"
    )]
    pub(crate) requests: Option<usize>,
    /// Folder with the trace files of W3 [default: none]
    #[arg(long, value_name = "FOLDER", env = "RANKWAY_SIM_TRACE_DIR")]
    pub(crate) trace_dir: Option<PathBuf>,
    /// Write a page with a plot of each workload [default: none]
    #[arg(long, value_name = "FILE", env = "RANKWAY_SIM_HTML")]
    pub(crate) html: Option<PathBuf>,
    /// Print one JSON object a workload instead of text; the last line is the summary
    #[arg(long)]
    pub(crate) json: bool,
}

/// The seeds of a mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seeds(pub(crate) Vec<u64>);

impl FromStr for Seeds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "write seeds as 6, 6-10 or 6,8".to_owned();
        let mut seeds = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last): (u64, u64) = first
                .parse()
                .ok()
                .zip(last.parse().ok())
                .ok_or_else(wrong)?;
            if last < first {
                return Err(wrong());
            }
            if last - first >= (MAX_SEEDS - seeds.len()) as u64 {
                return Err(format!("at most {MAX_SEEDS} seeds can be taken"));
            }
            seeds.extend(first..=last);
        }
        seeds.sort_unstable();
        seeds.dedup();
        Ok(Self(seeds))
    }
}

#[cfg(test)]
mod tests {
    use super::Seeds;

    #[test]
    fn seeds_are_ranges_and_lists_each_once() {
        let check = |text: &str, seeds: Option<&[u64]>| {
            let read = text.parse::<Seeds>().ok();
            assert_eq!(read.as_ref().map(|it| it.0.as_slice()), seeds, "{text}");
        };

        check("6", Some(&[6]));
        check("6-8", Some(&[6, 7, 8]));
        check("9,6-7,6", Some(&[6, 7, 9]));
        for wrong in [
            "",
            "a",
            "8-6",
            "1-",
            "-1",
            "1-9999999",
            "0-18446744073709551615",
        ] {
            check(wrong, None);
        }
    }
}
