//! The command line: words, flags and their help.

mod fake_engine;
mod look;
mod operate;
mod service;
mod sim;
mod values;

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use affinity::Owner;
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Parser, Subcommand};
use domain::ServiceKind;
use placement::{Policies, Policy};
use worker_adapter::EngineUrl;

pub(crate) use self::fake_engine::FakeEngineArgs;
pub(crate) use self::look::{
    DecisionsArgs, DecisionsCommand, ExplainArgs, ShadowArgs, WaterfallArgs,
};
pub(crate) use self::operate::{
    BindingsArgs, BindingsCommand, DrainArgs, ExportArgs, FilterArgs, LookArgs, LookCommand,
    MoveArgs,
};
pub(crate) use self::service::{IndexerArgs, ServiceArgs, Serving};
pub(crate) use self::sim::SimArgs;
pub(crate) use self::values::distinct;
use self::values::{address, admin_url, bus_url, number, policies, rank_source, whole};
use crate::failure::Failure;
use crate::{alone, config, demo, explain, index, replay, up};

/// Seconds that `up` may be told to wait for its first engine: up to a day.
pub(crate) const ENGINE_WAIT_SECONDS: RangeInclusive<u64> = 1..=86_400;
/// How many times faster than real time a fake engine may live.
const SPEED_UP: RangeInclusive<f64> = 1e-3..=1e6;
/// The most tokens of one block: far more than any engine's.
const BLOCK_TOKENS: u64 = 65_536;
/// The most blocks of one simulated rank; each takes some 50 bytes from the start.
const RANK_BLOCKS: u64 = 1 << 24;
/// The most blocks of all simulated ranks together, for the same reason.
const FLEET_BLOCKS: u64 = 1 << 25;

/// Routes every LLM request to the attention-DP rank that holds its KV cache, and keeps the conversation
/// there.
#[derive(Parser)]
#[command(
    name = "rankway",
    version,
    about,
    arg_required_else_help = true,
    max_term_width = 100
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show Rankway doing its job: two fake engines of four ranks, two routers, measured in this run
    Demo(DemoArgs),
    /// Serve: all five services in one process over a durable embedded bus
    Up(UpArgs),
    /// Serve one of the five alone: turn engines' events into the log
    Ingest(ServiceArgs),
    /// Serve one of the five alone: keep which rank holds which prefix
    Indexer(IndexerArgs),
    /// Serve one of the five alone: own the conversations' bindings
    Affinity(ServiceArgs),
    /// Serve one of the five alone: decide, and serve clients
    // Its variable may be there for the others.
    #[command(mut_arg("grpc_listen", |it| it.hide(true).env(None)))]
    Router(ServiceArgs),
    /// Serve one of the five alone: speak to engines
    Adapter(ServiceArgs),
    /// Make the streams of a NATS bus and end, where services are not allowed to
    Setup(SetupArgs),
    /// Serve as a fake vLLM, SGLang or TensorRT-LLM with several attention-DP ranks and KV events
    FakeEngine(FakeEngineArgs),
    /// Replay a trace, or recorded decisions, through routing policies, in simulated time
    Replay(ReplayArgs),
    /// Compare routing policies over workloads, in simulated time
    Sim(SimArgs),
    /// Say why a request went where it went
    Explain(ExplainArgs),
    /// Say where cacheable tokens went: to memory, to the router, to a stale index, or to ranks that took nothing
    Waterfall(WaterfallArgs),
    /// Say what the policy in the shadow (router.shadow) would have done
    Shadow(ShadowArgs),
    /// Export the decisions of a running router, to be replayed
    Decisions(DecisionsArgs),
    /// Look into the prefix index of a running `rankway up`
    Index(IndexArgs),
    /// List, export or import the bindings of a running `rankway up`
    Bindings(BindingsArgs),
    /// List the workers of a running `rankway up`
    Workers(LookArgs),
    /// List the ranks of its workers
    Targets(LookArgs),
    /// Move a conversation: its next turn goes there
    Move(MoveArgs),
    /// Drain a worker or one of its ranks: no new conversations, and with --move those it has go elsewhere
    Drain(DrainArgs),
    /// Check or show the settings that `up`, or a service alone, would use
    Config(ConfigArgs),
}

