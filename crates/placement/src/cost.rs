//! What placing a request at a target costs the fleet, in seconds.
//!
//! `cost = pending + miss + delay + transfer + lockstep + decode + capacity + obligation`.

use domain::{Target, Tokens};

use crate::obligations::HORIZON;
use crate::snapshot::{Candidate, Request, Snapshot, trust};

/// Tokens per second from host memory: 2 MB a token (a large model's KV) over 50 GB/s.
const HOST_TOKENS_PER_SECOND: f64 = 200_000.0;
/// Tokens per second from local disk: the same over 5 GB/s.
const DISK_TOKENS_PER_SECOND: f64 = 20_000.0;

/// What a second of delay to later requests weighs against one of this request's own. With an open queue of
/// utilisation `u`, work that keeps a rank busy for a second delays those who come before it is idle again
/// by `u / (1 - u)` seconds in all; twice that gave the best mix of hits and waiting on replayed traces.
const DELAY_WEIGHT: f64 = 2.0;
/// Utilisation is taken to be at most this: the price of work has to stay finite where a rank falls behind.
const HIGHEST_UTILISATION: f64 = 0.9;

/// One candidate and its price.
#[derive(Clone, Debug, PartialEq)]
pub struct Scored {
    /// The candidate.
    pub target: Target,
    /// What the price is made of.
    pub terms: Terms,
    /// The sum of the terms, in seconds.
    pub cost: f64,
}

/// The parts of a price. Times are in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Terms {
    /// Leading tokens credited: held or in flight, discounted by trust.
    pub credited: Tokens,
    /// Tokens to be computed.
    pub uncached: Tokens,
    /// Waiting for the prefill work that is there already.
    pub pending: f64,
    /// Computing the uncached tokens.
    pub miss: f64,
    /// What that computation delays those who come later to a rank in demand.
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
    pub const fn named(&self) -> [(&'static str, f64); 8] {
        [
            ("pending", self.pending),
            ("miss", self.miss),
            ("delay", self.delay),
            ("transfer", self.transfer),
            ("lockstep", self.lockstep),
            ("decode", self.decode),
            ("capacity", self.capacity),
            ("obligation", self.obligation),
        ]
    }

    fn sum(&self) -> f64 {
        self.named().iter().map(|(_, seconds)| seconds).sum()
    }
}

/// Prices every candidate that may be chosen, in the snapshot's order.
pub(crate) fn scores(request: &Request, snapshot: &Snapshot) -> Vec<Scored> {
    let candidates = snapshot.candidates.iter();
    let to_come = to_come(request, snapshot);
    let scored = candidates.filter(|it| it.takes_new()).map(|candidate| {
        let terms = terms(request, snapshot, candidate, to_come);
        Scored {
            target: candidate.target.clone(),
            terms,
            cost: terms.sum(),
        }
    });
    scored.collect()
}

fn terms(request: &Request, snapshot: &Snapshot, candidate: &Candidate, to_come: f64) -> Terms {
    let credited = credited(candidate);
    let uncached = request.isl.saturating_sub(credited);
    let queued = work(candidate).as_f64();
    let siblings = snapshot.candidates.iter().filter(|it| {
        it.target.worker == candidate.target.worker && it.target.dp_rank != candidate.target.dp_rank
    });
    let slowest = siblings.map(|it| work(it).as_f64()).fold(0.0, f64::max);
    let alone = queued.max(slowest);
    let rate = candidate.prefill_rate;
    let miss = uncached.as_f64() / rate;
    Terms {
        credited,
        uncached,
        pending: queued / rate,
        miss,
        delay: miss * later_delay(candidate.utilisation),
        transfer: transfer(candidate),
        lockstep: (queued + uncached.as_f64() - alone).max(0.0) / rate,
        decode: f64::from(candidate.active) * candidate.decode_step,
        capacity: evicted(candidate, uncached) * snapshot.reuse / rate,
        obligation: to_come / rate * later_delay(candidate.obligation.tokens / HORIZON / rate),
    }
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

/// Seconds of weighed delay to later requests for each second of work.
fn later_delay(utilisation: f64) -> f64 {
    let utilisation = utilisation.min(HIGHEST_UTILISATION);
    DELAY_WEIGHT * utilisation / (1.0 - utilisation)
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
