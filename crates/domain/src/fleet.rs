//! Workers, their ranks, and what may be asked of them.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use crate::{
    BlockSize, ByEndpoint, DpRank, Endpoint, Epoch, InstanceId, ModelName, Timestamp, WorkerId,
};

/// Where a request can be placed: one rank of one incarnation of one worker. Text form `w1#3/0`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Target {
    /// The engine instance.
    pub worker: WorkerId,
    /// Its incarnation.
    pub epoch: Epoch,
    /// The rank, numbered as the engine's events number it.
    pub dp_rank: DpRank,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}/{}", self.worker, self.epoch, self.dp_rank)
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text that names no target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a target: write WORKER#EPOCH/RANK, such as w1#3/0")]
pub struct InvalidTarget {
    text: String,
}

impl FromStr for Target {
    type Err = InvalidTarget;

    fn from_str(text: &str) -> Result<Self, InvalidTarget> {
        let parsed = || {
            let (worker, rest) = text.split_once('#')?;
            let (epoch, rank) = rest.split_once('/')?;
            Some(Self {
                worker: worker.parse().ok()?,
                epoch: Epoch::new(epoch.parse().ok()?),
                dp_rank: DpRank::new(rank.parse().ok()?),
            })
        };
        parsed().ok_or_else(|| InvalidTarget {
            text: text.to_owned(),
        })
    }
}

/// Whether a target may be chosen, and how far its claims are trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TargetState {
    /// Not yet able to serve.
    Warming,
    /// Serving, and its claims are complete.
    Ready,
    /// Serving, but events were lost and are being asked for again.
    Suspect,
    /// Serving; its claims are true but incomplete.
    Partial,
    /// Serving the conversations it has; no new ones.
    Draining,
    /// Serving the requests it has; its conversations go elsewhere at their next turn.
    Leaving,
    /// Not there.
    Gone,
}

impl TargetState {
    /// Its name in JSON and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Warming => "warming",
            Self::Ready => "ready",
            Self::Suspect => "suspect",
            Self::Partial => "partial",
            Self::Draining => "draining",
            Self::Leaving => "leaving",
            Self::Gone => "gone",
        }
    }
}

/// Which engine a worker runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EngineKind {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
    /// TensorRT-LLM.
    TensorRtLlm,
    /// llama.cpp's server, whose slots are its ranks.
    LlamaCpp,
}

/// How far a router can decide the rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RankControl {
    /// On every request.
    Strict,
    /// On the first turn of a conversation; the engine remembers it.
    FirstTurn,
    /// Not at all.
    None,
}

/// How a worker's HTTP front end numbers the ranks it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HeaderSpace {
    /// It is asked for none: one rank, or one HTTP endpoint per rank.
    None,
    /// From 0 on each node.
    Local,
    /// As in its events.
    Global,
}

/// Whether an engine that keeps conversations on ranks keeps the rank that a first turn names, and what shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FirstRank {
    /// The question does not arise: it keeps no conversations, takes no rank, or has only one.
    Unasked,
    /// It has not said, and nothing has shown it yet.
    Unproven,
    /// It says that it does.
    SaidKept,
    /// It says that it does not.
    SaidLost,
    /// Second turns ran where the first ones did.
    ProvedKept,
    /// A second turn ran elsewhere than its first.
    ProvedLost,
    /// It was tried and did not answer.
    NoAnswer,
    /// It was tried, and answers show no cached tokens, by which its ranks are told apart.
    NoCachedTokens,
    /// It was tried, and a prompt that one rank has computed is cached at another.
    SharedCache,
}

impl FirstRank {
    /// Whether it is known to be kept.
    pub const fn is_kept(self) -> bool {
        matches!(self, Self::SaidKept | Self::ProvedKept)
    }

    /// Its name in JSON and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unasked => "unasked",
            Self::Unproven => "unproven",
            Self::SaidKept => "said_kept",
            Self::SaidLost => "said_lost",
            Self::ProvedKept => "proved_kept",
            Self::ProvedLost => "proved_lost",
            Self::NoAnswer => "no_answer",
            Self::NoCachedTokens => "no_cached_tokens",
            Self::SharedCache => "shared_cache",
        }
    }
}

impl fmt::Display for FirstRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unasked => "nobody asks whether first ranks are kept",
            Self::Unproven => "nothing has shown yet whether first ranks are kept",
            Self::SaidKept => "it says that first ranks are kept",
            Self::SaidLost => "it says that first ranks are not kept",
            Self::ProvedKept => "conversations of two turns have shown that first ranks are kept",
            Self::ProvedLost => "a conversation of two turns did not stay on the rank of its first",
            Self::NoAnswer => {
                "it did not answer the two turns that would show whether first ranks are kept"
            }
            Self::NoCachedTokens => {
                "its answers show no cached tokens, by which one sees whether first ranks are kept"
            }
            Self::SharedCache => {
                "its ranks share their caches, so that nothing shows whether first ranks are kept"
            }
        })
    }
}

/// What may be asked of a worker, apart from how many ranks it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Capability {
    /// How far the rank can be decided from outside, by endpoint.
    pub rank_control: ByEndpoint<RankControl>,
    /// How its front end numbers ranks.
    pub header_space: HeaderSpace,
    /// Whether its answers say which rank ran, by endpoint.
    pub rank_report: ByEndpoint<bool>,
    /// Whether it keeps conversations on ranks by itself.
    pub owns_bindings: bool,
    /// Whether it then keeps the rank that a first turn names.
    pub first_rank: FirstRank,
}

