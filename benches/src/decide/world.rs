//! A fleet full of long conversations, and the router before it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use affinity::{Binding, ConversationKey, Event, Evidence, Owner, Standing, Terms, TurnEnd, Write};
use domain::{
    BlockSize, Capability, DecisionId, DpRank, Endpoint, EngineKind, Epoch, HashSeed, HeaderSpace,
    InstanceId, KvEndpoints, ModelName, Namespace, RankControl, RankLoad, SequenceHash, Target,
    TargetState, Timestamp, Tokens, Worker, WorkerId,
};
use prefix_index::{Carried, Reader};
use routing::{Config, Decision, Outcome, OverlapView, Request, Router, Status};

use super::text::{BLOCK, HELD, TOKENS};

/// Workers, and ranks of each.
pub(super) const WORKERS: u32 = 16;
/// Ranks of each worker.
pub(super) const RANKS: u32 = 8;
/// From one request to the next: 5,000 a second.
const BETWEEN: Duration = Duration::from_micros(200);
/// Requests from a decision to its first token (0.3 s), and to its end (1.5 s).
const TO_FIRST_TOKEN: usize = 1_500;
const TO_END: usize = 7_500;
/// Requests between two calls of what routers do by the clock: every 250 ms, 50 ms, and 1 s.
const TO_EXPIRE: u64 = 1_250;
const TO_PUBLISH: u64 = 250;
const TO_GAUGES: u64 = 5_000;
/// Of so many requests one is a first turn, which has no binding.
const TO_FIRST_TURN: u64 = 20;
/// Decisions that a router keeps whole: as many as a million candidates are in.
const KEPT: usize = 1_000_000 / (WORKERS * RANKS) as usize;
/// What requests carried, as much as an indexer remembers by default.
const CARRIED: usize = 4_000_000;
/// Tokens a second of a rank: as many as so many requests a second ask of each, and a third more.
const RATE: f64 = 300_000.0;

/// The router's side of a fleet, and who is bound where.
pub(super) struct World {
    reader: Reader,
    namespace: Namespace,
    carried: Carried,
    router: Router,
    instance: InstanceId,
    terms: Terms,
    keys: Vec<ConversationKey>,
    standings: HashMap<ConversationKey, Standing>,
    kept: VecDeque<Arc<Decision>>,
    prefilling: VecDeque<Sent>,
    decoding: VecDeque<Sent>,
    now: Timestamp,
    number: u64,
    /// Decisions that were not what the fleet holds: none, if this measures what it says.
    pub(super) wrong: u64,
}

/// A request on its way.
#[derive(Clone)]
struct Sent {
    id: DecisionId,
    conversation: usize,
    target: Target,
}

/// The target of a number, in ascending order.
pub(super) fn target(number: u32) -> Target {
    let worker = format!("10.0.0.{}:8000", 100 + number / RANKS % WORKERS);
    Target {
        worker: worker.parse().expect("a plain address"),
        epoch: Epoch::FIRST,
        dp_rank: DpRank::new(number % RANKS),
    }
}

/// Where a conversation is bound, and who else holds some of it.
pub(super) fn holders(conversation: usize) -> [Target; 2] {
    let targets = u64::from(WORKERS * RANKS);
    let home = crate::random::mix(conversation as u64) % targets;
    let second = (home + 1 + conversation as u64 % (targets - 1)) % targets;
    [home, second].map(|it| target(it as u32))
}

/// What the blocks of all prompts are kept under.
pub(super) fn namespace() -> Namespace {
    Namespace {
        model: model(),
        lora: None,
        salt: None,
        block_size: block_size(),
    }
}

/// The seed of their hashes.
pub(super) fn seed() -> HashSeed {
    namespace().seed()
}

/// Of every worker.
pub(super) fn block_size() -> BlockSize {
    BlockSize::new(BLOCK as u32).expect("not zero")
}

fn model() -> ModelName {
    "deepseek-ai/DeepSeek-V3".parse().expect("a plain name")
}

