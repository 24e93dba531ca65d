//! Ranks that cannot be asked for, are not honoured, or whose caches nothing announces.

use std::time::Duration;

use accounting::RankKnowledge;
use domain::{
    ByEndpoint, DpRank, Endpoint, EngineKind, Epoch, KvEndpoints, RankControl, TargetState, Tokens,
};
use placement::{Barred, Place, Policy};
use proptest::prelude::*;
use routing::{BindingAction, Config, Degraded, Outcome, Pin, Reason, Request, Status};

use crate::world::{
    BLOCK, World, bound, content, conversation, ended, served, target, usage, worker,
};

/// Two workers of two ranks that take no rank at `/v1/responses`.
fn half_controlled(policy: Policy) -> World {
    let config = Config {
        policy,
        ..Config::default()
    };
    let mut world = World::new(0, 2, config);
    for id in ["w1", "w2"] {
        let mut it = worker(id, 2);
        it.capability.rank_control = ByEndpoint::of(|endpoint| match endpoint {
            Endpoint::Responses => RankControl::None,
            _ => RankControl::Strict,
        });
        world.router.set_worker(it);
    }
    world
}

fn at(endpoint: Endpoint, request: Request) -> Request {
    Request {
        endpoint,
        ..request
    }
}

fn place_of(id: &str) -> Place {
    Place::Worker {
        worker: id.parse().unwrap(),
        epoch: Epoch::FIRST,
    }
}

#[test]
fn where_a_rank_would_be_ignored_only_the_worker_is_named() {
    let mut world = half_controlled(Policy::KV);
    world.hold(&target("w2#1/1"), &content(1, 6));
    let turn = world.turn("c", &content(1, 10));
    let decision = world
        .decide(&at(Endpoint::Responses, turn.clone()), None)
        .unwrap();
    assert_eq!(decision.place, place_of("w2"));
    assert_eq!(decision.degraded, [Degraded::RankNotControlled]);
    assert_eq!(decision.binding, BindingAction::None);
    assert_eq!(decision.uncached, None);
    let decision = world.decide(&turn, None).unwrap();
    assert_eq!(decision.target(), Some(&target("w2#1/1")));
    assert_eq!(decision.degraded, []);
    assert_eq!(decision.binding, BindingAction::Create);
}

#[test]
fn a_bound_conversation_keeps_its_worker_where_its_rank_cannot_be_asked_for() {
    let mut world = half_controlled(Policy::KV);
    world.hold(&target("w1#1/0"), &content(1, 9));
    let binding = bound("c", "w2#1/1", 0);
    let turn = world.turn("c", &content(1, 10));
    let turn = at(Endpoint::Responses, turn);
    let decision = world.decide(&turn, Some(&binding)).unwrap();
    assert_eq!(decision.place, place_of("w2"));
    assert_eq!(decision.reason, Reason::Bound);
    assert_eq!(decision.binding, BindingAction::None);
    let first = world.decide(&turn, None).unwrap();
    assert_eq!(first.place, place_of("w1"));
    let now = world.now;
    let followed = world.router.follow(&first, &turn, &binding, now);
    assert_eq!(followed.place, place_of("w2"));
    assert_eq!(followed.degraded, [Degraded::RankNotControlled]);
    assert_eq!(followed.binding, BindingAction::None);
}

#[test]
fn a_rank_insisted_on_is_marked_where_it_cannot_be_asked_for() {
    let mut world = half_controlled(Policy::KV);
    let request = Request {
        pin: Some(Pin {
            worker: "w1".parse().unwrap(),
            dp_rank: Some(DpRank::new(1)),
        }),
        ..at(Endpoint::Responses, world.request(&content(1, 2)))
    };
    let decision = world.decide(&request, None).unwrap();
    assert_eq!(decision.place, place_of("w1"));
    assert_eq!(decision.degraded, [Degraded::RankNotControlled]);
}

