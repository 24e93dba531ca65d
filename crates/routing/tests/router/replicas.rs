//! Several routers that tell each other what they send, over a channel that loses, doubles and reorders.

use std::collections::BTreeMap;
use std::time::Duration;

use domain::{
    DecisionId, DpRank, Epoch, InstanceId, RankLoad, ReservationChange, Target, Timestamp, Tokens,
};
use proptest::prelude::*;
use routing::{Config, Decision, Request, Router, Status};

use crate::world::{World, bound, content, ended, served, target, worker};

const ROUTERS: usize = 3;
/// As long as a peer's lease may be, and longer than a conversation is remembered.
const LONG: f64 = 700.0;

#[derive(Clone, Copy, Debug)]
enum Step {
    Decide(usize, u8),
    Follow(usize, usize),
    FirstToken(usize, usize),
    Finish(usize, usize, Status),
    Abandon(usize, usize),
    Deliver(usize, Fate),
    Wait(u16),
    Crash(usize),
    Restart,
    /// A rank's gauges, so old.
    Gauge(u32, u32, u16),
}

#[derive(Clone, Copy, Debug)]
enum Fate {
    Arrives,
    ArrivesAndStays,
    IsLost,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let router = || 0..ROUTERS;
    let any = || 0..1_000_usize;
    let status = prop::sample::select(vec![Status::Served, Status::Failed, Status::Cancelled]);
    let fate = prop_oneof![
        6 => Just(Fate::Arrives),
        2 => Just(Fate::ArrivesAndStays),
        1 => Just(Fate::IsLost),
    ];
    let step = prop_oneof![
        6 => (router(), 0..6_u8).prop_map(|(at, name)| Step::Decide(at, name)),
        1 => (router(), any()).prop_map(|(at, which)| Step::Follow(at, which)),
        3 => (router(), any()).prop_map(|(at, which)| Step::FirstToken(at, which)),
        3 => (router(), any(), status).prop_map(|(at, which, how)| Step::Finish(at, which, how)),
        1 => (router(), any()).prop_map(|(at, which)| Step::Abandon(at, which)),
        12 => (any(), fate).prop_map(|(which, fate)| Step::Deliver(which, fate)),
        4 => (0..5_000_u16).prop_map(Step::Wait),
        1 => router().prop_map(Step::Crash),
        1 => Just(Step::Restart),
        2 => (0..4_u32, 0..3_u32, 0..8_000_u16).prop_map(|(at, load, age)| Step::Gauge(at, load, age)),
    ];
    prop::collection::vec(step, 0..120)
}

/// What a reservation comes to, as whoever believes every word has it.
#[derive(Clone, Debug)]
struct Told {
    target: Target,
    uncached: Tokens,
    lease_until: Timestamp,
}

struct Replica {
    name: InstanceId,
    world: World,
    /// Requests on their way.
    open: Vec<(Decision, Request)>,
    /// Naive books: this router's own, and what it was told.
    told: BTreeMap<DecisionId, Told>,
}

/// All of them, and what is between them.
struct Fleet {
    replicas: Vec<Replica>,
    channel: Vec<(InstanceId, usize, ReservationChange)>,
    epoch: u64,
    born: usize,
    decisions: u128,
    gauges: BTreeMap<Target, (Timestamp, u32)>,
}

impl Fleet {
    fn new() -> Self {
        let mut fleet = Self {
            replicas: Vec::new(),
            channel: Vec::new(),
            epoch: 1,
            born: 0,
            decisions: 0,
            gauges: BTreeMap::new(),
        };
        for _ in 0..ROUTERS {
            let replica = fleet.replica(World::new(2, 2, Config::default()).now);
            fleet.replicas.push(replica);
        }
        fleet
    }

