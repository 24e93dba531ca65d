//! Every edge by example.

use super::story::*;
use super::*;

#[test]
fn the_second_router_follows_the_first_and_neither_writes_twice() {
    let mut story = Story::new();
    assert_eq!(story.acquire("r1", "w1#1/0"), Outcome::Created);
    assert_eq!(story.acquire("r2", "w1#1/3"), Outcome::Joined);
    assert_eq!(story.bound(), provisional("w1#1/0"));
    assert_eq!(
        story.confirm("w1#1/0", "w1#1/0", Evidence::Asked),
        Outcome::Confirmed
    );
    story.confirm("w1#1/0", "w1#1/0", Evidence::Asked);
    assert_eq!(story.bound(), confirmed("w1#1/0"));
    assert_eq!(story.puts.len(), 2);
}

#[test]
fn a_conversation_is_free_when_its_last_request_fails_before_a_byte() {
    let mut story = Story::new();
    story.acquire("r1", "w1#1/0");
    story.acquire("r2", "w1#1/0");
    assert_eq!(
        story.release("r1", "w1#1/0", TurnEnd::Unserved),
        Outcome::Unchanged
    );
    assert_eq!(story.bound(), provisional("w1#1/0"));
    assert_eq!(
        story.release("r2", "w1#1/0", TurnEnd::Unserved),
        Outcome::Freed
    );
    assert_eq!(story.standing, Standing::default());
    assert_eq!(story.acquire("r2", "w1#1/1"), Outcome::Created);
}

#[test]
fn a_confirmed_binding_outlives_failed_turns() {
    let mut story = Story::new();
    story.turn(160);
    story.acquire("r1", "w2#1/0");
    story.release("r1", "w1#1/9", TurnEnd::Unserved);
    assert_eq!(story.bound(), confirmed("w9#1/9"));
}

#[test]
fn a_silent_router_loses_its_lease_and_a_renewing_one_keeps_it() {
    let mut story = Story::new();
    story.acquire("r1", "w1#1/0");
    story.acquire("r2", "w1#1/0");
    for _ in 0..10 {
        story.wait(5);
        story.renew("r2");
        assert_eq!(story.bound(), provisional("w1#1/0"));
    }
    assert_eq!(
        story.release("r2", "w1#1/0", TurnEnd::Unserved),
        Outcome::Freed
    );
    story.acquire("r1", "w1#1/0");
    story.wait(15);
    assert_eq!(story.bound(), None);
    assert_eq!(story.apply(Event::Lapse), Ok(Outcome::Expired));
    assert_eq!(story.standing, Standing::default());
}

#[test]
fn idle_time_counts_from_the_end_of_the_last_stream() {
    let mut story = Story::new();
    story.turn(160);
    story.acquire("r1", "w1#1/0");
    for _ in 0..400 {
        story.wait(5);
        story.renew("r1");
    }
    assert_eq!(story.bound(), confirmed("w9#1/9"), "a long stream holds it");
    let held = Tokens::new(160);
    story.release("r1", "w9#1/9", TurnEnd::Served { held });
    story.wait(1799);
    assert_eq!(story.bound(), confirmed("w9#1/9"));
    story.wait(1);
    assert_eq!(story.bound(), None);
    assert_eq!(story.acquire("r1", "w2#1/0"), Outcome::Created);
}

#[test]
fn the_engines_word_moves_a_binding_once() {
    let mut story = Story::new();
    story.turn(160);
    story.acquire("r1", "w1#1/0");
    let mut see = |observed| {
        let asked = story.bound().unwrap().0;
        let outcome = story.confirm(&asked, observed, Evidence::Answer);
        (outcome, story.bound())
    };
    assert_eq!(see("w9#1/1"), (Outcome::Followed, confirmed("w9#1/1")));
    assert_eq!(see("w9#1/2"), (Outcome::Contradicted, confirmed("w9#1/1")));
    story.rebind("r1", "w9#1/4", MoveReason::Operator);
    assert_eq!(
        story.confirm("w9#1/4", "w9#1/5", Evidence::Event),
        Outcome::Followed
    );
}

#[test]
fn what_was_merely_asked_moves_nothing() {
    let mut story = Story::new();
    story.acquire("r1", "w1#1/0");
    let seen = story.confirm("w1#1/0", "w1#1/1", Evidence::Asked);
    assert_eq!(
        (seen, story.bound()),
        (Outcome::Unchanged, provisional("w1#1/0"))
    );
}

#[test]
fn what_a_turn_sent_elsewhere_shows_is_no_word_against_the_binding() {
    let mut story = Story::new();
    story.acquire("r1", "w1#1/0");
    story.rebind("r1", "w1#1/2", MoveReason::Failed);
    let late = story.confirm("w1#1/0", "w1#1/0", Evidence::Answer);
    assert_eq!(
        (late, story.bound()),
        (Outcome::Unchanged, provisional("w1#1/2"))
    );
    let other_worker = story.confirm("w1#1/2", "w2#1/2", Evidence::Answer);
    let other_epoch = story.confirm("w1#1/2", "w1#2/2", Evidence::Answer);
    assert_eq!(
        (other_worker, other_epoch),
        (Outcome::Unchanged, Outcome::Unchanged)
    );
}

