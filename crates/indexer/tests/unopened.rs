//! A log that cannot be opened: nothing is answered before it has been read, and why is said.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod world;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use bus::{
    Bus, BusError, Changes, Entry, Expect, Key, MemoryBus, Offset, Partition, Record, Records,
    Revision, Start, Table, Tail,
};
use bytes::Bytes;
use contracts::topics::LAYOUT;
use world::{World, batch, start, stored, target, until};

const WHY: &str = "the log kv-events cannot be opened: bus unavailable: no room";
const PATH: &[u64] = &[1, 2];

/// A bus with tables, and with logs while there is room.
struct Full {
    inner: MemoryBus,
    is_full: AtomicBool,
}

impl Full {
    fn check(&self) -> Result<(), BusError> {
        match self.is_full.load(Ordering::Relaxed) {
            true => Err(BusError::Unavailable("no room".into())),
            false => Ok(()),
        }
    }
}

#[async_trait]
impl Bus for Full {
    async fn append(&self, at: &Partition, batch: Vec<Record>) -> Result<Offset, BusError> {
        self.inner.append(at, batch).await
    }

    async fn read(&self, at: &Partition, start: Start) -> Result<Records, BusError> {
        self.check()?;
        self.inner.read(at, start).await
    }

    async fn tail(&self, at: &Partition) -> Result<Tail, BusError> {
        self.check()?;
        self.inner.tail(at).await
    }

    async fn get(&self, table: &Table, key: &Key) -> Result<Option<Entry>, BusError> {
        self.inner.get(table, key).await
    }

    async fn put(
        &self,
        table: &Table,
        key: Key,
        value: Option<Bytes>,
        expect: Expect,
    ) -> Result<Revision, BusError> {
        self.inner.put(table, key, value, expect).await
    }

    async fn watch(&self, table: &Table) -> Result<Changes, BusError> {
        self.inner.watch(table).await
    }
}

#[tokio::test]
async fn a_log_that_cannot_be_opened_is_named_and_nothing_is_answered_until_it_can() {
    let full = Arc::new(Full {
        inner: MemoryBus::new(&LAYOUT),
        is_full: AtomicBool::new(true),
    });
    let world = World::over(full.clone());
    world
        .append(batch(&target("w#1/0"), 0, vec![stored(PATH, 0)]))
        .await;
    let running = start(world.bus.clone(), world.feed.clone(), &world.store(), 3600);
    let said = || {
        let findings = running.health.findings();
        findings.get("indexer").is_some_and(|it| it == &[WHY])
    };
    until!("said", said());
    let waits = || running.health.missing().get("indexer").cloned();
    until!("waiting", waits().as_deref() == Some(WHY));
    assert!(running.try_overlap(PATH, false).await.is_err());

    full.is_full.store(false, Ordering::Relaxed);
    running.ready().await;
    until!("well", !said());
    assert_eq!(running.overlap(PATH, false).await.groups.len(), 1);

    // What has been read is still answered, and how old it is.
    full.is_full.store(true, Ordering::Relaxed);
    until!("said again", said());
    assert_eq!(waits(), None);
    running.stop().await;
}
