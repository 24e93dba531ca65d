//! The rule of two silent ignores, by example and against a naive reading of it.

use proptest::prelude::*;

use super::*;

fn asked(dp_size: u32, dp_rank: u32) -> Asked {
    Asked {
        worker: "w1".parse().unwrap(),
        epoch: Epoch::new(3),
        endpoint: Endpoint::Chat,
        start_rank: 0,
        dp_size,
        dp_rank: DpRank::new(dp_rank),
    }
}

fn ran(dp_rank: u32) -> Seen {
    Seen::Named(DpRank::new(dp_rank))
}

fn announced(dp_rank: u32, after_ms: u64) -> Seen {
    Seen::Announced {
        dp_rank: DpRank::new(dp_rank),
        after: Duration::from_millis(after_ms),
    }
}

const NOW: Timestamp = Timestamp::from_micros(1_000_000);

fn untrusted(truth: &RankTruth) -> bool {
    truth.is_untrusted(&"w1".parse().unwrap(), Epoch::new(3), Endpoint::Chat, NOW)
}

fn faults(truth: &RankTruth, now: Timestamp) -> Vec<(u32, &'static str)> {
    let findings = truth.findings(now);
    findings
        .map(|it| (it.dp_rank.get(), it.fault.name()))
        .collect()
}

/// A conversation whose binding follows the engine once, at an engine that takes its ranks in turn.
fn round_robin(dp_size: u32, first: u32) -> RankTruth {
    let mut truth = RankTruth::default();
    let (mut bound, mut followed) = (0, false);
    for turn in 0..2 {
        let runs = (first + turn) % dp_size;
        truth.judge(&asked(dp_size, bound), ran(runs), NOW);
        if runs != bound && !followed {
            (bound, followed) = (runs, true);
        }
    }
    truth
}

#[test]
fn an_engine_that_takes_its_ranks_in_turn_is_found_within_two_turns() {
    for dp_size in [2, 8] {
        for first in 0..dp_size {
            let truth = round_robin(dp_size, first);
            let found = faults(&truth, NOW);
            assert!(
                found.iter().any(|it| it.1 == "ignored"),
                "{dp_size} ranks, first {first}: {found:?}"
            );
            // Of the first turn chance may have honoured it.
            assert_eq!(
                untrusted(&truth),
                first != 0,
                "{dp_size} ranks, first {first}"
            );
        }
    }
}

#[test]
fn it_is_trusted_again_once_chance_does_not_explain_it() {
    for (dp_size, turns) in [(2, 7), (3, 5), (4, 4), (8, 3), (10, 2), (64, 2), (100, 1)] {
        let mut truth = RankTruth::default();
        for _ in 0..2 {
            truth.judge(&asked(dp_size, 0), ran(1), NOW);
        }
        for turn in 0..turns {
            assert!(untrusted(&truth), "{dp_size} ranks, honoured {turn}");
            assert_eq!(truth.judge(&asked(dp_size, 1), ran(1), NOW), None);
        }
        assert!(!untrusted(&truth), "{dp_size} ranks");
        assert_eq!(faults(&truth, NOW), []);
    }
}

#[test]
fn a_higher_incarnation_begins_anew_and_a_lower_one_says_nothing() {
    let mut truth = RankTruth::default();
    for _ in 0..2 {
        truth.judge(&asked(2, 0), ran(1), NOW);
    }
    let old = Asked {
        epoch: Epoch::new(2),
        ..asked(2, 0)
    };
    for _ in 0..7 {
        truth.judge(&old, ran(0), NOW);
    }
    assert!(untrusted(&truth));
    let new = Asked {
        epoch: Epoch::new(4),
        ..asked(2, 0)
    };
    truth.judge(&new, ran(0), NOW);
    assert!(!untrusted(&truth));
    assert_eq!((truth.distrust(), faults(&truth, NOW)), (vec![], vec![]));
}

#[test]
fn the_other_numbering_has_its_name() {
    let check = |start_rank, rank, seen, fault| {
        let asked = Asked {
            start_rank,
            ..asked(4, rank)
        };
        assert_eq!(
            RankTruth::default().judge(&asked, ran(seen), NOW),
            Some(fault),
            "from {start_rank}: {rank} ran as {seen}"
        );
    };
    check(1, 2, 3, Fault::Numbering);
    check(1, 2, 1, Fault::Numbering);
    check(1, 2, 4, Fault::Ignored);
    check(4, 5, 1, Fault::Numbering);
    check(0, 2, 1, Fault::Ignored);
}

#[test]
fn silence_and_lateness_are_told_until_the_rank_speaks_in_time() {
    let mut truth = RankTruth::default();
    let one = asked(2, 1);
    assert_eq!(truth.judge(&one, Seen::Silence, NOW), Some(Fault::Silent));
    // An answer that names the rank says nothing of its events.
    assert_eq!(truth.judge(&one, ran(1), NOW), None);
    assert_eq!(faults(&truth, NOW), [(1, "silent")]);
    assert_eq!(
        truth.judge(&one, announced(1, 1_001), NOW),
        Some(Fault::Late)
    );
    assert_eq!(faults(&truth, NOW), [(1, "late")]);
    assert_eq!(truth.judge(&asked(2, 0), announced(0, 0), NOW), None);
    assert_eq!(faults(&truth, NOW), [(1, "late")], "of another rank");
    assert_eq!(truth.judge(&one, announced(1, 1_000), NOW), None);
    assert_eq!(faults(&truth, NOW), []);
    assert!(!untrusted(&truth));
}

