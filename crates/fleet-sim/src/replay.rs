//! A trace through one policy: engines as the model has them, the index as events make it, decisions as the
//! router makes them, in simulated time.

mod fleet;
mod measure;

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::time::Duration;

use accounting::Totals;
use domain::{DecisionId, InstanceId, ModelName, Namespace, Target, Timestamp, Tokens};
use engine_model::{Effect, InvalidEngine, RequestId, StepTime};
use placement::Policy;
use prefix_index::{Carried, PrefixIndex};
use routing::{NoTarget, Outcome, OverlapView, Router, Status};

use self::fleet::Fleet;
use self::measure::Measure;
use crate::{Trace, TraceRequest};

/// How often routers see the engines' gauges.
const GAUGE_PERIOD: Duration = Duration::from_millis(500);
/// Progress is reported once in so many requests.
const PROGRESS_EVERY: usize = 50;
/// Blocks whose history the accounting keeps: more than any known trace has.
const HISTORY_BLOCKS: usize = 1 << 22;

/// The fleet a trace is replayed on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FleetConfig {
    /// Workers.
    pub workers: u32,
    /// Attention-DP ranks of each worker.
    pub ranks: u32,
    /// KV-cache blocks of each rank.
    pub kv_blocks: u32,
    /// Tokens one rank computes in one pass at most.
    pub pass_tokens: u32,
    /// How long a pass takes.
    pub step: StepTime,
}

/// What came of a replay.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The policy.
    pub policy: Policy,
    /// Requests served.
    pub requests: u64,
    /// Requests that no target took.
    pub errors: u64,
    /// The waterfall, added up.
    pub totals: Totals,
    /// Time to first token from arrival, of every request served, ascending.
    pub ttft: Vec<Duration>,
    /// Prompt tokens computed at each target.
    pub work: Vec<(Target, Tokens)>,
    /// When the last request ended, from the start of the trace.
    pub took: Duration,
}

/// How far a replay is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Requests that have arrived.
    pub arrived: usize,
    /// Requests of the trace.
    pub total: usize,
    /// Simulated time.
    pub at: Duration,
}

/// What happens next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A worker's pass ends.
    PassEnds { worker: usize },
    /// Routers see the gauges.
    Gauges,
    /// A request arrives.
    Arrives { request: usize },
}

/// One replay under way.
struct Replay<'a> {
    trace: &'a Trace,
    namespace: Namespace,
    seed: u64,
    router: Router,
    fleet: Fleet,
    index: PrefixIndex,
    carried: Carried,
    measure: Measure,
    events: BinaryHeap<Reverse<(Timestamp, Event)>>,
}

/// Replays `trace` on `config` under `policy`. The same arguments give the same report.
pub fn replay(
    trace: &Trace,
    config: &FleetConfig,
    policy: Policy,
    seed: u64,
    mut progress: impl FnMut(Progress),
) -> Result<Report, InvalidEngine> {
    let mut replay = Replay::new(trace, config, policy, seed)?;
    let mut now = Timestamp::ZERO;
    while let Some(Reverse((at, event))) = replay.events.pop() {
        now = at;
        match event {
            Event::Arrives { request } => {
                replay.arrive(request, now);
                if request % PROGRESS_EVERY == 0 {
                    progress(replay.progress(request + 1, now));
                }
            }
            Event::PassEnds { worker } => replay.end_pass(worker, now),
            Event::Gauges => replay.see_gauges(now),
        }
    }
    progress(replay.progress(trace.requests.len(), now));
    Ok(replay.measure.into_report(policy, &replay.fleet, now))
}

impl<'a> Replay<'a> {
    fn new(
        trace: &'a Trace,
        config: &FleetConfig,
        policy: Policy,
        seed: u64,
    ) -> Result<Self, InvalidEngine> {
        let model = ModelName::new("trace").expect("a short printable name");
        let fleet = Fleet::new(config, trace.block_size)?;
        let instance = InstanceId::new("replay").expect("a short plain name");
        let mut router = Router::new(
            instance,
            routing::Config {
                policy,
                affinity: affinity::Mode::Off.into(),
                prefill_rate: 1.0 / config.step.per_prefill_token.as_secs_f64().max(1e-9),
                // A request may wait for hours on an overloaded fleet; nothing here loses one.
                reservation_lease: Duration::from_secs(1 << 30),
                ..routing::Config::default()
            },
        );
        for worker in fleet.registrations(&model, trace.block_size) {
            router.set_worker(worker);
        }
        let arrivals = trace.requests.iter().enumerate();
        let mut events: BinaryHeap<_> = arrivals
            .map(|(request, it)| Reverse((Timestamp::ZERO + it.at, Event::Arrives { request })))
            .collect();
        events.push(Reverse((Timestamp::ZERO, Event::Gauges)));
        Ok(Self {
            trace,
            namespace: Namespace {
                model,
                lora: None,
                salt: None,
                block_size: trace.block_size,
            },
            seed,
            router,
            fleet,
            index: PrefixIndex::new(HISTORY_BLOCKS),
            carried: Carried::new(HISTORY_BLOCKS),
            measure: Measure::new(trace.requests.len()),
            events,
        })
    }

