//! Every policy under numbers that no fleet has.

use domain::{BlockSize, TargetState, Timestamp, Tokens};
use placement::{
    Barred, Candidate, Gauge, Held, NoCandidate, Place, Policy, Request, Snapshot, Stuck, Tally,
    choose,
};
use proptest::prelude::*;

use super::table::idle;

const STATES: [TargetState; 4] = [
    TargetState::Ready,
    TargetState::Suspect,
    TargetState::Partial,
    TargetState::Draining,
];

fn tokens() -> impl Strategy<Value = Tokens> {
    let number = prop_oneof![Just(0), 1..100_000_u64, Just(u64::MAX), any::<u64>()];
    number.prop_map(Tokens::new)
}

fn count() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0), 1..100_u32, Just(u32::MAX)]
}

fn rate() -> impl Strategy<Value = f64> {
    prop_oneof![Just(1e-3), Just(1.0), Just(8_000.0), Just(1e12)]
}

fn share() -> impl Strategy<Value = f64> {
    prop_oneof![Just(0.0), 0.0..1.0, Just(1e9), Just(-1.0), Just(f64::NAN)]
}

prop_compose! {
    fn candidate()(
        state in prop::sample::select(STATES.to_vec()),
        barred in prop_oneof![
            4 => Just(None),
            1 => Just(Some(Barred::Tried)),
            1 => Just(Some(Barred::FailedLately)),
        ],
        block in prop::sample::select(vec![1, 16, 65_536]),
        held in [tokens(), tokens(), tokens()],
        work in [tokens(), tokens(), tokens(), tokens()],
        capacity in prop::option::of(tokens()),
        counts in [count(), count(), count(), count(), count(), count()],
        gauge in prop::option::of(share()),
        cold in prop::option::of(any::<u64>()),
        assigned in prop_oneof![Just(0.0), Just(1e18), 0.0..1e6],
        prefill_rate in rate(),
    ) -> Candidate {
        let [active, running, waiting, conversations, active_blocks, joined_blocks] = counts;
        let mut held = held;
        held.sort();
        Candidate {
            state,
            barred,
            held: Held { gpu: held[0], host: held[1], disk: held[2] },
            in_flight: work[0],
            pending: work[1],
            foreign: work[2],
            resident: work[3],
            capacity,
            active,
            gauge: gauge.map(|kv_used| Gauge { running, waiting, kv_used }),
            tally: Tally {
                conversations,
                active_blocks,
                joined_blocks,
                assigned,
                cold_at: cold.map(Timestamp::from_micros),
            },
            prefill_rate,
            ..idle("w", BlockSize::new(block).unwrap())
        }
    }
}

prop_compose! {
    fn fleet()(
        mut candidates in prop::collection::vec(candidate(), 0..9),
        turn: u64,
        reuse in 0.0..1.0,
    ) -> Snapshot {
        for (number, candidate) in candidates.iter_mut().enumerate() {
            let (worker, rank) = (number / 2, number % 2);
            candidate.target = format!("w{worker}#1/{rank}").parse().unwrap();
        }
        Snapshot { candidates, turn, reuse }
    }
}

prop_compose! {
    fn request()(
        isl in tokens(),
        conversation in prop::option::of(0..9_u64),
        stuck in prop::option::of((0..5_u8, 0..2_u8, count(), tokens())),
    ) -> Request {
        let stuck = stuck.map(|(worker, rank, turns, isl)| Stuck {
            target: format!("w{worker}#1/{rank}").parse().unwrap(),
            turns,
            isl,
        });
        Request { isl, conversation, hint: None, stuck }
    }
}

/// Every policy, and some with numbers at the ends of their ranges.
fn policies() -> Vec<Policy> {
    let extremes = [
        "dynamo:temperature=1",
        "dynamo:temperature=1000,decay=1000000,credit=1000",
        "dynamo:temperature=0.000001",
        "mooncake_conductor:fetch_rate=0.001",
        "trt_conv_adp:hard=1,least_queued=1",
        "smetric:c2=1,slack=0",
        "preble_e2:threshold=0",
        "kv:highest_utilisation=0.99,delay=1000",
    ];
    let extremes = extremes.iter().map(|it| it.parse().unwrap());
    Policy::ALL.iter().copied().chain(extremes).collect()
}

proptest! {
    #[test]
    fn every_policy_chooses_one_that_may_be_chosen_at_a_finite_cost_and_the_same_again(
        snapshot in fleet(),
        request in request(),
        seed: u64,
    ) {
        let takes_new = |it: &&Candidate| it.takes_new();
        let open: Vec<&Candidate> = snapshot.candidates.iter().filter(takes_new).collect();
        let fresh = open.iter().any(|it| it.barred.is_none());
        for policy in policies() {
            let choice = choose(&request, &snapshot, policy, seed);
            prop_assert_eq!(&choice, &choose(&request, &snapshot, policy, seed), "{}", policy);
            let Ok(choice) = choice else {
                prop_assert!(open.is_empty(), "{}: {:?}", policy, choice);
                prop_assert_eq!(choice, Err(NoCandidate));
                continue;
            };
            let is_there = |it: &&&Candidate| match &choice.place {
                Place::Target(target) => it.target == *target,
                Place::Worker { worker, .. } => it.target.worker == *worker,
            };
            let mut there = open.iter().filter(is_there);
            prop_assert!(there.any(|it| !fresh || it.barred.is_none()), "{}", policy);
            prop_assert_eq!(choice.scores.len(), open.len());
            for scored in &choice.scores {
                prop_assert!(scored.cost.is_finite(), "{}: {:?}", policy, scored);
                prop_assert!(scored.weighed.is_none_or(f64::is_finite), "{}: {:?}", policy, scored);
            }
        }
    }
}
