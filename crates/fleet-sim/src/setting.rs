//! What a workload runs on: the fleet, its routers, and what goes wrong.

use std::time::Duration;

use affinity::{Mode, Patience};
use engine_model::StepTime;
use placement::Policy;

/// All that a run is made of besides its workload. The default is a perfect world with one router.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// The engines.
    pub fleet: Fleet,
    /// Router replicas. The turns of all sessions go to them in rotation, as from a load balancer that knows no session.
    pub routers: u32,
    /// How requests without a binding are placed.
    pub policy: Policy,
    /// How far bindings hold. Baselines and peers' policies follow none.
    pub affinity: Mode,
    /// When a turn leaves a bound target that could serve it.
    pub patience: Patience,
    /// Whether requests that name no conversation are known by what came before them.
    pub lineage: bool,
    /// Whether the index answers.
    pub index: bool,
    /// How often routers see the engines' gauges: so old is what they know of the load.
    pub gauges_every: Duration,
    /// How often replicas tell each other what they have reserved; none for 10 ms under our policy, and for
    /// `gauges_every` under others', which share no reservations: what others have sent shows with the next gauges.
    pub tell_every: Option<Duration>,
    /// What happens to KV events.
    pub events: EventFaults,
    /// Whether workers restart.
    pub restarts: Option<Restarts>,
    /// A worker that is drained.
    pub drain: Option<DrainAt>,
    /// When one more worker joins.
    pub join: Option<Duration>,
    /// Whether routers are cut off from the store of bindings.
    pub partition: Option<Partition>,
    /// Requests sent before this, from the start, are served and not counted.
    pub warm_up: Duration,
    /// When the run ends at the latest, from the start; none runs to the end of the workload.
    pub until: Option<Duration>,
    /// Of all that is drawn.
    pub seed: u64,
}

/// The engines of a fleet, all alike.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fleet {
    /// Workers.
    pub workers: u32,
    /// Attention-DP ranks of each worker, in lock step.
    pub ranks: u32,
    /// KV-cache blocks of each rank.
    pub kv_blocks: u32,
    /// Tokens one rank computes in one pass at most.
    pub pass_tokens: u32,
    /// Requests one rank runs at a time at most.
    pub max_running: u32,
    /// How long a pass takes.
    pub step: StepTime,
}

/// What happens to the messages with which ranks announce what their caches hold.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EventFaults {
    /// From the end of a pass to the index.
    pub delay: Duration,
    /// The share of messages that is lost, 0 to 1.
    pub loss: f64,
    /// The share that comes twice.
    pub duplicate: f64,
    /// The share that comes later than it should, by `reorder_by`.
    pub reorder: f64,
    /// How much later.
    pub reorder_by: Duration,
    /// After how long a lost message is fetched again, as `event-ingest` does: what comes after it waits, and is
    /// applied in order and once. None for peers that look for no holes: what is lost stays so, the late are
    /// applied late and the doubled twice.
    pub repaired_after: Option<Duration>,
}

/// Workers that restart in turn. The cache is gone; the epoch is raised; bindings stay until routers learn of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restarts {
    /// How often one of them does.
    pub every: Duration,
    /// How long it takes no request.
    pub down: Duration,
    /// How long after it is back its new epoch is known to the routers and the index.
    pub noticed_after: Duration,
}

/// A worker that an operator takes out of service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainAt {
    /// Which one, from 0.
    pub worker: u32,
    /// When, from the start.
    pub at: Duration,
    /// Whether its conversations leave at their next turn; else they stay until they are idle.
    pub moves: bool,
}

/// Routers cut off from the store of bindings, again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition {
    /// How many of the routers, the first ones.
    pub routers: u32,
    /// How often a cut begins.
    pub every: Duration,
    /// How long it lasts.
    pub lasts: Duration,
}

impl Default for Setting {
    fn default() -> Self {
        Self {
            fleet: Fleet::default(),
            routers: 1,
            policy: Policy::default(),
            affinity: Mode::default(),
            patience: Patience::default(),
            lineage: false,
            index: true,
            gauges_every: Duration::from_millis(500),
            tell_every: None,
            events: EventFaults::default(),
            restarts: None,
            drain: None,
            join: None,
            partition: None,
            warm_up: Duration::ZERO,
            until: None,
            seed: 1,
        }
    }
}

impl Default for Fleet {
    /// Two workers of eight ranks, each of 8,000 tokens a second and of two million tokens in blocks of 512.
    fn default() -> Self {
        Self {
            workers: 2,
            ranks: 8,
            kv_blocks: 4_096,
            pass_tokens: 8_192,
            max_running: 256,
            step: StepTime {
                base: Duration::from_millis(5),
                per_prefill_token: Duration::from_micros(125),
                per_sequence: Duration::from_micros(100),
            },
        }
    }
}

impl Setting {
    /// How often replicas tell each other what they have reserved.
    pub(crate) fn tells_every(&self) -> Duration {
        /// What `router-api` does.
        const OURS: Duration = Duration::from_millis(10);
        self.tell_every.unwrap_or(match self.policy {
            Policy::Kv(_) => OURS,
            _ => self.gauges_every,
        })
    }
}

impl EventFaults {
    /// Whether every message comes at once, in order and once.
    pub(crate) fn are_none(&self) -> bool {
        let drawn = self.loss + self.duplicate + self.reorder;
        self.delay == Duration::ZERO && drawn == 0.0
    }
}
