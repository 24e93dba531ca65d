//! The steps that the promises are told in, each with a deadline so that a broken promise ends a test.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use bus::{
    Bus, BusError, Change, Changes, Delivered, Entry, Expect, Key, Offset, Partition, Record,
    Records, Revision, Start, Table,
};
use bytes::Bytes;
use futures::StreamExt;

/// How long a broker may take for one step of a test.
const PATIENCE: Duration = Duration::from_secs(20);

/// What a watcher holds: each key's value.
pub(crate) type Held = BTreeMap<Key, Entry>;

/// Resolves as `step` does, or panics when it takes too long.
pub(crate) async fn soon<T>(step: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, step)
        .await
        .expect("a step took longer than the deadline of the suite")
}

pub(crate) fn records(texts: &[&'static str]) -> Vec<Record> {
    texts.iter().map(|it| Record(Bytes::from(*it))).collect()
}

pub(crate) async fn append(bus: &dyn Bus, at: &Partition, batch: Vec<Record>) -> Offset {
    soon(bus.append(at, batch)).await.expect("append")
}

pub(crate) async fn open(bus: &dyn Bus, at: &Partition, start: Start) -> Records {
    soon(bus.read(at, start)).await.expect("read")
}

/// The next `count` records of `records`.
pub(crate) async fn take(records: &mut Records, count: usize) -> Vec<Delivered> {
    let mut taken = Vec::with_capacity(count);
    while taken.len() < count {
        let next = soon(records.next()).await.expect("a read never ends");
        taken.push(next.expect("record"));
    }
    taken
}

/// The first `count` records after `start`.
pub(crate) async fn read(
    bus: &dyn Bus,
    at: &Partition,
    start: Start,
    count: usize,
) -> Vec<Delivered> {
    take(&mut open(bus, at, start).await, count).await
}

pub(crate) fn bytes_of(delivered: &[Delivered]) -> Vec<Bytes> {
    delivered.iter().map(|it| it.record.0.clone()).collect()
}

pub(crate) fn key(text: impl Into<String>) -> Key {
    Key(Bytes::from(text.into()))
}

pub(crate) async fn try_put(
    bus: &dyn Bus,
    table: &Table,
    key: Key,
    value: &'static str,
    expect: Expect,
) -> Result<Revision, BusError> {
    soon(bus.put(table, key, Some(Bytes::from(value)), expect)).await
}

/// Writes `value` whatever is there.
pub(crate) async fn put(
    bus: &dyn Bus,
    table: &Table,
    key: Key,
    value: impl Into<Bytes>,
) -> Revision {
    soon(bus.put(table, key, Some(value.into()), Expect::Any))
        .await
        .expect("put")
}

pub(crate) async fn delete(bus: &dyn Bus, table: &Table, key: Key) -> Revision {
    soon(bus.put(table, key, None, Expect::Any))
        .await
        .expect("delete")
}

pub(crate) async fn get(bus: &dyn Bus, table: &Table, key: Key) -> Option<Entry> {
    soon(bus.get(table, &key)).await.expect("get")
}

pub(crate) async fn watch(bus: &dyn Bus, table: &Table) -> Changes {
    soon(bus.watch(table)).await.expect("watch")
}

pub(crate) async fn next_change(changes: &mut Changes) -> Change {
    let next = soon(changes.next()).await.expect("a watch never ends");
    next.expect("change")
}

/// What `changes` yields before it is caught up.
pub(crate) async fn snapshot(changes: &mut Changes) -> Held {
    let mut held = Held::new();
    loop {
        match next_change(changes).await {
            Change::CaughtUp => return held,
            change => apply(&mut held, change),
        }
    }
}

/// Applies `changes` to `held` until it is as `goal` says.
pub(crate) async fn follow_to(changes: &mut Changes, held: &mut Held, goal: &Held) {
    while held != goal {
        let change = next_change(changes).await;
        assert_ne!(change, Change::CaughtUp, "a watch is caught up once");
        apply(held, change);
    }
}

fn apply(held: &mut Held, change: Change) {
    match change {
        Change::Put(key, entry) => {
            let former = held.insert(key, entry.clone());
            assert!(former.is_none_or(|it| it.revision <= entry.revision));
        }
        Change::Deleted(key) => {
            held.remove(&key);
        }
        Change::CaughtUp => {}
    }
}