#[derive(Args)]
#[command(after_help = "\
Runs the same seeded agent workload through each policy, over real sockets, and compares what the
fleet took from its caches with what it could have.")]
pub(crate) struct DemoArgs {
    #[arg(
        long,
        help = policies("Policies to run, in this order,"),
        default_value = "round_robin,kv",
        env = "RANKWAY_DEMO_POLICY"
    )]
    pub(crate) policy: Vec<Policies>,
    /// Conversations that are begun; their sub-agents add to them, and the engines' caches grow with all
    #[arg(
        long,
        default_value_t = 32,
        allow_negative_numbers = true,
        value_parser = whole::<u32>(1..=512),
        env = "RANKWAY_DEMO_CONVERSATIONS"
    )]
    pub(crate) conversations: u32,
    /// Seed of the workload
    #[arg(
        long,
        default_value_t = 1,
        allow_negative_numbers = true,
        value_parser = whole::<u64>(0..=u64::MAX),
        env = "RANKWAY_DEMO_SEED"
    )]
    pub(crate) seed: u64,
    /// Print one JSON object a line instead of text; the last line is the summary
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
#[command(after_help = "\
Settings come from the file, over them RANKWAY_* variables (RANKWAY_ROUTER__POLICY is
router.policy), over them these flags. `rankway config show` prints the outcome.")]
pub(crate) struct UpArgs {
    #[command(flatten)]
    pub(crate) settings: SettingsArgs,
}

#[derive(Args)]
pub(crate) struct SettingsArgs {
    /// Settings file (TOML)
    #[arg(long, value_name = "FILE", env = "RANKWAY_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// Engines to route to, such as http://10.0.0.1:8000; comma-separated or repeated
    #[arg(
        long,
        value_name = "URL",
        value_delimiter = ',',
        env = "RANKWAY_WORKER_URLS"
    )]
    pub(crate) worker_urls: Vec<EngineUrl>,
    /// Address of the OpenAI-compatible API [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS", env = "RANKWAY_LISTEN", value_parser = address)]
    pub(crate) listen: Option<SocketAddr>,
    /// Address of the admin API [default: 127.0.0.1:8090]
    #[arg(long, value_name = "ADDRESS", env = "RANKWAY_ADMIN_LISTEN", value_parser = address)]
    pub(crate) admin_listen: Option<SocketAddr>,
    /// Bearer token that the admin API asks for; required where its address is not a loopback one
    #[arg(
        long,
        value_name = "TOKEN",
        env = "RANKWAY_ADMIN_TOKEN",
        hide_env_values = true,
        value_parser = NonEmptyStringValueParser::new()
    )]
    pub(crate) admin_token: Option<String>,
    #[arg(long, env = "RANKWAY_POLICY", help = policies("Routing policy [default: kv],"))]
    pub(crate) policy: Option<Policy>,
    /// Who decides the rank of a conversation: engine or router (dynamo means router)
    /// [default: the engine where it keeps conversations on ranks by itself, else the router]
    #[arg(long, value_name = "SOURCE", env = "RANKWAY_RANK_SOURCE", value_parser = rank_source)]
    pub(crate) rank_source: Option<Owner>,
    /// The same, under the name by which workers know it
    #[arg(
        long = "conversation-affinity-dp-rank-source",
        hide = true,
        env = "DYN_ENGINE_CONV_AFFINITY_DP_RANK_SOURCE",
        value_parser = rank_source
    )]
    pub(crate) dyn_rank_source: Option<Owner>,
    /// Bus between the services: nats://host:port (several servers with commas between them) for
    /// services that are processes of their own; local, in the data folder, for `rankway up` [default: local]
    #[arg(long, value_name = "URL", env = "RANKWAY_BUS_URL", hide_env_values = true, value_parser = bus_url)]
    pub(crate) bus_url: Option<String>,
    /// Folder for the log, the index and the bindings [default: rankway-data]
    #[arg(long, value_name = "FOLDER", env = "RANKWAY_DATA_DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// How long to wait for the first engine at the start before giving up [default: 10]
    #[arg(
        long,
        value_name = "SECONDS",
        env = "RANKWAY_ENGINE_WAIT_SECONDS",
        allow_negative_numbers = true,
        value_parser = whole::<u64>(ENGINE_WAIT_SECONDS)
    )]
    pub(crate) engine_wait_seconds: Option<u64>,
}

