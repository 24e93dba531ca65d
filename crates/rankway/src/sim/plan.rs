//! What is to be run.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use domain::BlockSize;
use fleet_sim::{CATALOGUE, Named, Setting, Source, TRACE_BLOCK_TOKENS, Trace, Workload, named};
use placement::Policy;

use crate::cli::{SimArgs, distinct};
use crate::failure::Failure;

/// What `--all` compares.
const ALL: [&str; 8] = [
    "W1",
    "W3-conversation",
    "W3-synthetic",
    "W3-agentic",
    "W4",
    "W5",
    "W6",
    "W7",
];
/// What `--all` runs under our policy alone, for a goal of its own.
pub(super) const OURS_ALONE: &str = "W3-conversation-32";
/// A first look: tenants with long prompts, and coding agents.
const FIRST_LOOK: [&str; 2] = ["W4", "W1"];
/// What it compares.
const FIRST_LOOK_POLICIES: [&str; 6] = [
    "round_robin",
    "sgl_cache_aware",
    "dynamo",
    "llmd_affinity",
    "sticky_least",
    "kv",
];
/// Requests of a workload at a first look.
const FIRST_LOOK_REQUESTS: usize = 4_000;
/// The words that stand for more than one workload.
const W3: [&str; 3] = ["W3-conversation", "W3-synthetic", "W3-agentic"];
const HERDING: &str = "herding";
/// The seeds of a mean that is reported: others than our numbers were tuned on.
const REPORTED: std::ops::RangeInclusive<u64> = 6..=10;
/// Replicas and ages of the load, in seconds, of a small simulation in which the load's age alone made them herd.
const HERDS: [u32; 3] = [1, 4, 16];
const AGES: [u64; 3] = [1, 5, 15];
/// The parts of our cost that an ablation switches off, by the names of their weights.
pub(super) const TERMS: [&str; 11] = [
    "pending",
    "overdue",
    "again",
    "delay",
    "balance",
    "transfer",
    "lockstep",
    "decode",
    "capacity",
    "obligation",
    "near_share",
];
/// Ranks and blocks of the fleet before which herding was first seen: half as fast as those of the trace's own.
const HERDING_FLEET: (u32, u32) = (16, 6_000);
/// Other names of trace files: those that they are published under.
const PUBLISHED: [(&str, &str); 2] = [
    (
        "mooncake_conversation_trace.jsonl",
        "conversation_trace.jsonl",
    ),
    ("mooncake_synthetic_trace.jsonl", "synthetic_trace.jsonl"),
];

/// One workload in one setting, under several policies.
#[derive(Debug)]
pub(super) struct Case {
    /// Its name in tables.
    pub(super) name: String,
    /// What it is, in a few words.
    pub(super) about: &'static str,
    requests: Requests,
    /// Where it runs; policy and seed are each run's own.
    pub(super) setting: Setting,
    /// In this order.
    pub(super) policies: Vec<Policy>,
    /// What the mean is taken over.
    pub(super) seeds: Vec<u64>,
}

#[derive(Debug)]
enum Requests {
    Drawn {
        count: usize,
        draw: fn(usize, u64) -> Workload,
    },
    File {
        named: &'static Named,
        path: PathBuf,
        limit: Option<usize>,
        /// Whether requests of one instant are spread until the next.
        spread: bool,
    },
}

impl Case {
    /// How many runs it takes.
    pub(super) fn runs(&self) -> usize {
        self.policies.len() * self.seeds.len()
    }

    /// Its requests, of this seed.
    pub(super) fn workload(&self, seed: u64) -> anyhow::Result<Workload> {
        match &self.requests {
            Requests::Drawn { count, draw } => Ok(draw(*count, seed)),
            Requests::File {
                named,
                path,
                limit,
                spread,
            } => {
                let read = || format!("read the trace {}", path.display());
                let file = File::open(path).with_context(read)?;
                let block_size = BlockSize::new(TRACE_BLOCK_TOKENS)?;
                let trace = Trace::read(BufReader::new(file), block_size, *limit);
                let trace = trace.with_context(read)?;
                Ok(named.of_trace(&if *spread { trace.spread() } else { trace }))
            }
        }
    }
}

