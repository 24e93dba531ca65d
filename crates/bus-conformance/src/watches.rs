//! Promises to those who watch a table.

use bus::{Bus, Change, Expect};
use bytes::Bytes;
use futures::future::{join, join_all};

use crate::steps::{Held, delete, follow_to, get, key, next_change, put, snapshot, soon, watch};
use crate::{CAS, OWN};

/// A watcher sees what was there, then the mark, then each later change once.
pub async fn a_watch_has_no_gap_between_snapshot_and_changes(bus: &dyn Bus) {
    for table in [OWN, CAS] {
        put(bus, &table, key("old"), "1").await;
        let mut changes = watch(bus, &table).await;
        assert!(matches!(next_change(&mut changes).await, Change::Put(k, _) if k == key("old")));
        assert_eq!(next_change(&mut changes).await, Change::CaughtUp);

        let revision = put(bus, &table, key("new"), "2").await;
        let Change::Put(new, entry) = next_change(&mut changes).await else {
            panic!("a put shows as a put");
        };
        assert_eq!((new, entry.revision), (key("new"), revision));
        assert_eq!(entry.value, "2");
        delete(bus, &table, key("old")).await;
        assert_eq!(next_change(&mut changes).await, Change::Deleted(key("old")));
    }
}

/// A table without keys still says that there is nothing more.
pub async fn the_watch_of_an_empty_table_is_caught_up_at_once(bus: &dyn Bus) {
    let mut never_used = watch(bus, &CAS).await;
    assert_eq!(next_change(&mut never_used).await, Change::CaughtUp);

    put(bus, &CAS, key("k"), "1").await;
    delete(bus, &CAS, key("k")).await;
    let mut emptied = watch(bus, &CAS).await;
    assert_eq!(snapshot(&mut emptied).await, Held::new());
}

/// Whatever the moment at which a watch begins, snapshot and changes add up to the table.
pub async fn a_watch_begun_amid_writes_misses_none(bus: &dyn Bus) {
    let write = async {
        for round in 0..20_u8 {
            for name in 0..10 {
                put(bus, &CAS, key(name.to_string()), vec![round]).await;
            }
        }
    };
    let begin = async {
        let mut watches = Vec::new();
        for _ in 0..10 {
            watches.push(watch(bus, &CAS).await);
        }
        watches
    };
    let ((), watches) = join(write, begin).await;

    let goal = table(bus, 10).await;
    for mut changes in watches {
        let mut held = snapshot(&mut changes).await;
        follow_to(&mut changes, &mut held, &goal).await;
    }
}

/// A watcher that did not look for long ends at the same state as the table, deletions included.
pub async fn a_slow_watcher_sees_the_latest_of_every_key(bus: &dyn Bus) {
    const KEYS: usize = 50;
    put(bus, &CAS, key("0"), "at the start").await;
    let mut slow = watch(bus, &CAS).await;
    for round in 0..20_u8 {
        let round = Bytes::from(vec![round]);
        let puts = (0..KEYS).map(|name| {
            bus.put(
                &CAS,
                key(name.to_string()),
                Some(round.clone()),
                Expect::Any,
            )
        });
        for result in soon(join_all(puts)).await {
            result.expect("put");
        }
        delete(bus, &CAS, key("7")).await;
    }
    delete(bus, &CAS, key("0")).await;

    let goal = table(bus, KEYS).await;
    assert_eq!(goal.len(), KEYS - 2);
    let mut held = snapshot(&mut slow).await;
    follow_to(&mut slow, &mut held, &goal).await;
}

/// A table of any size is shown whole, each key once, before the mark.
pub async fn a_watch_shows_all_of_many_keys(bus: &dyn Bus) {
    const KEYS: usize = 1000;
    let puts = (0..KEYS).map(|name| {
        let value = Bytes::from(name.to_string());
        bus.put(&CAS, key(name.to_string()), Some(value), Expect::Any)
    });
    for result in soon(join_all(puts)).await {
        result.expect("put");
    }

    let mut changes = watch(bus, &CAS).await;
    let mut seen = Held::new();
    loop {
        match next_change(&mut changes).await {
            Change::Put(key, entry) => assert_eq!(seen.insert(key, entry), None),
            Change::Deleted(key) => panic!("{key:?} was never deleted"),
            Change::CaughtUp => break,
        }
    }
    let named = |name: usize| key(name.to_string());
    assert_eq!(seen.len(), KEYS);
    assert!((0..KEYS).all(|it| seen[&named(it)].value == it.to_string()));
}

/// Watchers do not take changes from each other.
pub async fn all_watchers_see_every_change(bus: &dyn Bus) {
    let mut watches = [watch(bus, &OWN).await, watch(bus, &OWN).await];
    for changes in &mut watches {
        assert_eq!(next_change(changes).await, Change::CaughtUp);
    }
    for name in ["a", "b"] {
        put(bus, &OWN, key(name), "v").await;
        for changes in &mut watches {
            assert!(matches!(next_change(changes).await, Change::Put(k, _) if k == key(name)));
        }
    }
}

/// The keys `0` to `keys - 1` that are there.
async fn table(bus: &dyn Bus, keys: usize) -> Held {
    let mut held = Held::new();
    for name in 0..keys {
        let key = key(name.to_string());
        if let Some(entry) = get(bus, &CAS, key.clone()).await {
            held.insert(key, entry);
        }
    }
    held
}
