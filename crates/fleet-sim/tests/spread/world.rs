//! Conversations in simulated time: router replicas, one store of bindings, and engines in lock step.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap};
use std::time::Duration;

use affinity::{Binding, ConversationKey, Event, Owner, Standing, Terms, TurnEnd};
use domain::{
    DecisionId, Depths, Endpoint, InstanceId, OverlapGroup, RankLoad, Target, Timestamp, Tokens,
    Usage,
};
use engine_model::{Cache, Effect, Engine, Request, RequestId};
use routing::{BindingAction, Config, Decision, Outcome, OverlapView, Router, Status};

use crate::fleet::{BLOCK, Fleet, Script, Seen, Turn, size, target, worker};

/// How often replicas tell each other what they have reserved.
const TELL: Duration = Duration::from_millis(20);
const GAUGES: Duration = Duration::from_millis(500);
/// How often it is looked at what is pending.
const SAMPLE: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    PassEnds(usize),
    Tell,
    Gauges,
    Sample,
    Begins { script: usize, turn: usize },
}

struct Open {
    script: usize,
    turn: usize,
    router: usize,
    decision: Decision,
    prompt: Tokens,
    sent: Timestamp,
    ttft: Option<Duration>,
    cached: Tokens,
}

pub(crate) struct World<'a> {
    scripts: &'a [Script],
    waiting: Vec<usize>,
    names: Vec<InstanceId>,
    routers: Vec<Router>,
    engines: Vec<Engine>,
    bindings: BTreeMap<ConversationKey, Standing>,
    homes: HashMap<usize, Target>,
    open: HashMap<u64, Open>,
    due: BinaryHeap<Reverse<(Timestamp, Due)>>,
    measured_from: Timestamp,
    measured_until: Timestamp,
    requests: u64,
    seed: u64,
    seen: Seen,
}

/// Runs all scripts to their ends, or to `until`; only what begins `from` then on is measured.
pub(crate) fn run(
    fleet: Fleet,
    scripts: &[Script],
    (from, until): (Duration, Duration),
    seed: u64,
) -> Seen {
    let mut world = World::new(fleet, scripts, seed);
    world.measured_from = Timestamp::ZERO + from;
    world.measured_until = Timestamp::ZERO + until;
    while let Some(Reverse((now, due))) = world.due.pop() {
        let idle = world.open.is_empty() && world.waiting.is_empty();
        let ticks = matches!(due, Due::Tell | Due::Gauges | Due::Sample);
        if world.measured_until < now || ticks && idle && world.nothing_begins() {
            break;
        }
        match due {
            Due::PassEnds(engine) => world.end_pass(engine, now),
            Due::Tell => world.tell(now),
            Due::Gauges => world.show_gauges(now),
            Due::Sample => world.sample(now),
            Due::Begins { script, turn } => world.begin(script, turn, now),
        }
    }
    world.seen
}

impl<'a> World<'a> {
    fn new(fleet: Fleet, scripts: &'a [Script], seed: u64) -> Self {
        let rate = 1.0 / fleet.step.per_prefill_token.as_secs_f64();
        let config = Config {
            prefill_rate: rate,
            ..Config::default()
        };
        let names: Vec<InstanceId> = (0..fleet.routers)
            .map(|it| InstanceId::new(&format!("r{it}")).unwrap())
            .collect();
        let router = |name: &InstanceId| {
            let mut router = Router::new(name.clone(), config.clone());
            (0..fleet.workers).for_each(|it| router.set_worker(worker(it as usize, fleet.ranks)));
            router
        };
        let engine = engine_model::Config {
            block_size: size(),
            kv_blocks: 1 << 18,
            max_running: 256,
            pass_tokens: 8_192,
            step: fleet.step,
            cache: Cache::Blocks,
        };
        let mut due = BinaryHeap::from(
            [Due::Tell, Due::Gauges, Due::Sample].map(|it| Reverse((Timestamp::ZERO, it))),
        );
        let mut waiting = Vec::new();
        for (script, it) in scripts.iter().enumerate() {
            match it.start {
                Some(start) => due.push(Reverse((
                    Timestamp::ZERO + start,
                    Due::Begins { script, turn: 0 },
                ))),
                None => waiting.push(script),
            }
        }
        waiting.reverse();
        Self {
            scripts,
            waiting,
            routers: names.iter().map(router).collect(),
            names,
            engines: (0..fleet.workers)
                .map(|_| Engine::new(engine, fleet.ranks).unwrap())
                .collect(),
            bindings: BTreeMap::new(),
            homes: HashMap::new(),
            open: HashMap::new(),
            due,
            measured_from: Timestamp::ZERO,
            measured_until: Timestamp::ZERO,
            requests: 0,
            seed,
            seen: Seen::default(),
        }
    }

