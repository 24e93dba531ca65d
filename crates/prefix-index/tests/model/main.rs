//! Random histories, compared with a naive model after every step.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bytes;
mod history;
mod naive;

use bytes::Bytes;
use domain::{BlockHash, DpRank, Epoch, Namespace, Target, Tier};
use history::{Named, Step, Stored, check, namespace, worker};
use proptest::collection::vec;
use proptest::prelude::*;

fn targets() -> impl Strategy<Value = Target> {
    (0_u32..3, 1_u64..4, 0_u32..3).prop_map(|(number, epoch, rank)| Target {
        worker: worker(number),
        epoch: Epoch::new(epoch),
        dp_rank: DpRank::new(rank),
    })
}

fn tiers() -> impl Strategy<Value = Tier> {
    prop_oneof![4 => Just(Tier::Gpu), 1 => Just(Tier::Host), 1 => Just(Tier::Disk)]
}

/// How long chains are.
#[derive(Clone, Copy, Debug)]
enum Chains {
    /// A few blocks, each one of two.
    Short,
    /// A few stretches of blocks, each one of two, so that runs and sparse hashes matter.
    Long,
}

fn paths(chains: Chains) -> BoxedStrategy<Vec<BlockHash>> {
    match chains {
        Chains::Short => vec((0_u64..2).prop_map(BlockHash::new), 1..6).boxed(),
        Chains::Long => {
            let stretch = (0_u64..2, prop_oneof![1_u64..4, Just(8), Just(17), Just(32)]);
            vec(stretch, 1..4)
                .prop_map(|stretches| {
                    let blocks = stretches
                        .into_iter()
                        .flat_map(|(kind, len)| (0..len).map(move |it| 100 * kind + it));
                    blocks.map(BlockHash::new).collect()
                })
                .boxed()
        }
    }
}

fn namespaces() -> impl Strategy<Value = Namespace> {
    prop_oneof![3 => Just(namespace(0)), 1 => Just(namespace(1))]
}

fn aliases() -> impl Strategy<Value = u64> {
    prop_oneof![8 => Just(0_u64), 2 => Just(1), 1 => Just(2)]
}

fn named(chains: Chains) -> impl Strategy<Value = Named> {
    (
        targets(),
        0_u32..2,
        paths(chains),
        any::<usize>(),
        aliases(),
    )
        .prop_map(|(target, group, path, from, alias)| Named {
            target,
            group,
            from: from % path.len(),
            path,
            alias,
        })
}

fn steps(chains: Chains) -> impl Strategy<Value = Step> {
    let stored = (named(chains), tiers(), namespaces()).prop_map(|(named, tier, namespace)| {
        Step::Store(Stored {
            target: named.target,
            group: named.group,
            // Most begin at the root.
            from: named.from.saturating_sub(2),
            path: named.path,
            alias: named.alias,
            tier,
            namespace,
        })
    });
    prop_oneof![
        12 => stored,
        6 => (named(chains), tiers()).prop_map(|(named, tier)| Step::Remove(named, tier)),
        3 => (named(chains), tiers(), tiers()).prop_map(|(named, from, to)| Step::Retier(named, from, to)),
        1 => targets().prop_map(Step::Clear),
        1 => targets().prop_map(Step::Reset),
        1 => (0_u32..3, 0_u64..4).prop_map(|(it, epoch)| Step::Fence(worker(it), Epoch::new(epoch))),
        1 => targets().prop_map(Step::Reload),
        1 => (namespaces(), paths(chains)).prop_map(|(namespace, path)| Step::Record(namespace, path)),
        1 => (0_usize..40).prop_map(Step::Sweep),
        2 => (0_usize..40).prop_map(Step::Reclaim),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn answers_digests_and_counts_equal_those_of_full_prefix_sets(
        steps in vec((steps(Chains::Short), paths(Chains::Short)), 1..120)
    ) {
        check(&steps);
    }

    #[test]
    fn chains_of_many_runs_are_answered_exactly_however_they_are_asked_for(
        steps in vec((steps(Chains::Long), paths(Chains::Long)), 1..80)
    ) {
        check(&steps);
    }
}

#[test]
fn any_bytes_are_a_history_that_is_answered_exactly() {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    for _ in 0..150 {
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 24) as u8
        };
        let input: Vec<u8> = (0..400).map(|_| random()).collect();
        check(&Bytes(&input).history());
    }
}
