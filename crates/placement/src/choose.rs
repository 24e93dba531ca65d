//! The decision itself.

use std::fmt;

use domain::{Epoch, Target, WorkerId};

use crate::Policy;
use crate::draw::Draw;
use crate::kv::{self, Scored, Weights};
use crate::policies::{self, Field};
use crate::snapshot::{Request, Snapshot};

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
    /// This router keeps its conversation there.
    Stuck,
    /// Where it would have gone is too full; what is kept there stays.
    Overflow,
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
            Self::Stuck => f.write_str("stuck"),
            Self::Overflow => f.write_str("overflow"),
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
    /// Every candidate that takes new requests, in the snapshot's order, under every policy.
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
    let field = Field {
        request,
        open: open.collect(),
        turn: snapshot.turn,
        reuse: snapshot.reuse,
    };
    if field.open.is_empty() {
        return Err(NoCandidate);
    }
    let pick = policies::pick(policy, &field, &mut draw).ok_or(NoCandidate)?;
    let mut scores = kv::scores(request, snapshot, &Weights::DEFAULT);
    let mut weighed = field.open.iter().zip(&pick.weighed).peekable();
    for scored in &mut scores {
        let own = weighed.next_if(|(candidate, _)| candidate.target == scored.target);
        scored.weighed = own.map(|(_, weight)| *weight);
    }
    Ok(Choice {
        place: pick.place,
        reason: pick.reason,
        scores,
    })
}