    fn replica(&mut self, now: Timestamp) -> Replica {
        self.born += 1;
        let name: InstanceId = format!("router-{}", self.born).parse().unwrap();
        let mut world = World::new(0, 0, Config::default());
        world.router = Router::new(name.clone(), world.router.config().clone());
        for id in ["w1", "w2"] {
            world.router.set_worker(worker(id, 2));
        }
        let restarted = "w1".parse().unwrap();
        world.router.set_epoch(&restarted, Epoch::new(self.epoch));
        world.now = now;
        Replica {
            name,
            world,
            open: Vec::new(),
            told: BTreeMap::new(),
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Decide(at, name) => {
                self.decisions += 1;
                let replica = &mut self.replicas[at];
                let blocks = content(u64::from(name), 10 + u64::from(name) * 30);
                let mut request = replica.world.turn(&format!("c{name}"), &blocks);
                request.id = DecisionId::new(self.decisions);
                let decision = replica.world.decide(&request, None).unwrap();
                replica.open.push((decision, request));
            }
            Step::Follow(at, which) => self.replicas[at].with(which, |world, decision, request| {
                let winner = bound("c", "w2#1/1", 0);
                world.router.follow(decision, request, &winner, world.now);
                false
            }),
            Step::FirstToken(at, which) => self.replicas[at].with(which, |world, decision, _| {
                world.router.first_token(decision.id, world.now);
                false
            }),
            Step::Finish(at, which, how) => self.replicas[at].with(which, |world, decision, _| {
                let now = world.now;
                world.router.finish(decision.id, &ended(how), now);
                true
            }),
            Step::Abandon(at, which) => self.replicas[at].with(which, |world, decision, _| {
                world.router.abandon(decision.id, world.now);
                true
            }),
            Step::Deliver(which, fate) => self.deliver(which, fate),
            Step::Wait(millis) => self.wait(f64::from(millis) / 1e3),
            Step::Crash(at) => {
                let now = self.replicas[at].world.now;
                self.replicas[at] = self.replica(now);
            }
            Step::Restart => {
                self.epoch += 1;
                let id = "w1".parse().unwrap();
                for replica in &mut self.replicas {
                    let router = &mut replica.world.router;
                    router.set_epoch(&id, Epoch::new(self.epoch));
                }
            }
            Step::Gauge(number, requests, age) => self.gauge(number, requests, age),
        }
        self.publish();
    }

    /// What routers have to say goes on its way to each of the others, and into their own naive books.
    fn publish(&mut self) {
        for at in 0..self.replicas.len() {
            let replica = &mut self.replicas[at];
            for change in replica.world.router.take_changes() {
                replica.believe(&change);
                let others = (0..ROUTERS).filter(|it| *it != at);
                let sent = others.map(|to| (replica.name.clone(), to, change.clone()));
                self.channel.extend(sent);
            }
        }
    }

    fn deliver(&mut self, which: usize, fate: Fate) {
        if self.channel.is_empty() {
            return;
        }
        let which = which % self.channel.len();
        let (from, to, change) = match fate {
            Fate::ArrivesAndStays => self.channel[which].clone(),
            Fate::Arrives | Fate::IsLost => self.channel.swap_remove(which),
        };
        if !matches!(fate, Fate::IsLost) {
            let replica = &mut self.replicas[to];
            let now = replica.world.now;
            replica.world.router.apply_peer(&from, &change, now);
            replica.believe(&change);
        }
    }

    fn gauge(&mut self, number: u32, requests: u32, age: u16) {
        let id = format!("w{}", 1 + number / 2);
        let now = self.replicas[0].world.now;
        let at = Timestamp::from_secs_f64(now.as_secs_f64() - f64::from(age) / 1e3);
        let load = RankLoad {
            dp_rank: DpRank::new(number % 2),
            running: requests,
            waiting: requests / 2,
            kv_used: 0.5,
            at,
        };
        for replica in &mut self.replicas {
            let router = &mut replica.world.router;
            router.set_load(&id.parse().unwrap(), &[load]);
        }
        for epoch in 1..=self.epoch {
            let target = target(&format!("{id}#{epoch}/{}", number % 2));
            self.gauges.insert(target, (at, requests + requests / 2));
        }
    }

    fn wait(&mut self, seconds: f64) {
        for replica in &mut self.replicas {
            replica.world.wait(seconds);
            let now = replica.world.now;
            replica.world.router.expire(now);
            replica.told.retain(|_, it| now < it.lease_until);
        }
    }

    fn targets(&self) -> impl Iterator<Item = Target> {
        let first = (1..=self.epoch).map(|epoch| format!("w1#{epoch}"));
        let workers = first.chain(["w2#1".to_owned()]);
        workers.flat_map(|it| [0, 1].map(|rank| target(&format!("{it}/{rank}"))))
    }

    /// Nothing is more than what was said and has not ended.
    fn check(&self) -> Result<(), TestCaseError> {
        for replica in &self.replicas {
            let (router, now) = (&replica.world.router, replica.world.now);
            prop_assert!(router.reserved() <= replica.told.len());
            prop_assert_eq!(router.open(), replica.open.len());
            for target in self.targets() {
                let here = replica.told.values().filter(|it| it.target == target);
                let (mut count, mut work) = (0_u32, 0);
                here.for_each(|it| (count, work) = (count + 1, work + it.uncached.get()));
                prop_assert!(router.pending(&target, now).get() <= work);
                let own = replica.open.len();
                let gauge = self.gauges.get(&target).map_or(0, |it| it.1);
                let most = count.max(gauge).max(u32::try_from(own).unwrap());
                prop_assert!(router.active(&target, now) <= most);
            }
        }
        Ok(())
    }
}

