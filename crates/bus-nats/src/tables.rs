//! Tables: a stream that keeps the newest message of each key. A deletion is a message too, without a value, so that
//! watchers see it and the revisions of a key grow across it.
//!
//! A revision is twice the sequence of the key's newest message, and one more where that is a deletion: nobody can
//! take a deletion for a value.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_nats::jetstream::stream::{Config, LastRawMessageErrorKind};
use async_nats::{HeaderMap, Message, header};
use bus::{Change, Changes, Entry, Expect, Key, Revision, Table, TableSpec};
use bytes::Bytes;
use futures::{StreamExt, stream};
use tokio::time::Instant;
use tracing::warn;

use crate::TRIED;
use crate::counts::Counters;
use crate::failure::Failure;
use crate::follow::{End, Follower};
use crate::names;
use crate::publish::{Ids, Outgoing, is_unexpected};
use crate::pull::Word;
use crate::streams::Streams;

/// Marks a message as a deletion.
const DELETED: &str = "Rankway-Deleted";
/// How often a write looks again at what it raced with before it gives up.
const RACES: usize = 16;

/// One table.
pub(crate) struct TableLog {
    pub(crate) table: Table,
    pub(crate) config: Config,
    /// Whether this process has deleted from it.
    pub(crate) deletes: AtomicBool,
}

/// The newest message of a key.
struct Newest {
    sequence: u64,
    /// Its value; none where it is a deletion.
    value: Option<Bytes>,
}

/// What became of a write.
pub(crate) enum Written {
    /// It is the newest.
    At(Revision),
    /// Something else was there than expected.
    Conflict(Option<Revision>),
}

impl TableLog {
    pub(crate) fn new(spec: &TableSpec, streams: &Streams) -> Self {
        Self {
            table: spec.table,
            config: streams.of_table(&spec.table),
            deletes: AtomicBool::new(false),
        }
    }

    pub(crate) async fn get(&self, streams: &Streams, key: &Key) -> Result<Option<Entry>, Failure> {
        let newest = self.newest(streams, &self.subject(streams, key)).await?;
        Ok(newest.and_then(Newest::entry))
    }

    pub(crate) async fn put(
        &self,
        streams: &Streams,
        ids: &Ids,
        key: &Key,
        value: Option<Bytes>,
        expect: Expect,
    ) -> Result<Written, Failure> {
        let subject = self.subject(streams, key);
        let deleted = value.is_none();
        let value = value.unwrap_or_default();
        let mut expected = match expect {
            Expect::Any => None,
            Expect::Absent => Some(0),
            Expect::At(revision) => match sequence_of_value(revision) {
                Some(sequence) => Some(sequence),
                None => return self.conflict(streams, &subject).await,
            },
        };
        for _ in 0..RACES {
            let mut message = Outgoing::new(ids.next(), value.clone());
            if let Some(sequence) = expected {
                let name = header::NATS_EXPECTED_LAST_SUBJECT_SEQUENCE;
                message.headers.insert(name, sequence.to_string());
            }
            if deleted {
                message.headers.insert(DELETED, "1");
            }
            let failure = match message.store(streams, &self.config, &subject).await {
                Ok(sequence) => {
                    self.deletes.fetch_or(deleted, Ordering::Relaxed);
                    return Ok(Written::At(revision(sequence, deleted)));
                }
                Err(failure) => failure,
            };
            if !is_unexpected(&failure) {
                return Err(failure);
            }
            let newest = self.newest(streams, &subject).await?;
            let current = newest.as_ref().and_then(Newest::revision);
            let as_expected = match expect {
                Expect::Any => true,
                Expect::Absent => current.is_none(),
                Expect::At(revision) => current == Some(revision),
            };
            if !as_expected {
                return Ok(Written::Conflict(current));
            }
            expected = Some(newest.map_or(0, |it| it.sequence));
        }
        Err(Failure::Outrun)
    }