#[test]
fn a_finding_ends_with_its_lease_unless_its_endpoint_is_untrusted() {
    let later = NOW + FINDING_LEASE;
    let mut truth = RankTruth::default();
    truth.judge(&asked(2, 0), Seen::Refusal, NOW);
    truth.judge(&asked(2, 0), ran(1), NOW);
    assert_eq!(faults(&truth, NOW), [(0, "ignored"), (0, "refused")]);
    assert_eq!(faults(&truth, later), []);
    truth.judge(&asked(2, 0), ran(1), NOW);
    truth.expire(later, |_, _| true);
    assert_eq!(faults(&truth, later), [(0, "ignored")]);
    truth.expire(later, |_, _| false);
    assert_eq!((truth.distrust(), faults(&truth, later)), (vec![], vec![]));
}

#[test]
fn a_peers_word_counts_for_its_lease_and_for_its_incarnation() {
    let distrust = [Distrust {
        worker: "w1".parse().unwrap(),
        epoch: Epoch::new(3),
        endpoint: Endpoint::Chat,
    }];
    let until = NOW + Duration::from_secs(15);
    let peer = "r2".parse().unwrap();
    let mut truth = RankTruth::default();
    truth.hear(&peer, &distrust, until);
    assert!(untrusted(&truth));
    assert_eq!(truth.distrust(), [], "it is the peer's to tell");
    assert_eq!(
        truth.untrusted(NOW).into_iter().collect::<Vec<_>>(),
        distrust
    );
    assert!(truth.untrusted(until).is_empty());
    let worker = "w1".parse().unwrap();
    assert!(!truth.is_untrusted(&worker, Epoch::new(4), Endpoint::Chat, NOW));
    assert!(!truth.is_untrusted(&worker, Epoch::new(3), Endpoint::Completions, NOW));
    truth.hear(&peer, &[], until);
    assert!(!untrusted(&truth));
    truth.hear(&peer, &distrust, until);
    truth.forget_peer(&peer);
    assert!(!untrusted(&truth));
}

#[test]
fn what_is_kept_is_bounded_and_the_rest_is_counted() {
    let mut truth = RankTruth::default();
    for number in 0..=MAX_RECORDS {
        let asked = Asked {
            worker: format!("w{number}").parse().unwrap(),
            ..asked(2, 0)
        };
        truth.judge(&asked, Seen::Silence, NOW);
    }
    assert_eq!(truth.records.len(), MAX_RECORDS);
    for rank in 0..5 {
        truth.judge(&asked(8, rank), Seen::Silence, NOW + Duration::from_secs(1));
    }
    assert_eq!(truth.findings.len(), MAX_FINDINGS);
    assert!(0 < truth.dropped());
}

/// Reads the rule from the whole history: untrusted from two turns in a row that ran elsewhere until the first
/// `proof` in a row that did not.
fn naively_untrusted(history: &[bool], proof: usize) -> bool {
    let mut marked = (1..history.len()).filter(|&it| !history[it - 1] && !history[it]);
    let Some(last) = marked.next_back() else {
        return false;
    };
    let mut after = history[last + 1..].split(|honoured| !honoured);
    !after.any(|row| proof <= row.len())
}

#[test]
fn an_announcement_of_the_rank_that_an_answer_names_is_no_second_proof() {
    let mut truth = RankTruth::default();
    for _ in 0..2 {
        truth.judge(&asked(10, 1), ran(0), NOW);
    }
    let announcement =
        |truth: &mut RankTruth, seen| truth.judge_announcement(&asked(10, 0), seen, NOW);
    truth.judge(&asked(10, 0), ran(0), NOW);
    assert_eq!(announcement(&mut truth, announced(0, 10)), None);
    assert!(untrusted(&truth), "one turn in ten is chance");
    assert_eq!(announcement(&mut truth, Seen::Silence), Some(Fault::Silent));
    let late = announcement(&mut truth, announced(0, 1_001));
    assert_eq!(late, Some(Fault::Late));
    assert_eq!(faults(&truth, NOW), [(0, "late"), (1, "ignored")]);
    // Of the rank itself it says nothing where another has the blocks.
    assert_eq!(announcement(&mut truth, announced(2, 10)), None);
    assert_eq!(announcement(&mut truth, Seen::Nothing), None);
    assert_eq!(faults(&truth, NOW), [(0, "late"), (1, "ignored")]);
    assert_eq!(announcement(&mut truth, announced(0, 10)), None);
    assert_eq!(faults(&truth, NOW), [(1, "ignored")]);
}

proptest! {
    #[test]
    fn trust_is_what_a_naive_reading_of_the_history_gives(
        dp_size in 2_u32..12,
        turns in prop::collection::vec((0_u32..12, 0_u32..12, any::<bool>(), 0_u8..5), 0..200),
    ) {
        let mut truth = RankTruth::default();
        let mut history = Vec::new();
        let proof = (1_u32..).find(|n| 100 <= u64::from(dp_size).pow(*n)).unwrap() as usize;
        for (rank, elsewhere, honours, kind) in turns {
            let rank = rank % dp_size;
            let runs = if honours { rank } else { elsewhere % dp_size };
            let seen = match kind {
                0 => Seen::Nothing,
                1 => Seen::Silence,
                2 | 3 => ran(runs),
                _ => announced(runs, u64::from(rank) * 400),
            };
            let fault = truth.judge(&asked(dp_size, rank), seen, NOW);
            if 1 < kind {
                history.push(runs == rank);
                prop_assert_eq!(fault.is_some_and(Fault::is_elsewhere), runs != rank);
            }
            prop_assert_eq!(untrusted(&truth), naively_untrusted(&history, proof), "{:?}", history);
            prop_assert_eq!(truth.distrust().len(), usize::from(untrusted(&truth)));
        }
    }
}
