//! `kill -9` of a process that writes as fast as it can.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;

use bus::{Bus, Expect, Key, Partition, Record, Start};
use bus_local::Limits;
use bytes::Bytes;
use futures::future::join_all;

use crate::steps::{LOG, OTHER_LOG, SMALL, TABLE, child, folder_of_child, read_all, tell};

/// Small enough that files end and tables are rewritten within a round.
const LIMITS: Limits = Limits {
    segment_bytes: 64 * 1024,
    topic_bytes: 1024 * 1024 * 1024,
    ..SMALL
};
const ROUNDS: u32 = 4;
const WRITERS: u32 = 4;

#[test]
fn what_was_acknowledged_before_a_kill_is_there_afterwards() {
    let folder = tempfile::tempdir().unwrap();
    let mut acknowledged = BTreeMap::new();
    for round in 0..ROUNDS {
        let told = run_and_kill(folder.path(), 1000 + 700 * round);
        for line in told {
            let (name, number) = line.rsplit_once(' ').unwrap();
            let number: u32 = number.parse().unwrap();
            acknowledged.insert(format!("{round} {name}"), number);
        }
    }
    assert_eq!(acknowledged.len() as u32, ROUNDS * (2 * WRITERS + 1));

    let found = find(folder.path());
    for (name, number) in acknowledged {
        let found = found.get(&name).copied();
        assert!(Some(number) <= found, "{name}: {found:?}, not {number}");
    }
}

/// Starts the child below on `folder`, kills it after it told `lines` things, and returns all it told.
fn run_and_kill(folder: &Path, lines: u32) -> Vec<String> {
    let name = "crash::child_that_writes_until_it_is_killed";
    let mut child = child(name, folder, "exec \"$0\" \"$@\"").spawn().unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let mut told = Vec::new();
    for line in output.lines() {
        // The kill can cut the last line short; whoever reads half a line has not been told.
        let Ok(line) = line else { break };
        if let Some(line) = line.strip_prefix("told ")
            && let Some(line) = line.strip_suffix('.')
        {
            told.push(line.to_owned());
        }
        if told.len() as u32 == lines {
            child.kill().unwrap();
        }
    }
    child.wait().unwrap();
    assert!(lines <= told.len() as u32, "the child ended by itself");
    told
}

/// The last number of each writer in each round, after checking that none before it is missing.
fn find(folder: &Path) -> BTreeMap<String, u32> {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let bus = crate::steps::open(folder).await;
        let mut found: BTreeMap<String, u32> = BTreeMap::new();
        for at in [LOG, OTHER_LOG] {
            for delivered in read_all(&bus, &at, Start::Earliest).await.unwrap() {
                let text = std::str::from_utf8(&delivered.record.0).unwrap();
                let text = text.trim_end_matches('x');
                let (name, number) = text.rsplit_once(' ').unwrap();
                let number: u32 = number.parse().unwrap();
                let former = found.insert(name.to_owned(), number);
                let expected = former.map_or(0, |it| it + 1);
                assert_eq!(number, expected, "{name}: a hole");
            }
        }
        for round in 0..ROUNDS {
            let key = Key(Bytes::from(format!("{round}")));
            let entry = bus.get(&TABLE, &key).await.unwrap().unwrap();
            let number = u32::from_be_bytes(entry.value[..4].try_into().unwrap());
            found.insert(format!("{round} puts"), number);
        }
        bus.close().await;
        found
    })
}

/// Not a test: does nothing unless [`run_and_kill`] starts it with a folder.
#[test]
fn child_that_writes_until_it_is_killed() {
    let Some(folder) = folder_of_child() else {
        return;
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let bus = bus_local::LocalBus::open_with(&folder, &bus_conformance::LAYOUT, LIMITS);
        let bus = bus.await.unwrap();
        let mut round = 0;
        let key = |round: u32| Key(Bytes::from(format!("{round}")));
        while bus.get(&TABLE, &key(round)).await.unwrap().is_some() {
            round += 1;
        }
        let round = &round;
        let append = async |at: &Partition, name: String| {
            for number in 0_u32.. {
                let text = format!("{round} {name} {number}{}", "x".repeat(200));
                let record = Record(Bytes::from(text));
                bus.append(at, vec![record]).await.unwrap();
                tell(&format!("{name} {number}."));
            }
        };
        let put = async {
            for number in 0_u32.. {
                let mut value = vec![0; 1000];
                value[..4].copy_from_slice(&number.to_be_bytes());
                let value = Some(Bytes::from(value));
                let put = bus.put(&TABLE, key(*round), value, Expect::Any);
                put.await.unwrap();
                tell(&format!("puts {number}."));
            }
        };
        let one = join_all((0..WRITERS).map(|it| append(&LOG, format!("one {it}"))));
        let two = join_all((0..WRITERS).map(|it| append(&OTHER_LOG, format!("two {it}"))));
        futures::join!(one, two, put);
    });
}
