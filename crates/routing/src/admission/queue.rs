//! Those that wait for a target of one model.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::num::NonZeroU32;
use std::time::Duration;

use domain::{TenantId, Timestamp, Tokens};

use super::drain::Drain;
use super::turns::Turns;
use super::{Priority, Room};

/// What a request is taken to cost at least, in tokens: beside its prefill it takes steps of an engine to answer, and
/// who asks for nothing but what is cached would have no end of turns.
const LEAST_COST: f64 = 256.0;
/// How often a priority rises by a class in the longest wait: the lowest is in the highest class once its oldest request
/// has waited two thirds of it, which then has the rest to have its turn there.
const RISES: u64 = 30;
const _: () = assert!((Priority::STEPS as u64) < RISES);
/// When a refused request may come again, where the queue's rate is not known.
const UNKNOWN_RETRY: Duration = Duration::from_secs(5);
/// The soonest that anybody is told to come again: `Retry-After` counts whole seconds.
const SOONEST_RETRY: Duration = Duration::from_secs(1);
/// The latest: by then all is different.
const LATEST_RETRY: Duration = Duration::from_secs(60);

/// How many may wait, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Requests that may wait at once.
    pub max_waiting: usize,
    /// The longest that one waits.
    pub max_wait: Duration,
}

/// A request that wants to go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asking {
    /// Whose it is.
    pub tenant: TenantId,
    /// That tenant's share, against the others': the same in all that it asks.
    pub weight: NonZeroU32,
    /// How urgent.
    pub priority: Priority,
    /// Prompt tokens that have to be computed for it, as far as is known.
    pub tokens: Tokens,
}

/// One request's place in a queue, until [`Queue::leave`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

/// Why a request is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Why.
    pub cause: Cause,
    /// When it may come again, 1 s to 60 s.
    pub retry_after: Duration,
}

/// Why a request is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// As many wait as may.
    Full,
    /// As many wait as may, and it gave way to one of a higher priority, or of a tenant that has fewer waiting.
    Displaced,
    /// It would wait too long.
    Late,
    /// It has waited as long as it may.
    Timeout,
}

/// What would become of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It would go at once.
    Goes,
    /// It would wait.
    Waits,
    /// It would be refused.
    Refused(Refusal),
}

/// What became of a request that asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entered {
    /// It goes at once.
    Goes,
    /// It waits.
    Waits {
        /// Its place.
        ticket: Ticket,
        /// Who had to give way to it.
        displaced: Option<(Ticket, Refusal)>,
    },
    /// It is refused.
    Refused(Refusal),
}

/// Requests that wait for a target of one model, and those let go that have not been placed yet.
#[derive(Debug)]
pub struct Queue {
    bounds: Bounds,
    lanes: BTreeMap<Lane, VecDeque<Waiting>>,
    lane_of: HashMap<Ticket, Lane>,
    /// What those that were let go will compute, until they are placed and their reservations say so.
    let_go: HashMap<Ticket, f64>,
    turns: Turns,
    drain: Drain,
    next: u64,
}

/// Requests of one tenant and priority, oldest first. Lanes of the lowest priority come first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Lane {
    priority: Priority,
    tenant: TenantId,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    ticket: Ticket,
    since: Timestamp,
    weight: NonZeroU32,
    cost: f64,
}

impl Cause {
    /// Its name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Displaced => "displaced",
            Self::Late => "late",
            Self::Timeout => "timeout",
        }
    }
}

