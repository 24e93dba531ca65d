//! Load spreads although prefixes are followed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use domain::{BlockHash, DecisionId, Target, Timestamp};
use routing::{Config, Decision};

use crate::world::{RATE, World, content, served};

/// The most a target got, relative to the mean over `targets` targets.
fn max_over_mean(counts: &BTreeMap<Target, f64>, targets: f64) -> f64 {
    let total: f64 = counts.values().sum();
    counts.values().copied().fold(0.0, f64::max) / (total / targets)
}

/// Ranks that prefill one request after another.
#[derive(Default)]
struct Queues {
    free_at: BTreeMap<Target, f64>,
    ends: BinaryHeap<Reverse<(Timestamp, DecisionId)>>,
    blocks: BTreeMap<DecisionId, (Target, Vec<BlockHash>)>,
    requests: BTreeMap<Target, f64>,
    work: BTreeMap<Target, f64>,
}

impl Queues {
    fn send(&mut self, world: &World, decision: &Decision, blocks: Vec<BlockHash>) {
        let target = decision.target().unwrap().clone();
        let uncached = decision.uncached.unwrap().as_f64();
        let free_at = self.free_at.entry(target.clone()).or_default();
        *free_at = free_at.max(world.now.as_secs_f64()) + uncached / RATE;
        self.ends
            .push(Reverse((Timestamp::from_secs_f64(*free_at), decision.id)));
        *self.requests.entry(target.clone()).or_default() += 1.0;
        *self.work.entry(target.clone()).or_default() += uncached;
        self.blocks.insert(decision.id, (target, blocks));
    }

    /// Ends what is done by now: the blocks are held and the reservation is released.
    fn proceed(&mut self, world: &mut World) {
        while let Some(Reverse((end, id))) = self.ends.peek().copied() {
            if end > world.now {
                break;
            }
            self.ends.pop();
            let (target, blocks) = self.blocks.remove(&id).unwrap();
            world.hold(&target, &blocks);
            world.router.first_token(id, end);
            world.router.finish(id, &served(), end);
        }
    }
}

fn ask(world: &mut World, queues: &mut Queues, blocks: Vec<BlockHash>) {
    queues.proceed(world);
    let request = world.request(&blocks);
    let decision = world.decide(&request, None).unwrap();
    queues.send(world, &decision, blocks);
}

/// Requests and work, each max over mean, of 800 requests on 8 ranks that share the 20,000 tokens one request
/// has left somewhere and have `tail` blocks of their own.
fn hot_prefix(tail: u64, seconds_between: f64) -> (f64, f64) {
    let (mut world, mut queues) = (World::new(2, 4, Config::default()), Queues::default());
    let prefix = content(1, 156);
    ask(&mut world, &mut queues, prefix.clone());
    world.wait(60.0);
    (queues.requests, queues.work) = Default::default();
    for number in 0..800 {
        let blocks = [prefix.clone(), content(10 + number, tail)].concat();
        ask(&mut world, &mut queues, blocks);
        world.wait(seconds_between);
    }
    let ratios = (&queues.requests, &queues.work);
    (max_over_mean(ratios.0, 8.0), max_over_mean(ratios.1, 8.0))
}

#[test]
fn a_hot_prefix_does_not_draw_everything_to_its_holder() {
    for seconds_between in [0.035, 0.05] {
        let (requests, work) = hot_prefix(16, seconds_between);
        assert!(requests <= 1.3, "requests {requests} at {seconds_between}");
        assert!(work <= 1.1, "work {work} at {seconds_between}");
    }
}

#[test]
fn a_burst_on_a_hot_prefix_is_spread_before_anything_is_announced() {
    let (_, work) = hot_prefix(16, 0.0);
    assert!(work <= 1.1, "work {work}");
}

/// Long prefills whose answers are one token show up in no gauge until they are over.
#[test]
fn work_counts_from_the_decision_on() {
    let mut world = World::new(2, 4, Config::default());
    let mut counts = BTreeMap::<Target, u32>::new();
    for number in 0..200 {
        let request = world.request(&content(number, 250));
        let decision = world.decide(&request, None).unwrap();
        *counts
            .entry(decision.target().unwrap().clone())
            .or_default() += 1;
    }
    let even = counts.values().all(|it| (24..=26).contains(it));
    assert!(counts.len() == 8 && even, "{counts:?}");
}

#[test]
fn first_turns_spread_evenly() {
    let (mut world, mut queues) = (World::new(4, 4, Config::default()), Queues::default());
    for number in 0..1_000 {
        ask(&mut world, &mut queues, content(number, 16 + number % 17));
        world.wait(0.04);
    }
    let requests = max_over_mean(&queues.requests, 16.0);
    let work = max_over_mean(&queues.work, 16.0);
    assert!(requests <= 1.15, "requests {requests}");
    assert!(work <= 1.1, "work {work}");
}

/// Two routers that tell each other what they send place like one.
#[test]
fn routers_that_share_reservations_do_not_herd() {
    let mut worlds = [0, 1].map(|_| World::new(2, 4, Config::default()));
    worlds[1].router = {
        let mut other = routing::Router::new("r2".parse().unwrap(), *worlds[0].router.config());
        worlds[1]
            .router
            .workers()
            .for_each(|it| other.set_worker(it.clone()));
        other
    };
    let names = ["r1", "r2"].map(|it| it.parse().unwrap());
    let mut counts = BTreeMap::<Target, u32>::new();
    for number in 0..200 {
        let (here, there) = (number % 2, 1 - number % 2);
        let mut request = worlds[here].request(&content(u64::try_from(number).unwrap(), 250));
        request.id = DecisionId::new(u128::try_from(number).unwrap());
        let decision = worlds[here].decide(&request, None).unwrap();
        *counts
            .entry(decision.target().unwrap().clone())
            .or_default() += 1;
        let now = worlds[here].now;
        for change in worlds[here].router.take_changes() {
            worlds[there].router.apply_peer(&names[here], &change, now);
        }
    }
    let even = counts.values().all(|it| (24..=26).contains(it));
    assert!(counts.len() == 8 && even, "{counts:?}");
}
