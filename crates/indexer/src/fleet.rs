//! Which workers are registered, how much their ranks can hold, and whose blocks are to be dropped.

use std::collections::BTreeMap;
use std::time::Duration;

use domain::{Epoch, Target, Timestamp, Worker, WorkerId};
use tracing::warn;

use crate::position::Position;

/// How long events of a worker let go are refused: longer than the log keeps them.
const TOMBSTONE: Duration = Duration::from_secs(4 * 3600);
/// How many ranks of workers let go are remembered, to be asked for if they come back: more than any fleet
/// has, in some MiB.
const MAX_REMEMBERED: usize = 65_536;

/// The workers, as registered and as heard of.
pub(crate) struct Fleet {
    registered: BTreeMap<WorkerId, Registered>,
    /// When a worker was last known to live: by its lease, by an event, or since this process began.
    alive: BTreeMap<WorkerId, Timestamp>,
    gone: BTreeMap<WorkerId, Gone>,
    grace: Duration,
}

struct Registered {
    lease_until: Timestamp,
    kv_blocks: Option<u64>,
}

struct Gone {
    epoch: Epoch,
    at: Timestamp,
    /// Its ranks of that epoch, of which all that they had said is missing.
    ranks: Vec<(Target, Position)>,
}

impl Fleet {
    pub(crate) fn new(grace: Duration) -> Self {
        Self {
            registered: BTreeMap::new(),
            alive: BTreeMap::new(),
            gone: BTreeMap::new(),
            grace,
        }
    }

    /// Takes note of a registration. Answers the ranks that `worker` had when it was let go, if it is back.
    pub(crate) fn register(&mut self, worker: &Worker, now: Timestamp) -> Vec<(Target, Position)> {
        let registered = Registered {
            lease_until: worker.lease_until,
            kv_blocks: worker.kv_blocks,
        };
        self.registered.insert(worker.id.clone(), registered);
        if worker.lease_until < now {
            return Vec::new();
        }
        let back = self.gone.remove(&worker.id);
        back.map_or_else(Vec::new, |it| it.ranks)
    }

    /// A registration was taken back; its grace begins now.
    pub(crate) fn deregister(&mut self, worker: &WorkerId, now: Timestamp) {
        if self.registered.remove(worker).is_some() {
            self.heard(worker, now);
        }
    }

    /// Blocks that one rank of `worker` can hold, where it says.
    pub(crate) fn kv_blocks(&self, worker: &WorkerId) -> Option<u64> {
        self.registered.get(worker)?.kv_blocks
    }

    /// `worker` has given a sign of life.
    pub(crate) fn heard(&mut self, worker: &WorkerId, now: Timestamp) {
        match self.alive.get_mut(worker) {
            Some(alive) => *alive = now.max(*alive),
            None => {
                self.alive.insert(worker.clone(), now);
            }
        }
    }

    /// Remembers a rank of a worker that has just been let go, and where its stream stood.
    pub(crate) fn remember(&mut self, target: Target, mut position: Position) {
        let remembered: usize = self.gone.values().map(|it| it.ranks.len()).sum();
        let Some(gone) = self.gone.get_mut(&target.worker) else {
            return;
        };
        if target.epoch != gone.epoch {
            return;
        }
        if MAX_REMEMBERED <= remembered {
            warn!(%target, "too many ranks let go: it is not asked for should it come back");
            return;
        }
        position.lose();
        gone.ranks.push((target, position));
    }

    /// Whether this incarnation of `worker` was let go: what is still queued of it is refused until it
    /// registers again.
    pub(crate) fn is_gone(&self, worker: &WorkerId, epoch: Epoch) -> bool {
        self.gone.get(worker).is_some_and(|it| epoch <= it.epoch)
    }

    /// Of `known`, each with its newest epoch, the workers whose grace has ended. They are gone from now on.
    pub(crate) fn expire(
        &mut self,
        known: &BTreeMap<WorkerId, Epoch>,
        now: Timestamp,
    ) -> Vec<WorkerId> {
        let mut expired = Vec::new();
        for (worker, epoch) in known {
            let lease = self.registered.get(worker).map(|it| it.lease_until);
            let alive = *self.alive.entry(worker.clone()).or_insert(now);
            let until = lease.map_or(alive, |lease| lease.max(alive)) + self.grace;
            if until < now {
                let gone = Gone {
                    epoch: *epoch,
                    at: now,
                    ranks: Vec::new(),
                };
                self.gone.insert(worker.clone(), gone);
                expired.push(worker.clone());
            }
        }
        self.alive
            .retain(|worker, _| known.contains_key(worker) && !expired.contains(worker));
        self.gone.retain(|_, gone| now.since(gone.at) < TOMBSTONE);
        expired
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(60);

    fn at(seconds: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_secs(seconds)
    }

    fn known() -> BTreeMap<WorkerId, Epoch> {
        BTreeMap::from([(WorkerId::new("w").unwrap(), Epoch::FIRST)])
    }

    #[test]
    fn a_silent_unregistered_worker_is_kept_for_its_grace_and_refused_after() {
        let worker = WorkerId::new("w").unwrap();
        let mut fleet = Fleet::new(GRACE);
        fleet.heard(&worker, at(100));

        assert!(fleet.expire(&known(), at(160)).is_empty());
        assert!(!fleet.is_gone(&worker, Epoch::FIRST));
        assert_eq!(fleet.expire(&known(), at(161)).len(), 1);
        assert!(fleet.is_gone(&worker, Epoch::FIRST));
        assert!(!fleet.is_gone(&worker, Epoch::FIRST.next()));
    }

    #[test]
    fn a_worker_never_heard_of_has_its_grace_from_when_it_is_first_seen() {
        let mut fleet = Fleet::new(GRACE);
        assert!(fleet.expire(&known(), at(1000)).is_empty());
        assert!(fleet.expire(&known(), at(1060)).is_empty());
        assert_eq!(fleet.expire(&known(), at(1061)).len(), 1);
    }
}
