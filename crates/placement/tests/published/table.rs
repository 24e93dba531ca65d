//! Reads tables of targets, and compares a policy's decision with one.

use std::collections::BTreeSet;

use domain::{BlockSize, TargetState, Timestamp, Tokens};
use placement::{
    Candidate, Choice, Gauge, Held, Obligation, Request, Snapshot, Stuck, Tally, choose,
};

/// A request and its fleet, as written.
pub(crate) struct Case {
    pub(crate) request: Request,
    pub(crate) snapshot: Snapshot,
    /// What the policy should make of each target, where it is written.
    expected: Vec<Option<f64>>,
}

/// Compares: `policy` places `request` among `targets` at one of `chosen`, each for some seed, for `reason`.
#[track_caller]
pub(crate) fn check(policy: &str, request: &str, targets: &str, chosen: &str, reason: &str) {
    let case = Case::read(request, targets);
    let choices: Vec<Choice> = (0..64).map(|seed| case.choice(policy, seed)).collect();
    let reasons: BTreeSet<String> = choices.iter().map(|it| it.reason.to_string()).collect();
    let places = choices.iter().map(|it| it.place.worker().to_string());
    let places: BTreeSet<String> = places.collect();
    let expected: BTreeSet<String> = chosen.split(' ').map(str::to_owned).collect();
    assert_eq!(places, expected, "{policy}: {:?}", choices[0]);
    assert_eq!(reasons, BTreeSet::from([reason.to_owned()]), "{policy}");
    for (scored, expected) in choices[0].scores.iter().zip(&case.expected) {
        let is_so = match (scored.weighed, expected) {
            (Some(made), Some(expected)) => (made - expected).abs() < 1e-9,
            (made, expected) => made.is_none() && expected.is_none(),
        };
        assert!(is_so, "{policy}: {scored:?}, not {expected:?}");
    }
}

impl Case {
    pub(crate) fn read(request: &str, targets: &str) -> Self {
        let mut block = 4;
        let mut case = Self {
            request: Request {
                isl: Tokens::new(1_000),
                conversation: Some(7),
                hint: None,
                stuck: None,
            },
            snapshot: Snapshot {
                candidates: Vec::new(),
                turn: 0,
                reuse: 0.5,
            },
            expected: Vec::new(),
        };
        let mut stuck = None;
        for (key, value) in pairs(request) {
            match key {
                "isl" => case.request.isl = tokens(value),
                "turn" => case.snapshot.turn = whole(value),
                "conversation" => case.request.conversation = Some(whole(value)),
                "block" => block = whole(value),
                "stuck" => stuck = Some((value, 1, 1_000)),
                "turns" => stuck.as_mut().unwrap().1 = whole(value),
                "last" => stuck.as_mut().unwrap().2 = whole(value),
                _ => panic!("no {key}"),
            }
        }
        case.request.stuck = stuck.map(|(worker, turns, isl)| Stuck {
            target: format!("{worker}#1/0").parse().unwrap(),
            turns: u32::try_from(turns).unwrap(),
            isl: Tokens::new(isl),
        });
        let block = BlockSize::new(u32::try_from(block).unwrap()).unwrap();
        for line in targets.trim().lines() {
            let (known, made) = line.split_once('|').unwrap_or((line, ""));
            case.snapshot
                .candidates
                .push(candidate(known.trim(), block));
            case.expected.push(made.trim().parse().ok());
        }
        case
    }

    pub(crate) fn choice(&self, policy: &str, seed: u64) -> Choice {
        let policy = policy.parse().unwrap();
        choose(&self.request, &self.snapshot, policy, seed).unwrap()
    }
}

fn candidate(text: &str, block_size: BlockSize) -> Candidate {
    let (worker, known) = text.split_once(' ').unwrap_or((text, ""));
    let mut candidate = idle(worker, block_size);
    let mut gauge = Gauge {
        running: 0,
        waiting: 0,
        kv_used: 0.0,
    };
    let mut has_gauge = false;
    for (key, value) in pairs(known) {
        let count = || u32::try_from(whole(value)).unwrap();
        has_gauge |= matches!(key, "running" | "waiting" | "used");
        match key {
            "held" => {
                candidate.held = Held {
                    gpu: tokens(value),
                    host: tokens(value),
                    disk: tokens(value),
                }
            }
            "gpu" => candidate.held.gpu = tokens(value),
            "host" => candidate.held.host = tokens(value),
            "disk" => candidate.held.disk = tokens(value),
            "P" => candidate.pending = tokens(value),
            "foreign" => candidate.foreign = tokens(value),
            "A" => candidate.active = count(),
            "running" => gauge.running = count(),
            "waiting" => gauge.waiting = count(),
            "used" => gauge.kv_used = value.parse().unwrap(),
            "resident" => candidate.resident = tokens(value),
            "capacity" => candidate.capacity = Some(tokens(value)),
            "rate" => candidate.prefill_rate = value.parse().unwrap(),
            "conversations" => candidate.tally.conversations = count(),
            "blocks" => candidate.tally.active_blocks = count(),
            "joined" => candidate.tally.joined_blocks = count(),
            "H" => candidate.tally.assigned = value.parse().unwrap(),
            "cold" => candidate.tally.cold_at = Some(Timestamp::from_micros(whole(value))),
            _ => panic!("no {key}"),
        }
    }
    candidate.gauge = has_gauge.then_some(gauge);
    candidate
}

/// An idle rank that computes 1,000 tokens a second and holds nothing.
pub(crate) fn idle(worker: &str, block_size: BlockSize) -> Candidate {
    Candidate {
        target: format!("{worker}#1/0").parse().unwrap(),
        state: TargetState::Ready,
        barred: None,
        block_size,
        held: Held::default(),
        presumed: Tokens::ZERO,
        index_known: true,
        has_events: true,
        in_flight: Tokens::ZERO,
        pending: Tokens::ZERO,
        foreign: Tokens::ZERO,
        active: 0,
        gauge: None,
        tally: Tally::default(),
        resident: Tokens::ZERO,
        capacity: None,
        overdue: 0.0,
        utilisation: 0.0,
        obligation: Obligation::default(),
        prefill_rate: 1_000.0,
        decode_step: 0.0,
    }
}

fn pairs(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let words = text.split_whitespace();
    words.map(|it| it.split_once('=').unwrap())
}

fn whole(text: &str) -> u64 {
    text.parse().unwrap()
}

fn tokens(text: &str) -> Tokens {
    Tokens::new(whole(text))
}