/// All cases of a command, in the order of their output.
pub(super) fn cases(args: &SimArgs) -> Result<Vec<Case>, Failure> {
    let policies = match args.ablation {
        true => ablation(),
        false => distinct(&args.policy),
    };
    let mut cases = Vec::new();
    for name in names(args)? {
        if name == HERDING {
            cases.extend(herding(args, &policies)?);
            continue;
        }
        let known = named(name).expect("names are checked");
        let usual = || match args.all && name == OURS_ALONE {
            true => vec![Policy::KV],
            false if is_first_look(args) => first_look_policies(),
            false => usual_policies(known),
        };
        let policies = match policies.is_empty() {
            true => usual(),
            false => policies.clone(),
        };
        cases.push(case(args, known, policies)?);
    }
    Ok(cases)
}

fn names(args: &SimArgs) -> Result<Vec<&'static str>, Failure> {
    if args.all || (args.ablation && args.workload.is_empty()) {
        let alone = args.all.then_some(OURS_ALONE);
        return Ok(ALL.into_iter().chain(alone).collect());
    }
    if args.workload.is_empty() {
        return Ok(FIRST_LOOK.to_vec());
    }
    let mut names: Vec<&'static str> = Vec::new();
    for word in &args.workload {
        let is = |name: &str| name.eq_ignore_ascii_case(word);
        let found: Vec<&'static str> = match word {
            _ if is("W3") => W3.to_vec(),
            _ if is(HERDING) => vec![HERDING],
            _ => {
                let one = CATALOGUE.iter().map(|it| it.name).find(|it| is(it));
                one.into_iter().collect()
            }
        };
        if found.is_empty() {
            let known: Vec<&str> = CATALOGUE.iter().map(|it| it.name).collect();
            return Err(Failure::wrong_use(format!(
                "--workload {word:?} is none: choose of {}, W3, {HERDING}",
                known.join(", ")
            )));
        }
        names.extend(
            found
                .into_iter()
                .filter(|it| !names.contains(it))
                .collect::<Vec<_>>(),
        );
    }
    Ok(names)
}

/// The policy that a run is about, where it shows what one policy comes to, else all.
fn usual_policies(named: &Named) -> Vec<Policy> {
    match (named.setting)().policy {
        _ if named.compares => Policy::ALL.to_vec(),
        policy => vec![policy],
    }
}

fn is_first_look(args: &SimArgs) -> bool {
    args.workload.is_empty() && !args.all && !args.ablation
}

fn first_look_policies() -> Vec<Policy> {
    let policies = FIRST_LOOK_POLICIES.map(|it| it.parse());
    let policies = policies.into_iter();
    policies.map(|it| it.expect("it is a policy")).collect()
}

fn ablation() -> Vec<Policy> {
    let without = TERMS.map(|term| format!("kv:{term}=0").parse());
    let without = without.into_iter().map(|it| it.expect("kv has this term"));
    std::iter::once(Policy::KV).chain(without).collect()
}

fn case(args: &SimArgs, named: &'static Named, policies: Vec<Policy>) -> Result<Case, Failure> {
    let mut setting = (named.setting)();
    setting.routers = args.routers.unwrap_or(setting.routers);
    if let Some(age) = args.load_age {
        setting.gauges_every = Duration::from_secs_f64(age);
    }
    let limit = is_first_look(args).then_some(FIRST_LOOK_REQUESTS);
    let limit = args.requests.or(limit);
    let requests = match named.source {
        Source::Drawn { requests, draw } => Requests::Drawn {
            count: limit.unwrap_or(requests),
            draw,
        },
        Source::File(name) => Requests::File {
            named,
            path: trace_file(args.trace_dir.as_deref(), named.name, name)?,
            limit,
            spread: false,
        },
    };
    let seeds = match (&args.seeds, args.all) {
        (Some(seeds), _) => seeds.0.clone(),
        (None, true) => REPORTED.collect(),
        (None, false) => vec![*REPORTED.start()],
    };
    Ok(Case {
        name: named.name.to_owned(),
        about: named.about,
        requests,
        setting,
        policies,
        seeds,
    })
}

