//! Whom a new indexer may begin with, of those that `fleet` knows of.

use std::collections::{BTreeMap, BTreeSet};

use contracts::rpc::Shard;
use contracts::topics::KV_EVENTS;
use domain::{InstanceId, ServiceInstance, ServiceKind, Timestamp};

/// The indexers other than `own` that hold what `shard` follows, as sets of which each one has all of it: as few as
/// there need to be, the smallest set first. What is not ready, at no address, or past its lease is left out.
pub fn siblings<'a>(
    services: impl IntoIterator<Item = &'a ServiceInstance>,
    shard: Shard,
    own: &InstanceId,
    now: Timestamp,
) -> Vec<Vec<&'a ServiceInstance>> {
    let is_there = |it: &&ServiceInstance| {
        it.kind == ServiceKind::Indexer
            && it.id != *own
            && it.ready
            && !it.address.is_empty()
            && now < it.lease_until
    };
    // By how many shards there are, and by which one it is: several may be the same.
    let mut by_count: BTreeMap<u32, BTreeMap<u32, Vec<&ServiceInstance>>> = BTreeMap::new();
    for service in services.into_iter().filter(is_there) {
        if let Some(follows) = Shard::of_share(&service.share) {
            let shards = by_count.entry(follows.of()).or_default();
            shards.entry(follows.index()).or_default().push(service);
        }
    }
    let own_partitions = || (0..KV_EVENTS.partitions).filter(|it| shard.follows(*it));
    let mut sets = Vec::new();
    for (of, shards) in by_count {
        let needed: BTreeSet<u32> = own_partitions().map(|it| it % of).collect();
        let holders: Option<Vec<_>> = needed.iter().map(|it| shards.get(it)).collect();
        let Some(holders) = holders else {
            continue;
        };
        let copies = holders.iter().map(|it| it.len()).max().unwrap_or(0);
        let set = |copy: usize| holders.iter().map(move |it| it[copy % it.len()]).collect();
        sets.extend((0..copies).map(set));
    }
    sets.sort_by_key(Vec::len);
    sets
}

#[cfg(test)]
mod tests {
    use super::*;

    fn indexer(id: &str, shard: &str) -> ServiceInstance {
        ServiceInstance {
            id: id.parse().unwrap(),
            kind: ServiceKind::Indexer,
            address: format!("http://{id}:1"),
            share: shard.parse::<Shard>().unwrap().share(),
            ready: true,
            distrust: Vec::new(),
            secret: None,
            lease_until: Timestamp::from_micros(100),
        }
    }

    /// The sets that `shard` may begin with, of those that are `id=shard`.
    fn check(there: &[(&str, &str)], shard: &str, expected: &[&[&str]]) {
        let there: Vec<_> = there.iter().map(|(id, shard)| indexer(id, shard)).collect();
        let shard = shard.parse().unwrap();
        let now = Timestamp::from_micros(50);
        let sets = siblings(&there, shard, &"own".parse().unwrap(), now);
        let ids = |set: &Vec<&ServiceInstance>| -> Vec<String> {
            set.iter().map(|it| it.id.to_string()).collect()
        };
        let sets: Vec<Vec<String>> = sets.iter().map(ids).collect();
        assert_eq!(sets, expected, "{shard}");
    }

    #[test]
    fn each_set_has_all_that_the_shard_follows() {
        let halves = [("a", "0/2"), ("b", "1/2")];
        check(&halves, "0/1", &[&["a", "b"]]);
        check(&halves, "1/2", &[&["b"]]);
        check(&halves, "1/4", &[&["b"]]);
        check(&halves[..1], "0/1", &[]);
        check(&halves[..1], "1/2", &[]);
        let quarters = ["0/4", "1/4", "2/4", "3/4"].map(|it| (it.split_at(1).0, it));
        check(&quarters, "1/2", &[&["1", "3"]]);
        check(&quarters, "0/3", &[&["0", "1", "2", "3"]]);
    }

    #[test]
    fn the_fewest_are_asked_first_and_each_copy_is_a_sibling() {
        let there = [("a", "0/2"), ("b", "1/2"), ("c", "0/2"), ("d", "0/1")];
        check(&there, "0/1", &[&["d"], &["a", "b"], &["c", "b"]]);
        check(&there, "0/2", &[&["d"], &["a"], &["c"]]);
    }

    #[test]
    fn only_indexers_that_can_answer_count() {
        let now = Timestamp::from_micros(50);
        let count = |change: fn(&mut ServiceInstance)| {
            let mut there = indexer("a", "0/1");
            change(&mut there);
            siblings([&there], Shard::WHOLE, &"own".parse().unwrap(), now).len()
        };
        assert_eq!(count(|_| {}), 1);
        assert_eq!(count(|it| it.id = "own".parse().unwrap()), 0);
        assert_eq!(count(|it| it.kind = ServiceKind::Router), 0);
        assert_eq!(count(|it| it.ready = false), 0);
        assert_eq!(count(|it| it.address.clear()), 0);
        assert_eq!(count(|it| it.lease_until = Timestamp::from_micros(50)), 0);
        assert_eq!(
            count(|it| it.share = domain::Share::Workers(Default::default())),
            0
        );
    }
}
