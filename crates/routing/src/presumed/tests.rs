//! Presumptions against sets of prefixes, and their leases in simulated time.

use proptest::prelude::*;

use super::*;

const NOW: Timestamp = Timestamp::from_micros(1_000_000);
const MANY: Room = Room {
    blocks: MAX_BLOCKS,
    chains: MAX_CHAINS,
};

fn at() -> Target {
    "w1#1/0".parse().unwrap()
}

/// The sequence hashes of a path: equal exactly where the whole prefix is.
fn chain(path: &[u64]) -> Vec<SequenceHash> {
    let mut hash = 7;
    let blocks = path.iter().map(|block| {
        hash = (hash ^ (block + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (hash >> 29);
        SequenceHash::new(hash)
    });
    blocks.collect()
}

fn held(presumed: &Presumed, path: &[u64], now: Timestamp) -> u32 {
    presumed.depth(&at(), &chain(path), now)
}

#[test]
fn a_prompt_is_held_for_ten_minutes_from_its_last_use() {
    let mut presumed = Presumed::default();
    presumed.hold(&at(), &chain(&[1, 2, 3]), MANY, NOW);
    assert_eq!(held(&presumed, &[1, 2, 3, 4], NOW), 3);
    assert_eq!(held(&presumed, &[1, 2, 9], NOW), 2);
    assert_eq!(held(&presumed, &[2, 3], NOW), 0);
    let half = NOW + LEASE / 2;
    presumed.hold(&at(), &chain(&[1, 2]), MANY, half);
    let end = NOW + LEASE;
    assert_eq!(
        held(&presumed, &[1, 2, 3], end - Duration::from_micros(1)),
        3
    );
    assert_eq!(held(&presumed, &[1, 2, 3], end), 2);
    presumed.expire(end, |_| true);
    assert_eq!(held(&presumed, &[1, 2, 3], end), 2);
    presumed.expire(half + LEASE, |_| true);
    assert!(presumed.targets.is_empty());
}

#[test]
fn a_slot_holds_its_last_prompt_alone() {
    let slot = Room {
        blocks: 100,
        chains: 1,
    };
    let mut presumed = Presumed::default();
    presumed.hold(&at(), &chain(&[1, 2, 3]), slot, NOW);
    presumed.hold(&at(), &chain(&[5, 6]), slot, NOW);
    assert_eq!(held(&presumed, &[1, 2, 3], NOW), 0);
    assert_eq!(held(&presumed, &[5, 6], NOW), 2);
    presumed.hold(&at(), &[], slot, NOW);
    assert_eq!(held(&presumed, &[5, 6], NOW), 0, "of an unknown prompt too");
    presumed.hold(&at(), &chain(&[1]), MANY, NOW);
    presumed.hold(&at(), &[], MANY, NOW);
    assert_eq!(held(&presumed, &[1], NOW), 1);
}

#[test]
fn the_oldest_prompts_make_room_and_what_never_fits_is_not_presumed() {
    let room = Room {
        blocks: 4,
        chains: MAX_CHAINS,
    };
    let mut presumed = Presumed::default();
    for name in [10, 20, 30] {
        presumed.hold(&at(), &chain(&[name, name + 1]), room, NOW);
    }
    assert_eq!(held(&presumed, &[10, 11], NOW), 0);
    assert_eq!(held(&presumed, &[20, 21], NOW), 2);
    presumed.hold(&at(), &chain(&[1, 2, 3, 4, 5, 6]), room, NOW);
    assert_eq!(held(&presumed, &[1, 2, 3, 4, 5, 6], NOW), 4);
}

#[test]
fn a_target_that_is_no_more_is_forgotten() {
    let mut presumed = Presumed::default();
    presumed.hold(&at(), &chain(&[1]), MANY, NOW);
    presumed.expire(NOW, |it| it.epoch.get() != 1);
    assert_eq!(held(&presumed, &[1], NOW), 0);
}

#[derive(Clone, Debug)]
enum Step {
    Hold(Vec<u64>),
    Cut(Vec<u64>, u32),
    Wait(u64),
}

fn path() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(0_u64..2, 0..8)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        path().prop_map(Step::Hold),
        (path(), 0_u32..8).prop_map(|(path, found)| Step::Cut(path, found)),
        (0_u64..400).prop_map(Step::Wait),
    ]
}

proptest! {
    #[test]
    fn depths_are_those_of_sets_of_prefixes(steps in prop::collection::vec(step(), 0..60), asked in path()) {
        let mut presumed = Presumed::default();
        // Every prompt sent, whole, with the end of its lease.
        let mut naive: Vec<(Vec<u64>, Timestamp)> = Vec::new();
        let mut now = NOW;
        for step in steps {
            match step {
                Step::Hold(path) => {
                    presumed.hold(&at(), &chain(&path), MANY, now);
                    naive.push((path, now + LEASE));
                }
                Step::Cut(path, found) => {
                    presumed.cut(&at(), &chain(&path), found);
                    let found = found as usize;
                    for (sent, _) in &mut naive {
                        let common = sent.iter().zip(&path).take_while(|(a, b)| a == b).count();
                        if found < common {
                            sent.truncate(found);
                        }
                    }
                }
                Step::Wait(seconds) => now += Duration::from_secs(seconds),
            }
            let live = naive.iter().filter(|it| now < it.1);
            let common = |sent: &Vec<u64>| sent.iter().zip(&asked).take_while(|(a, b)| a == b).count();
            let expected = live.map(|it| common(&it.0)).max().unwrap_or(0);
            prop_assert_eq!(held(&presumed, &asked, now) as usize, expected);
        }
    }

    #[test]
    fn room_is_never_exceeded_and_the_last_prompt_is_held(
        paths in prop::collection::vec(path(), 1..40),
        blocks in 0_u64..20,
        chains in 1_usize..4,
    ) {
        let room = Room { blocks, chains };
        let mut presumed = Presumed::default();
        for path in paths {
            presumed.hold(&at(), &chain(&path), room, NOW);
            let kept = presumed.targets.get(&at()).map_or(0, |it| it.0.len());
            let total: usize = presumed.targets.values().flat_map(|it| &it.0).map(|it| it.blocks.len()).sum();
            prop_assert!(kept <= chains && total as u64 <= blocks);
            let fits = path.len().min(blocks as usize);
            prop_assert_eq!(held(&presumed, &path, NOW) as usize, fits);
        }
    }
}
