//! Decisions and outcomes survive being recorded, bit for bit.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "decisions/counted.rs"]
mod counted;
#[path = "decisions/made.rs"]
mod made;

use std::borrow::Cow;
use std::time::Duration;

use accounting::{Carrier, Chosen, Observation, Waterfall};
use contracts::{
    Cacheable, DecisionRecord, Digest, EXCERPT, Encoding, OutcomeRecord, RecordedChoice,
    RecordedScore,
};
use counted::{gauge, stuck, tally};
use domain::{
    BlockSize, DecisionId, DpRank, Endpoint, Target, TargetState, Timestamp, Tokens, Usage,
};
use placement::{
    Barred, Candidate, Held, Hint, Obligation, Place, Policy, Request, Snapshot, Tally, choose,
};
use proptest::prelude::*;

const STATES: [TargetState; 7] = [
    TargetState::Warming,
    TargetState::Ready,
    TargetState::Suspect,
    TargetState::Partial,
    TargetState::Draining,
    TargetState::Leaving,
    TargetState::Gone,
];

fn tokens() -> impl Strategy<Value = Tokens> {
    any::<u64>().prop_map(Tokens::new)
}

fn target() -> impl Strategy<Value = Target> {
    ("[a-z0-9.:]{1,20}", any::<u64>(), any::<u32>())
        .prop_map(|(worker, epoch, rank)| format!("{worker}#{epoch}/{rank}").parse().unwrap())
}

fn place() -> impl Strategy<Value = Place> {
    prop_oneof![
        target().prop_map(Place::Target),
        target().prop_map(|it| Place::Worker {
            worker: it.worker,
            epoch: it.epoch,
        }),
    ]
}

fn hint() -> impl Strategy<Value = Hint> {
    prop_oneof![
        target().prop_map(Hint::Near),
        any::<u64>().prop_map(Hint::Bucket),
        any::<u64>().prop_map(Hint::Home),
    ]
}

/// Any bits at all.
fn bits() -> BoxedStrategy<f64> {
    any::<u64>().prop_map(f64::from_bits).boxed()
}

/// Any number that JSON can have.
fn finite() -> BoxedStrategy<f64> {
    let special = [
        0.0,
        -0.0,
        0.1 + 0.2,
        f64::MIN_POSITIVE,
        f64::MAX,
        5e-324,
        1e23,
    ];
    let any = any::<u64>().prop_map(f64::from_bits);
    prop_oneof![
        prop::sample::select(special.to_vec()),
        any.prop_filter("a number", |it| it.is_finite()),
    ]
    .boxed()
}

prop_compose! {
    fn candidate(number: BoxedStrategy<f64>)(
        target in target(),
        state in prop::sample::select(STATES.to_vec()),
        barred in prop::option::of(prop::sample::select(vec![
            Barred::Tried, Barred::NoAdapter, Barred::FailedLately,
        ])),
        block_size in 1..65_537_u32,
        held in [tokens(), tokens(), tokens()],
        flows in [tokens(), tokens(), tokens(), tokens(), tokens()],
        flags: [bool; 2],
        counts: [u32; 2],
        capacity in prop::option::of(tokens()),
        gauge in prop::option::of(gauge(number.clone())),
        tally in prop_oneof![Just(Tally::default()), tally(number.clone())],
        numbers in [number.clone(), number.clone(), number.clone(), number.clone(), number],
    ) -> Candidate {
        let [gpu, host, disk] = held;
        let [presumed, in_flight, pending, foreign, resident] = flows;
        let [overdue, utilisation, obliged, prefill_rate, decode_step] = numbers;
        // No `..`: a field that is added has to be drawn here too.
        Candidate {
            target,
            state,
            barred,
            block_size: BlockSize::new(block_size).unwrap(),
            held: Held { gpu, host, disk },
            presumed,
            index_known: flags[0],
            has_events: flags[1],
            in_flight,
            pending,
            foreign,
            active: counts[0],
            gauge,
            tally,
            resident,
            capacity,
            overdue,
            utilisation,
            obligation: Obligation { tokens: obliged, conversations: counts[1] },
            prefill_rate,
            decode_step,
        }
    }
}

prop_compose! {
    fn score(number: BoxedStrategy<f64>)(
        target in target(),
        cost in number.clone(),
        credited in tokens(),
        uncached in tokens(),
        weighed in prop::option::of(prop_oneof![number.clone(), Just(f64::INFINITY)]),
        terms in prop::collection::vec(("[a-z]{1,8}".prop_map(Cow::Owned), number), 0..4),
    ) -> RecordedScore {
        RecordedScore { target, cost, credited, uncached, terms, weighed }
    }
}

prop_compose! {
    fn weighed(number: BoxedStrategy<f64>)(
        candidates in prop::collection::vec(candidate(number.clone()), 0..20),
        turn: u64,
        reuse in number.clone(),
        choice in prop::option::of((
            place(), "[a-z_0-9]{1,20}", prop::collection::vec(score(number), 0..20),
        )),
    ) -> (Snapshot, Option<RecordedChoice>) {
        let choice = choice.map(|(place, reason, scores)| RecordedChoice { place, reason, scores });
        (Snapshot { candidates, turn, reuse }, choice)
    }
}

