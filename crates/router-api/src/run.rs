//! What is kept of a turn that was served, and what follows from where it ran.

use std::sync::Arc;

use affinity::{ConversationKey, Evidence};
use contracts::rpc::{Acquire, Confirm, Release};
use domain::{DpRank, Target, Tokens, Worker};
use placement::Place;
use routing::{Asked, BindingAction, Decision, Fault, Seen};
use tracing::warn;

use crate::replica::Replica;

/// A turn that was served.
#[derive(Clone)]
pub(crate) struct Run {
    pub(crate) decision: Arc<Decision>,
    /// Its conversation, where that is bound, or may be.
    pub(crate) conversation: Option<ConversationKey>,
    /// Full-block tokens that it has left where it ran.
    pub(crate) held: Tokens,
}

impl Run {
    /// One of the ranks of the worker that served it.
    pub(crate) fn at(&self, dp_rank: DpRank) -> Target {
        let (Place::Target(Target { worker, epoch, .. }) | Place::Worker { worker, epoch }) =
            &self.decision.place;
        Target {
            worker: worker.clone(),
            epoch: *epoch,
            dp_rank,
        }
    }

    fn asked(&self, worker: &Worker) -> Option<Asked> {
        let target = self.decision.target()?;
        Some(Asked {
            worker: target.worker.clone(),
            epoch: target.epoch,
            endpoint: self.decision.endpoint,
            start_rank: worker.start_rank,
            dp_size: worker.dp_size,
            dp_rank: target.dp_rank,
        })
    }
}

impl Replica {
    /// Something shows where a turn ran that was asked to run on a rank: it is judged, and its conversation's
    /// binding goes to where its cache is.
    pub(crate) fn saw(&self, run: &Run, seen: Seen) {
        let now = self.clock.now();
        let mut router = self.mind.lock();
        let Some(worker) = router.worker(run.decision.place.worker()).cloned() else {
            return;
        };
        let Some(asked) = run.asked(&worker) else {
            return;
        };
        let fault = router.truth_mut().judge(&asked, seen, now);
        drop(router);
        self.ledger.judge(run.decision.id, seen, fault);
        if let Some(fault) = fault {
            self.count_fault(&asked, fault, seen);
        }
        let Some((ran, evidence)) = shown(seen).filter(|it| worker.owns(it.0)) else {
            return;
        };
        if let Some(key) = &run.conversation {
            self.leases.confirm(Confirm {
                key: key.clone(),
                asked: run.at(asked.dp_rank),
                observed: run.at(ran),
                evidence,
                actor: self.instance.clone(),
            });
        }
    }

    /// The rank that an answer names, `ran`, has announced the turn's blocks, or nothing. Where the turn ran has
    /// been judged by the answer.
    pub(crate) fn saw_announcement(&self, run: &Run, ran: DpRank, seen: Seen) {
        let now = self.clock.now();
        let mut router = self.mind.lock();
        let worker = router.worker(run.decision.place.worker()).cloned();
        let Some(worker) = worker.filter(|it| it.owns(ran)) else {
            return;
        };
        let Some(asked) = run.asked(&worker) else {
            return;
        };
        let asked = Asked {
            dp_rank: ran,
            ..asked
        };
        let truth = router.truth_mut();
        let fault = truth.judge_announcement(&asked, seen, now);
        drop(router);
        if let Some(fault) = fault {
            self.ledger
                .judge(run.decision.id, Seen::Named(ran), Some(fault));
            self.count_fault(&asked, fault, seen);
        }
    }

    fn count_fault(&self, asked: &Asked, fault: Fault, seen: Seen) {
        let rank = asked.dp_rank.to_string();
        let labels = [asked.worker.as_str(), &rank, fault.name()];
        let counter = self.metrics.ranks.faults.with_label_values(&labels);
        if counter.get() == 0 {
            let (worker, endpoint, fault) = (&asked.worker, asked.endpoint, fault.name());
            let seen = said(seen);
            warn!(%worker, rank, %endpoint, fault, seen, "a rank is not what was asked for; from now on this is only \
                counted");
        }
        counter.inc();
    }

    /// A turn whose rank was its engine's choice has shown which it was.
    pub(crate) fn confirm_rank(&self, run: &Run, ran: DpRank, evidence: Evidence) {
        let (Some(key), Some(asked)) = (&run.conversation, run.decision.reserved_at()) else {
            return;
        };
        let router = self.mind.lock();
        let owned = router.worker(&asked.worker).is_some_and(|it| it.owns(ran));
        drop(router);
        if owned {
            self.leases.confirm(Confirm {
                key: key.clone(),
                asked: asked.clone(),
                observed: run.at(ran),
                evidence,
                actor: self.instance.clone(),
            });
        }
    }

    /// A turn that named no rank has shown where it ran: its conversation is bound there, unless it is bound
    /// already.
    pub(crate) async fn learn_rank(&self, run: &Run, seen: Seen) {
        let (Some(key), Some((ran, evidence))) = (&run.conversation, shown(seen)) else {
            return;
        };
        self.ledger.judge(run.decision.id, seen, None);
        let target = run.at(ran);
        let owner = self.mind.lock().owner(&target.worker);
        let live = {
            let router = self.mind.lock();
            let worker = router.worker(&target.worker);
            worker.is_some_and(|it| it.owns(ran))
                && router.epoch(&target.worker) == Some(target.epoch)
        };
        if !live {
            return;
        }
        if run.decision.binding != BindingAction::None {
            // It is bound already, to this worker, whose engine has chosen among its ranks.
            return self.confirm_rank(run, ran, evidence);
        }
        let actor = self.instance.clone();
        let acquired = self.written(self.affinity.acquire(Acquire {
            key: key.clone(),
            proposed: target.clone(),
            owner,
            actor: actor.clone(),
        }));
        let Ok(bound) = acquired.await else {
            // The next turn shows it again.
            self.metrics.untold.inc();
            return;
        };
        self.leases.took(key);
        if bound.binding.target == target {
            self.leases.confirm(Confirm {
                key: key.clone(),
                asked: target.clone(),
                observed: target.clone(),
                evidence,
                actor: actor.clone(),
            });
        }
        self.leases.release(Release {
            key: key.clone(),
            target,
            end: affinity::TurnEnd::Served { held: run.held },
            actor,
        });
    }
}

/// What was seen, in words.
fn said(seen: Seen) -> String {
    match seen {
        Seen::Named(dp_rank) => format!("rank {dp_rank} ran, by its answer"),
        Seen::Announced { dp_rank, after } => {
            let after = after.as_millis();
            format!("rank {dp_rank} ran, by its events {after} ms after the first token")
        }
        Seen::Silence => "no rank announced its blocks".to_owned(),
        Seen::Refusal => "the engine says that it has no such rank".to_owned(),
        Seen::Nothing => "nothing shows where it ran".to_owned(),
    }
}

/// The rank that was seen, and what shows it.
pub(crate) fn shown(seen: Seen) -> Option<(DpRank, Evidence)> {
    match seen {
        Seen::Named(dp_rank) => Some((dp_rank, Evidence::Answer)),
        Seen::Announced { dp_rank, .. } => Some((dp_rank, Evidence::Event)),
        Seen::Nothing | Seen::Silence | Seen::Refusal => None,
    }
}
