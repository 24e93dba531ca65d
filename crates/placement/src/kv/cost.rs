//! What placing a request at a target costs the fleet, in seconds.
//!
//! `cost = pending + overdue + miss + delay + transfer + lockstep + decode + capacity + obligation`, each as weighed.

use domain::{Target, Tokens};

use super::Weights;
use crate::obligations::HORIZON;
use crate::snapshot::{Candidate, Request, Snapshot, trust};

/// Tokens per second from host memory: 2 MB a token (a large model's KV) over 50 GB/s.
const HOST_TOKENS_PER_SECOND: f64 = 200_000.0;
/// Tokens per second from local disk: the same over 5 GB/s.
const DISK_TOKENS_PER_SECOND: f64 = 20_000.0;

/// Demand on a fleet, as a share of its speed, of which it does not matter who has how much.
const LITTLE_DEMAND: f64 = 0.05;

/// One candidate and its price.
#[derive(Clone, Debug, PartialEq)]
pub struct Scored {
    /// The candidate.
    pub target: Target,
    /// What the price is made of.
    pub terms: Terms,
    /// The sum of the terms, in seconds.
    pub cost: f64,
    /// What a published policy made of it, in its own measure: the least wins. None under ours, of one that was left out
    /// because it failed lately, and where the policy weighs nothing.
    pub weighed: Option<f64>,
}

/// The parts of a price, as weighed. Times are in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Terms {
    /// Leading tokens credited: held or in flight, discounted by trust.
    pub credited: Tokens,
    /// Tokens to be computed.
    pub uncached: Tokens,
    /// Waiting for the prefill work that is there already.
    pub pending: f64,
    /// Waiting longer than that work takes, as those do that wait there already.
    pub overdue: f64,
    /// Computing the uncached tokens.
    pub miss: f64,
    /// What that computation costs others: the place it takes, and the delay of those who come later to a rank in
    /// demand.
    pub delay: f64,
    /// Fetching blocks from slower tiers.
    pub transfer: f64,
    /// What the prefill adds to the slowest rank of the worker, for which all its ranks wait.
    pub lockstep: f64,
    /// Sharing the rank's steps with the sequences it serves.
    pub decode: f64,
    /// Computing again what others lose when the rank is full.
    pub capacity: f64,
    /// What the conversation's turns of the next minute and those of the ones bound there will wait for each other.
    pub obligation: f64,
}

impl Terms {
    /// The terms that sum to the cost, by name, in seconds. Whoever shows, records or compares costs goes by this list.
    pub const fn named(&self) -> [(&'static str, f64); 9] {
        [
            ("pending", self.pending),
            ("overdue", self.overdue),
            ("miss", self.miss),
            ("delay", self.delay),
            ("transfer", self.transfer),
            ("lockstep", self.lockstep),
            ("decode", self.decode),
            ("capacity", self.capacity),
            ("obligation", self.obligation),
        ]
    }

    /// What the request itself waits for its first token.
    pub fn wait(&self) -> f64 {
        self.pending + self.overdue + self.miss + self.transfer
    }

    fn sum(&self) -> f64 {
        self.named().iter().map(|(_, seconds)| seconds).sum()
    }
}

/// Prices every candidate that may be chosen, in the snapshot's order.
pub(crate) fn scores(request: &Request, snapshot: &Snapshot, weights: &Weights) -> Vec<Scored> {
    let to_come = to_come(request, snapshot);
    let demand = mean_demand(snapshot);
    let mut scores = Vec::with_capacity(snapshot.candidates.len());
    let of_worker = |a: &Candidate, b: &Candidate| a.target.worker == b.target.worker;
    for ranks in snapshot.candidates.chunk_by(of_worker) {
        let slowest = Slowest::of(ranks);
        let open = ranks.iter().enumerate();
        for (rank, candidate) in open.filter(|it| it.1.takes_new()) {
            let slowest = slowest.but(rank);
            let terms = terms(
                request,
                snapshot,
                candidate,
                (slowest, to_come, demand),
                weights,
            );
            scores.push(Scored {
                target: candidate.target.clone(),
                terms,
                cost: terms.sum(),
                weighed: None,
            });
        }
    }
    scores
}

/// The two of a worker's ranks that have most to do.
#[derive(Default)]
struct Slowest {
    rank: usize,
    work: f64,
    next: f64,
}

impl Slowest {
    fn of(ranks: &[Candidate]) -> Self {
        let mut slowest = Self::default();
        for (rank, candidate) in ranks.iter().enumerate() {
            let work = work(candidate).as_f64();
            if work > slowest.work {
                (slowest.rank, slowest.next, slowest.work) = (rank, slowest.work, work);
            } else if work > slowest.next {
                slowest.next = work;
            }
        }
        slowest
    }

