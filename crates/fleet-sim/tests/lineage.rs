//! Agents that send no id are kept on their ranks as well as those that do.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap};
use std::time::Duration;

use affinity::{Binding, ConversationKey, Event, Kin, Lineage, Owner, Standing, Terms, TurnEnd};
use domain::{
    BlockSize, Capability, DecisionId, Depths, Endpoint, EngineKind, Epoch, HashSeed, HeaderSpace,
    InstanceId, KvEndpoints, OverlapGroup, RankControl, SequenceHash, Target, TargetState,
    Timestamp, Tokens, Worker, block_hashes, sequence_hashes,
};
use fleet_sim::{AgentX, Conversation, working_set};
use routing::{BindingAction, Config, Decision, Lead, Outcome, OverlapView, Router, Status};

const BLOCK: u32 = 16;
/// What a template opens the answer with.
const OPENING: usize = 8;
const WORKERS: u32 = 3;
const RANKS: u32 = 8;
/// A turn takes so long; its prefill is done at once.
const TURN: Duration = Duration::from_secs(5);

/// By what conversations are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Id,
    Lineage,
}

/// One rank's cache: the block used last is evicted last, of one prompt the first.
#[derive(Default)]
struct Cache {
    used: HashMap<SequenceHash, u64>,
    oldest: BTreeMap<u64, SequenceHash>,
    clock: u64,
}

impl Cache {
    fn depth(&self, hashes: &[SequenceHash]) -> u32 {
        let held = hashes.iter().take_while(|it| self.used.contains_key(it));
        u32::try_from(held.count()).unwrap()
    }

    fn compute(&mut self, hashes: &[SequenceHash], room: usize) {
        for hash in hashes.iter().rev() {
            self.clock += 1;
            let before = self.used.insert(*hash, self.clock);
            before.and_then(|it| self.oldest.remove(&it));
            self.oldest.insert(self.clock, *hash);
        }
        while room < self.used.len() {
            let (_, hash) = self.oldest.pop_first().unwrap();
            self.used.remove(&hash);
        }
    }
}

/// Router replicas behind round robin, an index that knows every cache, and one store of bindings.
struct World {
    by: By,
    routers: Vec<(Router, Lineage)>,
    caches: BTreeMap<Target, Cache>,
    room: usize,
    /// Whether the index answers.
    index: bool,
    bindings: BTreeMap<ConversationKey, Standing>,
    actor: InstanceId,
    turns: u64,
    isl: u64,
    cached: u64,
}

fn size() -> BlockSize {
    BlockSize::new(BLOCK).unwrap()
}

fn worker(number: u32) -> Worker {
    Worker {
        id: format!("w{number}").parse().unwrap(),
        epoch: Epoch::FIRST,
        engine: EngineKind::Vllm,
        version: String::new(),
        model: "m".parse().unwrap(),
        start_rank: 0,
        dp_size: RANKS,
        block_size: size(),
        page_size: size(),
        kv_blocks: None,
        capability: Capability::uniform(RankControl::Strict, HeaderSpace::Global),
        state: TargetState::Ready,
        url: String::new(),
        kv_endpoints: KvEndpoints::Zmq(Vec::new()),
        lease_until: Timestamp::from_secs_f64(1e9),
    }
}

fn kin() -> Kin {
    Kin::of(&"m".parse().unwrap())
}

impl World {
    fn new(by: By, routers: u32, index: bool, room: usize) -> Self {
        let router = |number| {
            let name = InstanceId::new(&format!("router-{number}")).unwrap();
            let mut router = Router::new(name, Config::default());
            (0..WORKERS).for_each(|it| router.set_worker(worker(it)));
            (router, Lineage::default())
        };
        let targets = (0..WORKERS).flat_map(|worker| {
            (0..RANKS).map(move |rank| format!("w{worker}#1/{rank}").parse().unwrap())
        });
        Self {
            by,
            routers: (0..routers).map(router).collect(),
            caches: targets.map(|it| (it, Cache::default())).collect(),
            room,
            index,
            bindings: BTreeMap::new(),
            actor: InstanceId::new("router").unwrap(),
            turns: 0,
            isl: 0,
            cached: 0,
        }
    }

    /// What the conversation of a prompt is known by, if by anything yet, and where it is led to.
    fn descent(
        &mut self,
        id: &str,
        lasting: &[SequenceHash],
        router: usize,
        now: Timestamp,
    ) -> (Option<ConversationKey>, Option<Lead>) {
        let named = |conversation| ConversationKey {
            tenant: "t".parse().unwrap(),
            model: "m".parse().unwrap(),
            conversation,
        };
        if self.by == By::Id {
            return (Some(named(id.parse().unwrap())), None);
        }
        let lineage = &mut self.routers[router].1;
        let found = lineage.find(kin(), lasting, now);
        lineage.record(kin(), lasting, found.origin, now);
        let lead = found.lead.map(|it| Lead {
            held: size().tokens(u32::try_from(it.blocks).unwrap()),
            target: it.target,
        });
        (found.origin.map(|it| named(it.id())), lead)
    }

