//! What is kept for how long: records, deletions, and what slow readers hold.

use std::time::Duration;

use bus::{Bus, BusError, Expect, Layout, LogKind, Offset, Start, TopicSpec};
use bus_nats::{NatsBus, Settings};
use futures::StreamExt;

use crate::server::{Server, programs};
use crate::steps::{
    LOG, NEWS, TABLE, TABLE_STREAM, all, connect_with, insist, key, numbered, put, settings, soon,
    until,
};

/// A layout whose records are soon too old.
const BRIEF: Layout = Layout {
    topics: &[TopicSpec {
        name: "conformance-log",
        partitions: 1,
        kind: LogKind::Durable {
            retention: Duration::from_secs(1),
        },
    }],
    tables: &[],
};

#[tokio::test]
async fn a_full_log_loses_its_oldest_records_and_readers_are_told() {
    for program in programs() {
        let server = Server::start(&program).await;
        let bus = connect_with(Settings {
            topic_bytes: 2 * 64 * 1024,
            ..settings(&server)
        })
        .await;
        let first = insist(&bus, numbered(0..1)).await;
        let mut slow = soon(bus.read(&LOG, Start::Earliest)).await.unwrap();
        soon(slow.next()).await.unwrap().unwrap();
        for batch in 0..30 {
            insist(&bus, numbered(batch * 100..(batch + 1) * 100)).await;
        }

        let trimmed = soon(bus.read(&LOG, Start::After(first))).await.err();
        let Some(BusError::Trimmed {
            oldest: Some(oldest),
        }) = trimmed
        else {
            panic!("{trimmed:?}");
        };
        assert_eq!(all(&bus).await[0].offset, oldest);
        let mut told = None;
        while told.is_none() {
            told = soon(slow.next()).await.unwrap().err();
        }
        assert!(matches!(told, Some(BusError::Trimmed { .. })), "{told:?}");
    }
}

#[tokio::test]
async fn records_go_when_their_retention_ends_and_their_offsets_stay_used() {
    for program in programs() {
        let server = Server::start(&program).await;
        let bus = soon(NatsBus::connect(settings(&server), &BRIEF))
            .await
            .unwrap();
        let first = insist(&bus, numbered(0..1)).await;
        let last = insist(&bus, numbered(1..2)).await;
        until(async || {
            bus.read(&LOG, Start::After(Offset(first.0 - 1)))
                .await
                .is_err()
        })
        .await;

        until(async || bus.read(&LOG, Start::After(first)).await.is_err()).await;
        assert_eq!(soon(bus.tail(&LOG)).await.unwrap().last, Some(last));
        let next = insist(&bus, numbered(2..3)).await;
        assert!(last < next);
    }
}

#[tokio::test]
async fn a_connection_with_other_settings_changes_what_is_kept() {
    for program in programs() {
        let server = Server::start(&program).await;
        let bus = connect_with(settings(&server)).await;
        let first = insist(&bus, numbered(0..1000)).await;
        assert_eq!(all(&bus).await.len(), 1000);
        let generation = soon(bus.tail(&LOG)).await.unwrap().generation;

        let changed = connect_with(Settings {
            topic_bytes: 2 * 16 * 1024,
            ..settings(&server)
        })
        .await;
        assert!(all(&changed).await.len() < 1000);
        let tail = soon(changed.tail(&LOG)).await.unwrap();
        assert_eq!((tail.generation, tail.last), (generation, Some(first)));
    }
}

#[tokio::test]
async fn what_is_left_of_deleted_keys_is_cleared_away_and_revisions_grow_across_it() {
    for program in programs() {
        let server = Server::start(&program).await;
        let bus = connect_with(Settings {
            deletions_kept: Duration::from_millis(300),
            ..settings(&server)
        })
        .await;
        let kept = put(&bus, "kept", Some("v")).await;
        let mut deleted = kept;
        for name in 0..50 {
            put(&bus, &name.to_string(), Some("v")).await;
            deleted = put(&bus, &name.to_string(), None).await;
        }

        let client = async_nats::connect(server.address()).await.unwrap();
        let jetstream = async_nats::jetstream::new(client);
        until(async || {
            let stream = jetstream.get_stream(TABLE_STREAM).await.unwrap();
            stream.cached_info().state.messages == 1
        })
        .await;
        until(async || bus.counts().cleared_deletions == 50).await;
        let created = bus.put(&TABLE, key("49"), Some("again".into()), Expect::Absent);
        assert!(deleted < soon(created).await.unwrap());
        let entry = soon(bus.get(&TABLE, &key("kept"))).await.unwrap();
        assert_eq!(entry.unwrap().revision, kept);
    }
}

#[tokio::test]
async fn every_record_that_a_slow_reader_of_news_misses_is_counted() {
    for program in programs() {
        let server = Server::start(&program).await;
        let bus = connect_with(settings(&server)).await;
        let mut slow = soon(bus.read(&NEWS, Start::Earliest)).await.unwrap();
        const SENT: u64 = 3000;
        for _ in 0..SENT {
            let record = bus::Record(vec![0; 1024].into());
            soon(bus.append(&NEWS, vec![record])).await.unwrap();
        }
        soon(bus.append(&NEWS, numbered(7..8))).await.unwrap();

        let mut received = 0;
        while soon(slow.next()).await.unwrap().unwrap().record != numbered(7..8)[0] {
            received += 1;
        }
        assert!(received < SENT);
        assert_eq!(bus.counts().lost_ephemeral_records, SENT - received);
        assert_eq!(bus.counts().dropped_ephemeral_records, 0);
    }
}
