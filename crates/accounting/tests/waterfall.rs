//! The waterfall's promises: its parts add up exactly, whatever was observed.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use accounting::{
    Carrier, Chosen, Gap, Levels, Observation, Parts, RankKnowledge, Sums, Totals, Waterfall,
};
use domain::{BlockSize, Tokens};
use proptest::prelude::*;

/// A request of 1,000 tokens in blocks of 16, of which 992 are cacheable.
fn observed() -> Observation {
    Observation {
        isl: Tokens::new(1_000),
        block_size: BlockSize::new(16).unwrap(),
        ceiling: Tokens::new(960),
        stored: Tokens::new(800),
        best: Tokens::new(640),
        ready: Tokens::new(480),
        chosen: Chosen::Held(Tokens::new(320)),
        realised: Some(Tokens::new(160)),
        carrier: Carrier::FinishedOrUnknown,
    }
}

fn parts(observation: Observation) -> Parts {
    Waterfall::new(observation).parts()
}

#[test]
fn each_loss_goes_to_its_cause() {
    let expected = Parts {
        cold: Tokens::new(40),
        in_flight: Tokens::ZERO,
        unannounced: Tokens::new(160),
        capacity: Tokens::new(160),
        unavailable: Tokens::new(160),
        routing: Tokens::new(160),
        index_error: Some(160),
    };
    assert_eq!(parts(observed()), expected);
}

#[test]
fn what_a_running_request_carries_is_in_flight() {
    let parts = parts(Observation {
        carrier: Carrier::Unfinished,
        ..observed()
    });
    let split = (parts.in_flight, parts.unannounced);
    assert_eq!(split, (Tokens::new(160), Tokens::ZERO));
}

#[test]
fn a_level_below_the_chosen_one_is_raised_to_it() {
    let waterfall = Waterfall::new(Observation {
        ceiling: Tokens::ZERO,
        stored: Tokens::ZERO,
        best: Tokens::ZERO,
        ready: Tokens::ZERO,
        ..observed()
    });
    assert_eq!(waterfall.ceiling(), Tokens::new(320));
    assert_eq!(waterfall.ready(), Tokens::new(320));
    assert_eq!(waterfall.parts().cold, Tokens::new(680));
}

#[test]
fn more_than_promised_is_a_negative_error_and_raises_nothing() {
    let waterfall = Waterfall::new(Observation {
        realised: Some(Tokens::new(992)),
        ..observed()
    });
    assert_eq!(waterfall.parts().index_error, Some(320 - 992));
    assert_eq!(waterfall.ceiling(), Tokens::new(960));
}

#[test]
fn cached_tokens_beyond_full_blocks_below_the_input_are_kept_apart() {
    let realised = |tokens| {
        let waterfall = Waterfall::new(Observation {
            realised: Some(Tokens::new(tokens)),
            ..observed()
        });
        let realised = waterfall.realised().unwrap();
        (realised.get(), waterfall.sub_block().get())
    };
    assert_eq!(realised(167), (160, 7));
    assert_eq!(realised(999), (992, 7));
    assert_eq!(realised(5_000), (992, 4_008));
}

#[test]
fn unknown_is_not_zero() {
    let waterfall = Waterfall::new(Observation {
        realised: None,
        ..observed()
    });
    assert_eq!(waterfall.realised(), None);
    assert_eq!(waterfall.parts().index_error, None);
    assert_eq!(waterfall.parts().sum(), 1_000 - 320);
    let mut totals = Totals::default();
    totals.add(&waterfall);
    assert_eq!(totals.realised_over_ceiling(), None);
    totals.add(&Waterfall::new(observed()));
    let ratio = totals.realised_over_ceiling();
    assert_eq!(ratio, Some(160.0 / 960.0), "only the measured one counts");
    assert_eq!(
        (totals.measured.requests, totals.unmeasured.requests),
        (1, 1)
    );
}

#[test]
fn an_unseen_rank_is_taken_to_have_held_what_was_realised() {
    let waterfall = Waterfall::new(Observation {
        chosen: Chosen::RankUnknown,
        ..observed()
    });
    assert_eq!(waterfall.chosen(), Tokens::new(160));
    assert_eq!(waterfall.rank(), RankKnowledge::Unknown);
    assert_eq!(waterfall.parts().index_error, Some(0));
    let mut totals = Totals::default();
    totals.add(&waterfall);
    assert_eq!(totals.rank_unknown, 1);
}

