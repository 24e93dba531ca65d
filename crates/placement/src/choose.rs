//! The decision itself.

use std::fmt;

use domain::{Epoch, Target, WorkerId};

use crate::Policy;
use crate::cost::{Scored, scores};
use crate::draw::{Draw, rendezvous};
use crate::snapshot::{Barred, Candidate, Hint, Request, Snapshot};

/// Costs this close to the smallest, as a share of it, are as good as equal.
const NEAR_SHARE: f64 = 0.05;
/// Costs this close to the smallest, in seconds, are as good as equal.
const NEAR_SECONDS: f64 = 0.005;

/// Seconds that a request waits more than it had to, so that the turns of its conversation meet.
const HOME_SECONDS: f64 = 2.0;

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
    let open = open_candidates(snapshot);
    if open.is_empty() {
        return Err(NoCandidate);
    }
    let scores = scores(request, snapshot);
    let mut draw = Draw::new(seed);
    let (place, reason) = match policy {
        Policy::RoundRobin => {
            let workers = workers(&open);
            (in_turn(&workers, snapshot.turn).clone(), Reason::Turn)
        }
        Policy::Random => {
            let mut workers = workers(&open);
            let drawn = draw.below(workers.len());
            (workers.swap_remove(drawn), Reason::Drawn)
        }
        Policy::TargetRoundRobin => {
            let next = in_turn(&open, snapshot.turn);
            (Place::Target(next.target.clone()), Reason::Turn)
        }
        Policy::PowerOfTwo => {
            let (first, second) = draw.two_below(open.len());
            let (first, second) = (open[first], open[second]);
            let less = if second.active < first.active {
                second
            } else {
                first
            };
            (Place::Target(less.target.clone()), Reason::LessBusyOfTwo)
        }
        Policy::Kv => {
            let (target, reason) = least_cost(request, snapshot, &open, &scores, &mut draw);
            (Place::Target(target), reason)
        }
    };
    Ok(Choice {
        place,
        reason,
        scores,
    })
}

/// Those that may be chosen; of them those that did not fail lately, unless all did.
fn open_candidates(snapshot: &Snapshot) -> Vec<&Candidate> {
    let mut open: Vec<_> = snapshot
        .candidates
        .iter()
        .filter(|candidate| candidate.takes_new())
        .collect();
    if open
        .iter()
        .any(|it| it.barred != Some(Barred::FailedLately))
    {
        open.retain(|it| it.barred != Some(Barred::FailedLately));
    }
    open
}

fn workers(open: &[&Candidate]) -> Vec<Place> {
    let places = open.iter().map(|candidate| Place::Worker {
        worker: candidate.target.worker.clone(),
        epoch: candidate.target.epoch,
    });
    let mut workers: Vec<Place> = places.collect();
    workers.dedup();
    workers
}

fn in_turn<T>(items: &[T], turn: u64) -> &T {
    let count = u64::try_from(items.len()).expect("a usize fits");
    let index = usize::try_from(turn % count).expect("below a usize");
    &items[index]
}

fn least_cost(
    request: &Request,
    snapshot: &Snapshot,
    open: &[&Candidate],
    scores: &[Scored],
    draw: &mut Draw,
) -> (Target, Reason) {
    let cost = |candidate: &Candidate| {
        let scored = scores.iter().find(|it| it.target == candidate.target);
        scored.map_or(f64::INFINITY, |it| it.cost)
    };
    let costs: Vec<f64> = open.iter().map(|it| cost(it)).collect();
    let least = costs.iter().copied().fold(f64::INFINITY, f64::min);
    let limit = match request.hint {
        Some(Hint::Home(_)) => least + HOME_SECONDS,
        _ => least + (least * NEAR_SHARE).max(NEAR_SECONDS),
    };
    let near: Vec<&Candidate> = open
        .iter()
        .zip(&costs)
        .filter(|(_, cost)| **cost <= limit)
        .map(|(candidate, _)| *candidate)
        .collect();
    let among = u32::try_from(near.len()).unwrap_or(u32::MAX);
    if let [only] = near[..] {
        return (only.target.clone(), Reason::LeastCost);
    }
    if let Some(Hint::Home(key)) = request.hint {
        return (
            home(key, &near).target.clone(),
            Reason::Rendezvous { among },
        );
    }
    if let Some(hinted) = request.hint.as_ref().and_then(|it| it.among(&near)) {
        return (hinted.target.clone(), Reason::Hinted { among });
    }
    let all_known = near.iter().all(|it| it.index_known);
    if let (false, Some(key)) = (all_known, request.conversation) {
        let highest = near
            .iter()
            .max_by_key(|it| rendezvous(key, &it.target))
            .expect("a near tie has candidates");
        return (highest.target.clone(), Reason::Rendezvous { among });
    }
    let near = least_obliged(request, near);
    let (first, second) = draw.two_below(near.len());
    let better = better_of(snapshot, near[first], near[second]);
    (better.target.clone(), Reason::NearTie { among })
}