#[test]
fn who_wants_no_rank_lacks_none_and_a_single_rank_is_always_the_one() {
    let mut world = half_controlled(Policy::RoundRobin);
    let request = at(Endpoint::Responses, world.request(&content(1, 2)));
    assert_eq!(world.decide(&request, None).unwrap().degraded, []);

    let mut world = World::new(0, 1, Config::default());
    let mut single = worker("w1", 1);
    single.capability.rank_control = ByEndpoint::of(|_| RankControl::None);
    world.router.set_worker(single);
    let request = world.request(&content(1, 2));
    let decision = world.decide(&request, None).unwrap();
    assert_eq!(decision.target(), Some(&target("w1#1/0")));
    assert_eq!(decision.degraded, []);
}

#[test]
fn work_at_a_worker_whose_rank_cannot_be_asked_for_counts_from_its_decision() {
    let mut world = half_controlled(Policy::KV);
    let mut sent = Vec::new();
    for number in 0..40 {
        let request = at(Endpoint::Responses, world.request(&content(number, 60)));
        let decision = world.decide(&request, None).unwrap();
        sent.push((request.id, decision.place.worker().to_string()));
    }
    let first = sent.iter().filter(|it| it.1 == "w1").count();
    assert!((19..=21).contains(&first), "{first} of 40");
    let pending = |world: &World| -> u64 {
        let targets = ["w1#1/0", "w1#1/1", "w2#1/0", "w2#1/1"].map(target);
        let pending = targets
            .iter()
            .map(|it| world.router.pending(it, world.now).get());
        pending.sum()
    };
    assert_eq!(pending(&world), 40 * (60 * BLOCK + BLOCK / 2));
    for (id, _) in sent {
        world.router.finish(id, &served(), world.now);
    }
    assert_eq!(pending(&world), 0);
    let request = world.request(&content(1, 1));
    let decision = world.decide(&request, None).unwrap();
    assert!(decision.snapshot.candidates.iter().all(|it| it.active == 0));
}

#[test]
fn a_refused_rank_is_avoided_at_its_endpoint_for_the_failure_lease_and_its_siblings_are_not() {
    let mut world = World::new(2, 2, Config::default());
    world.hold(&target("w1#1/0"), &content(1, 50));
    let request = world.request(&content(1, 60));
    world.decide(&request, None).unwrap();
    let refused = ended(Status::RankRefused);
    world.router.finish(request.id, &refused, world.now);
    let barred = |world: &mut World, endpoint| {
        let request = at(endpoint, world.request(&content(1, 60)));
        let decision = world.decide(&request, None).unwrap();
        let barred = |it| decision.candidate(&target(it)).unwrap().barred;
        assert_eq!(barred("w1#1/1"), None);
        let chosen = decision.target() == Some(&target("w1#1/0"));
        (barred("w1#1/0"), chosen)
    };
    let avoided = (Some(Barred::FailedLately), false);
    assert_eq!(barred(&mut world, Endpoint::Chat), avoided);
    assert_eq!(barred(&mut world, Endpoint::Completions), (None, true));
    world.wait(10.0);
    world.router.expire(world.now);
    assert_eq!(barred(&mut world, Endpoint::Chat), (None, true));
}

/// Four slots without events.
fn eventless(engine: EngineKind) -> World {
    let mut world = World::new(0, 4, Config::default());
    let mut it = worker("w1", 4);
    it.engine = engine;
    it.kv_endpoints = KvEndpoints::None;
    it.kv_blocks = Some(64);
    world.router.set_worker(it);
    world
}

fn found(cached: u64) -> Outcome {
    Outcome {
        usage: Some(usage(0, 5, Some(cached))),
        ..served()
    }
}