#[derive(Args)]
#[command(
    after_help = r#"Each line of the trace is a request, as Mooncake's traces have it,
{"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [block ids]},
or a tree of agents, as AgentX's (weka) have it,
{"block_size": 64, "hash_id_scope": "local", "requests": [{"type": "n", "t": s, "in", "out", "hash_ids",
"api_time"}, {"type": "subagent", "t": s, "requests": [...]}]}, or a decision that was exported."#
)]
pub(crate) struct ReplayArgs {
    /// The trace; `sample` is the one that comes with Rankway
    #[arg(value_name = "TRACE")]
    pub(crate) trace: PathBuf,
    #[arg(
        long,
        help = policies("Policies to compare,"),
        default_value = "round_robin,target_round_robin,kv",
        env = "RANKWAY_REPLAY_POLICY"
    )]
    pub(crate) policy: Vec<Policies>,
    /// Workers of the fleet
    #[arg(
        long,
        default_value_t = 4,
        allow_negative_numbers = true,
        value_parser = whole::<u32>(1..=256),
        env = "RANKWAY_REPLAY_WORKERS"
    )]
    pub(crate) workers: u32,
    /// Attention-DP ranks of each worker
    #[arg(
        long,
        default_value_t = 4,
        allow_negative_numbers = true,
        value_parser = whole::<u32>(1..=64),
        env = "RANKWAY_REPLAY_RANKS"
    )]
    pub(crate) ranks: u32,
    /// KV-cache blocks of each rank
    #[arg(
        long,
        default_value_t = 6000,
        allow_negative_numbers = true,
        value_parser = whole::<u32>(1..=RANK_BLOCKS),
        env = "RANKWAY_REPLAY_KV_BLOCKS"
    )]
    pub(crate) kv_blocks: u32,
    /// Tokens per block id of a trace of requests; one of agents says it itself
    #[arg(
        long,
        default_value_t = 512,
        allow_negative_numbers = true,
        value_parser = whole::<u32>(1..=BLOCK_TOKENS),
        env = "RANKWAY_REPLAY_BLOCK_SIZE"
    )]
    pub(crate) block_size: u32,
    /// Prompt tokens that one rank computes in a second
    #[arg(
        long,
        default_value_t = 2200.0,
        allow_negative_numbers = true,
        value_parser = number(1.0..=1e9),
        env = "RANKWAY_REPLAY_PREFILL_RATE"
    )]
    pub(crate) prefill_rate: f64,
    /// Tokens that one rank computes in one pass at most
    #[arg(
        long,
        default_value_t = 2048,
        allow_negative_numbers = true,
        value_parser = whole::<u32>(1..=u32::MAX.into()),
        env = "RANKWAY_REPLAY_PASS_TOKENS"
    )]
    pub(crate) pass_tokens: u32,
    /// Seed of every draw
    #[arg(
        long,
        default_value_t = 1,
        allow_negative_numbers = true,
        value_parser = whole::<u64>(0..=u64::MAX),
        env = "RANKWAY_REPLAY_SEED"
    )]
    pub(crate) seed: u64,
    /// Trees of agents that are live at a time, of a trace of such
    #[arg(
        long,
        value_name = "N",
        default_value_t = 16,
        allow_negative_numbers = true,
        value_parser = whole::<usize>(1..=100_000),
        env = "RANKWAY_REPLAY_LIVE"
    )]
    pub(crate) live: usize,
    /// Replay only the first N requests, or trees of agents
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        value_parser = whole::<usize>(1..=u64::MAX),
        env = "RANKWAY_REPLAY_LIMIT"
    )]
    pub(crate) limit: Option<usize>,
    /// Print one JSON object a line instead of text; the last line is the summary
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct IndexArgs {
    #[command(subcommand)]
    pub(crate) command: IndexCommand,
}

