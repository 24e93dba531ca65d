//! Who decides the rank of a conversation: the router, or an engine that keeps conversations on ranks by itself.

use std::collections::BTreeMap;

use affinity::Owner;
use domain::{Endpoint, FirstRank, ModelName, RankControl, Worker, WorkerId};

/// What is set about who decides ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankSources {
    /// For every model that is not named.
    pub default: Option<Owner>,
    /// By model.
    pub by_model: BTreeMap<ModelName, Owner>,
}

/// A worker cannot do what is set: it is left out until it can, or something else is set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RankSourceError {
    /// It takes no rank, and is asked for some.
    #[error("{key} is router, but worker {worker} takes no rank: {advice}", advice = advice(*.owns_bindings))]
    TakesNone {
        /// The setting.
        key: String,
        /// The worker.
        worker: WorkerId,
        /// Whether its engine keeps conversations by itself.
        owns_bindings: bool,
    },
    /// Its engine keeps no conversations on ranks: each turn would run wherever its balancer puts it.
    #[error(
        "{key} is engine, but the engine of worker {worker} keeps no conversations on ranks, so that a turn would seldom \
         run where its cache is: leave it out, and Rankway chooses"
    )]
    OwnsNone {
        /// The setting.
        key: String,
        /// The worker.
        worker: WorkerId,
    },
    /// Its engine owns conversations, and it is not known to keep an explicit first rank: two tables would differ.
    #[error(
        "{key} is router, but the engine of worker {worker} owns its conversations, and {first_rank}: set it to engine, \
         or run one that keeps them"
    )]
    KeepsNone {
        /// The setting.
        key: String,
        /// The worker.
        worker: WorkerId,
        /// What is known of that.
        first_rank: FirstRank,
    },
}

impl RankSources {
    fn set(&self, model: &ModelName) -> Option<Owner> {
        self.by_model.get(model).copied().or(self.default)
    }

    /// Who decides the ranks of `worker`. An only rank is nobody's choice. What is not set is the engine's where it
    /// owns conversations and takes no rank; one that takes first ranks has been told to.
    pub(crate) fn owner(&self, worker: &Worker) -> Owner {
        if worker.dp_size <= 1 {
            return Owner::Router;
        }
        self.set(&worker.model).unwrap_or_else(|| {
            match worker.capability.owns_bindings && !takes_ranks(worker) {
                true => Owner::Engine,
                false => Owner::Router,
            }
        })
    }

    /// Why a worker is left out, if it is.
    pub(crate) fn refusal(&self, worker: &Worker) -> Option<RankSourceError> {
        if worker.dp_size <= 1 {
            return None;
        }
        let set = self.set(&worker.model)?;
        let key = match self.by_model.contains_key(&worker.model) {
            true => format!("router.rank_sources.{}", worker.model),
            false => "router.rank_source".to_owned(),
        };
        let capability = worker.capability;
        let worker_id = worker.id.clone();
        match (set, capability.first_rank) {
            (Owner::Engine, _) => {
                (!capability.owns_bindings).then_some(RankSourceError::OwnsNone {
                    key,
                    worker: worker_id,
                })
            }
            (Owner::Router, _) if takes_ranks(worker) => None,
            (Owner::Router, FirstRank::Unasked) => Some(RankSourceError::TakesNone {
                key,
                worker: worker_id,
                owns_bindings: capability.owns_bindings,
            }),
            (Owner::Router, first_rank) => Some(RankSourceError::KeepsNone {
                key,
                worker: worker_id,
                first_rank,
            }),
        }
    }
}

/// What else may be set.
const fn advice(owns_bindings: bool) -> &'static str {
    match owns_bindings {
        true => "set it to engine",
        false => "leave it out, and only the worker is chosen",
    }
}

fn takes_ranks(worker: &Worker) -> bool {
    let control = worker.capability.rank_control;
    let mut endpoints = Endpoint::ALL.iter();
    endpoints.any(|it| *control.get(*it) != RankControl::None)
}
