//! Turns without ids at several routers, against what they are known to belong to.

use std::collections::BTreeMap;

use domain::{BlockHash, sequence_hashes};
use proptest::prelude::*;

use super::*;

fn kin() -> Kin {
    Kin::of(&"m".parse().unwrap())
}

/// What the store of bindings tells.
fn bound(origin: Origin) -> ConversationKey {
    ConversationKey {
        tenant: "t".parse().unwrap(),
        model: "m".parse().unwrap(),
        conversation: origin.id(),
    }
}

/// A prompt of `shared` blocks that all have and `own` blocks that only conversation `name` has.
fn prompt(shared: u64, name: u64, own: u64) -> Vec<SequenceHash> {
    let own = (0..own).map(|it| (name + 1) << 32 | it);
    let blocks: Vec<_> = (0..shared).chain(own).map(BlockHash::new).collect();
    sequence_hashes(&blocks)
}

fn target(rank: u32) -> Target {
    format!("w1#1/{rank}").parse().unwrap()
}

fn turn(lineage: &mut Lineage, hashes: &[SequenceHash]) -> Option<Origin> {
    let found = lineage.find(kin(), hashes, Timestamp::ZERO).origin;
    lineage.record(kin(), hashes, found, Timestamp::ZERO);
    found
}

/// A turn that runs at a rank; answers to which rank and how deep it was led.
fn turn_at(lineage: &mut Lineage, hashes: &[SequenceHash], rank: u32) -> Option<(Target, usize)> {
    let found = lineage.find(kin(), hashes, Timestamp::ZERO);
    lineage.record(kin(), hashes, found.origin, Timestamp::ZERO);
    let end = *hashes.last().unwrap();
    lineage.ran(kin(), end, &target(rank), Timestamp::ZERO);
    found.lead.map(|it| (it.target, it.blocks))
}

#[test]
fn the_second_turn_is_found_and_all_that_follow() {
    let mut lineage = Lineage::default();
    assert_eq!(turn(&mut lineage, &prompt(0, 1, 4)), None);
    let second = turn(&mut lineage, &prompt(0, 1, 7));
    assert_eq!(second, Some(Origin(prompt(0, 1, 6)[5])));
    assert_eq!(turn(&mut lineage, &prompt(0, 1, 7)), second, "sent again");
    for blocks in [7, 8, 100, 101] {
        assert_eq!(turn(&mut lineage, &prompt(0, 1, blocks)), second);
    }
    assert_eq!(turn(&mut lineage, &prompt(0, 2, 8)), None, "another one");
}

#[test]
fn prompts_that_go_on_differently_from_one_end_are_different_conversations() {
    let mut lineage = Lineage::default();
    let end = prompt(4, 0, 0);
    for _ in 0..3 {
        assert_eq!(
            turn(&mut lineage, &end),
            None,
            "the same prompt is no next turn"
        );
    }
    let first = turn(&mut lineage, &prompt(4, 1, 3)).unwrap();
    let second = turn(&mut lineage, &prompt(4, 2, 3)).unwrap();
    assert_ne!(first, second);
    assert_eq!(turn(&mut lineage, &prompt(4, 1, 6)), Some(first));
    assert_eq!(turn(&mut lineage, &prompt(4, 2, 6)), Some(second));
}

#[test]
fn an_end_within_what_all_begin_with_does_not_make_one_conversation_of_them() {
    let mut lineage = Lineage::default();
    assert_eq!(
        turn(&mut lineage, &prompt(4, 0, 0)),
        None,
        "half of the system prompt"
    );
    let first = turn(&mut lineage, &prompt(8, 1, 2));
    assert_eq!(first, Some(Origin(prompt(8, 0, 0)[5])));
    for name in 2..10 {
        assert_eq!(turn(&mut lineage, &prompt(8, name, 2)), None);
        let second = turn(&mut lineage, &prompt(8, name, 5));
        assert_eq!(second, Some(Origin(prompt(8, name, 4)[11])));
    }
    assert_eq!(turn(&mut lineage, &prompt(8, 1, 5)), first);
}

#[test]
fn a_conversation_of_another_router_is_found_by_its_name() {
    let (mut here, mut there) = (Lineage::default(), Lineage::default());
    turn(&mut there, &prompt(0, 1, 4));
    let origin = turn(&mut there, &prompt(0, 1, 8)).unwrap();
    let found =
        |lineage: &Lineage, hashes: &[SequenceHash], now| lineage.find(kin(), hashes, now).origin;
    assert_eq!(found(&here, &prompt(0, 1, 12), Timestamp::ZERO), None);
    here.hear(&bound(origin), Timestamp::ZERO);
    let other = ConversationKey {
        model: "n".parse().unwrap(),
        ..bound(origin)
    };
    here.hear(&other, Timestamp::ZERO);
    let later = Timestamp::ZERO + PERIOD;
    assert_eq!(
        found(&here, &prompt(0, 1, 12), Timestamp::ZERO),
        Some(origin)
    );
    assert_eq!(found(&here, &prompt(0, 2, 12), later), None);
    let later = Timestamp::ZERO + PERIOD * 2;
    assert_eq!(found(&here, &prompt(0, 1, 12), later), None, "forgotten");
}

