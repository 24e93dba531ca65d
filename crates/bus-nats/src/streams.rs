//! The streams behind durable logs and tables: how they are made, and what they say of themselves.

use std::collections::HashMap;
use std::time::Duration;

use async_nats::jetstream::response::Response;
use async_nats::jetstream::stream::{Config, DiscardPolicy, Info, RetentionPolicy, StorageType};
use async_nats::jetstream::{Context, ErrorCode};
use bus::{Generation, LogKind, Offset, Partition, Table, Tail, TopicSpec};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use crate::failure::Failure;
use crate::link::Link;
use crate::names::Names;
use crate::{Settings, TRIED};

/// For how long a server knows what it has stored by the id of the message. Longer than [`TRIED`], within
/// which one is sent again.
const REPEATS_KNOWN: Duration = Duration::from_secs(2 * TRIED.as_secs());

/// All there is to ask of JetStream.
#[derive(Clone, Debug)]
pub(crate) struct Streams {
    pub(crate) jetstream: Context,
    pub(crate) link: Link,
    pub(crate) names: Names,
    replicas: usize,
    topic_bytes: u64,
}

/// A stream at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) generation: Generation,
    /// The sequence of the oldest message kept, or of the next where none is.
    pub(crate) first: u64,
    /// The sequence of the newest message ever, 0 where there was none.
    pub(crate) last: u64,
    /// How many are kept.
    pub(crate) messages: u64,
}

impl Streams {
    pub(crate) fn new(jetstream: Context, link: Link, names: Names, settings: &Settings) -> Self {
        Self {
            jetstream,
            link,
            names,
            replicas: settings.replicas,
            topic_bytes: settings.topic_bytes,
        }
    }

    /// What the log of a partition is made as; nothing where it is ephemeral.
    pub(crate) fn of_log(&self, topic: &TopicSpec, at: &Partition) -> Option<Config> {
        let LogKind::Durable { retention } = topic.kind else {
            return None;
        };
        let bytes = self.topic_bytes / u64::from(topic.partitions);
        Some(Config {
            name: self.names.stream(at),
            subjects: vec![self.names.subject(at)],
            max_age: retention,
            duplicate_window: REPEATS_KNOWN.min(retention),
            max_bytes: i64::try_from(bytes).unwrap_or(i64::MAX),
            max_messages_per_subject: -1,
            ..self.config()
        })
    }

    /// What a table is made as: of each key the newest message.
    pub(crate) fn of_table(&self, table: &Table) -> Config {
        Config {
            name: self.names.table(table),
            subjects: vec![self.names.of_table(table, "*")],
            max_bytes: -1,
            max_messages_per_subject: 1,
            ..self.config()
        }
    }

    fn config(&self) -> Config {
        Config {
            retention: RetentionPolicy::Limits,
            discard: DiscardPolicy::Old,
            storage: StorageType::File,
            max_messages: -1,
            max_message_size: -1,
            max_consumers: -1,
            num_replicas: self.replicas,
            duplicate_window: REPEATS_KNOWN,
            ..Config::default()
        }
    }

    /// Makes the stream, or makes it what it should be, as soon as the servers are ready. Where nothing there
    /// answers for JetStream, nothing will.
    pub(crate) async fn prepare(&self, config: &Config, deadline: Instant) -> Result<(), Failure> {
        let prepare = || async {
            let found = match self.ensure(config).await {
                Err(Failure::NobodyThere) => return Ok(Err(Failure::NobodyThere)),
                found => found?,
            };
            if !is_as(&found.config, config) {
                let subject = format!("STREAM.UPDATE.{}", config.name);
                self.ask::<Info>(subject, config).await?;
            }
            Ok(Ok(()))
        };
        self.link.persist(deadline, prepare).await?
    }

    /// [`Self::ensure`], until it succeeds or the deadline passes.
    pub(crate) async fn look(&self, config: &Config) -> Result<Seen, Failure> {
        let deadline = Instant::now() + TRIED;
        let found = self.link.persist(deadline, || self.ensure(config)).await?;
        Ok(Seen::from(&found))
    }

    /// How the stream is, if there is one.
    pub(crate) async fn seen(&self, name: &str) -> Result<Seen, Failure> {
        Ok(Seen::from(&self.info(name).await?))
    }

    /// How the stream is, which is made where it is missing.
    pub(crate) async fn ensure(&self, config: &Config) -> Result<Info, Failure> {
        let known = self.info(&config.name).await;
        if !matches!(&known, Err(failure) if failure.is_no_stream()) {
            return known;
        }
        let subject = format!("STREAM.CREATE.{}", config.name);
        match self.ask(subject, config).await {
            Err(Failure::Refused(error)) if is_taken(error.error_code()) => {
                match self.info(&config.name).await {
                    // It is another stream that has the subjects.
                    Err(failure) if failure.is_no_stream() => Err(Failure::Refused(error)),
                    // Another process was faster.
                    found => found,
                }
            }
            made => made,
        }
    }

    async fn info(&self, name: &str) -> Result<Info, Failure> {
        self.ask(format!("STREAM.INFO.{name}"), &()).await
    }

    /// Removes one message. Nothing happens where it is gone already.
    pub(crate) async fn remove(&self, name: &str, sequence: u64) -> Result<(), Failure> {
        let request = HashMap::from([("seq", sequence)]);
        let subject = format!("STREAM.MSG.DELETE.{name}");
        match self
            .ask::<HashMap<String, serde::de::IgnoredAny>>(subject, &request)
            .await
        {
            Err(Failure::Refused(error)) if error.code() != 503 => Ok(()),
            removed => removed.map(drop),
        }
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        subject: String,
        request: &impl Serialize,
    ) -> Result<T, Failure> {
        match self.jetstream.request(subject, request).await? {
            Response::Ok(answer) => Ok(answer),
            Response::Err { error } => Err(Failure::Refused(error)),
        }
    }
}

impl Seen {
    /// The end of the log.
    pub(crate) fn tail(&self) -> Tail {
        Tail {
            generation: self.generation,
            last: (self.last != 0).then_some(Offset(self.last)),
        }
    }

    /// The sequence of the oldest message kept.
    pub(crate) fn oldest(&self) -> Option<Offset> {
        (self.messages != 0).then_some(Offset(self.first))
    }
}

impl From<&Info> for Seen {
    fn from(info: &Info) -> Self {
        let created = info.created.unix_timestamp_nanos();
        Self {
            // Nanoseconds since 1970, which fit until 2554. The same name is never made twice in one.
            generation: Generation(created as u64),
            first: info.state.first_sequence.max(1),
            last: info.state.last_sequence,
            messages: info.state.messages,
        }
    }
}

/// What a server says where another process makes the same stream: that its name is taken; or, where both do so in the
/// same moment, that its subjects are.
fn is_taken(code: ErrorCode) -> bool {
    code == ErrorCode::STREAM_NAME_EXIST || code == ErrorCode::STREAM_SUBJECT_OVERLAP
}

/// Whether nothing of what a bus sets differs.
fn is_as(found: &Config, wanted: &Config) -> bool {
    let set = |it: &Config| {
        (
            (it.max_age, it.max_bytes, it.max_messages_per_subject),
            (it.num_replicas, it.duplicate_window, it.subjects.clone()),
        )
    };
    set(found) == set(wanted)
}
