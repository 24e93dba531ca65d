//! Three servers that keep everything three times, of which any may die.

use bus::{Bus, Expect, Start};
use bus_nats::{NatsBus, Settings};

use crate::server::{Server, programs};
use crate::steps::{
    LOG, LOG_STREAM, TABLE, all, assert_no_hole, insist, key, number, numbered, soon, take,
};

#[tokio::test]
async fn nothing_acknowledged_is_lost_when_the_leader_of_a_log_is_killed() {
    for program in programs() {
        let mut servers = Server::start_cluster(&program).await;
        let bus = connect(&servers).await;
        for batch in 0..10 {
            insist(&bus, numbered(batch * 100..(batch + 1) * 100)).await;
        }
        let mut reader = soon(bus.read(&LOG, Start::Earliest)).await.unwrap();
        let mut read = take(&mut reader, 500).await;
        let created = soon(bus.put(&TABLE, key("k"), Some("v".into()), Expect::Absent));
        let created = created.await.unwrap();
        let leader = leader_of_log(&servers).await;
        servers[leader].kill();

        for batch in 10..20 {
            insist(&bus, numbered(batch * 100..(batch + 1) * 100)).await;
        }
        while number(read.last().unwrap()) != 1999 {
            read.extend(take(&mut reader, 1).await);
        }
        assert_no_hole(&read, 0..2000);
        assert_no_hole(&all(&bus).await, 0..2000);
        let entry = soon(bus.get(&TABLE, &key("k"))).await.unwrap().unwrap();
        assert_eq!(entry.revision, created);
    }
}

/// A cluster takes seconds until it is one.
async fn connect(servers: &[Server]) -> NatsBus {
    let settings = Settings {
        servers: servers.iter().map(Server::address).collect(),
        replicas: 3,
        ..Settings::default()
    };
    soon(async {
        loop {
            let connected = NatsBus::connect(settings.clone(), &bus_conformance::LAYOUT).await;
            match connected {
                Ok(bus) => return bus,
                Err(error) => assert!(error.is_retryable(), "{error:?}"),
            }
        }
    })
    .await
}

async fn leader_of_log(servers: &[Server]) -> usize {
    let client = async_nats::connect(servers[0].address()).await.unwrap();
    let stream = async_nats::jetstream::new(client)
        .get_stream(LOG_STREAM)
        .await
        .unwrap();
    let leader = stream
        .cached_info()
        .cluster
        .clone()
        .unwrap()
        .leader
        .unwrap();
    leader[1..].parse().unwrap()
}