    fn nothing_begins(&self) -> bool {
        let mut due = self.due.iter();
        !due.any(|it| matches!(it.0.1, Due::Begins { .. }))
    }

    fn begin(&mut self, number: usize, turn: usize, now: Timestamp) {
        let script = &self.scripts[number];
        let Turn {
            chain, isl, osl, ..
        } = &script.turns[turn];
        let (isl, osl) = (*isl, *osl);
        let blocks = usize::try_from(isl / u64::from(BLOCK)).unwrap();
        let chain = chain[..blocks].to_vec();
        self.requests += 1;
        let id = self.requests;
        let router = usize::try_from(id).unwrap() % self.routers.len();
        let key = ConversationKey {
            tenant: "t".parse().unwrap(),
            model: "m".parse().unwrap(),
            conversation: format!("c{number}").parse().unwrap(),
        };
        let terms = Terms::default();
        let standing = self.bindings.get(&key);
        let binding = standing.and_then(|it| it.binding(now, &terms)).cloned();
        let request = routing::Request {
            id: DecisionId::new(u128::from(id)),
            model: "m".parse().unwrap(),
            endpoint: Endpoint::Chat,
            isl: Tokens::new(isl),
            hashes: vec![(size(), chain.clone())],
            conversation: Some(key.clone()),
            hint: None,
            lead: None,
            tried: Vec::new(),
            no_adapter: Vec::new(),
            pin: None,
        };
        let decision = self.decide(router, &request, binding.as_ref(), now);
        let at = decision.target().unwrap().clone();
        self.hold(&key, &decision, now);
        let engine = self.engine_of(&at);
        let sent = Request {
            id: RequestId::new(id),
            isl: Tokens::new(isl),
            osl: Tokens::new(osl),
            chain: chain.into(),
            rank: Some(at.dp_rank),
        };
        self.engines[engine].submit(sent).unwrap();
        if self.measured_from <= now {
            *self.seen.requests.entry(at.clone()).or_default() += 1.0;
        }
        self.seen.turns += 1;
        self.seen.kept += u64::from(self.homes.insert(number, at.clone()) == Some(at));
        let open = Open {
            script: number,
            turn,
            router,
            decision,
            prompt: Tokens::new(isl),
            sent: now,
            ttft: None,
            cached: Tokens::ZERO,
        };
        self.open.insert(id, open);
        self.start_pass(engine, now);
    }

    fn decide(
        &mut self,
        router: usize,
        request: &routing::Request,
        binding: Option<&Binding>,
        now: Timestamp,
    ) -> Decision {
        let chain = &request.hashes[0].1;
        let mut groups = Vec::new();
        for (number, engine) in self.engines.iter().enumerate() {
            for rank in engine.ranks() {
                let blocks = engine.overlap(rank, chain);
                if blocks > 0 {
                    let depths = Depths {
                        gpu: blocks,
                        host: blocks,
                        disk: blocks,
                    };
                    let targets = vec![target(number, rank.get())];
                    groups.push(OverlapGroup { targets, depths });
                }
            }
        }
        let best = groups.iter().map(|it| it.depths.gpu).max().unwrap_or(0);
        let view = OverlapView {
            block_size: size(),
            groups,
            ceiling: best,
            stored: best,
            not_ready: Vec::new(),
            unknown: BTreeSet::new(),
            index_age: Duration::ZERO,
        };
        let seed = self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ self.requests;
        let router = &mut self.routers[router];
        router
            .decide(request, Some(&[view]), binding, now, seed)
            .unwrap()
    }

    fn hold(&mut self, key: &ConversationKey, decision: &Decision, now: Timestamp) {
        let target = decision.target().unwrap();
        let actor = &self.names[0];
        let standing = self.bindings.entry(key.clone()).or_default();
        let event = match decision.binding {
            BindingAction::Create | BindingAction::Keep => Event::Acquire {
                key,
                proposed: target,
                owner: Owner::Router,
                actor,
            },
            BindingAction::Rebind(reason) => {
                self.seen.moved += 1;
                Event::Rebind {
                    to: target,
                    reason,
                    actor,
                }
            }
            BindingAction::None | BindingAction::Excursion => return,
        };
        *standing = standing.apply(&event, now, &Terms::default()).unwrap().next;
    }

    fn engine_of(&self, target: &Target) -> usize {
        target.worker.as_str()[1..].parse().unwrap()
    }

