//! Prefill work that has been sent and does not yet show up as load: this router's and its peers'.
//!
//! A reservation counts from the decision on and ends at the first token, at a failure, when the request is
//! dropped, or by its lease, whichever comes first.

mod passing;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use domain::{DecisionId, Folding, InstanceId, SequenceHash, Target, Timestamp, Tokens};

use self::passing::Passing;
pub use self::passing::{InFlight, landmarks};

/// Live reservations of all routers together: 60 queued prefills on each of 1,000 ranks stay below it.
const MAX_LIVE: usize = 65_536;
/// A peer's lease is cut to this, so that a wrong clock cannot reserve for ever.
const MAX_LEASE: Duration = Duration::from_secs(600);
/// Ended reservations remembered per target, to compare with gauges taken before they ended.
const MAX_ENDED: usize = 256;
/// How long they are remembered: longer than a gauge is believed.
const ENDED_KEPT: Duration = Duration::from_secs(15);
/// How long a request may take from its decision until its engine counts it: a large body has to be sent, and an engine
/// makes tokens of it first.
const ARRIVED: Duration = Duration::from_secs(2);

/// Prefill work sent to a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// The decision that sent it.
    pub id: DecisionId,
    /// The router that made it.
    pub router: InstanceId,
    /// Where to.
    pub target: Target,
    /// Tokens to be computed there.
    pub uncached: Tokens,
    /// [`landmarks`] of the request.
    pub landmarks: Vec<SequenceHash>,
    /// When it ends by itself.
    pub lease_until: Timestamp,
}

/// The book is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{MAX_LIVE} reservations are live already")]
pub struct Refused;

/// All live reservations.
#[derive(Debug, Default)]
pub struct Reservations {
    live: HashMap<DecisionId, Reservation>,
    leases: BTreeSet<(Timestamp, DecisionId)>,
    /// Where the queue of a target is.
    slots: HashMap<Target, usize, Folding>,
    queues: Vec<Queue>,
    /// Slots of no target.
    free: Vec<usize>,
    passing: Passing,
}

/// What is reserved at one target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reserved {
    /// Prefill work not yet done, as [`Reservations::pending`] has it.
    pub pending: Tokens,
    /// Live reservations.
    pub count: u32,
    /// Leading blocks of a request that are being computed there.
    pub in_flight: u32,
}

/// The work reserved at one target, oldest first.
#[derive(Debug, Default)]
struct Queue {
    works: VecDeque<Work>,
    /// Until when the work has been taken to proceed.
    as_of: Timestamp,
    /// Tokens per second at which it proceeds.
    rate: f64,
    /// When ended reservations began and ended.
    ended: VecDeque<(Timestamp, Timestamp)>,
}

#[derive(Debug)]
struct Work {
    id: DecisionId,
    began: Timestamp,
    /// When it is done, if all that is there proceeds at the target's rate.
    due: Timestamp,
    left: f64,
}

impl Reservations {
    /// Counts `reservation` from `now` on; its target computes `rate` tokens per second. A second one of the
    /// same id replaces the first.
    pub fn reserve(
        &mut self,
        mut reservation: Reservation,
        rate: f64,
        now: Timestamp,
    ) -> Result<(), Refused> {
        self.release(reservation.id, now);
        if self.live.len() >= MAX_LIVE {
            return Err(Refused);
        }
        reservation.lease_until = reservation.lease_until.min(now + MAX_LEASE);
        let slot = self.slot(&reservation.target);
        self.passing.enter(&reservation.landmarks, slot);
        let queue = &mut self.queues[slot];
        queue.proceed(now);
        queue.rate = rate;
        let left = reservation.uncached.as_f64();
        let expected = Duration::try_from_secs_f64((queue.left(now) + left) / rate);
        queue.works.push_back(Work {
            id: reservation.id,
            began: now,
            due: now + expected.unwrap_or(Duration::MAX),
            left,
        });
        self.leases
            .insert((reservation.lease_until, reservation.id));
        self.live.insert(reservation.id, reservation);
        Ok(())
    }

    /// Ends a reservation; none when it has ended before.
    pub fn release(&mut self, id: DecisionId, now: Timestamp) -> Option<Reservation> {
        let reservation = self.live.remove(&id)?;
        self.leases.remove(&(reservation.lease_until, id));
        if let Some(slot) = self.slots.get(&reservation.target).copied() {
            self.queues[slot].end(id, now);
            self.passing.leave(&reservation.landmarks, slot);
        }
        Some(reservation)
    }

    /// The engine of `target` was idle at the time `at`: what began there long enough before, so that it had arrived, is
    /// over, although nobody has said so. Those that `stays` holds for are left. Ends the others and answers how many.
    pub fn reconcile(
        &mut self,
        target: &Target,
        at: Timestamp,
        stays: impl Fn(&Reservation) -> bool,
    ) -> usize {
        let Some(queue) = self.queue(target) else {
            return 0;
        };
        let over = |it: &&Work| ARRIVED <= at.since(it.began);
        let ids: Vec<DecisionId> = queue.works.iter().filter(over).map(|it| it.id).collect();
        let mut ended = 0;
        for id in ids {
            if !self.live.get(&id).is_some_and(&stays) {
                ended += usize::from(self.release(id, at).is_some());
            }
        }
        ended
    }

