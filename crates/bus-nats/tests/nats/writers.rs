//! What several writers, and connections that break, make of a log.

use std::time::Duration;

use bus::{Bus, Delivered, Record, Start};
use bus_nats::{NatsBus, Settings};
use bytes::Bytes;
use futures::future::join;

use crate::proxy::Proxy;
use crate::server::{Server, programs};
use crate::steps::{
    LOG, all, assert_no_hole, connect, connect_with, insist, numbered, soon, take, until,
};

#[tokio::test]
async fn connections_that_break_in_the_middle_of_appends_leave_no_hole() {
    const BATCHES: u32 = 30;
    const BATCH: u32 = 200;
    for program in programs() {
        let server = Server::start(&program).await;
        let proxy = Proxy::start(server.port()).await;
        let bus = connect_with(Settings {
            servers: vec![proxy.address()],
            ..Settings::default()
        })
        .await;
        let mut failed = 0;
        let write = async {
            for batch in 0..BATCHES {
                let batch: Vec<Record> = large(batch * BATCH..(batch + 1) * BATCH);
                while soon(bus.append(&LOG, batch.clone())).await.is_err() {
                    failed += 1;
                }
            }
        };
        let cut = async {
            for moment in 0.. {
                // So soon that some of an append has been sent, and some waits to be.
                tokio::time::sleep(Duration::from_millis(5 + moment % 13)).await;
                let losses = bus.counts().lost_connections;
                proxy.cut();
                until(async || losses < bus.counts().lost_connections).await;
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::select! {
            () = write => {}
            () = cut => {}
        }

        assert!(bus.counts().lost_connections > 0);
        let all = all(&connect(&server).await).await;
        assert_no_hole(&all, 0..BATCHES * BATCH);
        if failed == 0 {
            let once = "what is sent again is stored once";
            assert_eq!(all.len() as u32, BATCHES * BATCH, "{once}");
        }
    }
}

/// Numbered records that do not all fit the buffers of a connection.
fn large(numbers: std::ops::Range<u32>) -> Vec<Record> {
    let padded = |it: Record| Record([&it.0[..], &[b' '; 8192]].concat().into());
    numbered(numbers).into_iter().map(padded).collect()
}

#[tokio::test]
async fn processes_that_write_to_one_partition_lose_and_double_nothing() {
    const RECORDS: u32 = 2000;
    for program in programs() {
        let server = Server::start(&program).await;
        let (one, two) = (connect(&server).await, connect(&server).await);
        let write = async |bus: &NatsBus, name: &'static str| {
            for batch in 0..RECORDS / 100 {
                let text = |n: u32| Record(Bytes::from(format!("{name} {n}")));
                let batch = (batch * 100..(batch + 1) * 100).map(text).collect();
                insist(bus, batch).await;
            }
        };
        join(write(&one, "one"), write(&two, "two")).await;

        let all = all(&one).await;
        assert_eq!(all.len() as u32, 2 * RECORDS);
        for name in ["one", "two"] {
            let of_writer = all
                .iter()
                .filter(|it| it.record.0.starts_with(name.as_bytes()));
            let expected = (0..RECORDS).map(|n| Bytes::from(format!("{name} {n}")));
            assert!(of_writer.map(|it| it.record.0.clone()).eq(expected));
        }
    }
}

#[tokio::test]
async fn a_reader_of_another_process_is_heard_of_before_its_read_resolves() {
    for program in programs() {
        let server = Server::start(&program).await;
        let (one, two) = (connect(&server).await, connect(&server).await);
        for round in 0..50 {
            let mut reader = soon(one.read(&crate::steps::NEWS, Start::Earliest))
                .await
                .unwrap();
            let record = numbered(round..round + 1);
            soon(two.append(&crate::steps::NEWS, record)).await.unwrap();
            let read: Vec<Delivered> = take(&mut reader, 1).await;
            assert_no_hole(&read, round..round + 1);
        }
    }
}
