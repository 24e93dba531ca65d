//! Who decides the rank: the router, or an engine that keeps conversations on ranks by itself.

use affinity::{Binding, Evidence, MoveReason, Owner};
use domain::{
    Capability, Drain, FirstRank, HeaderSpace, RankControl, TargetState, Timestamp, Worker,
};
use placement::Place;
use routing::{BindingAction, Config, Decision, Degraded, NoTarget, RankSources, Reason};

use crate::world::{World, bound, content, model, target, worker};

/// A worker of an engine that owns conversations.
fn owning(id: &str, control: RankControl) -> Worker {
    Worker {
        capability: Capability {
            owns_bindings: true,
            ..Capability::uniform(control, HeaderSpace::Global)
        },
        ..worker(id, 4)
    }
}

fn world(workers: &[Worker], source: Option<Owner>) -> World {
    let mut world = World::new(0, 0, Config::default());
    for worker in workers {
        world.router.set_worker(worker.clone());
    }
    world.router.set_rank_sources(RankSources {
        default: source,
        ..RankSources::default()
    });
    world
}

fn engine_bound(at: &str, evidence: Evidence) -> Binding {
    Binding {
        owner: Owner::Engine,
        evidence,
        ..bound("c", at, 12_800)
    }
}

fn turn(world: &mut World, binding: Option<&Binding>) -> Decision {
    let turn = world.turn("c", &content(1, 100));
    world.decide(&turn, binding).unwrap()
}

fn is_worker(decision: &Decision, id: &str) -> bool {
    matches!(&decision.place, Place::Worker { worker, .. } if worker.as_str() == id)
}

#[test]
fn where_the_engine_owns_conversations_only_the_worker_is_chosen() {
    let engines = ["w1", "w2"].map(|id| owning(id, RankControl::None));
    let mut world = world(&engines, None);
    let first = turn(&mut world, None);
    assert_eq!(first.target(), None, "no rank is asked for");
    assert_eq!(first.binding, BindingAction::Create);
    assert_eq!(first.degraded, [], "and none is missing");
}

/// BC-08: the router would prefer another rank, the engine has its own mind.
#[test]
fn what_the_router_would_prefer_on_an_engines_worker_changes_nothing() {
    let engines = ["w1", "w2"].map(|id| owning(id, RankControl::None));
    let mut world = world(&engines, None);
    world.hold(&target("w1#1/2"), &content(1, 100));
    for evidence in [Evidence::None, Evidence::Event, Evidence::Answer] {
        let binding = engine_bound("w1#1/0", evidence);
        for _ in 0..5 {
            let decision = turn(&mut world, Some(&binding));
            assert!(is_worker(&decision, "w1"), "{:?}", decision.place);
            assert_eq!(
                (decision.reason, decision.binding),
                (Reason::Bound, BindingAction::Keep)
            );
            let preferred = decision.choice.as_ref().unwrap().place.target();
            assert_eq!(preferred, Some(&target("w1#1/2")), "it stays in the record");
            world.router.abandon(decision.id, world.now);
        }
    }
}

#[test]
fn an_engines_conversation_leaves_its_worker_for_reasons_of_the_worker() {
    let engines = ["w1", "w2"].map(|id| owning(id, RankControl::None));
    let mut world = world(&engines, None);
    world.router.set_drains([Drain {
        worker: "w1".parse().unwrap(),
        dp_rank: None,
        moves: true,
        actor: "operator".parse().unwrap(),
        since: Timestamp::ZERO,
    }]);
    let binding = engine_bound("w1#1/0", Evidence::Answer);
    let drained = turn(&mut world, Some(&binding));
    assert_eq!(drained.binding, BindingAction::Rebind(MoveReason::Drained));
    assert!(is_worker(&drained, "w2"));
    world.router.set_drains([]);
    world.router.remove_worker(&"w1".parse().unwrap());
    let gone = turn(&mut world, Some(&binding));
    assert_eq!(gone.binding, BindingAction::Rebind(MoveReason::Gone));
}