/// Who holds most, and of several the first in the conversation's own order.
fn home<'a>(key: u64, near: &[&'a Candidate]) -> &'a Candidate {
    let weight = |it: &&&Candidate| (it.held.disk.max(it.in_flight), rendezvous(key, &it.target));
    let home = near.iter().max_by_key(weight);
    home.expect("the cheapest is among them")
}

/// Those that a conversation had best join: least is expected there, by less than half of what one is expected to ask,
/// and of these the ones with the fewest. A few busy conversations weigh more than many that are not.
fn least_obliged<'a>(request: &Request, mut near: Vec<&'a Candidate>) -> Vec<&'a Candidate> {
    if request.conversation.is_none() {
        return near;
    }
    let obligations = || near.iter().map(|it| it.obligation);
    let conversations: u32 = obligations().map(|it| it.conversations).sum();
    let tokens: f64 = obligations().map(|it| it.tokens).sum();
    let of_one = tokens / f64::from(conversations.max(1));
    let least = obligations()
        .map(|it| it.tokens)
        .fold(f64::INFINITY, f64::min);
    near.retain(|it| it.obligation.tokens <= least + of_one / 2.0);
    let fewest = near.iter().map(|it| it.obligation.conversations).min();
    near.retain(|it| Some(it.obligation.conversations) == fewest);
    near
}

impl Hint {
    /// The one of these that it points to.
    fn among<'a>(&self, near: &[&'a Candidate]) -> Option<&'a Candidate> {
        let near = near.iter().copied();
        match self {
            Self::Near(target) => near.into_iter().find(|it| it.target == *target),
            Self::Bucket(key) | Self::Home(key) => {
                near.max_by_key(|it| rendezvous(*key, &it.target))
            }
        }
    }
}

/// Of two equally dear candidates the one that holds more of what few hold, then the less busy one.
fn better_of<'a>(
    snapshot: &Snapshot,
    first: &'a Candidate,
    second: &'a Candidate,
) -> &'a Candidate {
    let rarity = rare_tokens(snapshot, second).total_cmp(&rare_tokens(snapshot, first));
    let busy = || (first.pending, first.active).cmp(&(second.pending, second.active));
    if rarity.then_with(busy).is_gt() {
        second
    } else {
        first
    }
}

/// The tokens `candidate` holds, each weighed by how few hold it: `log2(targets / holders) / log2(targets)`,
/// so that a system prompt held everywhere weighs nothing and a private prefix its full length.
fn rare_tokens(snapshot: &Snapshot, candidate: &Candidate) -> f64 {
    let targets = snapshot.candidates.len() as f64;
    let own = candidate.held.disk;
    let mut depths: Vec<_> = snapshot.candidates.iter().map(|it| it.held.disk).collect();
    depths.sort_unstable();
    let mut below = domain::Tokens::ZERO;
    let mut rare = 0.0;
    for (index, depth) in depths.iter().enumerate() {
        let depth = (*depth).min(own);
        let holders = (depths.len() - index) as f64;
        if depth > below && targets > 1.0 {
            let weight = (targets / holders).log2() / targets.log2();
            rare += depth.saturating_sub(below).as_f64() * weight;
            below = depth;
        }
    }
    rare
}