fn tokens() -> impl Strategy<Value = Tokens> {
    prop_oneof![0..5_000_u64, Just(u64::from(u32::MAX))].prop_map(Tokens::new)
}

prop_compose! {
    fn observations()(
        isl in tokens(),
        block_size in 1..600_u32,
        levels in [tokens(), tokens(), tokens(), tokens()],
        chosen in proptest::option::of(tokens()),
        realised in proptest::option::of(tokens()),
        unfinished: bool,
    ) -> Observation {
        let [ceiling, stored, best, ready] = levels;
        Observation {
            isl,
            block_size: BlockSize::new(block_size).unwrap(),
            ceiling,
            stored,
            best,
            ready,
            chosen: chosen.map_or(Chosen::RankUnknown, Chosen::Held),
            realised,
            carrier: if unfinished { Carrier::Unfinished } else { Carrier::FinishedOrUnknown },
        }
    }
}

fn signed(tokens: Tokens) -> i64 {
    i64::try_from(tokens.get()).unwrap()
}

/// What the parts of a sum have to add up to.
fn expected(measured: &Sums, unmeasured: &Sums) -> i64 {
    signed(measured.isl) - signed(measured.realised) + signed(unmeasured.isl)
        - signed(unmeasured.chosen)
}

proptest! {
    #[test]
    fn parts_add_up_to_what_was_not_realised(observation in observations()) {
        let waterfall = Waterfall::new(observation);
        let reached = waterfall.realised().unwrap_or(waterfall.chosen());
        prop_assert_eq!(waterfall.parts().sum(), signed(waterfall.isl()) - signed(reached));
    }

    #[test]
    fn levels_are_full_blocks_in_order(observation in observations()) {
        let waterfall = Waterfall::new(observation);
        let levels = [
            waterfall.isl(),
            waterfall.ceiling(),
            waterfall.stored(),
            waterfall.best(),
            waterfall.ready(),
            waterfall.chosen(),
        ];
        prop_assert!(levels.is_sorted_by(|higher, lower| higher >= lower), "{levels:?}");
        let size = u64::from(observation.block_size.get());
        prop_assert!(levels[1..].iter().all(|it| it.get() % size == 0));
        let realised = waterfall.realised().unwrap_or(Tokens::ZERO);
        prop_assert!(realised == Tokens::ZERO || realised < waterfall.isl());
        let reported = observation.realised.unwrap_or(Tokens::ZERO);
        prop_assert_eq!(realised + waterfall.sub_block(), reported);
    }

    #[test]
    fn a_waterfall_written_down_is_read_back_and_an_inverted_one_is_refused(observation in observations()) {
        let waterfall = Waterfall::new(observation);
        let levels = waterfall.levels();
        prop_assert_eq!(Waterfall::try_from(levels), Ok(waterfall));
        let above = levels.ready + Tokens::new(1);
        let inverted = Waterfall::try_from(Levels { chosen: above, ..levels });
        prop_assert!(inverted.is_err());
    }

    #[test]
    fn totals_add_up_however_they_are_merged(
        first in prop::collection::vec(observations(), 0..20),
        second in prop::collection::vec(observations(), 0..20),
    ) {
        let total = |observations: &[Observation]| {
            let mut totals = Totals::default();
            observations.iter().for_each(|it| totals.add(&Waterfall::new(*it)));
            totals
        };
        let mut merged = total(&first);
        merged.merge(&total(&second));
        prop_assert_eq!(merged, total(&[first, second].concat()));
        prop_assert_eq!(merged.all().parts.sum(), expected(&merged.measured, &merged.unmeasured));
        let gap = Gap::of(&merged);
        let measured = merged.measured;
        prop_assert_eq!(gap.sum(), signed(measured.ceiling) - signed(measured.realised));
        let shares: Vec<f64> = gap.named().iter().filter_map(|it| gap.share(it.1)).collect();
        let whole: f64 = shares.iter().sum();
        prop_assert!(shares.is_empty() || (whole - 1.0).abs() < 1e-9, "{shares:?}");
    }
}
