//! The router replicas: what they see, and what they tell each other.

use affinity::{ConversationKey, Kin, Lineage};
use domain::{
    BlockSize, Drain, Epoch, InstanceId, ModelName, RankLoad, ReservationChange, SequenceHash,
    Target, Timestamp, Tokens, Worker, WorkerId,
};
use routing::{Config, Lead, Router};

use crate::Setting;

/// Tokens at the end of a prompt that need not come back, as a template's opening of the answer.
const OPENING: Tokens = Tokens::new(8);

pub(super) struct Routers {
    replicas: Vec<Replica>,
    kin: Kin,
    /// Whether requests without a name are known by what came before them.
    lineage: bool,
    next: usize,
}

pub(super) struct Replica {
    pub(super) name: InstanceId,
    pub(super) mind: Router,
    lineage: Lineage,
}

/// The part of a prompt that comes back with the next turn, whole blocks.
pub(super) fn lasting(
    chain: &[SequenceHash],
    isl: Tokens,
    block_size: BlockSize,
) -> &[SequenceHash] {
    let blocks = isl.saturating_sub(OPENING).get() / u64::from(block_size.get());
    let blocks = usize::try_from(blocks).unwrap_or(usize::MAX);
    &chain[..blocks.min(chain.len())]
}

impl Routers {
    pub(super) fn new(setting: &Setting, model: &ModelName) -> Self {
        let rate = 1.0 / setting.fleet.step.per_prefill_token.as_secs_f64().max(1e-9);
        let config = Config {
            policy: setting.policy,
            affinity: setting.affinity.into(),
            patience: setting.patience,
            prefill_rate: rate,
            // A request may wait for hours on an overloaded fleet; nothing here loses one.
            reservation_lease: std::time::Duration::from_secs(1 << 30),
            ..Config::default()
        };
        let replica = |number: u32| {
            let name = InstanceId::new(&format!("r{number}")).expect("a short plain name");
            Replica {
                mind: Router::new(name.clone(), config.clone()),
                name,
                lineage: Lineage::default(),
            }
        };
        Self {
            replicas: (0..setting.routers).map(replica).collect(),
            kin: Kin::of(model),
            lineage: setting.lineage,
            next: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.replicas.len()
    }

    /// The one whose turn it is.
    pub(super) fn rotate(&mut self) -> usize {
        let router = self.next;
        self.next = (router + 1) % self.replicas.len();
        router
    }

    pub(super) fn of(&mut self, router: usize) -> &mut Replica {
        &mut self.replicas[router]
    }

    pub(super) fn set_worker(&mut self, worker: &Worker) {
        for it in &mut self.replicas {
            it.mind.set_worker(worker.clone());
        }
    }

    pub(super) fn set_epoch(&mut self, worker: &WorkerId, epoch: Epoch) {
        for it in &mut self.replicas {
            it.mind.set_epoch(worker, epoch);
        }
    }

    pub(super) fn set_drain(&mut self, drain: &Drain) {
        for it in &mut self.replicas {
            it.mind.set_drains([drain.clone()]);
        }
    }

    pub(super) fn see(&mut self, worker: &WorkerId, loads: &[RankLoad]) {
        for it in &mut self.replicas {
            it.mind.set_load(worker, loads);
        }
    }

    pub(super) fn expire(&mut self, now: Timestamp) {
        for it in &mut self.replicas {
            it.mind.expire(now);
        }
    }

    /// Each tells all others what it has reserved and released since it last did.
    pub(super) fn tell(&mut self, now: Timestamp) {
        let changes: Vec<Vec<ReservationChange>> = self
            .replicas
            .iter_mut()
            .map(|it| it.mind.take_changes())
            .collect();
        let names: Vec<InstanceId> = self.replicas.iter().map(|it| it.name.clone()).collect();
        for (from, changes) in changes.iter().enumerate() {
            for (to, peer) in self.replicas.iter_mut().enumerate() {
                if to == from {
                    continue;
                }
                for change in changes {
                    peer.mind.apply_peer(&names[from], change, now);
                    if self.lineage {
                        peer.hear_end(self.kin, change, now);
                    }
                }
            }
        }
    }

    /// What the conversation of a request without a name is known by, if by anything yet, and where it is led to.
    pub(super) fn descent(
        &mut self,
        router: usize,
        lasting: &[SequenceHash],
        block_size: BlockSize,
        now: Timestamp,
    ) -> (Option<affinity::Origin>, Option<Lead>) {
        if !self.lineage {
            return (None, None);
        }
        let lineage = &mut self.replicas[router].lineage;
        let found = lineage.find(self.kin, lasting, now);
        lineage.record(self.kin, lasting, found.origin, now);
        let lead = found.lead.map(|it| Lead {
            held: block_size.tokens(u32::try_from(it.blocks).unwrap_or(u32::MAX)),
            target: it.target,
        });
        (found.origin, lead)
    }

    /// A request that has no name ran there.
    pub(super) fn ran(
        &mut self,
        router: usize,
        lasting: &[SequenceHash],
        target: &Target,
        now: Timestamp,
    ) {
        if let Some(end) = lasting.last().filter(|_| self.lineage) {
            let lineage = &mut self.replicas[router].lineage;
            lineage.ran(self.kin, *end, target, now);
        }
    }

    /// All hear of a conversation that one has bound.
    pub(super) fn hear(&mut self, key: &ConversationKey, now: Timestamp) {
        if self.lineage {
            for it in &mut self.replicas {
                it.lineage.hear(key, now);
            }
        }
    }
}

impl Replica {
    /// The last landmark of a peer's request is its end.
    fn hear_end(&mut self, kin: Kin, change: &ReservationChange, now: Timestamp) {
        if let ReservationChange::Reserve {
            target, landmarks, ..
        } = change
            && let Some(end) = landmarks.last()
        {
            self.lineage.ran(kin, *end, target, now);
        }
    }
}
