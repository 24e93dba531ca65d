//! Requests that are on their way, and how they end.

use std::time::Duration;

use accounting::{Carrier, Chosen, Observation, Waterfall};
use domain::{BlockSize, DpRank, Endpoint, SequenceHash, Target, TargetState, Tokens, Usage};
use placement::Place;

use crate::carriers::Carried;
use crate::{Decision, Degraded, Overlap};

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
    /// The engine says that it has no such rank: the endpoint's numbering is not what its worker registered, and
    /// other numbers of it may be taken.
    RankRefused,
    /// The engine could not be reached, which none of its ranks can then.
    Unreachable,
    /// No adapter of the worker was reached: says nothing of the worker.
    NoAdapter,
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
    /// The rank asked for, at its endpoint alone.
    RankAtEndpoint,
}

impl Status {
    pub(crate) const fn avoided(self) -> Avoided {
        match self {
            Self::Refused | Self::Failed => Avoided::Rank,
            Self::Unreachable => Avoided::Worker,
            Self::RankRefused => Avoided::RankAtEndpoint,
            Self::Served | Self::NoAdapter | Self::Invalid | Self::Cancelled => Avoided::Nothing,
        }
    }
}

/// What is kept of a decision until its request ends.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) place: Place,
    pub(crate) reserved_at: Option<Target>,
    pub(crate) endpoint: Endpoint,
    pub(crate) isl: Tokens,
    pub(crate) block_size: BlockSize,
    pub(crate) uncached: Option<Tokens>,
    pub(crate) overlap: Option<Overlap>,
    /// Whether the index said nothing of some targets.
    pub(crate) partial_index: bool,
    /// Every rank of the worker.
    pub(crate) ranks: Vec<RankThen>,
    /// The prompt's blocks, where what its worker holds is presumed.
    pub(crate) blocks: Vec<SequenceHash>,
    /// Whether nothing else was being computed at its worker.
    pub(crate) unqueued: bool,
    pub(crate) first_token: bool,
    /// Whether the prefix that was carried before was still being computed.
    pub(crate) carrier: Carrier,
    /// What it carries itself.
    pub(crate) carried: Carried,
}

/// A rank as it was at the decision.
#[derive(Debug)]
pub(crate) struct RankThen {
    pub(crate) target: Target,
    /// What it held of the prompt, and what of it was presumed.
    pub(crate) held: Tokens,
    pub(crate) presumed: Tokens,
    /// Whether the index said what it held.
    pub(crate) index_known: bool,
    /// Whether its claims were known to be incomplete.
    pub(crate) partial: bool,
}

impl Open {
    /// `unqueued` says that nothing else was being computed at its worker; `blocks` are the prompt's, where what
    /// its worker holds is presumed.
    pub(crate) fn new(decision: &Decision, unqueued: bool, blocks: Vec<SequenceHash>) -> Self {
        let worker = decision.place.worker();
        let candidates = decision.snapshot.candidates.iter();
        let ranks: Vec<_> = candidates
            .filter(|it| it.target.worker == *worker)
            .collect();
        Self {
            place: decision.place.clone(),
            reserved_at: decision.reserved_at().cloned(),
            endpoint: decision.endpoint,
            isl: decision.request.isl,
            block_size: ranks
                .first()
                .expect("a place is taken from the snapshot's candidates")
                .block_size,
            uncached: decision.uncached,
            overlap: decision.overlap,
            partial_index: decision.degraded.contains(&Degraded::PartialIndex),
            ranks: ranks
                .iter()
                .map(|it| RankThen {
                    target: it.target.clone(),
                    held: it.held.disk,
                    presumed: it.presumed,
                    index_known: it.index_known,
                    partial: it.state == TargetState::Partial,
                })
                .collect(),
            blocks,
            unqueued,
            first_token: false,
            carrier: Carrier::FinishedOrUnknown,
            carried: Carried::default(),
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

    /// A rank of its worker as it was at the decision.
    pub(crate) fn rank(&self, target: &Target) -> Option<&RankThen> {
        self.ranks.iter().find(|it| it.target == *target)
    }

    /// Input tokens: the engine's count, else the router's.
    pub(crate) fn isl(&self, outcome: &Outcome) -> Tokens {
        outcome.usage.map_or(self.isl, |it| it.prompt)
    }

    /// Its row of the waterfall. Without an index nothing is known of the levels: what was realised is then
    /// all that is known to have been cacheable. Where a part of the index was silent, what was carried and is
    /// not known to be held counts as unannounced: it is the index that lacks it, not memory or the router.
    pub(crate) fn waterfall(&self, outcome: &Outcome) -> Waterfall {
        let served_by = self.served_by(outcome.observed_rank);
        let chosen = match (served_by, self.overlap) {
            (Some(target), Some(_)) => match self.rank(&target) {
                Some(rank) if !rank.index_known => Chosen::RankUnknown,
                rank => Chosen::Held(rank.map_or(Tokens::ZERO, |it| it.held)),
            },
            _ => Chosen::RankUnknown,
        };
        let mut overlap = self.overlap.unwrap_or_default();
        if self.partial_index {
            overlap = overlap.of_a_partial_index();
        }
        Waterfall::new(Observation {
            isl: self.isl(outcome),
            block_size: self.block_size,
            ceiling: overlap.ceiling,
            stored: overlap.stored,
            best: overlap.best,
            ready: overlap.ready,
            chosen,
            realised: outcome.usage.and_then(|it| it.cached),
            carrier: self.carrier,
        })
    }
}