impl Capability {
    /// That of a worker which takes ranks as `control` says on every endpoint, reports none and owns no
    /// bindings.
    pub fn uniform(control: RankControl, header_space: HeaderSpace) -> Self {
        Self {
            rank_control: ByEndpoint::of(|_| control),
            header_space,
            rank_report: ByEndpoint::of(|_| false),
            owns_bindings: false,
            first_rank: FirstRank::Unasked,
        }
    }
}

/// Where one rank publishes its KV events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankEndpoint {
    /// The rank.
    pub dp_rank: DpRank,
    /// ZMQ PUB address, such as `tcp://10.0.0.1:5557`.
    pub publish: String,
    /// ZMQ ROUTER address of the replay socket.
    pub replay: Option<String>,
    /// The topic prefix to subscribe to; empty for all.
    pub topic: String,
}

/// Where a worker's KV events come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvEndpoints {
    /// It has none.
    None,
    /// One ZMQ publisher per rank.
    Zmq(Vec<RankEndpoint>),
    /// A URL that gives the events of all ranks since it was last asked, and forgets them: whoever asks takes them
    /// from everybody else, so only one may.
    Drained(String),
}

/// More ranks than any worker has. Whoever knows of a worker keeps a place for each of its ranks.
pub const MAX_RANKS: u32 = 4096;

/// One engine instance as its adapter registers it in `fleet`.
#[derive(Clone, Debug, PartialEq)]
pub struct Worker {
    /// Its id.
    pub id: WorkerId,
    /// Its incarnation, as far as the adapter knows; `incarnations` overrides it.
    pub epoch: Epoch,
    /// Which engine.
    pub engine: EngineKind,
    /// The engine's version, empty when it does not say.
    pub version: String,
    /// The model it serves.
    pub model: ModelName,
    /// Its first rank.
    pub start_rank: u32,
    /// How many ranks it has, at most [`MAX_RANKS`].
    pub dp_size: u32,
    /// Tokens per block.
    pub block_size: BlockSize,
    /// Tokens per page of its cache, as its events count. Smaller than the block size where pages are gathered
    /// into blocks, else equal to it.
    pub page_size: BlockSize,
    /// Blocks one rank can hold, where the engine says.
    pub kv_blocks: Option<u64>,
    /// What may be asked of it.
    pub capability: Capability,
    /// Whether it can serve.
    pub state: TargetState,
    /// Base URL of its HTTP API.
    pub url: String,
    /// Where its KV events come from.
    pub kv_endpoints: KvEndpoints,
    /// Until when this registration holds.
    pub lease_until: Timestamp,
}

impl Worker {
    /// Its ranks, ascending.
    pub fn ranks(&self) -> impl Iterator<Item = DpRank> + use<> {
        let end = self.start_rank.saturating_add(self.dp_size);
        (self.start_rank..end).map(DpRank::new)
    }

    /// Whether `rank` is one of its own.
    pub fn owns(&self, rank: DpRank) -> bool {
        rank.get()
            .checked_sub(self.start_rank)
            .is_some_and(|local| local < self.dp_size)
    }
}

/// The incarnation of a worker, as `incarnations` keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incarnation {
    /// Its number.
    pub epoch: Epoch,
    /// What made it begin.
    pub why: String,
    /// When.
    pub since: Timestamp,
}

/// A router's finding: this incarnation of a worker runs requests of an endpoint on other ranks than it is asked
/// for, without a word.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Distrust {
    /// The worker.
    pub worker: WorkerId,
    /// Its incarnation.
    pub epoch: Epoch,
    /// The endpoint.
    pub endpoint: Endpoint,
}

/// What a service process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ServiceKind {
    /// Turns engine events into the log.
    EventIngest,
    /// Answers who holds a prefix.
    Indexer,
    /// Owns bindings.
    AffinityStore,
    /// Decides.
    Router,
    /// Speaks to engines.
    WorkerAdapter,
}

/// Which part of the work of its kind a service does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Share {
    /// Any of it.
    #[default]
    Whole,
    /// Of an index, the partitions whose number leaves the remainder `index` when divided by `of`.
    Shard {
        /// Its number, from 0.
        index: u32,
        /// How many there are.
        of: u32,
    },
    /// What concerns these workers.
    Workers(BTreeSet<WorkerId>),
}

/// Tells a secret from others and says nothing else of it: 8 bytes of a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fingerprint(u64);

impl Fingerprint {
    /// Of a hash.
    pub const fn new(hash: u64) -> Self {
        Self(hash)
    }

    /// The hash.
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// One service process as it registers itself in `fleet`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceInstance {
    /// Its id.
    pub id: InstanceId,
    /// What it does.
    pub kind: ServiceKind,
    /// Its gRPC address; empty in process.
    pub address: String,
    /// What of its kind's work it does.
    pub share: Share,
    /// Whether it can answer.
    pub ready: bool,
    /// The workers it has found to ignore the ranks they are asked for; only of a router.
    pub distrust: Vec<Distrust>,
    /// That of the secret which all of its kind must have the same, where they need one.
    pub secret: Option<Fingerprint>,
    /// Until when this registration holds.
    pub lease_until: Timestamp,
}
