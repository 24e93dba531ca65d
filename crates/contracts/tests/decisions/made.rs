//! A decision that was made in a fleet: how large its record is, and that it is made again from it.

use super::*;

/// The largest batch on the bus: a whole record of a usual fleet has to fit into it.
const BATCH_BYTES: usize = 256 << 10;

/// A fleet of `targets` ranks, eight to a worker with the longest name there is.
fn fleet(targets: u32) -> Snapshot {
    let name = "w".repeat(120);
    let candidate = |rank: u32| Candidate {
        target: format!("{name}-{}#18446744073709551615/{rank}", rank / 8)
            .parse()
            .unwrap(),
        state: TargetState::Ready,
        barred: None,
        block_size: BlockSize::new(16).unwrap(),
        held: Held {
            gpu: Tokens::new(u64::from(rank) * 16),
            host: Tokens::new(u64::from(rank) * 16),
            disk: Tokens::new(u64::from(rank) * 16),
        },
        presumed: Tokens::ZERO,
        index_known: true,
        has_events: true,
        in_flight: Tokens::ZERO,
        pending: Tokens::new(1_000_000),
        foreign: Tokens::new(1_000_000),
        active: 1_000,
        gauge: Some(counted::FULL),
        tally: Tally::default(),
        resident: Tokens::new(10_000_000),
        capacity: Some(Tokens::new(10_000_000)),
        overdue: 0.0,
        utilisation: 0.1 + 0.2,
        obligation: Obligation {
            tokens: 1.0 / 3.0,
            conversations: 100,
        },
        prefill_rate: 1e4 / 3.0,
        decode_step: 0.01,
    };
    Snapshot {
        candidates: (0..targets).map(candidate).collect(),
        turn: 1,
        reuse: 0.5,
    }
}

fn decided(targets: u32) -> DecisionRecord {
    decided_by(Policy::KV, 3, targets)
}

fn decided_by(policy: Policy, seed: u64, targets: u32) -> DecisionRecord {
    let asked = Request {
        isl: Tokens::new(142_000),
        conversation: Some(7),
        hint: None,
        stuck: None,
    };
    let snapshot = fleet(targets);
    let choice = choose(&asked, &snapshot, policy, seed).unwrap();
    DecisionRecord {
        id: DecisionId::new(1),
        router: "router-1".parse().unwrap(),
        at: Timestamp::from_micros(1),
        model: "m".parse().unwrap(),
        endpoint: Endpoint::Chat,
        queued: Duration::ZERO,
        retry_of: None,
        place: choice.place.clone(),
        wanted: None,
        reason: choice.reason.to_string(),
        binding: "create".to_owned(),
        degraded: Vec::new(),
        free: true,
        uncached: None,
        cacheable: None,
        index_age: None,
        policy,
        seed,
        asked,
        snapshot,
        choice: Some(RecordedChoice::of(&choice)),
        digest: None,
    }
}

#[test]
fn a_whole_decision_among_128_targets_fits_into_a_batch() {
    let record = decided(128);
    let whole = record.to_bytes().len();
    assert!(whole < BATCH_BYTES, "{whole} bytes");
    let part = record.clone().excerpt();
    assert!(part.to_bytes().len() < 6_000, "{}", part.to_bytes().len());
    let chosen = record.place.target().unwrap();
    assert_eq!(part.snapshot.candidates.len(), EXCERPT);
    let mut kept = part.snapshot.candidates.iter();
    assert!(kept.any(|it| it.target == *chosen));
    let scores = |it: &DecisionRecord| it.choice.clone().unwrap().scores;
    let mut costs: Vec<f64> = scores(&record).iter().map(|it| it.cost).collect();
    costs.sort_by(f64::total_cmp);
    let others = scores(&part);
    let others = others.iter().filter(|it| it.target != *chosen);
    assert!(others.clone().count() > 0);
    assert!(others.into_iter().all(|it| it.cost <= costs[EXCERPT]));
}

#[test]
fn a_recorded_decision_is_made_again_from_its_line_and_its_bytes_under_every_policy() {
    for policy in Policy::ALL {
        for seed in 0..8 {
            let record = decided_by(*policy, seed, 16);
            let bytes = DecisionRecord::from_bytes(&record.to_bytes()).unwrap();
            let line = DecisionRecord::from_json(&record.to_json()).unwrap();
            for it in [bytes, line] {
                let again = choose(&it.asked, &it.snapshot, it.policy, it.seed).unwrap();
                let again = RecordedChoice::of(&again);
                let then = it.choice.unwrap();
                assert_eq!(again.to_bytes(), then.to_bytes(), "{policy}");
            }
        }
    }
}

#[test]
fn a_line_that_is_no_decision_says_what_is_wrong() {
    let line = decided(1).to_json();
    for (wrong, says) in [
        ("{".to_owned(), "decode decision"),
        ("{}".to_owned(), "id"),
        (
            line.replace("TARGET_STATE_READY", "FINE"),
            "decode decision",
        ),
        (
            line.replace("\"policy\":\"kv\"", "\"policy\":\"best\""),
            "policy",
        ),
        (line.replace("\"reuse\":0.5", "\"reuse\":null"), "reuse"),
    ] {
        assert_ne!(wrong, line);
        let error = DecisionRecord::from_json(&wrong).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}
