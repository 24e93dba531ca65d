//! The bus over NATS, for services that are processes of their own.
//!
//! # What is what
//!
//! A partition of a durable topic is a JetStream stream of its own: an offset is a sequence of it, its generation the
//! time at which it was made. A table is a stream that keeps the newest message of each key. Ephemeral topics are core
//! NATS. Only what a 2.9 server honours is used, because older servers drop what they do not know in silence.
//!
//! # When a server is away
//!
//! Every operation ends within [`DEADLINE`], and most outlast a short absence: what was not acknowledged is sent again,
//! and stored once. Reads and watches go on where they stopped. Records for ephemeral topics are dropped and counted.
//!
//! # What is durable, and when
//!
//! An append or put is acknowledged once the stream's server has written it to its file, or most of its replicas have
//! it. With one replica it survives the end of the server, `kill -9` included; a power cut may take what the server
//! has not synced (its `sync_interval`). A log that comes back with less than somebody has read is
//! [`bus::BusError::Trimmed`] for that reader, as long as it reads before as much was written again.

mod appender;
mod connect;
mod counts;
mod ephemeral;
mod failure;
mod follow;
mod link;
mod names;
mod outage;
mod publish;
mod pull;
mod reader;
mod settings;
mod streams;
mod sweep;
mod tables;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_nats::Client;
use async_nats::jetstream::stream::Config;
use async_trait::async_trait;
use bus::{
    Bus, BusError, Changes, Entry, Expect, Generation, Key, Layout, Offset, Partition, Record,
    Records, Revision, Start, Table, Tail,
};
use bytes::Bytes;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::appender::Appends;
use crate::counts::Counters;
use crate::ephemeral::News;
use crate::failure::Failure;
use crate::publish::Ids;
use crate::streams::Streams;
use crate::tables::{TableLog, Written};

pub use counts::Counts;
pub use failure::ConnectError;
pub use settings::{ClientCertificate, Login, Settings, Tls};

/// Within this every operation ends, whatever happens; an append of much as long after the last that was stored.
pub const DEADLINE: Duration = Duration::from_secs(6);
/// For how long what may succeed later is tried, so that there is time left to say why it did not.
const TRIED: Duration = Duration::from_secs(5);

/// A [`Bus`] whose logs and tables are kept by NATS.
///
/// Dropping it ends what it does in the background; [`NatsBus::close`] sends first what is under way.
pub struct NatsBus {
    layout: Layout,
    client: Client,
    streams: Streams,
    counters: Arc<Counters>,
    ids: Ids,
    logs: HashMap<Partition, DurableLog>,
    tables: HashMap<Table, Arc<TableLog>>,
    news: News,
    deletions_kept: Duration,
    /// Ends when the bus is dropped.
    _tasks: JoinSet<()>,
}

/// A partition that is kept.
struct DurableLog {
    stream: Config,
    appends: Appends,
}

impl NatsBus {
    /// Connects to one of the servers and makes the streams that `layout` needs.
    pub async fn connect(settings: Settings, layout: &Layout) -> Result<Self, ConnectError> {
        connect::connect(settings, layout).await
    }

    /// What has happened since the bus was connected.
    pub fn counts(&self) -> Counts {
        self.counters.read()
    }

    /// Sends what is under way and closes the connection. Streams end, and later calls find the bus unavailable.
    pub async fn close(&self) {
        // A server that is away is not waited for; nothing that was acknowledged is lost.
        let _ = timeout(DEADLINE, self.client.flush()).await;
        let _ = timeout(DEADLINE, self.client.drain()).await;
    }

    /// The log of a partition; none where it is ephemeral.
    fn log(&self, at: &Partition) -> Result<Option<&DurableLog>, BusError> {
        self.layout.topic_of(at)?;
        Ok(self.logs.get(at))
    }

    fn table(&self, table: &Table) -> Result<&Arc<TableLog>, BusError> {
        self.layout.table_of(table)?;
        let table = self.tables.get(table);
        Ok(table.expect("every table of the layout has been prepared"))
    }

    async fn tail_of(&self, log: &DurableLog) -> Result<Tail, BusError> {
        Ok(self.streams.look(&log.stream).await?.tail())
    }
}

/// Ends an operation of several steps, each of which was tried for long, before its caller has waited too long.
async fn within<T>(operation: impl Future<Output = Result<T, BusError>>) -> Result<T, BusError> {
    let ended = timeout(DEADLINE, operation).await;
    ended.unwrap_or_else(|_| Err(Failure::Silent.into()))
}

#[async_trait]
impl Bus for NatsBus {
    async fn append(&self, at: &Partition, batch: Vec<Record>) -> Result<Offset, BusError> {
        let log = self.log(at)?;
        batch.iter().try_for_each(Record::check)?;
        match log {
            None => {
                let subject = self.streams.names.subject(at);
                self.news.append(&subject, batch).await
            }
            Some(log) if batch.is_empty() => {
                let tail = self.tail_of(log).await?;
                Ok(tail.last.unwrap_or(Offset(0)))
            }
            Some(log) => log.appends.append(batch).await,
        }
    }

    async fn read(&self, at: &Partition, start: Start) -> Result<Records, BusError> {
        match self.log(at)? {
            None => {
                let subject = self.streams.names.subject(at);
                within(self.news.read(&self.streams, subject)).await
            }
            Some(log) => {
                let counters = self.counters.clone();
                within(reader::read(&self.streams, counters, &log.stream, start)).await
            }
        }
    }

    async fn tail(&self, at: &Partition) -> Result<Tail, BusError> {
        match self.log(at)? {
            Some(log) => self.tail_of(log).await,
            None => Ok(Tail {
                generation: Generation(0),
                last: None,
            }),
        }
    }

    async fn get(&self, table: &Table, key: &Key) -> Result<Option<Entry>, BusError> {
        let table = self.table(table)?;
        within(async { Ok(table.get(&self.streams, key).await?) }).await
    }

    async fn put(
        &self,
        table: &Table,
        key: Key,
        value: Option<Bytes>,
        expect: Expect,
    ) -> Result<Revision, BusError> {
        self.layout.table_of(table)?.check(expect)?;
        key.check(value.as_ref())?;
        let table = self.table(table)?;
        within(async {
            let put = table.put(&self.streams, &self.ids, &key, value, expect);
            match put.await? {
                Written::At(revision) => Ok(revision),
                Written::Conflict(current) => Err(BusError::Conflict { current }),
            }
        })
        .await
    }

    async fn watch(&self, table: &Table) -> Result<Changes, BusError> {
        let kept = self.deletions_kept / 2;
        let table = self.table(table)?;
        let counters = self.counters.clone();
        within(async { Ok(table.watch(&self.streams, counters, kept).await?) }).await
    }
}