    /// The most that any but this one has to do.
    const fn but(&self, rank: usize) -> f64 {
        if rank == self.rank {
            self.next
        } else {
            self.work
        }
    }
}

fn terms(
    request: &Request,
    snapshot: &Snapshot,
    candidate: &Candidate,
    (slowest, to_come, demand): (f64, f64, f64),
    weights: &Weights,
) -> Terms {
    let credited = credited(candidate);
    let uncached = request.isl.saturating_sub(credited);
    let queued = work(candidate).as_f64();
    let alone = queued.max(slowest);
    let rate = candidate.prefill_rate;
    let miss = uncached.as_f64() / rate;
    let ahead = candidate.obligation.tokens / HORIZON / rate;
    let delay = |utilisation: f64, weight: f64| {
        let utilisation = utilisation.min(weights.highest_utilisation);
        weight * utilisation / (1.0 - utilisation)
    };
    Terms {
        credited,
        uncached,
        pending: weights.pending * queued / rate,
        overdue: weights.overdue * candidate.overdue,
        miss,
        delay: miss
            * (weights.again
                + delay(demand, weights.delay)
                + weights.balance * share(candidate.utilisation, demand)),
        transfer: weights.transfer * transfer(candidate),
        lockstep: weights.lockstep * (queued + uncached.as_f64() - alone).max(0.0) / rate,
        decode: weights.decode * f64::from(candidate.active) * candidate.decode_step,
        capacity: weights.capacity * evicted(candidate, uncached) * snapshot.reuse / rate,
        obligation: to_come / rate * delay(ahead, weights.obligation),
    }
}

/// The mean of what was asked of all targets of late, as a share of their speed.
fn mean_demand(snapshot: &Snapshot) -> f64 {
    let sum: f64 = snapshot.candidates.iter().map(|it| it.utilisation).sum();
    sum / snapshot.candidates.len().max(1) as f64
}

/// How many times the mean it is, where the fleet has something to do: of next to nothing any share is chance.
fn share(utilisation: f64, mean: f64) -> f64 {
    utilisation / (mean + LITTLE_DEMAND)
}

/// Tokens that the request's conversation will ask in the next minute: nothing is known of it, so it counts as the mean
/// of those that are bound. None without a conversation, and where the index is silent: there routers have to agree
/// without talking, and what each has seen would tell them apart.
fn to_come(request: &Request, snapshot: &Snapshot) -> f64 {
    let candidates = || snapshot.candidates.iter();
    if request.conversation.is_none() || candidates().any(|it| !it.index_known) {
        return 0.0;
    }
    let conversations: u32 = candidates().map(|it| it.obligation.conversations).sum();
    let tokens: f64 = candidates().map(|it| it.obligation.tokens).sum();
    tokens / f64::from(conversations.max(1))
}

fn work(candidate: &Candidate) -> Tokens {
    candidate.pending + candidate.foreign
}

/// A prefix that is being computed is as good as held: the request waits for it in the same queue.
fn credited(candidate: &Candidate) -> Tokens {
    let trusted = candidate.held.disk.as_f64() * trust(candidate.state).unwrap_or(0.0);
    // A float to integer cast saturates; the product is not negative.
    Tokens::new(trusted as u64).max(candidate.in_flight)
}

fn transfer(candidate: &Candidate) -> f64 {
    let held = candidate.held;
    let host = held.host.saturating_sub(held.gpu.max(candidate.in_flight));
    let disk = held.disk.saturating_sub(held.host.max(candidate.in_flight));
    host.as_f64() / HOST_TOKENS_PER_SECOND + disk.as_f64() / DISK_TOKENS_PER_SECOND
}

/// Tokens of others that `uncached` new ones push out.
fn evicted(candidate: &Candidate, uncached: Tokens) -> f64 {
    let Some(capacity) = candidate.capacity else {
        return 0.0;
    };
    let over = (candidate.resident + uncached).saturating_sub(capacity);
    over.min(uncached).as_f64()
}
