//! The decision itself.

use std::fmt;

use domain::{Epoch, Target, WorkerId};

use crate::draw::Draw;
use crate::kv::{self, Scored, Weights};
use crate::snapshot::{Candidate, Request, Snapshot};
use crate::{Policy, policies};

/// Where a request goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// To this rank, strictly.
    Target(Target),
    /// To this worker; its engine chooses the rank.
    Worker {
        /// The worker.
        worker: WorkerId,
        /// Its incarnation.
        epoch: Epoch,
    },
}

impl Place {
    /// The worker, whichever rank serves.
    pub const fn worker(&self) -> &WorkerId {
        match self {
            Self::Target(target) => &target.worker,
            Self::Worker { worker, .. } => worker,
        }
    }

    /// The target, where a rank is named.
    pub const fn target(&self) -> Option<&Target> {
        match self {
            Self::Target(target) => Some(target),
            Self::Worker { .. } => None,
        }
    }
}

/// What decided between the candidates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It was its turn.
    Turn,
    /// It was drawn.
    Drawn,
    /// The less busy of two drawn.
    LessBusyOfTwo,
    /// Its cost is the smallest by more than a near tie.
    LeastCost,
    /// Several were as good as equal; two of them were drawn.
    NearTie {
        /// How many were as good as equal.
        among: u32,
    },
    /// Several were as good as equal and the request's hint decided.
    Hinted {
        /// How many were as good as equal.
        among: u32,
    },
    /// Several were as good as equal and the index says nothing of some, or where the conversation is bound is not
    /// known: its own order decided.
    Rendezvous {
        /// How many were as good as equal.
        among: u32,
    },
}

/// Its word in records and in the API, which outlives the variant's name.
impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Turn => f.write_str("turn"),
            Self::Drawn => f.write_str("drawn"),
            Self::LessBusyOfTwo => f.write_str("less_busy_of_two"),
            Self::LeastCost => f.write_str("least_cost"),
            Self::NearTie { among } => write!(f, "near_tie_of_{among}"),
            Self::Hinted { among } => write!(f, "hinted_of_{among}"),
            Self::Rendezvous { among } => write!(f, "rendezvous_of_{among}"),
        }
    }
}

/// A decision and all that was weighed.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// Where to.
    pub place: Place,
    /// What decided.
    pub reason: Reason,
    /// Every candidate that could be chosen, in the snapshot's order, under every policy.
    pub scores: Vec<Scored>,
}

/// No target can take the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no target can take the request")]
pub struct NoCandidate;

/// Chooses a place for `request`. The same arguments give the same choice, bit for bit.
pub fn choose(
    request: &Request,
    snapshot: &Snapshot,
    policy: Policy,
    seed: u64,
) -> Result<Choice, NoCandidate> {
    let mut draw = Draw::new(seed);
    if let Policy::Kv(weights) = policy {
        return kv::choose(request, snapshot, &weights, &mut draw).ok_or(NoCandidate);
    }
    let is_open = snapshot.is_open();
    let open = snapshot.candidates.iter().filter(|it| is_open(it));
    let open: Vec<&Candidate> = open.collect();
    if open.is_empty() {
        return Err(NoCandidate);
    }
    let scores = kv::scores(request, snapshot, &Weights::DEFAULT);
    let (place, reason) = match policy {
        Policy::RoundRobin => policies::round_robin(&open, snapshot.turn),
        Policy::Random => policies::random(&open, &mut draw),
        Policy::TargetRoundRobin => policies::target_round_robin(&open, snapshot.turn),
        Policy::PowerOfTwo | Policy::Kv(_) => policies::power_of_two(&open, &mut draw),
    };
    Ok(Choice {
        place,
        reason,
        scores,
    })
}