prop_compose! {
    fn record(number: BoxedStrategy<f64>)(
        ids in (any::<u128>(), prop::option::of(any::<u128>())),
        at: u64,
        endpoint in prop::sample::select(Endpoint::ALL.to_vec()),
        places in (place(), prop::option::of(target())),
        words in ("[a-z_0-9]{0,20}", "[a-z_]{0,20}", prop::collection::vec("[a-z_]{1,20}", 0..3)),
        free: bool,
        uncached in prop::option::of(tokens()),
        levels in prop::option::of([tokens(), tokens(), tokens(), tokens()]),
        index_age in prop::option::of(any::<u64>()),
        queued: u64,
        policy in prop::sample::select(Policy::ALL.to_vec()),
        seed: u64,
        asked in (tokens(), prop::option::of(any::<u64>()), prop::option::of(hint()), prop::option::of(stuck())),
        weighed in weighed(number),
        digest in prop::option::of((any::<u32>(), any::<u64>())),
    ) -> DecisionRecord {
        let (isl, conversation, hint, stuck) = asked;
        let (snapshot, choice) = weighed;
        let (reason, binding, degraded) = words;
        DecisionRecord {
            id: DecisionId::new(ids.0),
            router: "router-1".parse().unwrap(),
            at: Timestamp::from_micros(at),
            model: "a/model".parse().unwrap(),
            endpoint,
            queued: Duration::from_nanos(queued),
            retry_of: ids.1.map(DecisionId::new),
            place: places.0,
            wanted: places.1,
            reason,
            binding,
            degraded,
            free,
            uncached,
            cacheable: levels.map(|[ceiling, stored, best, ready]| Cacheable {
                ceiling, stored, best, ready,
            }),
            index_age: index_age.map(Duration::from_nanos),
            policy,
            seed,
            asked: Request { isl, conversation, hint, stuck },
            snapshot,
            choice,
            digest: digest.map(|(candidates, snapshot)| Digest { candidates, snapshot }),
        }
    }
}

prop_compose! {
    fn outcome()(
        id: u128,
        at: u64,
        status in "[a-z_]{1,20}",
        times: [Option<u64>; 2],
        observed_rank in prop::option::of(any::<u32>()),
        usage in prop::option::of((tokens(), tokens(), prop::option::of(tokens()))),
        levels in prop::option::of([0..9_000_u64, 0..9_000, 0..9_000, 0..9_000, 0..9_000, 0..9_000]),
        realised in prop::option::of(0..9_000_u64),
        flags: [bool; 2],
    ) -> OutcomeRecord {
        let waterfall = levels.map(|it| {
            let [isl, ceiling, stored, best, ready, chosen] = it.map(Tokens::new);
            Waterfall::new(Observation {
                isl,
                block_size: BlockSize::new(16).unwrap(),
                ceiling,
                stored,
                best,
                ready,
                chosen: if flags[0] { Chosen::Held(chosen) } else { Chosen::RankUnknown },
                realised: realised.map(Tokens::new),
                carrier: if flags[1] { Carrier::Unfinished } else { Carrier::FinishedOrUnknown },
            })
        });
        OutcomeRecord {
            id: DecisionId::new(id),
            router: "router-1".parse().unwrap(),
            at: Timestamp::from_micros(at),
            model: "a/model".parse().unwrap(),
            status,
            ttft: times[0].map(Duration::from_nanos),
            duration: times[1].map(Duration::from_nanos),
            observed_rank: observed_rank.map(DpRank::new),
            usage: usage.map(|(prompt, completion, cached)| Usage { prompt, completion, cached }),
            waterfall,
        }
    }
}

/// Equal texts: of floats, equal ones may differ in their bits, and those that are no numbers are equal to none.
fn same(one: &DecisionRecord, other: &DecisionRecord) -> bool {
    one.to_bytes() == other.to_bytes() && format!("{one:?}") == format!("{other:?}")
}

proptest! {
    #[test]
    fn a_decision_comes_back_bit_for_bit_with_every_field(record in record(bits())) {
        let again = DecisionRecord::from_bytes(&record.to_bytes()).unwrap();
        prop_assert!(same(&again, &record), "{again:?}\n{record:?}");
    }

    #[test]
    fn a_line_of_json_says_the_same_bits(record in record(finite())) {
        let line = record.to_json();
        prop_assert!(!line.contains('\n'));
        let again = DecisionRecord::from_json(&line).unwrap();
        prop_assert!(same(&again, &record), "{line}");
    }

    #[test]
    fn an_outcome_comes_back_with_every_field(outcome in outcome()) {
        let again = OutcomeRecord::from_bytes(&outcome.to_bytes()).unwrap();
        prop_assert_eq!(again, outcome);
    }

    #[test]
    fn cut_or_changed_bytes_are_an_error_or_a_decision(
        record in record(bits()), at in any::<prop::sample::Index>(), bit in 0..8_u32, cuts: bool,
    ) {
        let mut bytes = record.to_bytes().to_vec();
        let at = at.index(bytes.len());
        match cuts {
            true => bytes.truncate(at),
            false => bytes[at] ^= 1 << bit,
        }
        if let Ok(read) = DecisionRecord::from_bytes(&bytes) {
            prop_assert!(same(&DecisionRecord::from_bytes(&read.to_bytes()).unwrap(), &read));
        }
    }

    #[test]
    fn a_decision_that_is_not_recorded_whole_has_its_place_the_cheapest_and_a_digest(
        whole in record(finite()).prop_map(|it| DecisionRecord { digest: None, ..it }),
    ) {
        let part = whole.clone().excerpt();
        prop_assert!(!part.is_whole());
        prop_assert_eq!(part.digest, Some(Digest::of(&whole.snapshot)));
        prop_assert!(part.snapshot.candidates.len() <= EXCERPT);
        let all = &whole.snapshot.candidates;
        prop_assert!(part.snapshot.candidates.iter().all(|it| all.contains(it)));
        prop_assert_eq!(&part.clone().excerpt(), &part);
    }
}