/// Replicas that know the load as it was, under policies that share no reservations and under ours. Requests that the
/// trace rounds to one instant are spread: what comes to all replicas at once none can know of, however fast they tell
/// each other, and that is the trace's rounding.
fn herding(args: &SimArgs, policies: &[Policy]) -> Result<Vec<Case>, Failure> {
    let named = named("W3-conversation").expect("it is in the catalogue");
    let usual = || ["dynamo", "lpwl", "kv"].map(|it| it.parse().expect("a policy"));
    let policies = match policies.is_empty() {
        true => usual().to_vec(),
        false => policies.to_vec(),
    };
    let mut cases = Vec::new();
    for age in AGES {
        for routers in HERDS {
            let mut one = case(args, named, policies.clone())?;
            one.name = format!("herding of {routers} at {age} s");
            one.about = "the conversation trace, with so many routers and so old a load";
            let fleet = &mut one.setting.fleet;
            (fleet.workers, fleet.kv_blocks) = HERDING_FLEET;
            fleet.step.per_prefill_token *= 2;
            one.setting.routers = routers;
            one.setting.gauges_every = Duration::from_secs(age);
            if let Requests::File { spread, .. } = &mut one.requests {
                *spread = true;
            }
            cases.push(one);
        }
    }
    Ok(cases)
}

fn trace_file(folder: Option<&Path>, workload: &str, name: &str) -> Result<PathBuf, Failure> {
    const HOW: &str = "crates/rankway/traces/README.md says where each trace is from";
    let Some(folder) = folder else {
        return Err(Failure::wrong_use(format!(
            "{workload} is a trace: give its folder with --trace-dir ({HOW}), or choose others with --workload, such as W1,W4,W5,W6,W7"
        )));
    };
    let published = PUBLISHED.iter().find(|it| it.0 == name).map(|it| it.1);
    let paths = [Some(name), published].into_iter().flatten();
    let found = paths.map(|it| folder.join(it)).find(|it| it.is_file());
    found.ok_or_else(|| {
        let folder = folder.display();
        Failure::wrong_use(format!(
            "--trace-dir {folder} has no file {name} for {workload}: {HOW}"
        ))
    })
}

#[cfg(test)]
mod tests {
    use fleet_sim::{Begins, Session, Source, named};
    use placement::{InvalidPolicy, Policy};

    use super::{ALL, FIRST_LOOK, OURS_ALONE, TERMS, W3, ablation};

    #[test]
    fn every_workload_that_is_named_here_is_in_the_catalogue() {
        let names = ALL.iter().chain(&FIRST_LOOK).chain(&W3);
        for name in names.chain([&OURS_ALONE]) {
            assert!(named(name).is_some(), "{name}");
        }
    }

    /// So that no term that is added is left unjudged.
    #[test]
    fn an_ablation_knows_every_number_of_ours() {
        const NO_TERMS: [&str; 3] = ["highest_utilisation", "near_seconds", "home_seconds"];
        let Err(InvalidPolicy::Key { has, .. }) = "kv:none=0".parse::<Policy>() else {
            panic!("kv has no such number");
        };

        let has = has.trim_start_matches("it has ").split(", ");
        let mut has: Vec<&str> = has.collect();
        has.sort_unstable();
        let mut known = [&TERMS[..], &NO_TERMS[..]].concat();
        known.sort_unstable();
        assert_eq!(has, known);
    }

    #[test]
    fn all_runs_rollouts_for_two_steps() {
        let rollouts = named("W7").expect("it is in the catalogue");
        let Source::Drawn { requests, draw } = rollouts.source else {
            panic!("rollouts are drawn");
        };

        let sessions = draw(requests, 6).sessions;
        let waits = |it: &Session| matches!(it.begins, Begins::AfterGroup { .. });
        assert!(sessions.iter().any(waits));
        assert!(!sessions.iter().all(waits));
    }

    #[test]
    fn an_ablation_runs_ours_whole_first() {
        let policies = ablation();

        assert_eq!(policies[0].to_string(), "kv");
        assert_eq!(policies.len(), 1 + TERMS.len());
        assert!(
            policies[1..]
                .iter()
                .all(|it| it.to_string().ends_with("=0"))
        );
    }
}
