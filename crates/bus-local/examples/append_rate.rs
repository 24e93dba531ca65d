//! How many records of 300 bytes a second the local bus acknowledges, for batches of 1 and 100 and for one
//! writer and many: `cargo run --release -p bus-local --example append_rate [FOLDER]`.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use bus::{Bus, Expect, Key, Partition, Record, Start};
use bus_local::LocalBus;
use bytes::Bytes;
use futures::StreamExt;
use futures::future::join_all;
use tokio::time::Instant;

const TOPIC: &str = "conformance-log";
const TABLE: bus::Table = bus::Table("conformance-cas");
const SPAN: Duration = Duration::from_secs(3);

#[tokio::main]
async fn main() {
    let folder = tempfile::tempdir().expect("a folder for the bus");
    let given = std::env::args().nth(1).map(PathBuf::from);
    let folder = given.unwrap_or_else(|| folder.path().to_owned());
    let bus = LocalBus::open(&folder, &bus_conformance::LAYOUT).await;
    let bus = bus.expect("open the bus");
    for (writers, batch) in [(1, 1), (16, 1), (256, 1), (1, 100), (16, 100)] {
        let (records, mut waits) = append(&bus, writers, batch).await;
        waits.sort_unstable();
        let rate = records as f64 / SPAN.as_secs_f64();
        let at = |share: usize| waits.get(waits.len() * share / 100).copied();
        say(format!(
            "append: {writers} writers, batches of {batch}: {rate:.0} records/s, p50 {:?}, p99 {:?}",
            at(50).unwrap_or_default(),
            at(99).unwrap_or_default(),
        ));
    }
    say(format!("put: {:.0}/s", puts(&bus).await));
    say(format!(
        "read from files: {:.0} records/s",
        read(&bus).await
    ));
    let since = Instant::now();
    bus.close().await;
    say(format!("close: {:?}, {:?}", since.elapsed(), bus.counts()));
    let since = Instant::now();
    let bus = LocalBus::open(&folder, &bus_conformance::LAYOUT).await;
    let bus = bus.expect("open the bus again");
    say(format!("open: {:?}", since.elapsed()));
    bus.close().await;
}

async fn append(bus: &LocalBus, writers: u32, batch: usize) -> (usize, Vec<Duration>) {
    let until = Instant::now() + SPAN;
    let record = Record(Bytes::from(vec![7; 300]));
    let write = async |writer: u32| {
        let at = Partition {
            topic: TOPIC,
            index: writer % 2,
        };
        let mut waits = Vec::new();
        while Instant::now() < until {
            let since = Instant::now();
            let appended = bus.append(&at, vec![record.clone(); batch]).await;
            appended.expect("append");
            waits.push(since.elapsed());
        }
        waits
    };
    let waits = join_all((0..writers).map(write)).await.concat();
    (waits.len() * batch, waits)
}

async fn puts(bus: &LocalBus) -> f64 {
    let until = Instant::now() + SPAN;
    let value = Bytes::from(vec![7; 300]);
    let write = async |writer: u32| {
        let mut count = 0_u32;
        while Instant::now() < until {
            let key = Key(Bytes::from(format!("{writer} {}", count % 1000)));
            let put = bus.put(&TABLE, key, Some(value.clone()), Expect::Any);
            put.await.expect("put");
            count += 1;
        }
        count
    };
    let counts = join_all((0..16).map(write)).await;
    f64::from(counts.iter().sum::<u32>()) / SPAN.as_secs_f64()
}

async fn read(bus: &LocalBus) -> f64 {
    let at = Partition {
        topic: TOPIC,
        index: 0,
    };
    let mut records = bus.read(&at, Start::Earliest).await.expect("read");
    let last = bus.tail(&at).await.expect("tail").last;
    let since = Instant::now();
    let mut count = 0_u32;
    while let Some(record) = records.next().await {
        count += 1;
        if Some(record.expect("record").offset) == last {
            break;
        }
    }
    f64::from(count) / since.elapsed().as_secs_f64()
}

fn say(line: String) {
    // Whoever closed the output does not want to know.
    let _ = writeln!(std::io::stdout(), "{line}");
}
