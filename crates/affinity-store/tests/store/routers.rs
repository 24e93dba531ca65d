//! Over a bus in memory, in paused time.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use crate::rig::*;
use affinity::{Binding, MoveReason, TurnEnd};
use affinity_store::Config;
use bus::Expect;
use contracts::Encoding as _;
use contracts::rpc::CallError;
use tokio::task::JoinSet;

fn provisional(target: &str) -> Option<(String, bool)> {
    Some((target.to_owned(), false))
}

fn confirmed(target: &str) -> Option<(String, bool)> {
    Some((target.to_owned(), true))
}

/// BC-03: 10,000 conversations, whose first turns come to four routers of two stores at once.
#[tokio::test(start_paused = true)]
async fn of_racing_first_turns_one_binds_and_the_others_follow() {
    const CONVERSATIONS: usize = 10_000;
    const ROUTERS: usize = 4;
    let bus = RigBus::new();
    // Two stores, as while one takes over from another: the table decides all the same.
    let stores = [Rig::start(bus.clone()).await, Rig::start(bus.clone()).await];

    let mut turns = JoinSet::new();
    for conversation in 0..CONVERSATIONS {
        for router in 0..ROUTERS {
            let store = stores[router % 2].store.clone();
            let id = format!("c{conversation}");
            let turn = acquire(&format!("r{router}"), &id, &format!("w{router}#1/0"));
            turns.spawn(async move { (id, store.acquire(turn).await) });
        }
    }
    let mut answered: BTreeMap<String, Vec<String>> = BTreeMap::new();
    while let Some(turn) = turns.join_next().await {
        let (id, bound) = turn.unwrap();
        let target = bound.unwrap().binding.target.to_string();
        answered.entry(id).or_default().push(target);
    }

    assert_eq!(answered.len(), CONVERSATIONS);
    for targets in answered.values() {
        assert_eq!(targets.len(), ROUTERS);
        assert!(targets.iter().all(|it| it == &targets[0]), "{targets:?}");
    }
    let table = bus.table().await;
    assert_eq!(table.len(), CONVERSATIONS);
    for binding in table {
        let id = binding.key.conversation.as_str();
        assert_eq!(binding.target.to_string(), answered[id][0]);
    }
}

