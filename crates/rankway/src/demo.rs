//! `rankway demo`: the whole path in one process, measured, one policy after the other.

mod driver;
mod pass;

use std::time::Duration;

use fleet_sim::{AgentX, Conversation, working_set};
use serde::Serialize;
use tokio::time::Instant;

use self::pass::{Fleet, PassReport, Place};
use crate::cli::{DemoArgs, distinct};
use crate::failure::Failure;
use crate::report::{Comparison, PolicyReport, print_json, print_line};

/// Engines of the demo.
const ENGINES: u32 = 2;
/// Attention-DP ranks of each.
const RANKS: u32 = 4;
/// Router replicas; turns alternate between them.
const ROUTERS: u32 = 2;
/// Tokens per block.
const BLOCK_SIZE: u32 = 16;
/// Total KV capacity over the working set.
const KV_OVER_WORKING_SET: f64 = 2.0;
/// Divides the published token counts.
const TOKEN_SCALE: f64 = 16.0;
/// Divides the published gaps between turns.
const TIME_SCALE: f64 = 100.0;
/// The longest prompt, in tokens.
const MAX_ISL: u32 = 16_384;
/// The most turns of a conversation, so that the demo ends while somebody watches.
const MAX_TURNS: u32 = 24;

/// The last line of `--json`.
#[derive(Serialize)]
struct Summary {
    ok: bool,
    #[serde(flatten)]
    comparison: Comparison,
    checks: Checks,
}

/// What the demo claims, as found in this run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct Checks {
    /// No request failed.
    no_errors: bool,
    /// `kv` took at least 0.95 of the ceiling from the caches; true where it did not run.
    kv_reaches_the_ceiling: bool,
    /// The parts of every policy's waterfall sum to what was lost.
    waterfall_adds_up: bool,
    /// Every turn after a conversation's first, sent to the other router, went to the rank of the turn before
    /// unless its binding moved or it went elsewhere for once; true where `kv` did not run.
    routers_share_bindings: bool,
    /// At the end the index held exactly what the engines held.
    index_equals_engines: bool,
}

/// Runs the command.
pub(crate) fn run(args: DemoArgs) -> Result<(), Failure> {
    service_kit::init_logging("error").map_err(Failure::wrong_use)?;
    if args.policy.is_empty() {
        return Err(Failure::wrong_use("--policy names no policy"));
    }
    let workload = AgentX {
        sessions: args.conversations,
        token_scale: TOKEN_SCALE,
        time_scale: TIME_SCALE,
        max_isl: MAX_ISL,
        max_turns: MAX_TURNS,
        seed: args.seed,
    };
    let conversations = workload.conversations();
    let fleet = fleet(&conversations, args.seed);
    if !args.json {
        introduce(args.conversations, &conversations, &fleet)?;
    }
    let runtime = crate::runtime()?;
    let mut passes = Vec::new();
    let policies = distinct(&args.policy);
    let started = Instant::now();
    for (number, policy) in policies.iter().enumerate() {
        let place = Place {
            policy: *policy,
            number,
            of: policies.len(),
            started,
        };
        let Some(pass) = runtime.block_on(pass::run(place, &fleet, &conversations))? else {
            return Err(Failure::Interrupted);
        };
        if args.json {
            print_json(&pass.policy)?;
        }
        passes.push(pass);
    }
    conclude(&args, passes)
}

fn fleet(conversations: &[Conversation], seed: u64) -> Fleet {
    let tokens = working_set(conversations) as f64 * KV_OVER_WORKING_SET;
    let per_rank = tokens / f64::from(ENGINES * RANKS) / f64::from(BLOCK_SIZE);
    Fleet {
        engines: ENGINES,
        ranks: RANKS,
        block_size: BLOCK_SIZE,
        // A float to integer cast saturates. A rank holds at least the longest request.
        kv_blocks: (per_rank.ceil() as u32).max(2 * MAX_ISL / BLOCK_SIZE),
        routers: ROUTERS,
        seed,
    }
}