#[test]
fn an_engine_that_owns_its_bindings_is_learnt_from_and_then_followed() {
    let mut story = Story::new();
    story.acquire_for(Owner::Engine, "r1", "w1#1/0");
    assert_eq!(
        story.confirm("w1#1/0", "w1#1/3", Evidence::Answer),
        Outcome::Confirmed
    );
    for rank in ["w1#1/1", "w1#1/2"] {
        let asked = story.bound().unwrap().0;
        assert_eq!(
            story.confirm(&asked, rank, Evidence::Answer),
            Outcome::Followed
        );
    }
}

#[test]
fn a_move_makes_the_binding_provisional_and_needs_its_own_release() {
    let mut story = Story::new();
    story.turn(160);
    story.acquire("r1", "w1#1/0");
    assert_eq!(
        story.rebind("r1", "w2#1/0", MoveReason::Fenced),
        Outcome::Moved
    );
    let moved = story.puts.last().unwrap();
    assert_eq!(
        (moved.moved, moved.held),
        (Some(MoveReason::Fenced), Tokens::ZERO)
    );
    story.release("r1", "w9#1/9", TurnEnd::Unserved);
    assert_eq!(story.bound(), provisional("w2#1/0"));
    assert_eq!(
        story.release("r1", "w2#1/0", TurnEnd::Unserved),
        Outcome::Freed
    );
}

#[test]
fn nothing_can_be_confirmed_or_moved_that_is_not_bound() {
    let mut story = Story::new();
    let actor: &InstanceId = &"r1".parse().unwrap();
    let here = &target("w1#1/0");
    let confirm = Event::Confirm {
        asked: here,
        observed: here,
        evidence: Evidence::Asked,
        actor,
    };
    let reason = MoveReason::Operator;
    assert_eq!(story.apply(confirm), Err(NotBound));
    let rebind = Event::Rebind {
        to: here,
        reason,
        actor,
    };
    assert_eq!(story.apply(rebind), Err(NotBound));
    story.renew("r1");
    let held = Tokens::new(16);
    story.release("r1", "w1#1/0", TurnEnd::Served { held });
    assert_eq!(story.standing, Standing::default());
}

#[test]
fn touches_are_written_when_they_matter() {
    let mut story = Story::new();
    story.turn(16_000);
    assert_eq!(story.puts.len(), 3, "created, confirmed, held");
    story.turn(18_000);
    story.turn(20_000);
    assert_eq!(story.puts.len(), 3, "a quarter more is not worth a write");
    story.turn(20_016);
    assert_eq!(story.puts.len(), 4);
    story.turn(3_200);
    assert_eq!(story.puts.len(), 5, "much less is");
    story.wait(225);
    story.turn(3_200);
    assert_eq!(story.puts.len(), 6, "an eighth of the idle time has passed");
}

#[test]
fn a_provisional_binding_found_at_the_start_gets_one_lease() {
    let mut story = Story::new();
    story.acquire("r1", "w1#1/0");
    let written = story.puts.last().cloned();
    story.wait(600);
    story.standing = Standing::found(written, story.now, &TERMS);
    story.wait(14);
    assert_eq!(story.bound(), provisional("w1#1/0"));
    story.renew("r1");
    story.wait(14);
    assert_eq!(
        story.bound(),
        provisional("w1#1/0"),
        "its router is still there"
    );
    story.wait(1);
    assert_eq!(story.bound(), None);
}

#[test]
fn a_binding_says_since_when_it_is_at_its_target() {
    let since = |story: &Story| story.standing.binding.as_ref().unwrap().since;
    let mut story = Story::new();
    story.turn(160);
    for _ in 0..3 {
        story.wait(300);
        story.turn(320);
    }
    assert_eq!(since(&story), at(1000), "turns move nothing");
    story.rebind("r1", "w1#1/2", MoveReason::Drained);
    assert_eq!(since(&story), at(1900));
    story.wait(5);
    story.confirm("w1#1/2", "w1#1/3", Evidence::Answer);
    assert_eq!(since(&story), at(1905), "it followed the engine");
    story.wait(5);
    let told = Event::Reassign {
        to: &target("w1#1/0"),
        actor: &"operator".parse().unwrap(),
    };
    story.apply(told).unwrap();
    assert_eq!(since(&story), at(1910));
    let written = story.puts.last().unwrap();
    assert_eq!(written.since, at(1910));
}

#[test]
fn a_rank_that_is_learnt_was_the_conversations_all_along() {
    let mut story = Story::new();
    story.acquire_for(Owner::Engine, "r1", "w1#1/0");
    story.wait(5);
    story.confirm("w1#1/0", "w1#1/3", Evidence::Answer);
    assert_eq!(story.bound(), confirmed("w1#1/3"));
    let binding = story.standing.binding.as_ref().unwrap();
    assert_eq!(binding.since, at(1000));
}