impl Replica {
    /// Does something with a request on its way, which is over if so.
    fn with(&mut self, which: usize, act: impl FnOnce(&mut World, &Decision, &Request) -> bool) {
        if self.open.is_empty() {
            return;
        }
        let which = which % self.open.len();
        let (decision, request) = &self.open[which];
        if act(&mut self.world, decision, request) {
            self.open.swap_remove(which);
        }
    }

    fn believe(&mut self, change: &ReservationChange) {
        match change {
            ReservationChange::Reserve {
                id,
                target,
                uncached,
                lease_until,
                ..
            } => {
                let told = Told {
                    target: target.clone(),
                    uncached: *uncached,
                    lease_until: *lease_until,
                };
                self.told.insert(*id, told);
            }
            ReservationChange::Release { id } => drop(self.told.remove(id)),
        }
    }
}

proptest! {
    #[test]
    fn whatever_is_lost_doubled_or_late_nothing_leaks_at_any_router(steps in steps()) {
        let mut fleet = Fleet::new();
        for step in steps {
            fleet.step(step);
            fleet.check()?;
        }
        // What is on its way ends, and no word of it arrives any more.
        for at in 0..ROUTERS {
            while !fleet.replicas[at].open.is_empty() {
                fleet.step(Step::Finish(at, 0, Status::Served));
            }
        }
        fleet.channel.clear();
        fleet.wait(LONG);
        for replica in &mut fleet.replicas {
            let router = &replica.world.router;
            prop_assert_eq!((router.reserved(), router.open(), router.carried()), (0, 0, 0));
            let request = replica.world.turn("another", &content(2, 10));
            let decision = replica.world.decide(&request, None).unwrap();
            for it in &decision.snapshot.candidates {
                let work = it.pending + it.foreign + it.in_flight;
                prop_assert_eq!((work, it.active), (Tokens::ZERO, 0));
                prop_assert_eq!((it.obligation.tokens, it.obligation.conversations), (0.0, 0));
            }
        }
    }
}

fn idle(world: &World, dp_rank: u32, seconds_ago: f64) -> RankLoad {
    RankLoad {
        dp_rank: DpRank::new(dp_rank),
        running: 0,
        waiting: 0,
        kv_used: 0.0,
        at: Timestamp::from_secs_f64(world.now.as_secs_f64() - seconds_ago),
    }
}

/// A peer's reservation at `w1#1/0` whose end will not be heard of.
fn lost(world: &mut World, id: u128) {
    let reserve = ReservationChange::Reserve {
        id: DecisionId::new(id),
        target: target("w1#1/0"),
        uncached: Tokens::new(800_000),
        landmarks: Vec::new(),
        lease_until: world.now + Duration::from_secs(160),
        conversation: None,
    };
    let peer = "r2".parse().unwrap();
    world.router.apply_peer(&peer, &reserve, world.now);
}

#[test]
fn where_an_engine_is_idle_a_release_that_was_lost_is_not_waited_for() {
    let mut world = World::new(1, 2, Config::default());
    let (at, id) = (target("w1#1/0"), "w1".parse().unwrap());
    lost(&mut world, 77);
    world.wait(10.0);
    let other = [idle(&world, 1, 0.0), idle(&world, 0, 9.0)];
    world.router.set_load(&id, &other);
    let before = world.router.pending(&at, world.now);
    assert_eq!(before, Tokens::new(720_000), "another rank, or too early");
    lost(&mut world, 78);
    lost(&mut world, 77);
    let now = [idle(&world, 0, 1.0)];
    world.router.set_load(&id, &now);
    assert_eq!(world.router.reserved(), 1, "only what had arrived by then");
    assert_eq!(world.router.counters().reservations_reconciled, 1);
    assert_eq!(world.router.take_changes(), [], "it is the peer's to tell");
}

#[test]
fn what_is_on_its_way_is_known_better_than_by_a_gauge() {
    let mut world = World::new(1, 1, Config::default());
    let request = world.request(&content(1, 1_000));
    let decision = world.decide(&request, None).unwrap();
    world.wait(5.0);
    let gauge = [idle(&world, 0, 0.0)];
    world.router.set_load(&"w1".parse().unwrap(), &gauge);
    let at = decision.target().unwrap();
    assert!(Tokens::ZERO < world.router.pending(at, world.now));
    world.router.finish(request.id, &served(), world.now);
    assert_eq!(world.router.pending(at, world.now), Tokens::ZERO);
}
