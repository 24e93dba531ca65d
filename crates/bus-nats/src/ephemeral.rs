//! Ephemeral logs: core NATS. What is published reaches whoever listens; nothing is kept.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_nats::{Client, Subscriber};
use bus::{BusError, Delivered, Offset, Record, Records, Ring};
use futures::{StreamExt, stream};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::counts::Counters;
use crate::failure::Failure;
use crate::link::Link;
use crate::streams::Streams;

/// What one read holds while its reader is busy: seconds of small gauges. The oldest records go first.
const HELD_BYTES: usize = 1024 * 1024;
/// How long an append waits while the connection takes nothing. Such records are worth nothing later.
const PATIENCE: Duration = Duration::from_millis(100);
/// How long a server may take to hear of a new reader.
const HEARD: Duration = Duration::from_secs(2);

/// Publishes.
#[derive(Debug)]
pub(crate) struct News {
    client: Client,
    link: Link,
    counters: Arc<Counters>,
    /// Records published so far, by all logs; an offset of one of them.
    published: AtomicU64,
}

impl News {
    pub(crate) fn new(client: Client, link: Link, counters: Arc<Counters>) -> Self {
        Self {
            client,
            link,
            counters,
            published: AtomicU64::new(0),
        }
    }

    /// Publishes `batch`, or drops and counts what no server takes at once.
    pub(crate) async fn append(
        &self,
        subject: &str,
        batch: Vec<Record>,
    ) -> Result<Offset, BusError> {
        let mut left = batch.len() as u64;
        for record in batch {
            if let Err(failure) = self.publish(subject, record).await {
                let dropped = &self.counters.dropped_ephemeral_records;
                dropped.fetch_add(left, Ordering::Relaxed);
                return Err(failure.into());
            }
            self.published.fetch_add(1, Ordering::Relaxed);
            left -= 1;
        }
        Ok(Offset(self.published.load(Ordering::Relaxed)))
    }

    async fn publish(&self, subject: &str, record: Record) -> Result<(), Failure> {
        if !self.link.is_up() {
            return Err(Failure::Away);
        }
        let sent = self.client.publish(subject.to_owned(), record.0);
        let sent = timeout(PATIENCE, sent).await.map_err(|_| Failure::Silent)?;
        sent.map_err(|it| Failure::Other(Box::new(it)))
    }

    /// What is published from here on, but for what a slow reader misses.
    pub(crate) async fn read(
        &self,
        streams: &Streams,
        subject: String,
    ) -> Result<Records, BusError> {
        let subscriber = self.client.subscribe(subject).await;
        let subscriber = subscriber.map_err(|it| Failure::Other(Box::new(it)))?;
        if !self.link.is_up() {
            return Err(Failure::Away.into());
        }
        // A server does one thing after the other: once it has answered this it knows of the reader. That nobody
        // is there to answer is an answer.
        let heard = self.client.request(streams.names.nobody(), "".into());
        let _ = timeout(HEARD, heard).await;
        let ring = Arc::new(Ring::new(HELD_BYTES, Offset(0)));
        let mut pump = JoinSet::new();
        pump.spawn(fill(ring.clone(), subscriber));
        let counters = self.counters.clone();
        let records = ring.newest(move |missed| {
            let lost = &counters.lost_ephemeral_records;
            lost.fetch_add(missed, Ordering::Relaxed);
        });
        // The pump stops when the reader goes.
        let records = stream::unfold((records, pump), |(mut records, pump)| async move {
            Some((records.next().await?, (records, pump)))
        });
        Ok(records.boxed())
    }
}

/// Takes messages as they come, so that a slow reader holds up nobody.
async fn fill(ring: Arc<Ring>, mut subscriber: Subscriber) {
    let mut offset = 0;
    while let Some(message) = subscriber.next().await {
        offset += 1;
        ring.push([Delivered {
            offset: Offset(offset),
            record: Record(message.payload),
        }]);
    }
    ring.close();
}
