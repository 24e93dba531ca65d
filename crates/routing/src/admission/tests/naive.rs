//! The queue beside a naive one.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use domain::{TenantId, Timestamp};
use proptest::prelude::*;

use super::{BOUNDS, asking, at};
use crate::admission::{Asking, Cause, Entered, Priority, Queue, Room, Standing, Ticket};

/// What a person would write who has never heard of a data structure.
#[derive(Default)]
struct Naive {
    waiting: BTreeMap<Ticket, (Asking, Timestamp)>,
    let_go: BTreeMap<Ticket, f64>,
    ends: HashMap<(Priority, TenantId), f64>,
    clocks: HashMap<Priority, f64>,
}

impl Naive {
    fn cost(asking: &Asking) -> f64 {
        asking.tokens.as_f64().max(256.0)
    }

    /// Of all that wait with a priority the one that came first.
    fn oldest(&self, priority: Priority) -> Ticket {
        let mut of_it = self.waiting.iter();
        *of_it.find(|it| it.1.0.priority == priority).unwrap().0
    }

    fn class(&self, priority: Priority, now: Timestamp) -> i64 {
        let (_, since) = &self.waiting[&self.oldest(priority)];
        let seconds = now.since(*since).as_micros() / 1_000_000;
        (i64::from(priority.get()) + i64::try_from(seconds).unwrap()).min(10)
    }

    fn start(&self, ticket: Ticket) -> f64 {
        let Asking {
            tenant, priority, ..
        } = &self.waiting[&ticket].0;
        let end = *self.ends.get(&(*priority, tenant.clone())).unwrap_or(&0.0);
        end.max(*self.clocks.get(priority).unwrap_or(&0.0))
    }

    fn next(&self, now: Timestamp) -> Option<Ticket> {
        let tickets = self.waiting.keys().copied();
        tickets.min_by(|a, b| {
            let key = |it: Ticket| {
                let priority = self.waiting[&it].0.priority;
                let class = self.class(priority, now);
                (-class, self.oldest(priority), self.start(it), it)
            };
            key(*a).partial_cmp(&key(*b)).unwrap()
        })
    }

    fn go(&mut self, ticket: Ticket) {
        let start = self.start(ticket);
        let (asking, _) = self.waiting.remove(&ticket).unwrap();
        let cost = Self::cost(&asking);
        let end = start + cost / f64::from(asking.weight.get());
        self.ends.insert((asking.priority, asking.tenant), end);
        self.clocks.insert(asking.priority, start);
        self.let_go.insert(ticket, cost);
        self.settle();
    }

    fn settle(&mut self) {
        if self.waiting.is_empty() {
            self.ends.clear();
            self.clocks.clear();
        }
    }

    /// How many of the lowest priority wait for a tenant, by its weight.
    fn shares(&self) -> HashMap<TenantId, f64> {
        let lowest = self.waiting.values().map(|it| it.0.priority).min();
        let mut shares = HashMap::new();
        for (asking, _) in self.waiting.values() {
            if Some(asking.priority) == lowest {
                let weight = f64::from(asking.weight.get());
                *shares.entry(asking.tenant.clone()).or_insert(0.0) += 1.0 / weight;
            }
        }
        shares
    }

    /// Whether somebody had to give way to `asking`, were there no place left.
    fn gives_way(&self, asking: &Asking) -> bool {
        let Some(lowest) = self.waiting.values().map(|it| it.0.priority).min() else {
            return false;
        };
        let shares = self.shares();
        let own = shares.get(&asking.tenant).unwrap_or(&0.0);
        let own = own + 1.0 / f64::from(asking.weight.get());
        let most = shares.values().fold(0.0, |a: f64, b| a.max(*b));
        lowest < asking.priority || lowest == asking.priority && own + 1e-9 < most
    }

    fn check_victim(&self, victim: Ticket) {
        let (asking, _) = &self.waiting[&victim];
        let lowest = self.waiting.values().map(|it| it.0.priority).min();
        assert_eq!(Some(asking.priority), lowest);
        let shares = self.shares();
        let most = shares.values().fold(0.0, |a: f64, b| a.max(*b));
        assert!((shares[&asking.tenant] - most).abs() < 1e-9);
        let newer = self.waiting.range(victim..).skip(1);
        let mut newer = newer.map(|(_, it)| (&it.0.tenant, it.0.priority));
        assert!(!newer.any(|it| it == (&asking.tenant, asking.priority)));
    }
}

#[derive(Clone, Debug)]
enum Step {
    Enter(u32, i64, u64, bool),
    LetGo(u32, u32),
    Leave(usize),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let priority = prop_oneof![Just(0), -10..=10_i64];
    prop_oneof![
        6 => (1..=3_u32, priority, 0..4_000_u64, any::<bool>())
            .prop_map(|(tenant, priority, tokens, room)| Step::Enter(tenant, priority, tokens, room)),
        3 => (0..9_000_u32, 0..4_u32).prop_map(|(tokens, requests)| Step::LetGo(tokens, requests)),
        2 => any::<usize>().prop_map(Step::Leave),
        2 => (1..4_000_u64).prop_map(Step::Pass),
    ]
}