#[test]
fn a_conversation_without_events_comes_back_to_where_its_prompt_was_sent() {
    for engine in [EngineKind::LlamaCpp, EngineKind::Vllm] {
        let mut world = eventless(engine);
        let mut home = None;
        for turn in 1..6 {
            let request = world.request(&content(1, turn * 3));
            let decision = world.decide(&request, None).unwrap();
            assert_eq!(decision.degraded, [Degraded::NoEvents]);
            let at = decision.target().unwrap().clone();
            let presumed = Tokens::new((turn - 1) * 3 * BLOCK);
            assert_eq!(decision.candidate(&at).unwrap().presumed, presumed);
            assert_eq!(decision.held_at(&at), Some(presumed));
            assert_eq!(home.get_or_insert(at.clone()), &at, "turn {turn}");
            world.router.first_token(request.id, world.now);
            let cached = found(presumed.get());
            let cached = Outcome {
                usage: Some(usage(
                    request.isl.get(),
                    5,
                    cached.usage.unwrap().cached.map(Tokens::get),
                )),
                ..cached
            };
            let row = world.router.finish(request.id, &cached, world.now).unwrap();
            assert_eq!((row.chosen(), row.realised()), (presumed, Some(presumed)));
            assert_eq!(
                row.parts().sum(),
                (request.isl.get() - presumed.get()) as i64
            );
            // Others pass by, to the other slots.
            let other = world.request(&content(100 + turn, 2));
            world.decide(&other, None).unwrap();
            world
                .router
                .finish(other.id, &ended(Status::Cancelled), world.now);
        }
        world.wait(600.0);
        let request = world.request(&content(1, 20));
        let decision = world.decide(&request, None).unwrap();
        assert_eq!(decision.held_at(&home.unwrap()), Some(Tokens::ZERO));
    }
}

#[test]
fn a_slot_that_holds_a_prompt_is_dearer_than_one_that_does_not() {
    let mut world = eventless(EngineKind::LlamaCpp);
    let mut homes = Vec::new();
    for turn in 1..4 {
        for name in 0..4 {
            let request = world.request(&content(name, turn * 4));
            let decision = world.decide(&request, None).unwrap();
            let at = decision.target().unwrap().clone();
            if turn == 1 {
                assert!(!homes.contains(&at), "{name}");
                homes.push(at);
            } else {
                assert_eq!(homes[name as usize], at, "{name}");
            }
            world.router.first_token(request.id, world.now);
            world.router.finish(request.id, &served(), world.now);
        }
    }
}

#[test]
fn a_binding_is_not_given_up_for_what_no_event_could_have_shown() {
    let mut world = eventless(EngineKind::Vllm);
    world.router.set_worker(worker("w2", 1));
    world.hold(&target("w2#1/0"), &content(1, 3));
    let turn = world.turn("c", &content(1, 10));
    let binding = bound("c", "w1#1/2", 10 * BLOCK);
    let decision = world.decide(&turn, Some(&binding)).unwrap();
    assert_eq!(
        decision.reason,
        Reason::Bound,
        "as after a router's restart"
    );
    assert_eq!(decision.target(), Some(&target("w1#1/2")));
}

#[test]
fn a_prompt_that_was_displaced_unseen_is_held_once_it_has_been_computed_again() {
    for engine in [EngineKind::LlamaCpp, EngineKind::Vllm] {
        let mut world = eventless(engine);
        let mut turn = |blocks: u64, cached: u64| {
            let request = world.request(&content(1, blocks));
            let decision = world.decide(&request, None).unwrap();
            world.router.first_token(request.id, world.now);
            world.router.finish(request.id, &found(cached), world.now);
            decision.held_at(decision.target().unwrap())
        };
        assert_eq!(turn(10, 0), Some(Tokens::ZERO));
        assert_eq!(turn(12, 4 * BLOCK + 5), Some(Tokens::new(10 * BLOCK)));
        assert_eq!(turn(14, 12 * BLOCK), Some(Tokens::new(12 * BLOCK)));
    }
}

#[test]
fn what_the_engine_did_not_find_is_not_presumed_of_other_prompts_either() {
    let mut world = eventless(EngineKind::Vllm);
    let long = content(1, 10);
    let branch: Vec<_> = [&long[..6], &content(2, 2)].concat();
    let mut turn = |blocks: &[_], cached: u64| {
        let request = world.request(blocks);
        let decision = world.decide(&request, None).unwrap();
        world.router.first_token(request.id, world.now);
        world.router.finish(request.id, &found(cached), world.now);
        decision.held_at(decision.target().unwrap())
    };
    assert_eq!(turn(&long, 0), Some(Tokens::ZERO));
    assert_eq!(turn(&branch, 2 * BLOCK), Some(Tokens::new(6 * BLOCK)));
    assert_eq!(turn(&long, 6 * BLOCK), Some(Tokens::new(6 * BLOCK)));
}

