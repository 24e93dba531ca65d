//! What the in-memory bus promises beyond [`bus::Bus`]: its bounds, and its switches for tests.

use bus::{
    Bus, BusError, Delivered, Expect, Key, LiveTable, MemoryBus, Offset, Partition, Record,
    Revision, Start, Table,
};
use bytes::Bytes;
use futures::StreamExt;
use std::sync::Arc;

const LOG: Partition = Partition {
    topic: "conformance-log",
    index: 0,
};
const NEWS: Partition = Partition {
    topic: "conformance-news",
    index: 0,
};

fn bus() -> MemoryBus {
    MemoryBus::new(&bus_conformance::LAYOUT)
}

fn texts(texts: &[&'static str]) -> Vec<Record> {
    texts.iter().map(|it| Record(Bytes::from(*it))).collect()
}

#[tokio::test]
async fn a_bus_by_default_has_whatever_it_is_asked_for() {
    let bus = MemoryBus::default();
    let anywhere = Partition {
        topic: "anything",
        index: 99,
    };
    bus.append(&anywhere, texts(&["a"])).await.unwrap();
    let table = Table("anything");
    let put = bus.put(&table, Key("k".into()), Some("v".into()), Expect::Absent);

    assert!(put.await.is_ok());
    let mut records = bus.read(&anywhere, Start::Earliest).await.unwrap();
    assert_eq!(records.next().await.unwrap().unwrap().record.0, "a");
}

#[tokio::test]
async fn offsets_skip_so_that_nobody_counts_with_them() {
    let bus = bus();
    bus.append(&LOG, texts(&["a", "b", "c", "d"]))
        .await
        .unwrap();

    let records = bus.read(&LOG, Start::Earliest).await.unwrap();
    let offsets: Vec<Offset> = records.map(|it| it.unwrap().offset).take(4).collect().await;
    assert_eq!(offsets, [3, 4, 14, 17].map(Offset));
}

#[tokio::test]
async fn every_record_that_a_slow_reader_misses_is_counted() {
    let bus = bus();
    let mut slow = bus.read(&NEWS, Start::Earliest).await.unwrap();
    let mut never_polled = bus.read(&NEWS, Start::Earliest).await.unwrap();
    let sent = 3000_u64;
    for _ in 0..sent {
        let record = Record(vec![0; 1024].into());
        bus.append(&NEWS, vec![record]).await.unwrap();
    }
    bus.end_streams();

    let mut received = 0;
    while let Some(Ok(Delivered { .. })) = slow.next().await {
        received += 1;
    }
    assert!(received < 1024);
    assert_eq!(bus.lost_records(), sent - received);
    assert!(never_polled.next().await.unwrap().is_ok());
    assert_eq!(bus.lost_records(), 2 * (sent - received));
}

#[tokio::test]
async fn a_read_of_what_was_trimmed_says_so_and_names_the_oldest_kept() {
    let bus = bus();
    let a = bus.append(&LOG, texts(&["a"])).await.unwrap();
    let b = bus.append(&LOG, texts(&["b"])).await.unwrap();
    let c = bus.append(&LOG, texts(&["c"])).await.unwrap();
    let mut reading = bus.read(&LOG, Start::Earliest).await.unwrap();
    bus.trim(&LOG, b).unwrap();

    let trimmed = bus.read(&LOG, Start::After(a)).await.err();
    assert!(matches!(trimmed, Some(BusError::Trimmed { oldest }) if oldest == Some(c)));
    let trimmed = reading.next().await.unwrap();
    assert!(matches!(trimmed, Err(BusError::Trimmed { oldest }) if oldest == Some(c)));
    assert!(reading.next().await.is_none());
    for start in [Start::Earliest, Start::After(b)] {
        let mut rest = bus.read(&LOG, start).await.unwrap();
        assert_eq!(rest.next().await.unwrap().unwrap().record.0, "c");
    }
    assert_eq!(bus.tail(&LOG).await.unwrap().last, Some(c));
}

#[tokio::test]
async fn a_durable_log_is_bounded_too() {
    let bus = bus();
    let first = bus.append(&LOG, texts(&["first"])).await.unwrap();
    for _ in 0..65 {
        let mebibyte = vec![Record(vec![0; 512 * 1024].into()); 2];
        bus.append(&LOG, mebibyte).await.unwrap();
    }

    let trimmed = bus.read(&LOG, Start::After(first)).await.err();
    assert!(matches!(trimmed, Some(BusError::Trimmed { .. })));
}

#[tokio::test]
async fn a_log_that_begins_anew_is_empty_and_has_another_generation() {
    let bus = bus();
    bus.append(&LOG, texts(&["a"])).await.unwrap();
    let before = bus.tail(&LOG).await.unwrap();
    let reading = bus.read(&LOG, Start::Earliest).await.unwrap();
    bus.begin_anew(&LOG).unwrap();

    let after = bus.tail(&LOG).await.unwrap();
    assert_ne!(after.generation, before.generation);
    assert_eq!(after.last, None);
    let results: Vec<_> = reading.collect().await;
    assert!(matches!(
        results[..],
        [Ok(_), Err(BusError::Unavailable(_))]
    ));
}

#[tokio::test]
async fn a_watcher_behind_more_deletions_than_are_remembered_is_told() {
    let table = Arc::new(LiveTable::new(Revision(0)));
    let mut watcher = table.clone().watch();
    let put = |n: u32, value| {
        let key = Key(Bytes::copy_from_slice(&n.to_be_bytes()));
        table.put(key, value, Expect::Any).unwrap();
    };
    put(0, Some("kept".into()));
    for n in 1..70_000 {
        put(n, Some("v".into()));
        put(n, None);
    }

    assert!(watcher.next().await.unwrap().is_ok(), "caught up");
    let told = watcher.next().await.unwrap();
    assert!(matches!(told, Err(error) if error.is_retryable()));
    assert!(watcher.next().await.is_none());
    let again: Vec<_> = table.clone().watch().take(2).collect().await;
    assert!(again.iter().all(Result::is_ok));
}

#[tokio::test]
async fn a_table_holds_one_change_of_each_key_however_often_it_is_written() {
    let table = Arc::new(LiveTable::new(Revision(0)));
    let watcher = table.clone().watch();
    let put = |value| table.put(Key("k".into()), value, Expect::Any).unwrap();
    for _ in 0..70_000 {
        put(Some("v".into()));
        put(None);
    }
    let last = put(Some("latest".into()));

    let changes = table.changes_after(Revision(0)).unwrap();
    assert_eq!(changes.len(), 1);
    assert_eq!(changes[0].0, last);
    let seen: Vec<_> = watcher.take(2).collect().await;
    assert!(seen.iter().all(Result::is_ok), "it has missed no deletion");
}