/// The queue, the naive one, and how each ticket has left.
struct Both {
    queue: Queue,
    naive: Naive,
    issued: BTreeSet<Ticket>,
    over: BTreeSet<Ticket>,
    now: Timestamp,
}

impl Both {
    fn ends(&mut self, ticket: Ticket) {
        assert!(self.over.insert(ticket), "{ticket:?} ends twice");
    }

    fn enter(&mut self, asking: Asking, has_room: bool) {
        let full = self.naive.waiting.len() == BOUNDS.max_waiting;
        let nobody = self.naive.waiting.is_empty();
        let standing = self.queue.standing(&asking, has_room, self.now);
        match self.queue.enter(asking.clone(), has_room, self.now) {
            Entered::Goes => {
                assert!(nobody && has_room && standing == Standing::Goes);
            }
            Entered::Waits { ticket, displaced } => {
                assert_eq!(standing, Standing::Waits);
                assert!(!(nobody && has_room));
                assert!(self.issued.insert(ticket));
                assert_eq!(displaced.is_some(), full);
                if let Some((victim, refusal)) = displaced {
                    assert_eq!(refusal.cause, Cause::Displaced);
                    assert!(self.naive.gives_way(&asking));
                    self.naive.check_victim(victim);
                    self.naive.waiting.remove(&victim);
                    self.naive.settle();
                    self.ends(victim);
                }
                self.naive.waiting.insert(ticket, (asking, self.now));
            }
            Entered::Refused(refusal) => {
                assert_eq!(standing, Standing::Refused(refusal));
                let seconds = refusal.retry_after.as_secs_f64();
                assert!((1.0..=60.0).contains(&seconds), "{seconds}");
                match refusal.cause {
                    Cause::Full => assert!(full && !self.naive.gives_way(&asking)),
                    Cause::Late => assert!(!nobody || !has_room),
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    fn let_go(&mut self, room: Room) {
        for ticket in self.queue.let_go(room, self.now) {
            let taken: f64 = self.naive.let_go.values().sum();
            assert!(taken < room.tokens && self.naive.let_go.len() < room.requests as usize);
            assert_eq!(self.naive.next(self.now), Some(ticket));
            self.naive.go(ticket);
        }
        let taken: f64 = self.naive.let_go.values().sum();
        let left = taken < room.tokens && self.naive.let_go.len() < room.requests as usize;
        assert!(!left || self.naive.waiting.is_empty(), "room left over");
    }

    fn leave(&mut self, number: usize) {
        let here: Vec<Ticket> = self.issued.difference(&self.over).copied().collect();
        let Some(ticket) = here.get(number % here.len().max(1)).copied() else {
            return;
        };
        let waited = self.naive.waiting.remove(&ticket).is_some();
        self.naive.let_go.remove(&ticket);
        self.naive.settle();
        assert_eq!(self.queue.leave(ticket, self.now), waited);
        assert!(!self.queue.leave(ticket, self.now), "nobody leaves twice");
        self.ends(ticket);
    }

    fn pass(&mut self, milliseconds: u64) {
        self.now += Duration::from_millis(milliseconds);
        let is_over = |it: &(Asking, Timestamp)| BOUNDS.max_wait <= self.now.since(it.1);
        let waiting = self.naive.waiting.iter();
        let over: BTreeSet<Ticket> = waiting.filter(|it| is_over(it.1)).map(|it| *it.0).collect();
        let expired = self.queue.expire(self.now);
        assert!(expired.iter().all(|it| it.1.cause == Cause::Timeout));
        assert_eq!(expired.iter().map(|it| it.0).collect::<BTreeSet<_>>(), over);
        assert_eq!(expired.len(), over.len());
        for ticket in over {
            self.naive.waiting.remove(&ticket);
            self.ends(ticket);
        }
        self.naive.settle();
    }
}

proptest! {
    #[test]
    fn the_queue_goes_as_a_naive_one_and_every_request_leaves_it_once(
        steps in prop::collection::vec(step(), 1..120)
    ) {
        let mut both = Both {
            queue: Queue::new(BOUNDS),
            naive: Naive::default(),
            issued: BTreeSet::new(),
            over: BTreeSet::new(),
            now: at(0),
        };
        for step in steps {
            match step {
                Step::Enter(tenant, priority, tokens, has_room) => {
                    both.enter(asking(tenant, priority, tokens), has_room);
                }
                Step::LetGo(tokens, requests) => {
                    both.let_go(Room { tokens: f64::from(tokens), requests });
                }
                Step::Leave(number) => both.leave(number),
                Step::Pass(milliseconds) => both.pass(milliseconds),
            }
            prop_assert_eq!(both.queue.len(), both.naive.waiting.len());
            prop_assert!(both.queue.len() <= BOUNDS.max_waiting);
        }
        both.let_go(Room::ALL);
        while both.issued != both.over {
            both.leave(0);
        }
        prop_assert!(both.queue.is_empty());
        prop_assert_eq!(both.queue.let_go(Room::ALL, both.now), []);
    }
}
