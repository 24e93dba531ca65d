//! What an operator sees of bindings, and does to them.

use crate::rig::*;
use affinity::{Binding, BindingState, Evidence, MoveReason};
use contracts::rpc::{CallError, Filter, Page, Reassign, Search, Unbind};
use domain::Timestamp;

impl Rig {
    async fn reassign(&self, id: &str, to: &str) -> Result<Binding, CallError> {
        let request = Reassign {
            key: key(id),
            to: target(to),
            actor: "operator".parse().unwrap(),
        };
        self.store.reassign(request).await.map(|it| it.binding)
    }

    async fn unbind(&self, id: &str) -> Result<(), CallError> {
        let actor = "operator".parse().unwrap();
        let key = key(id);
        self.store.unbind(Unbind { key, actor }).await
    }

    /// Everything that fits, in pages of `limit`.
    async fn found(&self, filter: Filter, limit: usize) -> Vec<Binding> {
        let mut found = Vec::new();
        let mut after = None;
        loop {
            let filter = filter.clone();
            let search = Search {
                after,
                limit,
                filter,
            };
            let Page { bindings, next } = self.store.search(search).await.unwrap();
            assert!(bindings.len() <= limit);
            found.extend(bindings.into_iter().map(|it| it.binding));
            match next {
                Some(_) => after = next,
                None => return found,
            }
        }
    }

    async fn found_ids(&self, filter: Filter, limit: usize) -> Vec<String> {
        let found = self.found(filter, limit).await;
        let mut ids: Vec<_> = found
            .into_iter()
            .map(|it| it.key.conversation.to_string())
            .collect();
        ids.sort();
        ids
    }
}

#[tokio::test(start_paused = true)]
async fn a_search_finds_each_binding_that_fits_once() {
    const CONVERSATIONS: u32 = 10_000;
    let rig = Rig::start(RigBus::new()).await;
    for conversation in 0..CONVERSATIONS {
        let (worker, rank) = (1 + conversation % 2, conversation % 4);
        let id = format!("c{conversation}");
        rig.turn(&id, &format!("w{worker}#1/{rank}"), 160).await;
    }
    rig.acquire("r1", "open", "w2#1/3").await.unwrap();

    let all = rig.found_ids(Filter::default(), 1_000).await;
    assert_eq!(all.len(), CONVERSATIONS as usize + 1);
    assert!(all.windows(2).all(|it| it[0] != it[1]));

    let at = |worker: &str, dp_rank: Option<u32>| Filter {
        worker: Some(worker.parse().unwrap()),
        dp_rank: dp_rank.map(domain::DpRank::new),
        ..Filter::default()
    };
    assert_eq!(rig.found_ids(at("w1", None), 77).await.len(), 5_000);
    assert_eq!(rig.found_ids(at("w1", Some(2)), 77).await.len(), 2_500);
    assert_eq!(rig.found_ids(at("w3", None), 77).await.len(), 0);
    let open = Filter {
        confirmed: Some(false),
        ..at("w2", Some(3))
    };
    assert_eq!(rig.found_ids(open, 77).await, ["open"]);
    let named = |conversation: &str| Filter {
        conversation: Some(conversation.to_owned()),
        ..Filter::default()
    };
    let sevens = ["c777", "c1777", "c7770", "c7779"];
    let found = rig.found_ids(named("777"), 3).await;
    assert!(sevens.iter().all(|it| found.contains(&(*it).to_owned())));
    assert!(found.iter().all(|it| it.contains("777")));
}

#[tokio::test(start_paused = true)]
async fn a_moved_conversation_goes_on_where_the_operator_put_it() {
    let bus = RigBus::new();
    let rig = Rig::start(bus.clone()).await;
    rig.turn("idle", "w1#1/0", 160).await;
    rig.acquire("r1", "busy", "w1#1/0").await.unwrap();

    for id in ["idle", "busy"] {
        let moved = rig.reassign(id, "w2#1/1").await.unwrap();
        assert_eq!(moved.moved, Some(MoveReason::Operator));
        assert_eq!(moved.actor.as_str(), "operator");
        assert_eq!(moved.evidence, Evidence::None);
    }
    // The turn in flight ends where it ran, and says nothing of where the next one goes.
    rig.confirm("busy", "w1#1/0", "w1#1/0").await.unwrap();
    rig.release("r1", "busy", "w1#1/0", served(160)).await;
    wait(60).await;
    for id in ["idle", "busy"] {
        assert_eq!(rig.turn(id, "w9#1/9", 160).await, target("w2#1/1"));
    }
    let table = bus.table().await;
    assert!(table.iter().all(|it| it.target == target("w2#1/1")));
    assert!(
        table
            .iter()
            .all(|it| it.moved == Some(MoveReason::Operator))
    );

    let unbound = rig.reassign("nobody", "w2#1/1").await;
    assert!(matches!(unbound, Err(CallError::FailedPrecondition { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_released_conversation_is_free_even_while_a_turn_is_in_flight() {
    let bus = RigBus::new();
    let rig = Rig::start(bus.clone()).await;
    rig.acquire("r1", "c", "w1#1/0").await.unwrap();
    rig.unbind("c").await.unwrap();
    assert_eq!(rig.place("c").await, None);
    assert_eq!(bus.table().await, []);

    let bound = rig.acquire("r2", "c", "w2#1/0").await.unwrap();
    assert_eq!(bound.binding.target, target("w2#1/0"));
    rig.release("r1", "c", "w1#1/0", served(160)).await;
    assert_eq!(rig.place("c").await, provisional("w2#1/0"));
    let unbound = rig.unbind("nobody").await;
    assert!(matches!(unbound, Err(CallError::FailedPrecondition { .. })));
}

fn provisional(target: &str) -> Option<(String, bool)> {
    Some((target.to_owned(), false))
}

#[tokio::test(start_paused = true)]
async fn exported_bindings_come_back_unless_bound_again_or_over() {
    let rig = Rig::start(RigBus::new()).await;
    for id in ["kept", "over", "bound-again"] {
        rig.turn(id, "w1#1/3", 160).await;
    }
    let mut exported = rig.found(Filter::default(), 2).await;
    for binding in &mut exported {
        if binding.key.conversation.as_str() == "over" {
            binding.last_end = Timestamp::ZERO;
        }
    }
    rig.kill().await;

    let rig = Rig::start(RigBus::new()).await;
    rig.turn("bound-again", "w2#1/0", 160).await;
    for binding in &exported {
        rig.store.import(binding.clone()).await.unwrap();
    }

    let kept = rig.bound("kept").await.unwrap();
    let before = exported.iter().find(|it| it.key == kept.key).unwrap();
    assert_eq!((&kept, kept.state), (before, BindingState::Confirmed));
    assert_eq!(rig.bound("over").await, None);
    let again = rig.bound("bound-again").await.unwrap();
    assert_eq!(again.target, target("w2#1/0"));
}
