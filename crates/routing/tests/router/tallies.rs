//! What one router counts for published policies by itself.

use domain::{BlockHash, Tokens};
use placement::Tally;
use routing::{Config, Decision};

use crate::world::{BLOCK, World, content, ended, served, target};
use routing::Status;

fn world(workers: u32, dp_size: u32, policy: &str) -> World {
    let config = Config {
        policy: policy.parse().unwrap(),
        ..Config::default()
    };
    World::new(workers, dp_size, config)
}

/// A turn of a conversation, which is served until it is said to have ended.
fn turn(world: &mut World, conversation: &str) -> Decision {
    let turn = world.turn(conversation, &content(1, 4));
    world.decide(&turn, None).unwrap()
}

fn end(world: &mut World, decision: &Decision) {
    let now = world.now;
    world.router.finish(decision.id, &served(), now);
}

fn word(decision: &Decision) -> String {
    decision.choice.as_ref().unwrap().reason.to_string()
}

#[test]
fn a_turn_that_overflows_leaves_its_conversation_where_it_is_stuck() {
    let mut world = world(2, 1, "trt_conv_adp:hard=1");
    let first = turn(&mut world, "c");
    let second = turn(&mut world, "c");
    assert_eq!(word(&second), "overflow");
    assert_ne!(second.place, first.place);
    end(&mut world, &first);
    let third = turn(&mut world, "c");
    assert_eq!(
        (word(&third).as_str(), &third.place),
        ("stuck", &first.place)
    );
    let stuck = third.request.stuck.unwrap();
    assert_eq!((stuck.turns, Some(&stuck.target)), (2, first.target()));
}

#[test]
fn a_conversation_that_leaves_by_the_margin_is_stuck_where_it_went() {
    let mut world = world(2, 1, "verl_margin:margin=0");
    let first = turn(&mut world, "c");
    let second = turn(&mut world, "c");
    assert_ne!(
        second.place, first.place,
        "one request there, none elsewhere"
    );
    end(&mut world, &first);
    end(&mut world, &second);
    let third = turn(&mut world, "c");
    assert_eq!(
        (word(&third).as_str(), &third.place),
        ("stuck", &second.place)
    );
}

#[test]
fn conversations_are_counted_where_they_are_stuck_and_spread_evenly() {
    let mut world = world(2, 2, "sticky_least");
    for name in 0..40 {
        for _ in 0..3 {
            let decision = turn(&mut world, &format!("c{name}"));
            end(&mut world, &decision);
        }
    }
    let last = turn(&mut world, "another");
    let counts = last.snapshot.candidates.iter();
    let counts: Vec<u32> = counts.map(|it| it.tally.conversations).collect();
    assert_eq!(counts, [10, 10, 10, 10]);
}

/// Without epochs nobody would notice that the engine is another.
#[test]
fn a_conversation_stuck_to_an_incarnation_that_is_gone_is_placed_anew() {
    let mut world = world(2, 1, "sticky_least");
    let first = turn(&mut world, "c");
    end(&mut world, &first);
    let worker = first.place.worker().clone();
    world.router.set_epoch(&worker, domain::Epoch::new(2));
    let second = turn(&mut world, "c");
    assert_ne!(word(&second), "stuck");
    let third = turn(&mut world, "c");
    assert_eq!(
        (word(&third).as_str(), &third.place),
        ("stuck", &second.place)
    );
}

/// The steps that were seen on the live service, with blocks of another size: what is pending and what is active is
/// counted by the router here, and not written beforehand.
#[test]
fn dynamo_counts_blocks_as_its_live_service_did() {
    let mut world = world(1, 2, "dynamo");
    let prompt = |last: u64| -> Vec<BlockHash> {
        let mut blocks = content(1, 3);
        blocks.extend(content(last, 1));
        blocks
    };
    world.hold(&target("w1#1/1"), &content(1, 2));
    let first = [content(1, 3), prompt(2), prompt(3), prompt(4), prompt(5)];
    let steps = first.into_iter().chain([content(6, 3)]);
    let mut seen = Vec::new();
    for (number, blocks) in steps.enumerate() {
        let mut request = world.request(&blocks);
        request.isl = Tokens::new(u64::try_from(blocks.len()).unwrap() * BLOCK);
        let decision = world.decide(&request, None).unwrap();
        let rank = decision.target().unwrap().dp_rank.get();
        let least = decision.scores().iter().filter_map(|it| it.weighed);
        seen.push((rank, least.fold(f64::INFINITY, f64::min)));
        if number == 0 {
            let now = world.now;
            world.router.abandon(request.id, now);
        }
    }
    let logged = [(1, 4.0), (1, 6.0), (0, 8.0), (1, 9.0), (1, 12.0), (0, 14.0)];
    assert_eq!(seen, logged);
}