#[test]
fn a_turn_without_a_name_is_led_to_where_the_one_before_ran() {
    let mut lineage = Lineage::default();
    assert_eq!(turn_at(&mut lineage, &prompt(0, 1, 4), 3), None);
    assert_eq!(
        turn_at(&mut lineage, &prompt(0, 1, 4), 5),
        Some((target(3), 4)),
        "sent again"
    );
    assert_eq!(
        turn_at(&mut lineage, &prompt(0, 1, 5), 5),
        Some((target(5), 4)),
        "too short for a name"
    );
    assert_eq!(
        turn_at(&mut lineage, &prompt(0, 1, 9), 5),
        Some((target(5), 5)),
        "with which it gets its name"
    );
    assert_eq!(
        turn_at(&mut lineage, &prompt(0, 1, 12), 5),
        None,
        "its binding says where"
    );
    assert_eq!(turn_at(&mut lineage, &prompt(0, 2, 9), 1), None);
}

#[test]
fn where_a_request_is_not_placed_yet_an_earlier_end_leads() {
    let mut lineage = Lineage::default();
    turn_at(&mut lineage, &prompt(0, 1, 4), 3);
    turn(&mut lineage, &prompt(0, 1, 5));
    let found = lineage.find(kin(), &prompt(0, 1, 6), Timestamp::ZERO);
    let lead = found.lead.unwrap();
    assert_eq!((lead.target, lead.blocks), (target(3), 4));
}

#[test]
fn only_its_own_ids_name_an_origin() {
    let origin = Origin(SequenceHash::new(0xab));
    assert_eq!(origin.id().as_str(), "lineage-00000000000000ab");
    assert_eq!(Origin::of(&origin.id()), Some(origin));
    for id in [
        "lineage-",
        "lineage-ab",
        "lineage-00000000000000AB",
        "lineage-+0000000000000ab",
        "lineage-000000000000000ab",
        "x",
    ] {
        assert_eq!(Origin::of(&id.parse().unwrap()), None, "{id}");
    }
}

/// Where the last nameless turns ran, by the whole prompts.
#[derive(Default)]
struct Nameless(Vec<(Vec<SequenceHash>, u32)>);

impl Nameless {
    /// Where the longest of them ran that `hashes` goes on with, the last of equals.
    fn lead(&self, hashes: &[SequenceHash]) -> Option<(Target, usize)> {
        let before = self.0.iter().filter(|it| hashes.starts_with(&it.0));
        let longest = before.max_by_key(|it| it.0.len());
        longest.map(|(prompt, rank)| (target(*rank), prompt.len()))
    }
}

/// One turn: of which conversation, how many blocks it adds, and which router takes it.
fn turns() -> impl Strategy<Value = (u64, Vec<(u64, u64, usize)>)> {
    let turn = (0..6_u64, 0..6_u64, 0..3_usize);
    (0..5_u64, proptest::collection::vec(turn, 1..80))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// Whoever takes a turn: what has a name keeps it, no two conversations share one, and what is two blocks
    /// longer than any turn before has a name. What has none is led to where the turn before ran.
    #[test]
    fn every_router_finds_what_any_has_named((shared, turns) in turns()) {
        let mut routers = [Lineage::default(), Lineage::default(), Lineage::default()];
        let mut lengths: BTreeMap<u64, u64> = BTreeMap::new();
        let mut ends: BTreeMap<u64, u64> = BTreeMap::new();
        let mut names: BTreeMap<u64, Origin> = BTreeMap::new();
        let mut nameless = Nameless::default();
        for (at, (name, added, router)) in (0_u32..).zip(turns) {
            let length = lengths.entry(name).or_default();
            *length += added;
            let hashes = prompt(shared, name, *length);
            let descent = routers[router].find(kin(), &hashes, Timestamp::ZERO);
            let found = descent.origin;
            routers[router].record(kin(), &hashes, found, Timestamp::ZERO);
            if !names.contains_key(&name) {
                let lead = descent.lead.map(|it| (it.target, it.blocks));
                prop_assert_eq!(lead, nameless.lead(&hashes));
            }
            if found.is_none() && !hashes.is_empty() {
                nameless.0.push((hashes.clone(), at));
            }
            if let Some(known) = names.get(&name) {
                prop_assert_eq!(found, Some(*known));
            }
            let end = ends.entry(name).or_insert(*length);
            if *end + 2 <= *length && 0 < shared + *end {
                prop_assert!(found.is_some());
            }
            for router in &mut routers {
                if let Some(end) = hashes.last() {
                    router.ran(kin(), *end, &target(at), Timestamp::ZERO);
                }
            }
            if let Some(origin) = found {
                names.insert(name, origin);
                for router in &mut routers {
                    router.hear(&bound(origin), Timestamp::ZERO);
                }
            }
        }
        let distinct: std::collections::HashSet<_> = names.values().collect();
        prop_assert_eq!(distinct.len(), names.len());
    }
}
