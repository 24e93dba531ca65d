//! The table of bindings on the bus: one entry at a time, and all of them followed.

use std::sync::Arc;
use std::time::Duration;

use affinity::{Binding, BindingKey, Outcome, Standing, Transition, Write};
use bus::{Bus, BusError, Change, Changes, Entry, Expect, Key};
use bytes::Bytes;
use contracts::{Encoding as _, topics};
use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use prometheus::IntCounter;
use tracing::warn;

use crate::ask::Ask;
use crate::slots::Seen;

/// How long to wait before a watch that ended is begun again.
const WATCH_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// An ask under way.
pub(crate) struct Work {
    pub(crate) ask: Ask,
    /// How often the entry has been read for it.
    pub(crate) reads: u32,
}

/// What became of a read or a write.
pub(crate) enum Done {
    /// The entry as it stands: because it was not known, or not as it was known.
    Read(BindingKey, Work, Option<Entry>),
    /// The write is done.
    Wrote {
        key: BindingKey,
        ask: Ask,
        next: Box<Standing>,
        outcome: Outcome,
        seen: Seen,
    },
    /// The bus did not do it, or it is not known whether it did.
    Failed(BindingKey, Work, BusError),
}

/// A step in the life of a watch.
pub(crate) enum Step {
    /// A watch begins: the whole table comes next.
    Began,
    /// As the bus says.
    Change(Change),
}

pub(crate) async fn read(bus: Arc<dyn Bus>, key: BindingKey, work: Work) -> Done {
    match bus.get(&topics::BINDINGS.table, &table_key(key)).await {
        Ok(entry) => {
            let reads = work.reads + 1;
            Done::Read(key, Work { reads, ..work }, entry)
        }
        Err(error) => Done::Failed(key, work, error),
    }
}

/// Does the write of `transition`, expecting what was `seen`; reads what is there instead if that differs.
pub(crate) async fn write(
    bus: Arc<dyn Bus>,
    key: BindingKey,
    work: Work,
    transition: Transition,
    seen: Seen,
    rereads: IntCounter,
) -> Done {
    let expect = match seen {
        Seen::At(revision) => Expect::At(revision),
        Seen::Absent | Seen::Unread => Expect::Absent,
    };
    let value = match transition.write {
        Write::Put(binding) => Some(binding.to_bytes()),
        Write::Delete | Write::Nothing => None,
    };
    match put(&*bus, key, value, expect).await {
        Ok(seen) => Done::Wrote {
            key,
            ask: work.ask,
            next: Box::new(transition.next),
            outcome: transition.outcome,
            seen,
        },
        Err(BusError::Conflict { .. }) => {
            rereads.inc();
            read(bus, key, work).await
        }
        Err(error) => Done::Failed(key, work, error),
    }
}

async fn put(
    bus: &dyn Bus,
    key: BindingKey,
    value: Option<Bytes>,
    expect: Expect,
) -> Result<Seen, BusError> {
    let is_deletion = value.is_none();
    let table = &topics::BINDINGS.table;
    let revision = bus.put(table, table_key(key), value, expect).await?;
    Ok(match is_deletion {
        true => Seen::Absent,
        false => Seen::At(revision),
    })
}

/// Follows the table for ever: a watch that ends is begun again.
pub(crate) fn follow(bus: Arc<dyn Bus>) -> BoxStream<'static, Step> {
    let step = move |changes: Option<Changes>| {
        let bus = bus.clone();
        async move { Some(next_step(&*bus, changes).await) }
    };
    stream::unfold(None, step).boxed()
}

async fn next_step(bus: &dyn Bus, changes: Option<Changes>) -> (Step, Option<Changes>) {
    if let Some(mut changes) = changes {
        match changes.next().await {
            Some(Ok(change)) => return (Step::Change(change), Some(changes)),
            Some(Err(error)) => warn!(%error, "the watch of bindings ended"),
            None => warn!("the watch of bindings ended"),
        }
        tokio::time::sleep(WATCH_AGAIN_AFTER).await;
    }
    loop {
        match bus.watch(&topics::BINDINGS.table).await {
            Ok(changes) => return (Step::Began, Some(changes)),
            Err(error) => warn!(%error, "watch bindings"),
        }
        tokio::time::sleep(WATCH_AGAIN_AFTER).await;
    }
}

/// Which conversation an entry of the table belongs to; none if its key is none of ours.
pub(crate) fn binding_key(key: &Key) -> Option<BindingKey> {
    BindingKey::from_bytes(&key.0)
}

/// Reads an entry. What is no binding stands for none: the next write takes its place.
pub(crate) fn decode(entry: &Entry) -> Result<Binding, contracts::DecodeError> {
    Binding::from_bytes(&entry.value)
}

fn table_key(key: BindingKey) -> Key {
    Key(Bytes::copy_from_slice(&key.to_bytes()))
}
