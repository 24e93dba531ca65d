//! The steps that these tests are told in.

use std::time::Duration;

use bus::{
    Bus, BusError, Delivered, Expect, Key, Offset, Partition, Record, Records, Start, Table,
};
use bus_nats::{NatsBus, Settings};
use bytes::Bytes;
use futures::StreamExt;

use crate::server::Server;

pub(crate) const LOG: Partition = Partition {
    topic: "conformance-log",
    index: 0,
};
pub(crate) const NEWS: Partition = Partition {
    topic: "conformance-news",
    index: 0,
};
pub(crate) const TABLE: Table = Table("conformance-cas");

/// How the streams of these are called.
pub(crate) const LOG_STREAM: &str = "rankway_conformance-log_v1_0";
pub(crate) const TABLE_STREAM: &str = "rankway_conformance-cas_v1";

pub(crate) fn settings(server: &Server) -> Settings {
    Settings {
        servers: vec![server.address()],
        ..Settings::default()
    }
}

pub(crate) async fn connect(server: &Server) -> NatsBus {
    connect_with(settings(server)).await
}

pub(crate) async fn connect_with(settings: Settings) -> NatsBus {
    let bus = NatsBus::connect(settings, &bus_conformance::LAYOUT);
    soon(bus).await.unwrap()
}

/// Resolves as `step` does, or panics when it takes too long.
pub(crate) async fn soon<T>(step: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), step)
        .await
        .expect("a step took too long")
}

/// Resolves once `holds` does, or panics when that takes too long.
pub(crate) async fn until(mut holds: impl AsyncFnMut() -> bool) {
    soon(async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

/// Records with a number each.
pub(crate) fn numbered(numbers: std::ops::Range<u32>) -> Vec<Record> {
    let text = |n: u32| format!("{n:08} of a log that is to be kept");
    numbers.map(|n| Record(Bytes::from(text(n)))).collect()
}

pub(crate) fn number(delivered: &Delivered) -> u32 {
    let text = std::str::from_utf8(&delivered.record.0).unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

/// Appends until the server takes it.
pub(crate) async fn insist(bus: &NatsBus, batch: Vec<Record>) -> Offset {
    loop {
        match soon(bus.append(&LOG, batch.clone())).await {
            Ok(offset) => return offset,
            Err(error) => assert!(error.is_retryable(), "{error:?}"),
        }
    }
}

/// The next `count` records.
pub(crate) async fn take(records: &mut Records, count: usize) -> Vec<Delivered> {
    let mut taken = Vec::with_capacity(count);
    while taken.len() < count {
        taken.push(soon(records.next()).await.unwrap().unwrap());
    }
    taken
}

/// Everything that is in the log now.
pub(crate) async fn all(bus: &NatsBus) -> Vec<Delivered> {
    let Some(last) = soon(bus.tail(&LOG)).await.unwrap().last else {
        return Vec::new();
    };
    let mut records = soon(bus.read(&LOG, Start::Earliest)).await.unwrap();
    let mut all = Vec::new();
    while all.last().is_none_or(|it: &Delivered| it.offset < last) {
        all.extend(take(&mut records, 1).await);
    }
    all
}

/// Asserts that these numbers are all there, without a hole, but for what was read or appended again.
pub(crate) fn assert_no_hole(delivered: &[Delivered], numbers: std::ops::Range<u32>) {
    let mut next = numbers.start;
    for number in delivered.iter().map(number) {
        assert!(number <= next, "{next} was left out before {number}");
        next = next.max(number + 1);
    }
    assert_eq!(next, numbers.end);
}

pub(crate) fn key(text: &str) -> Key {
    Key(Bytes::copy_from_slice(text.as_bytes()))
}

pub(crate) async fn put(bus: &NatsBus, name: &str, value: Option<&'static str>) -> bus::Revision {
    let value = value.map(Bytes::from);
    soon(bus.put(&TABLE, key(name), value, Expect::Any))
        .await
        .unwrap()
}

/// Asserts that an operation failed in a way that may pass.
pub(crate) fn assert_away<T>(outcome: Result<T, BusError>) {
    match outcome {
        Ok(_) => panic!("nobody can have answered"),
        Err(error) => assert!(error.is_retryable(), "{error:?}"),
    }
}