    /// Ends those whose lease is over by `now`.
    pub fn expire(&mut self, now: Timestamp) -> Vec<Reservation> {
        let mut expired = Vec::new();
        while let Some((lease_until, id)) = self.leases.first().copied() {
            if lease_until > now {
                break;
            }
            expired.extend(self.release(id, now));
        }
        self.slots.retain(|_, slot| {
            let queue = &mut self.queues[*slot];
            queue.forget_ended(now);
            let is_used = !queue.works.is_empty() || !queue.ended.is_empty();
            if !is_used {
                *queue = Queue::default();
                self.free.push(*slot);
            }
            is_used
        });
        expired
    }

    /// Prefill work reserved at `target` and not yet done, if it has proceeded at the reserved rate, oldest
    /// first.
    pub fn pending(&self, target: &Target, now: Timestamp) -> Tokens {
        self.queue(target)
            .map_or(Tokens::ZERO, |it| it.pending(now))
    }

    /// Live reservations at `target`.
    pub fn count(&self, target: &Target) -> u32 {
        self.queue(target).map_or(0, Queue::count)
    }

    /// All that a decision asks of the book about `target`.
    pub fn at(&self, target: &Target, in_flight: &InFlight, now: Timestamp) -> Reserved {
        let Some(slot) = self.slots.get(target).copied() else {
            return Reserved::default();
        };
        let queue = &self.queues[slot];
        Reserved {
            pending: queue.pending(now),
            count: queue.count(),
            in_flight: in_flight.at(slot),
        }
    }

    /// How much longer than expected the oldest of the requests waits at `target` that its engine had not begun at the
    /// time `at`, when so many waited there: the queue is then longer than its work, as where memory is short.
    pub fn overdue(
        &self,
        target: &Target,
        waiting: u32,
        at: Timestamp,
        now: Timestamp,
    ) -> Duration {
        let Some(queue) = self.queue(target) else {
            return Duration::ZERO;
        };
        // Engines begin in order of arrival.
        let known = queue.works.partition_point(|it| it.began <= at);
        let begun = known.saturating_sub(usize::try_from(waiting).unwrap_or(usize::MAX));
        let oldest = queue.works.range(begun..known).next();
        oldest.map_or(Duration::ZERO, |it| now.since(it.due))
    }

    /// Reservations that were live at `target` at the time `at`, for comparison with a gauge taken then.
    pub fn count_at(&self, target: &Target, at: Timestamp) -> u32 {
        let Some(queue) = self.queue(target) else {
            return 0;
        };
        let live = queue.works.iter().filter(|it| it.began <= at).count();
        let ended = queue.ended.iter();
        let ended = ended.filter(|(began, ended)| *began <= at && at < *ended);
        u32::try_from(live + ended.count()).unwrap_or(u32::MAX)
    }

    /// What is left of [`Self::pending`] where all that was reserved until `at` has begun to be computed.
    pub fn pending_since(&self, target: &Target, at: Timestamp, now: Timestamp) -> Tokens {
        let Some(queue) = self.queue(target) else {
            return Tokens::ZERO;
        };
        let later = queue.works.iter().filter(|it| at < it.began);
        let later: f64 = later.map(|it| it.left).sum();
        Tokens::new(later.min(queue.left(now)).round() as u64)
    }

    /// A live reservation.
    pub fn get(&self, id: DecisionId) -> Option<&Reservation> {
        self.live.get(&id)
    }

    /// Live reservations of all targets.
    pub fn len(&self) -> usize {
        self.live.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.live.is_empty()
    }

    /// Who computes how much of a request with these sequence hashes: to be asked by target in [`Reservations::at`],
    /// before the book changes.
    pub fn in_flight(&self, hashes: &[SequenceHash]) -> InFlight {
        self.passing.in_flight(hashes)
    }

    fn queue(&self, target: &Target) -> Option<&Queue> {
        self.slots.get(target).map(|slot| &self.queues[*slot])
    }

    /// The slot of a target, which has one from now on.
    fn slot(&mut self, target: &Target) -> usize {
        if let Some(slot) = self.slots.get(target) {
            return *slot;
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.queues.push(Queue::default());
            self.queues.len() - 1
        });
        self.slots.insert(target.clone(), slot);
        slot
    }
}

impl Queue {
    fn budget(&self, now: Timestamp) -> f64 {
        self.rate * now.since(self.as_of).as_secs_f64()
    }

    fn left(&self, now: Timestamp) -> f64 {
        let left: f64 = self.works.iter().map(|it| it.left).sum();
        (left - self.budget(now)).max(0.0)
    }

    fn pending(&self, now: Timestamp) -> Tokens {
        // Rounded, so that the dust of floating point is no token; the cast saturates, and nothing left is negative.
        Tokens::new(self.left(now).round() as u64)
    }

    fn count(&self) -> u32 {
        u32::try_from(self.works.len()).unwrap_or(u32::MAX)
    }

    /// Takes off what has been computed since, oldest first.
    fn proceed(&mut self, now: Timestamp) {
        let mut budget = self.budget(now);
        for work in &mut self.works {
            let done = work.left.min(budget);
            work.left -= done;
            budget -= done;
        }
        self.as_of = self.as_of.max(now);
    }

    fn end(&mut self, id: DecisionId, now: Timestamp) {
        self.proceed(now);
        let Some(at) = self.works.iter().position(|it| it.id == id) else {
            return;
        };
        if let Some(work) = self.works.remove(at) {
            if self.ended.len() >= MAX_ENDED {
                self.ended.pop_front();
            }
            self.ended.push_back((work.began, now));
        }
    }

    fn forget_ended(&mut self, now: Timestamp) {
        while let Some((_, ended)) = self.ended.front() {
            if now.since(*ended) < ENDED_KEPT {
                break;
            }
            self.ended.pop_front();
        }
    }
}