#[test]
fn a_prompt_is_presumed_where_it_ran_not_where_it_was_asked_to() {
    let mut world = eventless(EngineKind::LlamaCpp);
    let request = world.request(&content(1, 10));
    let asked = world
        .decide(&request, None)
        .unwrap()
        .target()
        .unwrap()
        .clone();
    let ran = (asked.dp_rank.get() + 1) % 4;
    world.router.first_token(request.id, world.now);
    let outcome = Outcome {
        observed_rank: Some(DpRank::new(ran)),
        ..found(0)
    };
    world.router.finish(request.id, &outcome, world.now);
    let request = world.request(&content(1, 12));
    let decision = world.decide(&request, None).unwrap();
    assert_eq!(decision.held_at(&asked), Some(Tokens::ZERO));
    assert_eq!(decision.target().unwrap().dp_rank.get(), ran);
}

#[test]
fn outcomes_teach_what_a_partial_rank_holds_until_they_contradict_it() {
    let mut world = World::new(1, 2, Config::default());
    let partial = target("w1#1/1");
    world.not_ready = vec![(partial.clone(), TargetState::Partial)];
    let turn = |world: &mut World, cached: u64| {
        let mut request = world.request(&content(1, 10));
        request.conversation = Some(conversation("c"));
        let binding = bound("c", "w1#1/1", 0);
        let decision = world.decide(&request, Some(&binding)).unwrap();
        assert_eq!(decision.target(), Some(&partial));
        assert_eq!(decision.degraded, []);
        world.router.first_token(request.id, world.now);
        let row = world.router.finish(request.id, &found(cached), world.now);
        assert_eq!(row.unwrap().rank(), RankKnowledge::Known);
        decision.held_at(&partial).unwrap().get() / BLOCK
    };
    assert_eq!(turn(&mut world, 6 * BLOCK), 0);
    assert_eq!(turn(&mut world, 8 * BLOCK), 6);
    assert_eq!(turn(&mut world, 2 * BLOCK), 8);
    assert_eq!(turn(&mut world, 2 * BLOCK), 2);
    world.wait(601.0);
    assert_eq!(turn(&mut world, 6 * BLOCK), 0);
    world.not_ready.clear();
    assert_eq!(turn(&mut world, 6 * BLOCK), 0, "complete claims need none");
}

proptest! {
    #[test]
    fn whatever_is_presumed_the_waterfall_adds_up(
        turns in prop::collection::vec((0_u64..3, 1_u64..30, 0_u64..40, 0_u64..300, any::<bool>()), 1..40),
    ) {
        let mut world = eventless(EngineKind::Vllm);
        for (name, blocks, cached, seconds, indexed) in turns {
            let request = world.request(&content(name, blocks));
            let decision = match indexed {
                true => world.decide(&request, None),
                false => world.decide_blind(&request, None),
            };
            let decision = decision.unwrap();
            let at = decision.candidate(decision.target().unwrap()).unwrap();
            prop_assert_eq!(at.held.disk, at.presumed);
            world.router.first_token(request.id, world.now);
            let cached = (cached * BLOCK).min(request.isl.get() - 1);
            let outcome = Outcome {
                usage: Some(usage(request.isl.get(), 1, Some(cached))),
                ..served()
            };
            let row = world.router.finish(request.id, &outcome, world.now).unwrap();
            let levels = [row.ceiling(), row.stored(), row.best(), row.ready(), row.chosen()];
            prop_assert!(levels.is_sorted_by(|a, b| a >= b));
            let lost = i64::try_from(row.isl().get()).unwrap()
                - i64::try_from(row.realised().unwrap().get()).unwrap();
            prop_assert_eq!(row.parts().sum(), lost);
            world.now += Duration::from_secs(seconds);
        }
    }
}