#[test]
fn blocks_are_active_until_their_request_ends_in_whatever_way() {
    let mut world = world(1, 1, "dynamo");
    let active = |world: &mut World| {
        let request = world.request(&content(1, 4));
        let views = [world.view(&request)];
        let (router, now) = (&world.router, world.now);
        let decision = router
            .preview(&request, Some(&views), None, now, 1)
            .unwrap();
        let tally = decision.snapshot.candidates[0].tally;
        (tally.active_blocks, tally.joined_blocks)
    };
    let now = world.now;
    let [first, second, third] = [1, 1, 2].map(|name| {
        let request = world.request(&content(name, 4));
        world.decide(&request, None).unwrap()
    });
    assert_eq!(active(&mut world), (8, 4));
    world.router.first_token(first.id, now);
    world.router.finish(first.id, &served(), now);
    assert_eq!(active(&mut world), (8, 4));
    world.router.finish(second.id, &ended(Status::Failed), now);
    assert_eq!(active(&mut world), (4, 0));
    world.router.abandon(third.id, now);
    assert_eq!(active(&mut world), (0, 0));
}

#[test]
fn prefill_is_assigned_for_three_minutes() {
    let mut world = world(1, 1, "preble_e2");
    let assigned = |world: &mut World| {
        let decision = turn(world, "c");
        let now = world.now;
        world.router.abandon(decision.id, now);
        world.router.expire(now);
        decision.snapshot.candidates[0].tally.assigned
    };
    let tokens = (4 * BLOCK + BLOCK / 2) as f64;
    assert_eq!(assigned(&mut world), 0.0);
    world.wait(100.0);
    assert_eq!(assigned(&mut world), tokens);
    world.wait(79.0);
    assert_eq!(assigned(&mut world), 2.0 * tokens);
    world.wait(1.0);
    assert_eq!(assigned(&mut world), 2.0 * tokens, "the first is over");
}

#[test]
fn cold_requests_go_round_and_those_that_find_something_do_not_count() {
    let mut world = world(3, 1, "llmd_blend");
    let mut places = Vec::new();
    for number in 0..6 {
        let request = world.request(&content(10 + number, 4));
        let decision = world.decide(&request, None).unwrap();
        end(&mut world, &decision);
        places.push(decision.place.worker().to_string());
        world.wait(1.0);
    }
    assert_eq!(places[..3], places[3..], "longest ago first");
    world.hold(&target("w1#1/0"), &content(50, 4));
    let warm = world.request(&content(50, 4));
    let decision = world.decide(&warm, None).unwrap();
    assert_eq!(decision.place.worker().as_str(), "w1");
    let before: Vec<_> = cold_at(&decision);
    let request = world.request(&content(60, 4));
    let decision = world.decide(&request, None).unwrap();
    assert_eq!(cold_at(&decision), before);
}

fn cold_at(decision: &Decision) -> Vec<Option<domain::Timestamp>> {
    let candidates = decision.snapshot.candidates.iter();
    candidates.map(|it| it.tally.cold_at).collect()
}

#[test]
fn ours_counts_nothing_of_all_this() {
    let mut world = world(2, 2, "kv");
    for _ in 0..4 {
        let decision = turn(&mut world, "c");
        assert_eq!(decision.request.stuck, None);
        let mut candidates = decision.snapshot.candidates.iter();
        assert!(candidates.all(|it| it.tally == Tally::default()));
    }
}

#[test]
fn another_policy_finds_what_it_asks_for_in_the_snapshots_of_ours() {
    let mut world = world(2, 2, "kv");
    world.router.keep_for("dynamo".parse().unwrap());
    world.router.keep_for("sticky_least".parse().unwrap());
    let first = turn(&mut world, "c");
    let second = turn(&mut world, "d");
    let counts = |it: &placement::Candidate| (it.tally.active_blocks, it.tally.conversations);
    let at = |decision: &Decision| counts(decision.candidate(first.target().unwrap()).unwrap());
    assert_eq!((at(&first), at(&second)), ((0, 0), (4, 1)));
}