    /// The whole table and then its changes. One that is behind for longer than `kept`, after which deletions may be
    /// cleared away, ends.
    pub(crate) async fn watch(
        &self,
        streams: &Streams,
        counters: Arc<Counters>,
        kept: Duration,
    ) -> Result<Changes, Failure> {
        let seen = streams.look(&self.config).await?;
        let name = self.config.name.clone();
        let (follower, seen) = Follower::begin(streams, counters, name, seen, 0, false).await?;
        let watcher = Watcher {
            follower,
            goal: Some(seen.last).filter(|_| seen.messages != 0),
            kept,
        };
        let caught_up = watcher.goal.is_none().then_some(Ok(Change::CaughtUp));
        let changes = stream::unfold(Some(watcher), |watcher| async move {
            let mut watcher = watcher?;
            match watcher.next().await {
                Ok(changes) => Some((changes.into_iter().map(Ok).collect(), Some(watcher))),
                Err(failure) => Some((vec![Err(failure.into())], None)),
            }
        });
        let changes = changes.map(|it: Vec<_>| stream::iter(it)).flatten();
        Ok(stream::iter(caught_up).chain(changes).boxed())
    }

    fn subject(&self, streams: &Streams, key: &Key) -> String {
        streams.names.of_table(&self.table, &names::token(key))
    }

    async fn conflict(&self, streams: &Streams, subject: &str) -> Result<Written, Failure> {
        let newest = self.newest(streams, subject).await?;
        Ok(Written::Conflict(newest.and_then(|it| it.revision())))
    }

    /// Asks the leader of the stream, who alone knows for certain.
    async fn newest(&self, streams: &Streams, subject: &str) -> Result<Option<Newest>, Failure> {
        let stream = streams.jetstream.get_stream_no_info(&self.config.name);
        let stream = stream.await.map_err(|it| Failure::Other(Box::new(it)))?;
        let ask = || async {
            match stream.get_last_raw_message_by_subject(subject).await {
                Ok(found) => Ok(Some(Newest {
                    sequence: found.sequence,
                    value: (!is_deletion(&found.headers)).then_some(found.payload),
                })),
                Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(None),
                Err(error) => Err(Failure::from(error)),
            }
        };
        match streams.link.persist(Instant::now() + TRIED, ask).await {
            Err(failure) if failure.is_no_stream() => {
                streams.look(&self.config).await?;
                Ok(None)
            }
            found => found,
        }
    }
}

/// One watch of a table.
struct Watcher {
    follower: Follower,
    /// The sequence at which everything that was there at the beginning has been yielded, until it has.
    goal: Option<u64>,
    kept: Duration,
}

impl Watcher {
    async fn next(&mut self) -> Result<Vec<Change>, Failure> {
        loop {
            let word = match self.follower.next().await {
                Ok(word) => word,
                Err(End::Anew | End::Lessened(_)) => return Err(Failure::Anew),
                Err(End::Failed(failure)) => return Err(failure),
            };
            if self.kept < self.follower.behind() {
                return Err(Failure::Behind);
            }
            let mut changes = Vec::new();
            let goal = match word {
                Word::Message(stored) => {
                    changes.extend(change(&stored.message, stored.sequence));
                    self.goal
                        .filter(|it| !stored.newest && stored.sequence < *it)
                }
                Word::Idle => None,
            };
            if self.goal.is_some() && goal.is_none() {
                changes.push(Change::CaughtUp);
            }
            self.goal = goal;
            if !changes.is_empty() {
                return Ok(changes);
            }
        }
    }
}

impl Newest {
    fn entry(self) -> Option<Entry> {
        let value = self.value?;
        Some(Entry {
            value,
            revision: revision(self.sequence, false),
        })
    }

    /// The revision of its value.
    fn revision(&self) -> Option<Revision> {
        self.value.as_ref().map(|_| revision(self.sequence, false))
    }
}

/// Whether these are the headers of a deletion.
pub(crate) fn is_deletion(headers: &HeaderMap) -> bool {
    headers.get(DELETED).is_some()
}

fn change(message: &Message, sequence: u64) -> Option<Change> {
    let Some(key) = names::key(&message.subject) else {
        warn!(subject = %message.subject, "not written by Rankway");
        return None;
    };
    if message.headers.as_ref().is_some_and(is_deletion) {
        return Some(Change::Deleted(key));
    }
    let entry = Entry {
        value: message.payload.clone(),
        revision: revision(sequence, false),
    };
    Some(Change::Put(key, entry))
}

fn revision(sequence: u64, deleted: bool) -> Revision {
    Revision(sequence << 1 | u64::from(deleted))
}

/// The sequence that a value must have to be at `revision`; none where no value can be.
fn sequence_of_value(Revision(revision): Revision) -> Option<u64> {
    (revision != 0 && revision & 1 == 0).then_some(revision >> 1)
}