    fn progress(&self, arrived: usize, now: Timestamp) -> Progress {
        Progress {
            arrived,
            total: self.trace.requests.len(),
            at: now.since(Timestamp::ZERO),
        }
    }

    fn arrive(&mut self, number: usize, now: Timestamp) {
        let request = &self.trace.requests[number];
        let view = self.look_up(&request.chain);
        let id = decision_of(number);
        // Any fixed odd constant: neighbouring requests must not draw alike.
        let seed = self.seed ^ (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let asked = self.ask(id, request);
        let decided = self.router.decide(&asked, Some(&[view]), None, now, seed);
        match decided {
            Ok(decision) => {
                let taken = self.fleet.submit(number, request, &decision.place);
                match taken {
                    Some(worker) => self.start_pass(worker, now),
                    None => self.refuse(id, now),
                }
            }
            Err(NoTarget::UnknownModel { .. })
            | Err(NoTarget::NoneReady { .. })
            | Err(NoTarget::AllTried { .. })
            | Err(NoTarget::InvalidPin { .. }) => self.measure.error(),
        }
    }

    fn ask(&self, id: DecisionId, request: &TraceRequest) -> routing::Request {
        routing::Request {
            id,
            model: self.namespace.model.clone(),
            endpoint: domain::Endpoint::Chat,
            isl: request.isl,
            hashes: vec![(self.trace.block_size, request.chain.clone())],
            conversation: None,
            hint: None,
            lead: None,
            tried: Vec::new(),
            no_adapter: Vec::new(),
            pin: None,
        }
    }

    fn refuse(&mut self, id: DecisionId, now: Timestamp) {
        self.router.abandon(id, now);
        self.measure.error();
    }

    fn look_up(&mut self, chain: &[domain::SequenceHash]) -> OverlapView {
        let overlap = self.index.overlap(&self.namespace, chain);
        let carried = self.carried.depth(&self.namespace, chain);
        self.carried.record(&self.namespace, chain);
        OverlapView {
            block_size: self.trace.block_size,
            ceiling: carried.max(overlap.stored),
            stored: overlap.stored,
            groups: overlap.groups,
            not_ready: Vec::new(),
            unknown: BTreeSet::new(),
            index_age: Duration::ZERO,
        }
    }

    fn start_pass(&mut self, worker: usize, now: Timestamp) {
        if let Some(ends_at) = self.fleet.start_pass(worker, now) {
            self.events
                .push(Reverse((ends_at, Event::PassEnds { worker })));
        }
    }

    fn end_pass(&mut self, worker: usize, now: Timestamp) {
        for effect in self.fleet.end_pass(worker) {
            match effect {
                Effect::Stored { .. } | Effect::Removed { .. } | Effect::Cleared { .. } => {
                    let (target, op) =
                        self.fleet
                            .announce(worker, effect, self.trace, &self.namespace);
                    let applied = self.index.apply(&target, &op);
                    applied.expect("no incarnation is ever fenced in a replay");
                }
                Effect::Cached { id, tokens } => self.measure.cached(number_of(id), tokens),
                Effect::FirstToken { id } => {
                    let number = number_of(id);
                    self.router.first_token(decision_of(number), now);
                    let arrived = Timestamp::ZERO + self.trace.requests[number].at;
                    self.measure.first_token(number, now.since(arrived));
                }
                Effect::Finished { id } => self.finish(number_of(id), worker, now),
                Effect::Token { .. } | Effect::Preempted { .. } => {}
            }
        }
        self.start_pass(worker, now);
    }

    fn finish(&mut self, number: usize, worker: usize, now: Timestamp) {
        let request = &self.trace.requests[number];
        let arrived = Timestamp::ZERO + request.at;
        let served = self.measure.served(number);
        let outcome = Outcome {
            status: Status::Served,
            ttft: served.ttft,
            duration: Some(now.since(arrived)),
            observed_rank: self.fleet.observed(number),
            usage: Some(domain::Usage {
                prompt: request.isl,
                completion: request.osl,
                cached: Some(served.cached),
            }),
        };
        let row = self.router.finish(decision_of(number), &outcome, now);
        let computed = request.isl.saturating_sub(served.cached);
        let target = self.fleet.served_by(number, worker);
        self.measure.finish(target, computed, row.as_ref());
    }

    fn see_gauges(&mut self, now: Timestamp) {
        for (worker, loads) in self.fleet.gauges(now) {
            self.router.set_load(&worker, &loads);
        }
        self.router.expire(now);
        // The last event stands alone when all work is done.
        if !self.events.is_empty() {
            self.events
                .push(Reverse((now + GAUGE_PERIOD, Event::Gauges)));
        }
    }
}

fn decision_of(number: usize) -> DecisionId {
    DecisionId::new(number as u128)
}

/// The inverse of [`Fleet::submit`]'s naming.
fn number_of(id: RequestId) -> usize {
    id.get() as usize
}
