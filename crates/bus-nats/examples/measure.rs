//! How fast a NATS server takes and gives what the bus asks of it, beside its bare round trip.
//!
//! `cargo run --release -p bus-nats --example measure -- nats://127.0.0.1:4222 [REPLICAS]`, with a server that has
//! JetStream. It writes under a prefix of its own, `measure`.

#![expect(clippy::print_stdout, reason = "it prints what it measured")]

use std::time::Duration;

use bus::{
    Bus, Change, Expect, Key, Layout, LogKind, Partition, Record, Revision, Start, Table,
    TableKind, TableSpec, TopicSpec,
};
use bus_nats::{NatsBus, Settings};
use bytes::Bytes;
use futures::StreamExt;
use futures::future::join_all;
use tokio::time::Instant;

const LAYOUT: Layout = Layout {
    topics: &[
        TopicSpec {
            name: "log",
            partitions: 16,
            kind: LogKind::Durable {
                retention: Duration::from_secs(600),
            },
        },
        TopicSpec {
            name: "news",
            partitions: 1,
            kind: LogKind::Ephemeral,
        },
    ],
    tables: &[TableSpec {
        table: TABLE,
        kind: TableKind::Cas,
    }],
};
const LOG: Partition = Partition {
    topic: "log",
    index: 0,
};
const NEWS: Partition = Partition {
    topic: "news",
    index: 0,
};
const TABLE: Table = Table("table");

/// Bytes of a record and of a value.
const BYTES: usize = 300;
const RECORDS: usize = 50_000;
const CALLS: usize = 3000;

type Outcome = Result<(), async_nats::Error>;

#[tokio::main]
async fn main() -> Outcome {
    let Some(server) = std::env::args().nth(1) else {
        return Err("name a server, such as nats://127.0.0.1:4222".into());
    };
    let replicas = std::env::args().nth(2).map_or(Ok(1), |it| it.parse())?;
    let settings = Settings {
        servers: vec![server.clone()],
        prefix: "measure".to_owned(),
        replicas,
        ..Settings::default()
    };
    let (bus, other) = (
        NatsBus::connect(settings.clone(), &LAYOUT).await?,
        NatsBus::connect(settings, &LAYOUT).await?,
    );
    let begun = bus.tail(&LOG).await?.last;
    appends(&bus).await?;
    let read = bus.read(&LOG, begun.map_or(Start::Earliest, Start::After));
    let start = Instant::now();
    let mut read = read.await?;
    for _ in 0..RECORDS {
        read.next().await.ok_or("the read ended")??;
    }
    rate("read", RECORDS, start);

    round_trips(&server).await?;
    let mut times = Vec::new();
    for _ in 0..CALLS {
        let start = Instant::now();
        bus.append(&LOG, vec![record()]).await?;
        times.push(start.elapsed());
    }
    latency("append one and wait", times);
    puts(&bus).await?;
    watched(&bus, &other).await?;
    heard(&bus, &other).await?;
    println!("{:?}", bus.counts());
    Ok(())
}

async fn appends(bus: &NatsBus) -> Outcome {
    for batch in [1, 16, 256] {
        let start = Instant::now();
        let records = if batch == 1 { CALLS } else { RECORDS };
        for _ in 0..records / batch {
            bus.append(&LOG, vec![record(); batch]).await?;
        }
        rate(&format!("append, batches of {batch}"), records, start);
    }
    let start = Instant::now();
    let partitions = (0..16).map(|index| async move {
        let at = Partition { index, ..LOG };
        for _ in 0..RECORDS / 16 / 256 {
            bus.append(&at, vec![record(); 256]).await?;
        }
        Ok::<(), bus::BusError>(())
    });
    join_all(partitions)
        .await
        .into_iter()
        .collect::<Result<Vec<_>, _>>()?;
    rate(
        "append to 16 partitions, batches of 256",
        RECORDS / 16 / 256 * 16 * 256,
        start,
    );
    bus.append(&LOG, vec![record(); RECORDS]).await?;
    Ok(())
}

/// A bare request to a subscriber of the same server and back.
async fn round_trips(server: &str) -> Outcome {
    let (asking, answering) = (
        async_nats::connect(server).await?,
        async_nats::connect(server).await?,
    );
    let mut questions = answering.subscribe("measure.echo").await?;
    answering.flush().await?;
    let answer = async {
        while let Some(question) = questions.next().await {
            if let Some(reply) = question.reply {
                answering.publish(reply, question.payload).await?;
            }
        }
        Ok::<(), async_nats::Error>(())
    };
    let ask = async {
        let mut times = Vec::new();
        tokio::time::sleep(Duration::from_millis(100)).await;
        for _ in 0..CALLS {
            let start = Instant::now();
            asking.request("measure.echo", record().0).await?;
            times.push(start.elapsed());
        }
        Ok::<_, async_nats::Error>(times)
    };
    tokio::select! {
        times = ask => latency("bare round trip to another client", times?),
        ended = answer => ended?,
    }
    Ok(())
}

async fn puts(bus: &NatsBus) -> Outcome {
    let key = Key("k".into());
    let mut times = Vec::new();
    let mut at: Option<Revision> = bus.get(&TABLE, &key).await?.map(|it| it.revision);
    for _ in 0..CALLS {
        let expect = at.map_or(Expect::Absent, Expect::At);
        let start = Instant::now();
        at = Some(
            bus.put(&TABLE, key.clone(), Some(record().0), expect)
                .await?,
        );
        times.push(start.elapsed());
    }
    latency("put at a revision", times);
    let mut times = Vec::new();
    for _ in 0..CALLS {
        let start = Instant::now();
        bus.get(&TABLE, &key).await?;
        times.push(start.elapsed());
    }
    latency("get", times);
    Ok(())
}

/// From the beginning of a put by one process to the change at a watcher in another.
async fn watched(bus: &NatsBus, other: &NatsBus) -> Outcome {
    let mut changes = other.watch(&TABLE).await?;
    while changes.next().await.ok_or("the watch ended")?? != Change::CaughtUp {}
    let mut times = Vec::new();
    for _ in 0..CALLS {
        let start = Instant::now();
        let put = bus.put(&TABLE, Key("w".into()), Some(record().0), Expect::Any);
        let seen = async {
            let change = changes.next().await;
            times.push(start.elapsed());
            change
        };
        let (put, seen) = tokio::join!(put, seen);
        put?;
        seen.ok_or("the watch ended")??;
    }
    latency("put to a watcher", times);
    Ok(())
}

/// From an append to an ephemeral log to its reader in another process.
async fn heard(bus: &NatsBus, other: &NatsBus) -> Outcome {
    let mut news = other.read(&NEWS, Start::Earliest).await?;
    let mut times = Vec::new();
    for _ in 0..CALLS {
        let start = Instant::now();
        bus.append(&NEWS, vec![record()]).await?;
        news.next().await.ok_or("the read ended")??;
        times.push(start.elapsed());
    }
    latency("ephemeral append to a reader", times);
    Ok(())
}

fn record() -> Record {
    Record(Bytes::from_static(&[7; BYTES]))
}

fn rate(what: &str, records: usize, start: Instant) {
    let rate = records as f64 / start.elapsed().as_secs_f64();
    println!("{what}: {rate:.0} records/s");
}

fn latency(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |share: f64| times[(share * (times.len() - 1) as f64) as usize].as_micros();
    println!("{what}: p50 {} us, p99 {} us", at(0.50), at(0.99));
}
