//! Where the request ran that another goes on with.

use domain::{Target, Tokens};
use routing::{Config, Decision, Lead, Reason};

use crate::world::{BLOCK, World, content, target};

/// Three workers of two ranks, of which the index knows nothing.
fn silent() -> World {
    let mut world = World::new(3, 2, Config::default());
    for worker in 1..=3 {
        for rank in 0..2 {
            world.unknown.insert(target(&format!("w{worker}#1/{rank}")));
        }
    }
    world
}

fn decide(world: &mut World, blocks: u64, at: &Target, held: u64) -> Decision {
    let mut request = world.request(&content(1, blocks));
    request.lead = Some(Lead {
        target: at.clone(),
        held: Tokens::new(held * BLOCK),
    });
    world.decide(&request, None).unwrap()
}

#[test]
fn where_the_index_is_silent_a_request_goes_to_where_the_one_before_ran() {
    for at in ["w1#1/1", "w2#1/0", "w3#1/1"] {
        let at = target(at);
        let decision = decide(&mut silent(), 1_010, &at, 1_000);
        assert_eq!(decision.target(), Some(&at));
        assert!(matches!(decision.reason, Reason::Policy(_)));
        let uncached = Tokens::new(10 * BLOCK + BLOCK / 2);
        assert_eq!(decision.uncached, Some(uncached));
    }
}

#[test]
fn it_is_credited_with_no_more_than_it_carries() {
    let at = target("w2#1/0");
    let decision = decide(&mut silent(), 100, &at, 1_000);
    let presumed = decision.candidate(&at).unwrap().presumed;
    assert_eq!(presumed, Tokens::new(100 * BLOCK));
}

#[test]
fn where_the_index_says_what_is_held_it_knows_better() {
    let mut world = World::new(3, 2, Config::default());
    world.hold(&target("w3#1/1"), &content(1, 1_000));
    let at = target("w2#1/0");
    let decision = decide(&mut world, 1_010, &at, 1_000);
    assert_eq!(decision.target(), Some(&target("w3#1/1")));
    let presumed = decision.candidate(&at).unwrap().presumed;
    assert_eq!(presumed, Tokens::ZERO);
}

#[test]
fn a_target_that_is_gone_leads_nowhere() {
    let mut world = silent();
    let decision = decide(&mut world, 1_010, &target("w9#1/0"), 1_000);
    assert!(
        decision
            .target()
            .is_some_and(|it| it.worker.as_str() != "w9")
    );
}
