//! What routers rely on of the engine's own bindings.

use proptest::prelude::*;

use super::*;

const CAP: u32 = 4;

fn rules() -> ConversationRules {
    ConversationRules {
        max_sessions: 3,
        max_active: CAP,
        ..ConversationRules::default()
    }
}

fn router() -> ConversationRouter {
    ConversationRouter::new(rules())
}

fn turn(conversation: &str, rank: Option<u32>) -> Turn {
    Turn {
        conversation: (!conversation.is_empty()).then(|| conversation.into()),
        rank: rank.map(DpRank::new),
        strict: rank.is_some(),
        tokens: Tokens::new(10),
    }
}

/// Ranks with so many requests.
fn active(requests: &[u32]) -> Vec<Active> {
    let rank = |requests: &u32| Active {
        requests: *requests,
        tokens: Tokens::new(u64::from(*requests) * 100),
    };
    requests.iter().map(rank).collect()
}

fn one(router: &mut ConversationRouter, requests: &[u32], turn: Turn) -> u32 {
    router.route(&active(requests), &[turn]).unwrap()[0].get()
}

#[test]
fn an_explicit_first_rank_binds_and_a_later_one_is_ignored() {
    let mut router = router();
    assert_eq!(one(&mut router, &[0, 0, 0], turn("a", Some(2))), 2);
    assert_eq!(router.home("a"), Some(DpRank::new(2)));
    assert_eq!(one(&mut router, &[0, 0, 3], turn("a", None)), 2);
    assert_eq!(one(&mut router, &[0, 0, 0], turn("a", Some(1))), 2);
    assert_eq!(router.home("a"), Some(DpRank::new(2)));
}

#[test]
fn an_explicit_first_rank_that_is_full_does_not_bind() {
    let mut router = router();
    let began = one(&mut router, &[0, CAP], turn("a", Some(1)));
    assert_eq!((began, router.home("a")), (0, Some(DpRank::new(0))));
    // Now its wish comes too late.
    assert_eq!(one(&mut router, &[0, 0], turn("a", Some(1))), 0);
}

#[test]
fn a_full_home_overflows_without_rebinding() {
    let mut router = router();
    one(&mut router, &[0, 0], turn("a", Some(1)));
    assert_eq!(one(&mut router, &[0, CAP], turn("a", None)), 0);
    assert_eq!(router.home("a"), Some(DpRank::new(1)));
    assert_eq!(one(&mut router, &[0, CAP - 1], turn("a", None)), 1);
}

#[test]
fn the_longest_unused_of_too_many_conversations_is_forgotten() {
    let mut router = router();
    for (conversation, rank) in [("a", 0), ("b", 1), ("c", 2)] {
        one(&mut router, &[0, 0, 0], turn(conversation, Some(rank)));
    }
    one(&mut router, &[0, 0, 0], turn("a", None));
    one(&mut router, &[0, 0, 0], turn("d", Some(1)));
    let homes = ["a", "b", "c", "d"].map(|it| router.home(it).map(DpRank::get));
    assert_eq!(homes, [Some(0), None, Some(2), Some(1)]);
    assert_eq!(router.bound(), 3);
    // A turn that overflows does not count as use of its home.
    one(&mut router, &[0, 0, CAP], turn("c", None));
    one(&mut router, &[0, 0, 0], turn("e", Some(0)));
    assert_eq!(router.home("c"), None);
}

#[test]
fn before_pull_request_16815_explicit_ranks_are_followed_and_never_kept() {
    let mut router = ConversationRouter::new(ConversationRules {
        records_first_rank: false,
        ..rules()
    });
    assert_eq!(one(&mut router, &[0, 0, 0], turn("a", Some(2))), 2);
    assert_eq!(router.home("a"), None);
    // The next turn begins anew, elsewhere.
    assert_eq!(one(&mut router, &[0, 0, 0], turn("a", None)), 0);
    assert_eq!(one(&mut router, &[0, 0, 0], turn("a", Some(2))), 2);
    assert_eq!(router.home("a"), Some(DpRank::new(0)));
}

#[test]
fn what_has_no_conversation_is_placed_and_forgotten() {
    let mut router = router();
    assert_eq!(one(&mut router, &[0, 0], turn("", Some(1))), 1);
    assert_eq!(one(&mut router, &[0, 0], turn("", None)), 0);
    assert_eq!(router.bound(), 0);
}

#[test]
fn conversations_begin_in_turns_on_ranks_below_their_share() {
    let mut fresh = router();
    let began = ["a", "b", "c"].map(|it| one(&mut fresh, &[0, 0], turn(it, None)));
    assert_eq!(began, [0, 1, 0]);
    // Twice the fair share of ceil(5 / 4) is 4, which rank 0 has; the others are passed in turn.
    let mut fresh = router();
    let began = ["a", "b", "c"].map(|it| one(&mut fresh, &[4, 0, 0, 0], turn(it, None)));
    assert_eq!(began, [1, 2, 3]);
}

#[test]
fn conversations_can_begin_where_the_least_is() {
    let busy = [
        Active {
            requests: 1,
            tokens: Tokens::new(900),
        },
        Active {
            requests: 3,
            tokens: Tokens::new(30),
        },
    ];
    for (beginning, expected) in [(Beginning::LeastQueued, 0), (Beginning::LeastTokens, 1)] {
        let rules = ConversationRules {
            beginning,
            ..rules()
        };
        let placed = ConversationRouter::new(rules).route(&busy, &[turn("a", None)]);
        assert_eq!(placed.unwrap(), [DpRank::new(expected)]);
    }
}

#[test]
fn strict_turns_of_a_batch_come_first() {
    let relaxed = Turn {
        strict: false,
        ..turn("a", Some(1))
    };
    let mut router = router();
    let placed = router.route(&active(&[0, CAP - 1]), &[relaxed, turn("b", Some(1))]);
    assert_eq!(placed.unwrap(), [0, 1].map(DpRank::new));
}

#[test]
fn a_rank_that_does_not_exist_is_refused_before_anything_is_bound() {
    let mut router = router();
    let refused = router.route(&active(&[0, 0]), &[turn("a", Some(1)), turn("b", Some(2))]);
    let rank = DpRank::new(2);
    assert_eq!(refused, Err(Refused::UnknownRank { rank, ranks: 2 }));
    assert_eq!(router.bound(), 0);
}

proptest! {
    #[test]
    fn a_conversation_stays_home_while_it_is_bound_and_home_has_room(
        steps in proptest::collection::vec(
            (0_u8..6, proptest::option::of(0_u32..3), proptest::collection::vec(0..=CAP, 3)), 1..60,
        ),
    ) {
        let mut router = router();
        for (name, rank, requests) in steps {
            let conversation = name.to_string();
            let home = router.home(&conversation);
            let placed = one(&mut router, &requests, turn(&conversation, rank));
            let full = |rank: u32| requests[rank as usize] >= CAP;
            match (home.map(DpRank::get), rank) {
                (Some(home), _) => {
                    prop_assert_eq!(router.home(&conversation).map(DpRank::get), Some(home));
                    prop_assert!(placed == home || full(home));
                }
                (None, explicit) => {
                    prop_assert_eq!(router.home(&conversation).map(DpRank::get), Some(placed));
                    prop_assert!(explicit.is_none_or(|rank| rank == placed || full(rank)));
                }
            }
            // Nobody is put where there is no room while there is room elsewhere.
            prop_assert!(!full(placed) || (0..3).all(full));
            prop_assert!(router.bound() <= 3);
        }
    }
}