    fn start_pass(&mut self, engine: usize, now: Timestamp) {
        let due = |it: &Reverse<(Timestamp, Due)>| it.0.1 == Due::PassEnds(engine);
        if self.due.iter().any(due) {
            return;
        }
        if let Some(pass) = self.engines[engine].next_pass(now) {
            self.due
                .push(Reverse((pass.ends_at, Due::PassEnds(engine))));
        }
    }

    fn end_pass(&mut self, engine: usize, now: Timestamp) {
        for effect in self.engines[engine].finish_pass() {
            match effect {
                Effect::Cached { id, tokens } => {
                    self.open.get_mut(&id.get()).unwrap().cached = tokens;
                }
                Effect::FirstToken { id } => {
                    let open = self.open.get_mut(&id.get()).unwrap();
                    open.ttft = Some(now.since(open.sent));
                    self.routers[open.router].first_token(open.decision.id, now);
                }
                Effect::Finished { id } => self.finish(id.get(), now),
                Effect::Stored { .. }
                | Effect::Removed { .. }
                | Effect::Cleared { .. }
                | Effect::Token { .. }
                | Effect::Preempted { .. } => {}
            }
        }
        self.start_pass(engine, now);
    }

    fn finish(&mut self, id: u64, now: Timestamp) {
        let open = self.open.remove(&id).unwrap();
        let script = &self.scripts[open.script];
        let target = open.decision.target().unwrap();
        if self.measured_from <= open.sent {
            let computed = open.prompt.saturating_sub(open.cached).as_f64();
            *self.seen.work.entry(target.clone()).or_default() += computed;
            self.seen.isl += open.prompt.as_f64();
            self.seen.cached += open.cached.as_f64();
            self.seen.ttft.extend(open.ttft.map(|it| it.as_secs_f64()));
        }
        let outcome = Outcome {
            status: Status::Served,
            ttft: open.ttft,
            duration: Some(now.since(open.sent)),
            observed_rank: None,
            usage: Some(Usage {
                prompt: open.prompt,
                completion: Tokens::new(script.turns[open.turn].osl),
                cached: Some(open.cached),
            }),
        };
        self.routers[open.router].finish(open.decision.id, &outcome, now);
        let key = ConversationKey {
            tenant: "t".parse().unwrap(),
            model: "m".parse().unwrap(),
            conversation: format!("c{}", open.script).parse().unwrap(),
        };
        let standing = self.bindings.entry(key).or_default();
        let ended = Event::Release {
            target,
            end: TurnEnd::Served { held: open.prompt },
            actor: &self.names[0],
        };
        *standing = standing.apply(&ended, now, &Terms::default()).unwrap().next;
        let (script, turn) = (open.script, open.turn + 1);
        let next = match self.scripts[script].turns.get(turn) {
            Some(next) => Some((now + next.gap, Due::Begins { script, turn })),
            None => self
                .waiting
                .pop()
                .map(|script| (now, Due::Begins { script, turn: 0 })),
        };
        self.due.extend(next.map(Reverse));
    }

    fn tell(&mut self, now: Timestamp) {
        for from in 0..self.routers.len() {
            let changes = self.routers[from].take_changes();
            for (to, router) in self.routers.iter_mut().enumerate() {
                if to != from {
                    let peer = &self.names[from];
                    changes
                        .iter()
                        .for_each(|it| router.apply_peer(peer, it, now));
                }
            }
        }
        self.due.push(Reverse((now + TELL, Due::Tell)));
    }

    fn show_gauges(&mut self, now: Timestamp) {
        for (number, engine) in self.engines.iter().enumerate() {
            let gauge = |dp_rank| {
                let status = engine.status(dp_rank).unwrap();
                RankLoad {
                    dp_rank,
                    running: status.running,
                    waiting: status.waiting,
                    kv_used: status.kv_used,
                    at: now,
                }
            };
            let loads: Vec<RankLoad> = engine.ranks().map(gauge).collect();
            let id = target(number, 0).worker;
            for router in &mut self.routers {
                router.set_load(&id, &loads);
                router.expire(now);
            }
        }
        self.due.push(Reverse((now + GAUGES, Due::Gauges)));
    }

    fn sample(&mut self, now: Timestamp) {
        if self.measured_from <= now {
            for open in self.open.values().filter(|it| it.ttft.is_none()) {
                let at = open.decision.target().unwrap().clone();
                let pending = open.decision.uncached.unwrap().as_f64();
                *self.seen.pending.entry(at).or_default() += pending;
            }
        }
        self.due.push(Reverse((now + SAMPLE, Due::Sample)));
    }
}
