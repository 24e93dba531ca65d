//! Requests that are on their way, and how they end.

use std::time::Duration;

use accounting::{Carrier, Chosen, Observation, Waterfall};
use domain::{BlockSize, DpRank, Target, Tokens, Usage};
use placement::Place;

use crate::{Decision, Overlap};

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Whether and how it was served.
    pub status: Status,
    /// From the dispatch to the first token.
    pub ttft: Option<Duration>,
    /// From the dispatch to the end.
    pub duration: Option<Duration>,
    /// The rank that ran, where it was seen.
    pub observed_rank: Option<DpRank>,
    /// Token counts, where the engine reports them.
    pub usage: Option<Usage>,
}

/// Whether and how a request was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// To the end.
    Served,
    /// The engine refused it for lack of room (429 or 503).
    Refused,
    /// The engine failed (5xx) or broke off.
    Failed,
    /// The engine could not be reached, which none of its ranks can then.
    Unreachable,
    /// The request itself was wrong (other 4xx): says nothing of the target.
    Invalid,
    /// The client left.
    Cancelled,
}

/// What others should avoid for a while because of how a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Avoided {
    Nothing,
    /// The rank that served it.
    Rank,
    /// Every rank of its worker.
    Worker,
}

impl Status {
    pub(crate) const fn avoided(self) -> Avoided {
        match self {
            Self::Refused | Self::Failed => Avoided::Rank,
            Self::Unreachable => Avoided::Worker,
            Self::Served | Self::Invalid | Self::Cancelled => Avoided::Nothing,
        }
    }
}

/// What is kept of a decision until its request ends.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) place: Place,
    pub(crate) isl: Tokens,
    pub(crate) block_size: BlockSize,
    pub(crate) uncached: Option<Tokens>,
    pub(crate) overlap: Option<Overlap>,
    /// What each rank of the worker held.
    pub(crate) held: Vec<(Target, Tokens)>,
    /// Whether nothing else was being computed at its worker.
    pub(crate) unqueued: bool,
    pub(crate) first_token: bool,
}

impl Open {
    /// `unqueued` says that nothing else was being computed at its worker.
    pub(crate) fn new(decision: &Decision, unqueued: bool) -> Self {
        let worker = decision.place.worker();
        let candidates = decision.snapshot.candidates.iter();
        let ranks: Vec<_> = candidates
            .filter(|it| it.target.worker == *worker)
            .collect();
        Self {
            place: decision.place.clone(),
            isl: decision.request.isl,
            block_size: ranks
                .first()
                .expect("a place is taken from the snapshot's candidates")
                .block_size,
            uncached: decision.uncached,
            overlap: decision.overlap,
            held: ranks
                .iter()
                .map(|it| (it.target.clone(), it.held.disk))
                .collect(),
            unqueued,
            first_token: false,
        }
    }

    /// The rank that served: the one seen, else the one asked for.
    pub(crate) fn served_by(&self, observed: Option<DpRank>) -> Option<Target> {
        let (worker, epoch, asked) = match &self.place {
            Place::Target(target) => (&target.worker, target.epoch, Some(target.dp_rank)),
            Place::Worker { worker, epoch } => (worker, *epoch, None),
        };
        observed.or(asked).map(|dp_rank| Target {
            worker: worker.clone(),
            epoch,
            dp_rank,
        })
    }

    /// Input tokens: the engine's count, else the router's.
    pub(crate) fn isl(&self, outcome: &Outcome) -> Tokens {
        outcome.usage.map_or(self.isl, |it| it.prompt)
    }

    /// Its row of the waterfall. Without an index nothing is known of the levels: what was realised is then
    /// all that is known to have been cacheable.
    pub(crate) fn waterfall(&self, outcome: &Outcome) -> Waterfall {
        let served_by = self.served_by(outcome.observed_rank);
        let held = |target: Target| {
            let mut held = self.held.iter();
            held.find(|it| it.0 == target)
                .map_or(Tokens::ZERO, |it| it.1)
        };
        let chosen = match (served_by, self.overlap) {
            (Some(target), Some(_)) => Chosen::Held(held(target)),
            _ => Chosen::RankUnknown,
        };
        let overlap = self.overlap.unwrap_or_default();
        Waterfall::new(Observation {
            isl: self.isl(outcome),
            block_size: self.block_size,
            ceiling: overlap.ceiling,
            stored: overlap.stored,
            best: overlap.best,
            ready: overlap.ready,
            chosen,
            realised: outcome.usage.and_then(|it| it.cached),
            carrier: Carrier::FinishedOrUnknown,
        })
    }
}
