//! Whom to ask first. Every process that knows the same services has the same order for a key, and each key has its
//! own.

use std::cmp::Reverse;
use std::sync::Arc;

use domain::{ServiceInstance, Share, WorkerId};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// The services in the order in which to ask them about `key`: those that are ready first, and of these the highest
/// by rendezvous, xxh3-64 of the id with that of the key as its seed. A service that comes or goes changes nothing
/// between the others.
pub fn in_turn(key: &str, mut services: Vec<Arc<ServiceInstance>>) -> Vec<Arc<ServiceInstance>> {
    let seed = xxh3_64(key.as_bytes());
    services.sort_by_cached_key(|it| {
        let weight = xxh3_64_with_seed(it.id.as_str().as_bytes(), seed);
        (Reverse(it.ready), Reverse(weight), it.id.clone())
    });
    services
}

/// Those that have a worker to themselves; where none has, those that have all.
pub(super) fn of_worker(
    worker: &WorkerId,
    services: Vec<Arc<ServiceInstance>>,
) -> Vec<Arc<ServiceInstance>> {
    let has = |it: &Arc<ServiceInstance>| match &it.share {
        Share::Workers(workers) => workers.contains(worker),
        Share::Whole | Share::Shard { .. } => false,
    };
    let own: Vec<_> = services.iter().filter(|it| has(it)).cloned().collect();
    if !own.is_empty() {
        return own;
    }
    let whole = |it: &Arc<ServiceInstance>| it.share == Share::Whole;
    services.into_iter().filter(whole).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use domain::{ServiceKind, Timestamp};
    use proptest::collection::btree_map;
    use proptest::prelude::*;

    use super::*;

    fn service(id: &str, ready: bool) -> Arc<ServiceInstance> {
        Arc::new(ServiceInstance {
            id: id.parse().expect("an id"),
            kind: ServiceKind::AffinityStore,
            address: "127.0.0.1:1".to_owned(),
            share: Share::Whole,
            ready,
            distrust: Vec::new(),
            secret: None,
            lease_until: Timestamp::ZERO,
        })
    }

    fn ids(services: &[Arc<ServiceInstance>]) -> Vec<String> {
        services.iter().map(|it| it.id.to_string()).collect()
    }

    proptest! {
        #[test]
        fn the_order_is_the_same_for_all_and_the_ready_come_first(
            known in btree_map("[a-z]{1,4}", any::<bool>(), 1..9), key in "[a-z]{0,8}",
        ) {
            let services: Vec<_> = known.iter().map(|(id, ready)| service(id, *ready)).collect();
            let reversed = services.iter().rev().cloned().collect();
            let order = in_turn(&key, services.clone());
            prop_assert_eq!(ids(&order), ids(&in_turn(&key, reversed)));
            prop_assert!(order.is_sorted_by_key(|it| Reverse(it.ready)));

            // Without one of them the others keep their order.
            for gone in &services {
                let others = services.iter().filter(|it| it.id != gone.id).cloned().collect();
                let expected: Vec<_> = order.iter().filter(|it| it.id != gone.id).cloned().collect();
                prop_assert_eq!(ids(&in_turn(&key, others)), ids(&expected));
            }
        }
    }

    #[test]
    fn keys_are_spread_evenly() {
        let services: Vec<_> = ["a", "b", "c", "d"].map(|id| service(id, true)).into();
        let mut first: BTreeMap<String, u32> = BTreeMap::new();
        for key in 0..4_000 {
            let order = in_turn(&key.to_string(), services.clone());
            *first.entry(order[0].id.to_string()).or_default() += 1;
        }
        for (id, keys) in first {
            assert!((800..1_200).contains(&keys), "{id} has {keys}");
        }
    }
}