fn worker(id: WorkerId) -> Worker {
    Worker {
        url: format!("http://{id}"),
        id,
        epoch: Epoch::FIRST,
        engine: EngineKind::Vllm,
        version: "0.11.0".to_owned(),
        model: model(),
        start_rank: 0,
        dp_size: RANKS,
        block_size: block_size(),
        page_size: block_size(),
        kv_blocks: Some(2_000_000),
        capability: Capability::uniform(RankControl::Strict, HeaderSpace::Global),
        state: TargetState::Ready,
        kv_endpoints: KvEndpoints::Zmq(Vec::new()),
        lease_until: Timestamp::from_secs_f64(1e9),
    }
}

impl World {
    /// A router over what `reader` knows, with so many conversations bound.
    pub(super) fn new(reader: Reader, conversations: usize) -> Self {
        let instance: InstanceId = "router-1".parse().expect("a plain name");
        let config = Config {
            prefill_rate: RATE,
            ..Config::default()
        };
        let mut router = Router::new(instance.clone(), config);
        for number in 0..WORKERS {
            router.set_worker(worker(target(number * RANKS).worker));
        }
        let key = |number: usize| ConversationKey {
            tenant: "default".parse().expect("a plain name"),
            model: model(),
            conversation: format!("6f1c2a7e-0b1d-4c55-9a53-{number:012}")
                .parse()
                .expect("a plain name"),
        };
        let mut world = Self {
            reader,
            namespace: namespace(),
            carried: Carried::new(CARRIED),
            router,
            instance,
            terms: Terms::default(),
            keys: (0..conversations).map(key).collect(),
            standings: HashMap::new(),
            kept: VecDeque::new(),
            prefilling: VecDeque::new(),
            decoding: VecDeque::new(),
            now: Timestamp::from_secs_f64(1_000.0),
            number: 0,
            wrong: 0,
        };
        for conversation in 0..conversations {
            let [home, _] = holders(conversation);
            world.bind(conversation, &home);
            world.served(conversation, &home);
        }
        world
    }

    /// Which conversation asks next: each in turn, so that the turn before is over.
    pub(super) fn next(&mut self) -> usize {
        self.number += 1;
        self.now += BETWEEN;
        (self.number as usize * 7_919) % self.keys.len()
    }

    /// The prompt of a conversation's next turn is like no other from here on.
    pub(super) fn turn(&self) -> u64 {
        self.number
    }

    /// What is known of the request but for its blocks.
    pub(super) fn request(&self, conversation: usize, hashes: Vec<SequenceHash>) -> Request {
        Request {
            id: DecisionId::new(u128::from(self.number)),
            model: self.namespace.model.clone(),
            endpoint: Endpoint::Completions,
            isl: Tokens::new(TOKENS as u64),
            hashes: vec![(self.namespace.block_size, hashes)],
            conversation: Some(self.keys[conversation].clone()),
            hint: None,
            lead: None,
            tried: Vec::new(),
            no_adapter: Vec::new(),
            pin: None,
        }
    }

    /// What earlier requests carried of this one, which later ones may go on with.
    pub(super) fn ceiling(&mut self, hashes: &[SequenceHash]) -> u32 {
        let carried = self.carried.depth(&self.namespace, hashes);
        self.carried.record(&self.namespace, hashes);
        carried
    }

    /// What the indexer answers.
    pub(super) fn overlap(&self, hashes: &[SequenceHash], ceiling: u32) -> OverlapView {
        let overlap = self.reader.overlap(&self.namespace, hashes);
        OverlapView {
            block_size: self.namespace.block_size,
            groups: overlap.groups,
            ceiling: ceiling.max(overlap.stored),
            stored: overlap.stored,
            not_ready: Vec::new(),
            unknown: Default::default(),
            index_age: Duration::ZERO,
        }
    }

    /// The binding, as whoever asks the store gets it.
    pub(super) fn binding(&self, conversation: usize) -> Option<Box<Binding>> {
        if self.number.is_multiple_of(TO_FIRST_TURN) {
            return None;
        }
        let standing = self.standings.get(&self.keys[conversation])?;
        let binding = standing.binding(self.now, &self.terms);
        binding.cloned().map(Box::new)
    }