/// BC-06: a binding whose first turn was never served does not stay.
#[tokio::test(start_paused = true)]
async fn a_turn_that_fails_before_a_byte_leaves_the_conversation_free() {
    let bus = RigBus::new();
    let rig = Rig::start(bus.clone()).await;
    rig.acquire("r1", "c", "w1#1/0").await.unwrap();
    rig.release("r1", "c", "w1#1/0", TurnEnd::Unserved).await;

    assert_eq!(rig.place("c").await, None);
    assert_eq!(bus.table().await, []);
    let bound = rig.acquire("r2", "c", "w2#1/0").await.unwrap();
    assert_eq!(bound.binding.target, target("w2#1/0"));
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_a_dead_router_had_in_flight_ends_with_its_lease() {
    let bus = RigBus::new();
    let rig = Rig::start(bus.clone()).await;
    rig.acquire("dead", "a", "w1#1/0").await.unwrap();
    rig.acquire("dead", "b", "w1#1/0").await.unwrap();
    rig.acquire("live", "b", "w1#1/0").await.unwrap();
    for _ in 0..4 {
        wait(5).await;
        rig.renew("live", &["b"]).await;
    }

    assert_eq!(rig.place("a").await, None);
    assert_eq!(rig.place("b").await, provisional("w1#1/0"));
    assert_eq!(bus.table().await.len(), 1, "written as a deletion");
    assert_eq!(rig.metric("rankway_bindings", "provisional"), 1.0);
}

#[tokio::test(start_paused = true)]
async fn an_idle_binding_ends_half_an_hour_after_its_last_stream() {
    let bus = RigBus::new();
    let rig = Rig::start(bus.clone()).await;
    rig.turn("c", "w1#1/0", 160).await;
    wait(1700).await;
    rig.turn("c", "w2#1/0", 160).await;
    wait(1799).await;
    assert_eq!(rig.place("c").await, confirmed("w1#1/0"));
    wait(2).await;

    assert_eq!(rig.place("c").await, None);
    assert_eq!(bus.table().await, []);
    assert_eq!(rig.metric("rankway_bindings", "confirmed"), 0.0);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_was_killed_comes_back_with_every_binding() {
    let bus = RigBus::new();
    let rig = Rig::start(bus.clone()).await;
    for conversation in 0..500 {
        let to = format!("w1#1/{}", conversation % 8);
        rig.turn(&format!("c{conversation}"), &to, 160).await;
    }
    rig.acquire("r1", "young", "w2#1/0").await.unwrap();
    rig.acquire("r2", "orphan", "w2#1/1").await.unwrap();
    rig.kill().await;
    wait(60).await;

    let rig = Rig::start(bus.clone()).await;
    for conversation in 0..500 {
        let binding = rig.bound(&format!("c{conversation}")).await.unwrap();
        assert_eq!(binding.target.dp_rank.get(), conversation % 8);
        assert_eq!((binding.held.get(), binding.turns), (160, 1));
    }
    assert_eq!(rig.metric("rankway_bindings", "confirmed"), 500.0);
    wait(10).await;
    rig.renew("r1", &["young"]).await;
    wait(10).await;
    assert_eq!(rig.place("young").await, provisional("w2#1/0"));
    assert_eq!(rig.place("orphan").await, None, "one lease from the start");
}

#[tokio::test(start_paused = true)]
async fn a_lost_race_against_another_writer_is_decided_anew_on_what_it_wrote() {
    let bus = RigBus::new();
    let rig = Rig::start(bus.clone()).await;
    let bound = rig.acquire("r1", "c", "w1#1/0").await.unwrap();
    let gate = bus.gate("c");
    let store = rig.store.clone();
    let mut confirming = JoinSet::new();
    confirming.spawn(async move {
        let here = target("w1#1/0");
        let request = contracts::rpc::Confirm {
            key: key("c"),
            asked: here.clone(),
            observed: here,
            evidence: affinity::Evidence::Asked,
            actor: "r1".parse().unwrap(),
        };
        store.confirm(request).await
    });
    settle().await;
    let foreign = Binding {
        target: target("w2#1/3"),
        moved: Some(MoveReason::Operator),
        ..bound.binding
    };
    let expect = Expect::At(bound.revision);
    let revision = bus.write("c", Some(foreign.to_bytes()), expect).await;
    gate.add_permits(10);

    let seen = confirming.join_next().await.unwrap().unwrap().unwrap();
    assert_eq!(
        (seen.binding.target, seen.revision),
        (target("w2#1/3"), revision)
    );
    assert_eq!(rig.place("c").await, provisional("w2#1/3"));
    assert_eq!(rig.metric("rankway_binding_rereads_total", ""), 1.0);
}

#[tokio::test(start_paused = true)]
async fn what_another_writer_does_is_seen_without_being_asked() {
    let bus = RigBus::new();
    let rig = Rig::start(bus.clone()).await;
    rig.turn("moved", "w1#1/0", 160).await;
    rig.turn("gone", "w1#1/0", 160).await;
    for (id, moved_to) in [("moved", Some("w2#1/0")), ("gone", None)] {
        let entry = bus.entry(id).await.unwrap();
        let mut binding = Binding::from_bytes(&entry.value).unwrap();
        let value = moved_to.map(|to| {
            binding.target = target(to);
            binding.to_bytes()
        });
        bus.write(id, value, Expect::At(entry.revision)).await;
    }
    let new = rig.bound("moved").await.unwrap();
    let value = Some(new.to_bytes());
    bus.write("new", value, Expect::Absent).await;
    settle().await;

    assert_eq!(rig.place("moved").await, confirmed("w2#1/0"));
    assert_eq!(rig.place("gone").await, None);
    assert_eq!(rig.store.list(10).await.unwrap().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_move_from_what_is_no_longer_so_is_refused() {
    let rig = Rig::start(RigBus::new()).await;
    let first = rig.acquire("r1", "c", "w1#1/0").await.unwrap();
    let moved = rig.rebind("c", first.revision, "w2#1/0").await.unwrap();
    assert_eq!(moved.binding.moved, Some(MoveReason::Gone));

    let late = rig.rebind("c", first.revision, "w3#1/0").await;
    assert!(matches!(late, Err(CallError::FailedPrecondition { .. })));
    assert_eq!(rig.place("c").await, provisional("w2#1/0"));
    let unbound = rig.confirm("other", "w1#1/0", "w1#1/0").await;
    assert!(matches!(unbound, Err(CallError::FailedPrecondition { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_rank_that_the_engine_chose_itself_is_followed_once_and_counted() {
    let rig = Rig::start(RigBus::new()).await;
    rig.turn("c", "w1#1/3", 160).await;
    rig.acquire("r1", "c", "w1#1/0").await.unwrap();
    rig.confirm("c", "w1#1/3", "w1#1/1").await.unwrap();
    assert_eq!(rig.place("c").await, confirmed("w1#1/1"));
    rig.confirm("c", "w1#1/1", "w1#1/2").await.unwrap();

    assert_eq!(rig.place("c").await, confirmed("w1#1/1"));
    assert_eq!(rig.metric("rankway_binding_conflicts_total", "w1"), 2.0);
}

#[tokio::test(start_paused = true)]
async fn beyond_the_bound_those_end_first_that_have_been_idle_for_longest() {
    let bus = RigBus::new();
    let config = Config {
        capacity: 10,
        ..Config::default()
    };
    let rig = Rig::start_with(bus.clone(), config.clone()).await;
    for conversation in 0..10 {
        rig.turn(&format!("c{conversation}"), "w1#1/0", 160).await;
        wait(1).await;
    }
    // The oldest is used again, so another is the oldest now.
    rig.turn("c0", "w1#1/0", 160).await;
    for conversation in 10..15 {
        rig.turn(&format!("c{conversation}"), "w1#1/1", 160).await;
        wait(1).await;
    }

    for conversation in 0..15 {
        let ended = (1..=5).contains(&conversation);
        let place = rig.place(&format!("c{conversation}")).await;
        assert_eq!(place.is_none(), ended, "c{conversation}");
    }
    assert_eq!(bus.table().await.len(), 10);
    assert_eq!(rig.metric("rankway_bindings_displaced_total", ""), 5.0);
    assert_eq!(rig.metric("rankway_bindings", "confirmed"), 10.0);
    rig.kill().await;

    let fewer = Config {
        capacity: 4,
        ..config
    };
    let rig = Rig::start_with(bus.clone(), fewer).await;
    settle().await;
    assert_eq!(
        bus.table().await.len(),
        4,
        "a lower bound holds for what is there too"
    );
    assert_eq!(rig.place("c14").await, confirmed("w1#1/1"));
}

#[tokio::test(start_paused = true)]
async fn what_is_in_flight_never_makes_room() {
    let config = Config {
        capacity: 10,
        ..Config::default()
    };
    let rig = Rig::start_with(RigBus::new(), config).await;
    for conversation in 0..100 {
        let id = format!("c{conversation}");
        rig.acquire("r1", &id, "w1#1/0").await.unwrap();
    }
    for conversation in 0..100 {
        let id = format!("c{conversation}");
        rig.release("r1", &id, "w1#1/0", TurnEnd::Unserved).await;
        assert_eq!(rig.place(&id).await, None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_write_holds_up_its_own_conversation_only() {
    let bus = RigBus::new();
    let rig = Rig::start(bus.clone()).await;
    let gate = bus.gate("slow");
    let store = rig.store.clone();
    let mut slow = JoinSet::new();
    slow.spawn(async move { store.acquire(acquire("r1", "slow", "w1#1/0")).await });
    settle().await;

    rig.acquire("r1", "fast", "w1#1/1").await.unwrap();
    assert!(slow.try_join_next().is_none());
    gate.add_permits(1);
    slow.join_next().await.unwrap().unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_joins_during_a_write_is_not_forgotten_by_it() {
    let bus = RigBus::new();
    let rig = Rig::start(bus.clone()).await;
    let bound = rig.acquire("r1", "c", "w1#1/0").await.unwrap();
    let gate = bus.gate("c");
    let mut calls = JoinSet::new();
    let store = rig.store.clone();
    let request = rebind("c", bound.revision, "w2#1/0");
    calls.spawn(async move { store.rebind(request).await });
    settle().await;
    let store = rig.store.clone();
    calls.spawn(async move { store.acquire(acquire("r2", "c", "w3#1/0")).await });
    settle().await;
    gate.add_permits(10);
    while let Some(call) = calls.join_next().await {
        let bound = call.unwrap().unwrap();
        assert_eq!(bound.binding.target, target("w2#1/0"));
    }

    rig.release("r1", "c", "w1#1/0", TurnEnd::Unserved).await;
    rig.release("r1", "c", "w2#1/0", TurnEnd::Unserved).await;
    assert_eq!(rig.place("c").await, provisional("w2#1/0"));
    rig.release("r2", "c", "w2#1/0", TurnEnd::Unserved).await;
    assert_eq!(rig.place("c").await, None);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_takes_nothing_with_it() {
    let bus = RigBus::new();
    let rig = Rig::start(bus.clone()).await;
    let gate = bus.gate("c");
    let late = rig.acquire("r1", "c", "w1#1/0").await;
    assert_eq!(
        late,
        Err(CallError::DeadlineExceeded {
            service: "affinity-store"
        })
    );
    gate.add_permits(10);
    settle().await;

    assert_eq!(rig.place("c").await, None);
    assert_eq!(bus.table().await, []);
    assert_eq!(rig.metric("rankway_affinity_abandoned_total", ""), 1.0);
}

#[tokio::test(start_paused = true)]
async fn while_the_bus_refuses_writes_what_is_bound_is_still_answered() {
    let bus = RigBus::new();
    let rig = Rig::start(bus.clone()).await;
    rig.turn("old", "w1#1/0", 160).await;
    bus.refuses.store(true, Ordering::Relaxed);

    let refused = rig.acquire("r1", "new", "w1#1/1").await.unwrap_err();
    assert!(refused.is_retryable());
    let joined = rig.acquire("r1", "old", "w9#1/0").await.unwrap();
    assert_eq!(joined.binding.target, target("w1#1/0"));
    bus.refuses.store(false, Ordering::Relaxed);
    let bound = rig.acquire("r1", "new", "w1#1/2").await.unwrap();
    assert_eq!(bound.binding.target, target("w1#1/2"));
}

#[tokio::test(start_paused = true)]
async fn an_entry_that_is_no_binding_is_counted_and_replaced() {
    let bus = RigBus::new();
    let rubbish = Some(b"\xff\xff\xff".as_slice().into());
    bus.write("c", rubbish, Expect::Absent).await;
    let rig = Rig::start(bus.clone()).await;

    assert_eq!(rig.place("c").await, None);
    let bound = rig.acquire("r1", "c", "w1#1/0").await.unwrap();
    assert_eq!(bound.binding.target, target("w1#1/0"));
    assert_eq!(bus.table().await.len(), 1);
    assert!(rig.metric("rankway_binding_unreadable_total", "") >= 1.0);
}
