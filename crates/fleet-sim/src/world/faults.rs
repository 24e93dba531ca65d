//! What goes wrong, and what operators do.

use std::time::Duration;

use domain::{Drain, InstanceId, Timestamp};
use engine_model::InvalidEngine;

use super::{Due, World};
use crate::setting::{Partition, Restarts};

impl World<'_> {
    /// Enters what is to happen at its time.
    pub(super) fn plan_faults(&mut self) {
        let start = |after: Duration| Timestamp::ZERO + after;
        if let Some(restarts) = self.setting.restarts {
            self.at(start(restarts.every), Due::Dies(0));
        }
        if let Some(drain) = self.setting.drain {
            self.at(start(drain.at), Due::Drains);
        }
        if let Some(join) = self.setting.join {
            self.at(start(join), Due::Joins);
        }
        if let Some(partition) = self.setting.partition {
            self.at(start(partition.every), Due::Cut);
        }
    }

    /// Requests without a token are tried elsewhere, the others break off.
    pub(super) fn die(&mut self, worker: usize, now: Timestamp) -> Result<(), InvalidEngine> {
        let Some(Restarts { every, down, .. }) = self.setting.restarts.filter(|_| self.is_busy())
        else {
            return Ok(());
        };
        self.engines.kill(worker)?;
        self.at(now + down, Due::Returns(worker));
        let next = (worker + 1) % self.engines.len();
        self.at(now + every.max(Duration::from_micros(1)), Due::Dies(next));
        let lost = self.open.iter().filter(|it| it.1.worker() == worker);
        let lost: Vec<u64> = lost.map(|it| *it.0).collect();
        for id in lost {
            let Some(open) = self.open.remove(&id) else {
                continue;
            };
            self.break_off(open, now);
        }
        Ok(())
    }

    /// It takes requests again, under an epoch that nobody knows yet.
    pub(super) fn come_back(&mut self, worker: usize, now: Timestamp) {
        self.engines.revive(worker);
        if let Some(restarts) = self.setting.restarts {
            self.at(now + restarts.noticed_after, Due::Noticed(worker));
        }
    }

    /// Its new epoch is known: nothing of the old one counts any more.
    pub(super) fn notice(&mut self, worker: usize) {
        let (id, epoch) = (self.engines.id(worker).clone(), self.engines.epoch(worker));
        self.routers.set_epoch(&id, epoch);
        self.index.fence(&id, epoch);
    }

    pub(super) fn drain(&mut self, now: Timestamp) {
        let Some(drain) = self.setting.drain else {
            return;
        };
        let worker = drain.worker as usize;
        if self.engines.len() <= worker {
            return;
        }
        self.routers.set_drain(&Drain {
            worker: self.engines.id(worker).clone(),
            dp_rank: None,
            moves: drain.moves,
            actor: InstanceId::new("operator").expect("a short plain name"),
            since: now,
        });
    }

    pub(super) fn cut(&mut self, now: Timestamp) {
        let Some(Partition {
            routers,
            every,
            lasts,
        }) = self.setting.partition.filter(|_| self.is_busy())
        else {
            return;
        };
        self.bindings.cut(routers);
        self.at(now + lasts, Due::Healed);
        let pause = every.max(lasts + Duration::from_micros(1));
        self.at(now + pause, Due::Cut);
    }
}