    /// The decision.
    pub(super) fn decide(
        &mut self,
        request: &Request,
        view: OverlapView,
        binding: Option<&Binding>,
    ) -> Decision {
        let seed = crate::random::mix(self.number);
        self.router
            .decide(request, Some(&[view]), binding, self.now, seed)
            .expect("every target can take it")
    }

    /// Binds or joins, and keeps the decision.
    pub(super) fn enter(&mut self, conversation: usize, decision: Decision) {
        let target = decision.target().expect("ranks are chosen").clone();
        self.bind(conversation, &target);
        let held = decision.overlap.expect("the index answers").best;
        self.wrong += u64::from(held.get() != HELD as u64);
        let sent = Sent {
            id: decision.id,
            conversation,
            target,
        };
        self.prefilling.push_back(sent);
        self.kept.push_back(Arc::new(decision));
        if KEPT < self.kept.len() {
            self.kept.pop_front();
        }
    }

    /// What ends by now, and what the clock asks for.
    pub(super) fn proceed(&mut self) {
        if TO_FIRST_TOKEN < self.prefilling.len()
            && let Some(sent) = self.prefilling.pop_front()
        {
            self.router.first_token(sent.id, self.now);
            self.confirm(sent.conversation, &sent.target);
            self.decoding.push_back(sent);
        }
        if TO_END - TO_FIRST_TOKEN < self.decoding.len()
            && let Some(sent) = self.decoding.pop_front()
        {
            self.served(sent.conversation, &sent.target);
            let outcome = Outcome {
                status: Status::Served,
                ttft: None,
                duration: None,
                observed_rank: Some(sent.target.dp_rank),
                usage: None,
            };
            let row = self.router.finish(sent.id, &outcome, self.now);
            self.wrong += u64::from(row.is_none());
        }
        if self.number.is_multiple_of(TO_PUBLISH) {
            drop(self.router.take_changes());
        }
        if self.number.is_multiple_of(TO_EXPIRE) {
            self.router.expire(self.now);
        }
        if self.number.is_multiple_of(TO_GAUGES) {
            self.gauges();
        }
    }

    /// Requests that have not ended, and reservations that have not.
    pub(super) fn load(&self) -> (usize, usize) {
        (self.router.open(), self.router.reserved())
    }

    fn gauges(&mut self) {
        for number in 0..WORKERS {
            let load = |rank| RankLoad {
                dp_rank: DpRank::new(rank),
                running: 50,
                waiting: 8,
                kv_used: 0.9,
                at: self.now,
            };
            let ranks: Vec<_> = (0..RANKS).map(load).collect();
            let id = target(number * RANKS).worker;
            self.router.set_load(&id, &ranks);
        }
    }

    fn bind(&mut self, conversation: usize, proposed: &Target) {
        let key = self.keys[conversation].clone();
        let event = Event::Acquire {
            key: &key,
            proposed,
            owner: Owner::Router,
            actor: &self.instance.clone(),
        };
        self.apply(conversation, &event);
    }

    fn confirm(&mut self, conversation: usize, target: &Target) {
        let event = Event::Confirm {
            asked: target,
            observed: target,
            evidence: Evidence::Asked,
            actor: &self.instance.clone(),
        };
        self.apply(conversation, &event);
    }

    fn served(&mut self, conversation: usize, target: &Target) {
        let event = Event::Release {
            target,
            end: TurnEnd::Served {
                held: Tokens::new(HELD as u64),
            },
            actor: &self.instance.clone(),
        };
        self.apply(conversation, &event);
    }

    fn apply(&mut self, conversation: usize, event: &Event<'_>) {
        let key = &self.keys[conversation];
        let standing = self.standings.entry(key.clone()).or_default();
        if let Ok(transition) = standing.apply(event, self.now, &self.terms) {
            *standing = transition.next;
            if let Write::Put(binding) = transition.write {
                drop(binding);
            }
        }
    }
}