#[derive(Subcommand)]
pub(crate) enum IndexCommand {
    /// Compare the index with what each engine says it holds (needs the fake engine's debug path)
    Verify {
        #[command(flatten)]
        admin: AdminArgs,
        /// Print JSON, one object a rank; the last line is the summary
        #[arg(long)]
        json: bool,
    },
}

#[derive(Args)]
pub(crate) struct AdminArgs {
    /// Admin API of the running Rankway
    #[arg(
        long,
        value_name = "URL",
        default_value = "http://127.0.0.1:8090",
        env = "RANKWAY_ADMIN_URL",
        value_parser = admin_url
    )]
    pub(crate) admin_url: String,
    /// Token of the admin API, where one is set
    #[arg(
        long,
        value_name = "TOKEN",
        env = "RANKWAY_ADMIN_TOKEN",
        hide_env_values = true,
        value_parser = NonEmptyStringValueParser::new()
    )]
    pub(crate) admin_token: Option<String>,
}

#[derive(Args)]
#[command(after_help = "\
Whoever starts it must be allowed to make and change streams; see deploy/nats. It does no harm to
start it again, and is needed after bus.prefix, bus.replicas or bus.topic_bytes have changed.")]
pub(crate) struct SetupArgs {
    #[command(flatten)]
    pub(crate) settings: SettingsArgs,
}

#[derive(Args)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    pub(crate) command: ConfigCommand,
}

#[derive(Subcommand)]
pub(crate) enum ConfigCommand {
    /// Say whether the settings can be used
    Check {
        #[command(flatten)]
        args: IndexerArgs,
        /// Which command is to start with them
        #[arg(
            long = "for",
            value_name = "COMMAND",
            value_enum,
            default_value_t,
            env = "RANKWAY_CHECK_FOR"
        )]
        of: Serving,
    },
    /// Print the settings as they would be used
    Show {
        #[command(flatten)]
        args: IndexerArgs,
        /// Print JSON instead of TOML
        #[arg(long)]
        json: bool,
    },
}

impl Cli {
    /// Runs the command to its end.
    pub(crate) fn run(self) -> Result<(), Failure> {
        match self.command {
            Command::Demo(args) => demo::run(args),
            Command::Up(args) => up::run(args),
            Command::Ingest(args) => alone::run(ServiceKind::EventIngest, &args),
            Command::Indexer(args) => alone::indexer(&args),
            Command::Affinity(args) => alone::run(ServiceKind::AffinityStore, &args),
            Command::Router(args) => alone::run(ServiceKind::Router, &args),
            Command::Adapter(args) => alone::run(ServiceKind::WorkerAdapter, &args),
            Command::Setup(args) => crate::setup::run(&args),
            Command::FakeEngine(args) => crate::fake_engine::run(args),
            Command::Replay(args) => replay::run(args),
            Command::Sim(args) => crate::sim::run(args),
            Command::Explain(args) => explain::run(&args),
            Command::Waterfall(args) => explain::waterfall(&args),
            Command::Shadow(args) => explain::shadow(&args),
            Command::Decisions(args) => crate::decisions::run(&args),
            Command::Index(args) => index::run(args),
            Command::Bindings(args) => crate::operate::bindings(args),
            Command::Workers(args) => crate::operate::workers(args),
            Command::Targets(args) => crate::operate::targets(args),
            Command::Move(args) => crate::operate::reassign(args),
            Command::Drain(args) => crate::operate::drain(args),
            Command::Config(args) => config::run(args),
        }
    }
}

/// Refuses simulated ranks that together would not fit into memory.
pub(crate) fn check_fleet(ranks: u32, kv_blocks: u32) -> Result<(), Failure> {
    if u64::from(ranks) * u64::from(kv_blocks) <= FLEET_BLOCKS {
        return Ok(());
    }
    let why = format!(
        "{ranks} ranks of {kv_blocks} blocks are more than can be simulated ({FLEET_BLOCKS} blocks in all): lower --kv-blocks"
    );
    Err(Failure::wrong_use(why))
}