#[test]
fn set_to_router_every_turn_names_the_bound_rank() {
    let engines = [owning("w1", RankControl::FirstTurn)];
    for source in [None, Some(Owner::Router)] {
        let mut world = world(&engines, source);
        let first = turn(&mut world, None);
        let home = first.target().unwrap().clone();
        let later = turn(&mut world, Some(&bound("c", &home.to_string(), 0)));
        assert_eq!(later.target(), Some(&home));
    }
}

#[test]
fn set_to_engine_no_rank_is_named_whatever_the_worker_takes() {
    for control in [RankControl::None, RankControl::FirstTurn] {
        let mut world = world(&[owning("w1", control)], Some(Owner::Engine));
        let first = turn(&mut world, None);
        assert!(is_worker(&first, "w1"));
        assert_eq!(first.binding, BindingAction::Create);
    }
    let mut only = world_of_one_rank();
    let first = turn(&mut only, None);
    assert_eq!(
        first.target(),
        Some(&target("w1#1/0")),
        "an only rank is nobody's choice"
    );
}

fn world_of_one_rank() -> World {
    world(&[worker("w1", 1)], Some(Owner::Engine))
}

#[test]
fn a_model_may_have_its_own_source() {
    let owning = owning("w1", RankControl::FirstTurn);
    let mut world = world(&[owning], Some(Owner::Router));
    world.router.set_rank_sources(RankSources {
        default: Some(Owner::Router),
        by_model: [(model(), Owner::Engine)].into(),
    });
    assert!(is_worker(&turn(&mut world, None), "w1"));
}

#[test]
fn a_worker_that_cannot_do_what_is_set_is_left_out_and_the_key_is_named() {
    let takes_none = Worker {
        capability: Capability::uniform(RankControl::None, HeaderSpace::None),
        ..worker("w1", 4)
    };
    let mut keeps_none = owning("w1", RankControl::None);
    keeps_none.capability.first_rank = FirstRank::ProvedLost;
    let (router, engine) = (Owner::Router, Owner::Engine);
    for (source, refused, why) in [
        (router, takes_none, "takes no rank: leave it out"),
        (
            router,
            owning("w1", RankControl::None),
            "takes no rank: set it to engine",
        ),
        (
            router,
            keeps_none,
            "did not stay on the rank of its first: set it to engine",
        ),
        (engine, worker("w1", 4), "keeps no conversations on ranks"),
    ] {
        let other = match source {
            Owner::Router => worker("w2", 2),
            Owner::Engine => owning("w2", RankControl::None),
        };
        let mut world = world(&[refused.clone(), other], Some(source));
        let error = world.router.refusal(&refused).unwrap().to_string();
        let begin = format!("router.rank_source is {}, but", source.name());
        assert!(error.starts_with(&begin), "{error}");
        assert!(error.contains(why) && error.contains("w1"), "{error}");
        for _ in 0..10 {
            let decision = turn(&mut world, None);
            assert_eq!(decision.place.worker().as_str(), "w2");
            let left_out = decision.candidate(&target("w1#1/0")).unwrap();
            assert_eq!(left_out.state, TargetState::Gone);
        }
        world.router.remove_worker(&"w2".parse().unwrap());
        let alone = world.turn("c", &content(1, 100));
        let alone = world.decide(&alone, None);
        assert!(matches!(alone, Err(NoTarget::NoneReady { .. })));

        world.router.set_rank_sources(RankSources {
            default: None,
            by_model: [(model(), source)].into(),
        });
        let error = world.router.refusal(&refused).unwrap().to_string();
        let begin = format!("router.rank_sources.m is {}, but", source.name());
        assert!(error.starts_with(&begin), "{error}");
        world.router.set_rank_sources(RankSources::default());
        assert_eq!(world.router.refusal(&refused), None);
    }
}

#[test]
fn a_worker_that_takes_no_rank_is_served_as_before_where_nothing_is_set() {
    let takes_none = Worker {
        capability: Capability::uniform(RankControl::None, HeaderSpace::None),
        ..worker("w1", 4)
    };
    let mut world = world(&[takes_none], None);
    let first = turn(&mut world, None);
    assert!(is_worker(&first, "w1"));
    assert_eq!(first.binding, BindingAction::None);
    assert_eq!(first.degraded, [Degraded::RankNotControlled]);
}
