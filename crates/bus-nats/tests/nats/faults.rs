//! What happens when the server is killed, stands still, or loses what it had.

use bus::{Bus, BusError, Change, Expect, Start};
use bus_nats::NatsBus;
use futures::StreamExt;
use futures::future::join;

use crate::server::{Server, programs};
use crate::steps::{
    LOG, LOG_STREAM, NEWS, TABLE, TABLE_STREAM, all, assert_away, assert_no_hole, connect, insist,
    key, number, numbered, put, soon, take, until,
};

#[tokio::test]
async fn nothing_acknowledged_is_lost_when_the_server_is_killed_and_readers_go_on() {
    const BATCHES: u32 = 60;
    const BATCH: u32 = 50;
    for program in programs() {
        let mut server = Server::start(&program).await;
        let bus = connect(&server).await;
        let mut reader = soon(bus.read(&LOG, Start::Earliest)).await.unwrap();
        let write = async {
            for batch in 0..BATCHES {
                insist(&bus, numbered(batch * BATCH..(batch + 1) * BATCH)).await;
            }
        };
        let read = async {
            let mut read = take(&mut reader, 1).await;
            while number(read.last().unwrap()) != BATCHES * BATCH - 1 {
                let next = take(&mut reader, 1).await;
                // The server dies in the middle of it, with appends and reads under way.
                if read.len() % 1000 == 500 {
                    server.restart().await;
                }
                read.extend(next);
            }
            read
        };
        let ((), read) = join(write, read).await;

        assert_no_hole(&read, 0..BATCHES * BATCH);
        assert_no_hole(&all(&bus).await, 0..BATCHES * BATCH);
        assert!(bus.counts().lost_connections > 0);
        assert!(bus.counts().resumed_streams > 0);
    }
}

#[tokio::test]
async fn a_server_that_stands_still_is_an_error_in_time_and_then_works_on() {
    for program in programs() {
        let server = Server::start(&program).await;
        let bus = connect(&server).await;
        insist(&bus, numbered(0..10)).await;
        let mut reader = soon(bus.read(&LOG, Start::Earliest)).await.unwrap();
        take(&mut reader, 10).await;

        server.freeze();
        assert_everything_away(&bus).await;
        server.thaw();

        insist(&bus, numbered(10..20)).await;
        // What was appended in vain may have been stored after all.
        while number(&take(&mut reader, 1).await[0]) != 19 {}
        assert_no_hole(&all(&bus).await, 0..20);
        until(async || bus.append(&NEWS, numbered(0..1)).await.is_ok()).await;
    }
}

#[tokio::test]
async fn a_server_that_is_gone_is_an_error_in_time_and_what_is_dropped_is_counted() {
    for program in programs() {
        let mut server = Server::start(&program).await;
        let bus = connect(&server).await;

        server.kill();
        until(async || bus.counts().lost_connections > 0).await;
        assert_everything_away(&bus).await;
        let counts = bus.counts();
        assert_eq!(counts.dropped_ephemeral_records, 3);
        assert_eq!(counts.failed_records, 2);

        server.restart().await;
        insist(&bus, numbered(0..2)).await;
        assert_no_hole(&all(&bus).await, 0..2);
    }
}

#[tokio::test]
async fn a_watch_goes_on_after_the_server_was_killed() {
    for program in programs() {
        let mut server = Server::start(&program).await;
        let bus = connect(&server).await;
        put(&bus, "a", Some("1")).await;
        put(&bus, "b", Some("1")).await;
        let mut watch = soon(bus.watch(&TABLE)).await.unwrap();
        for _ in 0..3 {
            soon(watch.next()).await.unwrap().unwrap();
        }

        server.restart().await;
        let revision = soon(async {
            loop {
                let value = Some("2".into());
                match bus.put(&TABLE, key("a"), value, Expect::Any).await {
                    Ok(revision) => return revision,
                    Err(error) => assert!(error.is_retryable()),
                }
            }
        })
        .await;
        put(&bus, "b", None).await;

        let change = soon(watch.next()).await.unwrap().unwrap();
        assert!(matches!(change, Change::Put(k, it) if k == key("a") && it.revision == revision));
        let change = soon(watch.next()).await.unwrap().unwrap();
        assert_eq!(change, Change::Deleted(key("b")));
    }
}

#[tokio::test]
async fn a_stream_that_somebody_deletes_begins_anew_under_its_readers() {
    for program in programs() {
        let server = Server::start(&program).await;
        let bus = connect(&server).await;
        insist(&bus, numbered(0..10)).await;
        put(&bus, "a", Some("1")).await;
        let before = soon(bus.tail(&LOG)).await.unwrap();
        let mut reader = soon(bus.read(&LOG, Start::Earliest)).await.unwrap();
        take(&mut reader, 10).await;
        let mut watch = soon(bus.watch(&TABLE)).await.unwrap();
        soon(watch.next()).await.unwrap().unwrap();
        soon(watch.next()).await.unwrap().unwrap();

        let client = async_nats::connect(server.address()).await.unwrap();
        let jetstream = async_nats::jetstream::new(client);
        jetstream.delete_stream(LOG_STREAM).await.unwrap();
        jetstream.delete_stream(TABLE_STREAM).await.unwrap();

        assert_away(soon(reader.next()).await.unwrap());
        assert!(soon(reader.next()).await.is_none());
        assert_away(soon(watch.next()).await.unwrap());
        insist(&bus, numbered(50..52)).await;
        let after = soon(bus.tail(&LOG)).await.unwrap();
        assert_ne!(after.generation, before.generation);
        assert_no_hole(&all(&bus).await, 50..52);
        assert_eq!(soon(bus.get(&TABLE, &key("a"))).await.unwrap(), None);
        put(&bus, "a", Some("2")).await;
    }
}

#[tokio::test]
async fn a_log_that_has_lost_what_was_read_says_so() {
    for program in programs() {
        let mut server = Server::start(&program).await;
        let bus = connect(&server).await;
        insist(&bus, numbered(0..10)).await;
        server.kill();
        let backup = server.copy_store();
        server.restart().await;
        let newest = insist(&bus, numbered(10..20)).await;
        let mut reader = soon(bus.read(&LOG, Start::Earliest)).await.unwrap();
        take(&mut reader, 20).await;

        server.kill();
        server.replace_store(backup);
        server.restart().await;

        let told = soon(reader.next()).await.unwrap();
        assert!(matches!(told, Err(BusError::Trimmed { oldest: Some(_) })));
        let told = soon(bus.read(&LOG, Start::After(newest))).await.err();
        assert!(matches!(told, Some(BusError::Trimmed { oldest: Some(_) })));
        assert_no_hole(&all(&bus).await, 0..10);
    }
}

/// Asserts that each of the six operations fails in time.
async fn assert_everything_away(bus: &NatsBus) {
    let append = bus.append(&LOG, numbered(0..2));
    let news = async {
        for _ in 0..3 {
            // The connection may take some before it notices.
            let _ = bus.append(&NEWS, numbered(0..1)).await;
        }
    };
    let put = bus.put(&TABLE, key("k"), Some("v".into()), Expect::Absent);
    let written = join(join(append, put), news);
    let read = join(bus.read(&LOG, Start::Earliest), bus.tail(&LOG));
    let key = key("k");
    let looked = join(bus.get(&TABLE, &key), bus.watch(&TABLE));
    let all = join(written, join(read, looked));
    let (((append, put), ()), ((read, tail), (get, watch))) = soon(all).await;

    assert_away(append);
    assert_away(put);
    assert_away(read);
    assert_away(tail);
    assert_away(get);
    assert_away(watch);
}