    fn turn(&mut self, id: &str, prompt: &[u32], now: Timestamp) {
        let router = usize::try_from(self.turns).unwrap() % self.routers.len();
        self.turns += 1;
        let hashes = sequence_hashes(&block_hashes(prompt, size(), HashSeed::of(None, None)));
        let lasting = prompt.len().saturating_sub(OPENING) / BLOCK as usize;
        let lasting = &hashes[..lasting];
        let (key, lead) = self.descent(id, lasting, router, now);
        let terms = Terms::default();
        let standing = key.as_ref().and_then(|it| self.bindings.get(it));
        let binding = standing.and_then(|it| it.binding(now, &terms)).cloned();
        let request = routing::Request {
            id: DecisionId::new(u128::from(self.turns)),
            model: "m".parse().unwrap(),
            endpoint: Endpoint::Chat,
            isl: Tokens::new(prompt.len() as u64),
            hashes: vec![(size(), hashes.clone())],
            conversation: key.clone(),
            hint: None,
            lead,
            tried: Vec::new(),
            no_adapter: Vec::new(),
            pin: None,
        };
        let decision = self.decide(router, &request, binding.as_ref(), now);
        let target = decision.target().unwrap().clone();
        if self.by == By::Lineage && key.is_none() {
            self.tell_end(router, (lasting, &hashes), &target, now);
        }
        let cache = self.caches.get_mut(&target).unwrap();
        self.isl += prompt.len() as u64;
        self.cached += size().tokens(cache.depth(&hashes)).get();
        cache.compute(&hashes, self.room);
        if let Some(key) = key {
            let held = size().tokens(u32::try_from(hashes.len()).unwrap());
            self.bind(&key, &decision.binding, &target, held, now);
        }
    }

    /// The router knows where the lasting part ends, its peers where all of it does.
    fn tell_end(
        &mut self,
        router: usize,
        (lasting, hashes): (&[SequenceHash], &[SequenceHash]),
        target: &Target,
        now: Timestamp,
    ) {
        for (number, (_, lineage)) in self.routers.iter_mut().enumerate() {
            let blocks = if number == router { lasting } else { hashes };
            if let Some(end) = blocks.last() {
                lineage.ran(kin(), *end, target, now);
            }
        }
    }

    fn decide(
        &mut self,
        router: usize,
        request: &routing::Request,
        binding: Option<&Binding>,
        now: Timestamp,
    ) -> Decision {
        let hashes = &request.hashes[0].1;
        let holding = self.caches.iter().map(|(target, cache)| {
            let blocks = cache.depth(hashes);
            let depths = Depths {
                gpu: blocks,
                host: blocks,
                disk: blocks,
            };
            let targets = vec![target.clone()];
            OverlapGroup { targets, depths }
        });
        let groups: Vec<_> = holding.filter(|it| it.depths.gpu > 0).collect();
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
        let id = request.id;
        let router = &mut self.routers[router].0;
        let views = [view];
        let views = self.index.then_some(&views[..]);
        let decided = router.decide(request, views, binding, now, self.turns);
        router.first_token(id, now);
        let outcome = Outcome {
            status: Status::Served,
            ttft: None,
            duration: Some(TURN),
            observed_rank: None,
            usage: None,
        };
        router.finish(id, &outcome, now);
        decided.unwrap()
    }

    /// Does what the decision says, and tells every router.
    fn bind(
        &mut self,
        key: &ConversationKey,
        action: &BindingAction,
        target: &Target,
        held: Tokens,
        now: Timestamp,
    ) {
        let actor = &self.actor;
        let began = match action {
            BindingAction::Rebind(reason) => Event::Rebind {
                to: target,
                reason: *reason,
                actor,
            },
            _ => Event::Acquire {
                key,
                proposed: target,
                owner: Owner::Router,
                actor,
            },
        };
        let ended = Event::Release {
            target,
            end: TurnEnd::Served { held },
            actor,
        };
        let standing = self.bindings.entry(key.clone()).or_default();
        for event in [began, ended] {
            *standing = standing.apply(&event, now, &Terms::default()).unwrap().next;
        }
        for (_, lineage) in &mut self.routers {
            lineage.hear(key, now);
        }
    }

    /// Runs the workload; the share of prompt tokens that came from a cache.
    fn hit_ratio(mut self, conversations: &[Conversation]) -> f64 {
        let first = conversations.iter().enumerate();
        let mut due: BinaryHeap<_> = first
            .map(|(number, it)| Reverse((Timestamp::ZERO + it.start, number, 0)))
            .collect();
        while let Some(Reverse((now, number, turn))) = due.pop() {
            let conversation = &conversations[number];
            self.turn(&conversation.id, &conversation.turns[turn].prompt, now);
            if let Some(next) = conversation.turns.get(turn + 1) {
                due.push(Reverse((now + TURN + next.gap, number, turn + 1)));
            }
        }
        self.cached as f64 / self.isl as f64
    }
}

#[test]
fn lineage_keeps_nearly_what_ids_keep() {
    let workload = AgentX {
        sessions: 32,
        token_scale: 64.0,
        time_scale: 1.0,
        max_isl: 4_096,
        max_turns: 40,
        seed: 1,
    };
    let conversations = workload.conversations();
    let one_copy = working_set(&conversations) / u64::from(BLOCK * WORKERS * RANKS);
    for (copies, routers, index, least) in [
        (4, 1, true, 0.98),
        (4, 5, true, 0.98),
        (1, 5, true, 0.98),
        // Ends then lead to where they were computed.
        (4, 1, false, 0.98),
        (4, 5, false, 0.98),
        (1, 5, false, 0.98),
    ] {
        let room = usize::try_from(copies * one_copy).unwrap();
        let ratio = |by| World::new(by, routers, index, room).hit_ratio(&conversations);
        let (with, without) = (ratio(By::Id), ratio(By::Lineage));
        let figures = format!(
            "{copies} copies, {routers} routers, index {index}: {with:.3} with ids, {without:.3} without"
        );
        assert!(least * with <= without, "{figures}");
    }
}
