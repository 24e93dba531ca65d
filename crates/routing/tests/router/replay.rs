//! A recorded decision can be made again.

use placement::Policy;
use proptest::prelude::*;
use routing::{Config, replay};

use crate::world::{World, content, served, target};

proptest! {
    #[test]
    fn a_recorded_decision_replays_bit_for_bit(
        policy in prop::sample::select(Policy::ALL.to_vec()),
        requests in prop::collection::vec((0..5_u64, 1..80_u64, 0..3_u64, any::<bool>()), 1..40),
    ) {
        let mut world = World::new(2, 3, Config { policy, ..Config::default() });
        let mut decisions = Vec::new();
        for (name, blocks, seconds, indexed) in requests {
            let request = world.turn(&format!("c{name}"), &content(name, blocks));
            let decision = if indexed {
                world.decide(&request, None)
            } else {
                world.decide_blind(&request, None)
            };
            let decision = decision.unwrap();
            let at = decision.target().cloned().unwrap_or(target("w1#1/0"));
            world.hold(&at, &content(name, blocks));
            world.wait(seconds as f64 * 0.4);
            if seconds == 2 {
                world.router.finish(request.id, &served(), world.now);
            }
            decisions.push(decision);
        }
        for decision in decisions {
            let again = replay(&decision);
            // Equal texts, as equal floats may differ in their bits.
            prop_assert_eq!(format!("{again:?}"), format!("{:?}", decision.choice));
            let sums = decision.scores().iter().all(|it| it.cost.is_finite() && it.cost > 0.0);
            prop_assert!(sums);
        }
    }
}