fn introduce(begun: u32, conversations: &[Conversation], fleet: &Fleet) -> anyhow::Result<()> {
    let turns: usize = conversations.iter().map(|it| it.turns.len()).sum();
    let all = conversations.iter().flat_map(|it| &it.turns);
    let tokens: usize = all.map(|it| it.prompt.len()).sum();
    print_line(&format!(
        "{begun} agent conversations and {} of their sub-agents (AgentX figures, 1:16):\n         {turns} requests, {:.1} M input tokens for each policy\n         {ENGINES} fake vLLM engines x {RANKS} attention-DP ranks, {} KV blocks of {BLOCK_SIZE} each;\n         {ROUTERS} routers, every turn at the other one\n",
        conversations.len().saturating_sub(begun as usize),
        tokens as f64 / 1e6,
        fleet.kv_blocks,
    ))
}

fn conclude(args: &DemoArgs, passes: Vec<PassReport>) -> Result<(), Failure> {
    let checks = Checks::of(&passes);
    let ours = passes.iter().find(|it| !it.policy.policy.is_baseline());
    let kept = ours.and_then(PassReport::describe);
    let comparison = Comparison {
        workload: "agentx 1:16".to_owned(),
        policies: passes.into_iter().map(|it| it.policy).collect(),
    };
    let ok = checks.all();
    if args.json {
        print_json(&Summary {
            ok,
            comparison,
            checks,
        })?;
    } else {
        print_line(&comparison.table())?;
        let said: Vec<String> = comparison.headline().into_iter().chain(kept).collect();
        if !said.is_empty() {
            print_line(&said.join(";\n  "))?;
        }
        if let Some(note) = comparison.index_error_note() {
            print_line(note)?;
        }
        print_line(NEXT)?;
    }
    if ok {
        Ok(())
    } else {
        let failed = checks.failed().join("; ");
        Err(anyhow::anyhow!("what the demo claims did not hold in this run: {failed}").into())
    }
}

/// The ports and commands of the README.
const NEXT: &str = "
try next:
  cargo build --release
  target/release/rankway replay sample
  target/release/rankway fake-engine --listen 127.0.0.1:8001 &
  target/release/rankway fake-engine --listen 127.0.0.1:8002 &
  target/release/rankway up \\
    --worker-urls http://127.0.0.1:8001,http://127.0.0.1:8002
in a second terminal:
  target/release/rankway index verify";

/// The share of the ceiling that `kv` is held to.
const KV_GOAL: f64 = 0.95;

impl Checks {
    fn of(passes: &[PassReport]) -> Self {
        let ours = || passes.iter().filter(|it| !it.policy.policy.is_baseline());
        let reaches =
            |report: &PolicyReport| report.realised_over_ceiling.is_some_and(|it| it >= KV_GOAL);
        Self {
            no_errors: passes.iter().all(|it| it.policy.errors == 0),
            kv_reaches_the_ceiling: ours().all(|it| reaches(&it.policy)),
            waterfall_adds_up: passes.iter().all(|it| it.policy.adds_up()),
            routers_share_bindings: ours().all(PassReport::bindings_were_shared),
            index_equals_engines: passes.iter().all(|it| it.index_equals_engines),
        }
    }

    fn all(self) -> bool {
        self.failed().is_empty()
    }

    /// What did not hold, in words.
    fn failed(self) -> Vec<&'static str> {
        let claims = [
            (self.no_errors, "requests failed"),
            (
                self.kv_reaches_the_ceiling,
                "kv took less than 0.95 of the ceiling from the caches: is the machine busy with something else?",
            ),
            (
                self.waterfall_adds_up,
                "the parts of a waterfall do not sum to what was lost",
            ),
            (
                self.routers_share_bindings,
                "turns left their rank though nothing says that their binding moved",
            ),
            (
                self.index_equals_engines,
                "the index did not come to hold what the engines hold",
            ),
        ];
        let failed = claims.into_iter().filter(|(held, _)| !held);
        failed.map(|(_, what)| what).collect()
    }
}

/// How long the index may take to catch up with the engines after the last answer.
const QUIET: Duration = Duration::from_secs(5);