impl Queue {
    /// A queue in which nobody waits.
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            lanes: BTreeMap::new(),
            lane_of: HashMap::new(),
            let_go: HashMap::new(),
            turns: Turns::default(),
            drain: Drain::new(bounds.max_wait),
            next: 0,
        }
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.lane_of.len()
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.lane_of.is_empty()
    }

    /// What [`Queue::enter`] would answer now.
    pub fn standing(&self, asking: &Asking, has_room: bool, now: Timestamp) -> Standing {
        if has_room && self.is_empty() {
            return Standing::Goes;
        }
        let refused = |cause| Standing::Refused(self.refusal(cause, asking, now));
        let ahead = self.ahead(asking, now);
        if self
            .drain
            .seconds_for(ahead)
            .is_some_and(|it| self.bounds.max_wait.as_secs_f64() < it)
        {
            return refused(Cause::Late);
        }
        if self.len() < self.bounds.max_waiting || self.gives_way(asking).is_some() {
            return Standing::Waits;
        }
        refused(Cause::Full)
    }

    /// A request wants to go, and `has_room` says whether some target is below its limit. It goes where one is and
    /// nobody waits; else it waits, if there is a place or one can be made.
    pub fn enter(&mut self, asking: Asking, has_room: bool, now: Timestamp) -> Entered {
        self.drain.proceed(!self.is_empty(), now);
        match self.standing(&asking, has_room, now) {
            Standing::Goes => return Entered::Goes,
            Standing::Refused(refusal) => return Entered::Refused(refusal),
            Standing::Waits => {}
        }
        let is_full = self.bounds.max_waiting <= self.len();
        let displaced = is_full.then(|| self.displace_for(&asking, now)).flatten();
        let ticket = Ticket(self.next);
        self.next += 1;
        let waiting = Waiting {
            ticket,
            since: now,
            weight: asking.weight,
            cost: cost(asking.tokens),
        };
        let lane = Lane {
            priority: asking.priority,
            tenant: asking.tenant,
        };
        self.lane_of.insert(ticket, lane.clone());
        self.lanes.entry(lane).or_default().push_back(waiting);
        Entered::Waits { ticket, displaced }
    }

    /// Lets those go that there is room for beside the ones let go before, in their order. `room` is what reservations
    /// leave of the targets' limits. Each keeps its ticket until [`Queue::leave`], and takes up room meanwhile.
    pub fn let_go(&mut self, room: Room, now: Timestamp) -> Vec<Ticket> {
        self.drain.proceed(!self.is_empty(), now);
        let mut tickets = Vec::new();
        let mut taken: f64 = self.let_go.values().sum();
        while room.after(taken, self.let_go.len()).is_some() {
            let Some(next) = self.take_next(now) else {
                break;
            };
            taken += next.cost;
            self.let_go.insert(next.ticket, next.cost);
            tickets.push(next.ticket);
        }
        tickets
    }

    /// Refuses those that have waited as long as they may.
    pub fn expire(&mut self, now: Timestamp) -> Vec<(Ticket, Refusal)> {
        self.drain.proceed(!self.is_empty(), now);
        let max_wait = self.bounds.max_wait;
        let is_over = |it: &Waiting| max_wait <= now.since(it.since);
        let lanes = self.lanes.iter();
        let over = lanes.flat_map(|(lane, waiting)| {
            let over = waiting.iter().take_while(|it| is_over(it));
            over.map(|it| (lane.clone(), *it))
        });
        let over: Vec<_> = over.collect();
        for (_, waiting) in &over {
            self.remove(waiting.ticket);
        }
        let refused = over.into_iter().map(|(lane, waiting)| {
            let asking = waiting.asked(lane);
            let refusal = self.refusal(Cause::Timeout, &asking, now);
            (waiting.ticket, refusal)
        });
        refused.collect()
    }

    /// Whoever has this ticket is placed, or gone. Says whether it waited. Repeats are harmless.
    pub fn leave(&mut self, ticket: Ticket, now: Timestamp) -> bool {
        self.drain.proceed(!self.is_empty(), now);
        self.let_go.remove(&ticket);
        self.remove(ticket).is_some()
    }

    /// Takes out whoever goes next.
    fn take_next(&mut self, now: Timestamp) -> Option<Waiting> {
        let oldest = self.oldest();
        let class = |it: &(Priority, Waiting)| (self.class(it.0, &it.1, now), Reverse(it.1.ticket));
        let (priority, _) = oldest.into_iter().max_by_key(class)?;
        let fronts = self.lanes.iter().filter(|it| it.0.priority == priority);
        let fronts = fronts.filter_map(|(lane, waiting)| Some((&lane.tenant, *waiting.front()?)));
        let (tenant, next) = fronts.min_by(|(one, a), (other, b)| {
            let start = |tenant| self.turns.start(priority, tenant);
            let by_turn = start(one).total_cmp(&start(other));
            by_turn.then(a.ticket.cmp(&b.ticket))
        })?;
        self.turns.take(priority, tenant, next.share());
        self.drain.let_go(next.cost);
        self.remove(next.ticket)
    }

    /// The oldest of each priority that anybody waits with.
    fn oldest(&self) -> BTreeMap<Priority, Waiting> {
        let mut oldest: BTreeMap<Priority, Waiting> = BTreeMap::new();
        for (lane, waiting) in &self.lanes {
            if let Some(front) = waiting.front() {
                let known = oldest.entry(lane.priority).or_insert(*front);
                if front.ticket < known.ticket {
                    *known = *front;
                }
            }
        }
        oldest
    }

    fn remove(&mut self, ticket: Ticket) -> Option<Waiting> {
        let lane = self.lane_of.remove(&ticket)?;
        let waiting = self.lanes.get_mut(&lane)?;
        let at = waiting.binary_search_by_key(&ticket, |it| it.ticket).ok()?;
        let removed = waiting.remove(at);
        if waiting.is_empty() {
            self.lanes.remove(&lane);
        }
        if self.is_empty() {
            self.turns.reset();
        }
        removed
    }

    /// The class of a priority whose oldest request is this one.
    fn class(&self, priority: Priority, oldest: &Waiting, now: Timestamp) -> Priority {
        let waited = now.as_micros().saturating_sub(oldest.since.as_micros());
        let longest = (Timestamp::ZERO + self.bounds.max_wait).as_micros().max(1);
        priority.raised(waited.saturating_mul(RISES) / longest)
    }

    /// The newest of those that have most waiting for their weight among the lowest priority, if it has to give way: to
    /// a higher priority, or to a tenant that has still fewer waiting with this one.
    fn gives_way(&self, asking: &Asking) -> Option<(&Lane, &Waiting)> {
        let lowest = self.lanes.first_key_value()?.0.priority;
        let of_lowest = self
            .lanes
            .iter()
            .take_while(|(lane, _)| lane.priority == lowest);
        let share = |waiting: &VecDeque<Waiting>| {
            let weight = waiting.back().map_or(NonZeroU32::MIN, |it| it.weight);
            waiting.len() as f64 / f64::from(weight.get())
        };
        let (lane, waiting) = of_lowest.max_by(|a, b| share(a.1).total_cmp(&share(b.1)))?;
        let own = Lane {
            priority: asking.priority,
            tenant: asking.tenant.clone(),
        };
        let own = self.lanes.get(&own).map_or(0, VecDeque::len) + 1;
        let gives_way = lowest < asking.priority
            || lowest == asking.priority
                && own as f64 / f64::from(asking.weight.get()) < share(waiting);
        gives_way.then_some((lane, waiting.back()?))
    }

    fn displace_for(&mut self, asking: &Asking, now: Timestamp) -> Option<(Ticket, Refusal)> {
        let (lane, waiting) = self.gives_way(asking)?;
        let (asked, ticket) = (waiting.asked(lane.clone()), waiting.ticket);
        self.remove(ticket);
        let refusal = self.refusal(Cause::Displaced, &asked, now);
        Some((ticket, refusal))
    }

    /// Tokens that will have left before `asking` goes, if nobody else came: those of priorities in a higher class, its
    /// tenant's own of its priority, and of each other tenant's as many as that one gets meanwhile, by weight.
    fn ahead(&self, asking: &Asking, now: Timestamp) -> f64 {
        let oldest = self.oldest();
        let class = |priority: Priority| {
            let oldest = oldest.get(&priority);
            oldest.map_or(priority, |it| self.class(priority, it, now))
        };
        let own_class = class(asking.priority);
        let (mut higher, mut own, mut others) = (0.0, 0.0, Vec::new());
        for (lane, waiting) in &self.lanes {
            let cost: f64 = waiting.iter().map(|it| it.cost).sum();
            if lane.priority != asking.priority {
                higher += if own_class < class(lane.priority) {
                    cost
                } else {
                    0.0
                };
            } else if lane.tenant == asking.tenant {
                own = cost;
            } else {
                let weight = waiting.front().map_or(NonZeroU32::MIN, |it| it.weight);
                others.push((cost, f64::from(weight.get())));
            }
        }
        let own_share = own / f64::from(asking.weight.get());
        let others = others.iter();
        let others: f64 = others
            .map(|(cost, weight)| cost.min(own_share * weight))
            .sum();
        higher + own + others
    }

    fn refusal(&self, cause: Cause, asking: &Asking, now: Timestamp) -> Refusal {
        let seconds = self.drain.seconds_for(self.ahead(asking, now));
        let retry_after = seconds.map_or(UNKNOWN_RETRY, |it| {
            Duration::try_from_secs_f64(it).unwrap_or(LATEST_RETRY)
        });
        Refusal {
            cause,
            retry_after: retry_after.clamp(SOONEST_RETRY, LATEST_RETRY),
        }
    }
}

impl Waiting {
    /// What it takes of its tenant's share.
    fn share(&self) -> f64 {
        self.cost / f64::from(self.weight.get())
    }

    /// What it asked for.
    fn asked(&self, lane: Lane) -> Asking {
        Asking {
            tenant: lane.tenant,
            weight: self.weight,
            priority: lane.priority,
            // A cost is a count of tokens.
            tokens: Tokens::new(self.cost as u64),
        }
    }
}

fn cost(tokens: Tokens) -> f64 {
    tokens.as_f64().max(LEAST_COST)
}
