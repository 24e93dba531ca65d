//! A router, ranks with unbounded caches, and an index that knows them, but for those it is told to be silent of.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

use affinity::{Binding, BindingState, ConversationKey, Evidence, Owner};
use domain::{
    BlockHash, BlockSize, Capability, DecisionId, Depths, Endpoint, EngineKind, Epoch, HeaderSpace,
    KvEndpoints, ModelName, OverlapGroup, RankControl, SequenceHash, Target, TargetState,
    Timestamp, Tokens, Usage, Worker, sequence_hashes,
};
use routing::{Config, Decision, NoTarget, Outcome, OverlapView, Request, Router, Status};

pub(crate) const BLOCK: u64 = 128;
/// Tokens a second of every rank.
pub(crate) const RATE: f64 = 8_000.0;

pub(crate) struct World {
    pub(crate) router: Router,
    pub(crate) now: Timestamp,
    pub(crate) held: BTreeMap<Target, HashSet<SequenceHash>>,
    pub(crate) not_ready: Vec<(Target, TargetState)>,
    /// Of these the index says nothing.
    pub(crate) unknown: BTreeSet<Target>,
    next: u64,
}

pub(crate) fn model() -> ModelName {
    "m".parse().unwrap()
}

pub(crate) fn target(text: &str) -> Target {
    text.parse().unwrap()
}

pub(crate) fn block_size() -> BlockSize {
    BlockSize::new(128).unwrap()
}

pub(crate) fn worker(id: &str, dp_size: u32) -> Worker {
    Worker {
        id: id.parse().unwrap(),
        epoch: Epoch::FIRST,
        engine: EngineKind::Vllm,
        version: String::new(),
        model: model(),
        start_rank: 0,
        dp_size,
        block_size: block_size(),
        page_size: block_size(),
        kv_blocks: None,
        capability: Capability::uniform(RankControl::Strict, HeaderSpace::Global),
        state: TargetState::Ready,
        url: String::new(),
        kv_endpoints: KvEndpoints::Zmq(Vec::new()),
        lease_until: Timestamp::from_secs_f64(1e9),
    }
}

pub(crate) fn conversation(name: &str) -> ConversationKey {
    ConversationKey {
        tenant: "t".parse().unwrap(),
        model: model(),
        conversation: name.parse().unwrap(),
    }
}

/// A conversation confirmed at `at`, whose last turn left `held` tokens there.
pub(crate) fn bound(name: &str, at: &str, held: u64) -> Binding {
    Binding {
        key: conversation(name),
        target: target(at),
        owner: Owner::Router,
        state: BindingState::Confirmed,
        evidence: Evidence::Asked,
        moved: None,
        since: Timestamp::ZERO,
        actor: "r1".parse().unwrap(),
        held: Tokens::new(held),
        turns: 1,
        last_end: Timestamp::ZERO,
    }
}

/// `count` blocks of content that only `name` has.
pub(crate) fn content(name: u64, count: u64) -> Vec<BlockHash> {
    (0..count)
        .map(|it| BlockHash::new(name * 1_000_000 + it))
        .collect()
}

impl World {
    /// `workers` workers `w1`, `w2`, ... of `dp_size` ranks, and settings whose speed is [`RATE`].
    pub(crate) fn new(workers: u32, dp_size: u32, config: Config) -> Self {
        let config = Config {
            prefill_rate: RATE,
            ..config
        };
        let mut router = Router::new("r1".parse().unwrap(), config);
        for number in 1..=workers {
            router.set_worker(worker(&format!("w{number}"), dp_size));
        }
        Self {
            router,
            now: Timestamp::from_secs_f64(1_000.0),
            held: BTreeMap::new(),
            not_ready: Vec::new(),
            unknown: BTreeSet::new(),
            next: 0,
        }
    }

    /// A request of these blocks and half a block more.
    pub(crate) fn request(&mut self, blocks: &[BlockHash]) -> Request {
        self.next += 1;
        let count = u64::try_from(blocks.len()).unwrap();
        Request {
            id: DecisionId::new(u128::from(self.next)),
            model: model(),
            endpoint: Endpoint::Chat,
            isl: Tokens::new(count * BLOCK + BLOCK / 2),
            hashes: vec![(block_size(), sequence_hashes(blocks))],
            conversation: None,
            hint: None,
            lead: None,
            tried: Vec::new(),
            no_adapter: Vec::new(),
            pin: None,
        }
    }

    pub(crate) fn turn(&mut self, name: &str, blocks: &[BlockHash]) -> Request {
        Request {
            conversation: Some(conversation(name)),
            ..self.request(blocks)
        }
    }

    /// What the index would answer.
    pub(crate) fn view(&self, request: &Request) -> OverlapView {
        let hashes = &request.hashes[0].1;
        let depth = |held: &HashSet<SequenceHash>| {
            let depth = hashes.iter().take_while(|it| held.contains(it)).count();
            u32::try_from(depth).unwrap()
        };
        let known = self
            .held
            .iter()
            .filter(|(target, _)| !self.unknown.contains(target));
        let groups = known.map(|(target, held)| OverlapGroup {
            targets: vec![target.clone()],
            depths: Depths {
                gpu: depth(held),
                host: depth(held),
                disk: depth(held),
            },
        });
        let groups: Vec<_> = groups.filter(|it| it.depths.disk > 0).collect();
        let deepest = groups.iter().map(|it| it.depths.disk).max().unwrap_or(0);
        OverlapView {
            block_size: block_size(),
            groups,
            ceiling: deepest,
            stored: deepest,
            not_ready: self.not_ready.clone(),
            unknown: self
                .unknown
                .iter()
                .map(|it| (it.worker.clone(), it.dp_rank))
                .collect(),
            index_age: Duration::ZERO,
        }
    }

    pub(crate) fn decide(
        &mut self,
        request: &Request,
        binding: Option<&Binding>,
    ) -> Result<Decision, NoTarget> {
        let views = [self.view(request)];
        let seed = u64::try_from(request.id.get()).unwrap();
        self.router
            .decide(request, Some(&views), binding, self.now, seed)
    }

    /// Decides without an index.
    pub(crate) fn decide_blind(
        &mut self,
        request: &Request,
        binding: Option<&Binding>,
    ) -> Result<Decision, NoTarget> {
        let seed = u64::try_from(request.id.get()).unwrap();
        self.router.decide(request, None, binding, self.now, seed)
    }

    /// The target holds these blocks from now on.
    pub(crate) fn hold(&mut self, at: &Target, blocks: &[BlockHash]) {
        let held = self.held.entry(at.clone()).or_default();
        held.extend(sequence_hashes(blocks));
    }

    pub(crate) fn wait(&mut self, seconds: f64) {
        self.now += Duration::from_secs_f64(seconds);
    }
}

/// An outcome of a request served without a report of its tokens.
pub(crate) fn served() -> Outcome {
    Outcome {
        status: Status::Served,
        ttft: None,
        duration: None,
        observed_rank: None,
        usage: None,
    }
}

pub(crate) fn ended(status: Status) -> Outcome {
    Outcome { status, ..served() }
}

pub(crate) fn usage(prompt: u64, completion: u64, cached: Option<u64>) -> Usage {
    Usage {
        prompt: Tokens::new(prompt),
        completion: Tokens::new(completion),
        cached: cached.map(Tokens::new),
    }
}
