//! Appends to one durable partition: in order, many at a time, without holes.
//!
//! Messages are sent without waiting for each to be stored, up to a window. So that none is stored whose predecessor
//! was lost, as when a connection breaks or a leader changes, each names the one that must be the newest when it is
//! stored; the first does not, because all before it are acknowledged. Where another process writes to the same
//! partition in between, the rest is refused and sent again, in a smaller window; a window of one refuses nothing.
//! What is sent twice is stored once, because the server knows the ids of recent messages.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_nats::header;
use async_nats::jetstream::stream::Config;
use bus::{BusError, Offset, Record};
use futures::future::join_all;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout_at};
use tracing::warn;

use crate::TRIED;
use crate::counts::Counters;
use crate::failure::Failure;
use crate::publish::{Ids, Outgoing, is_unexpected};
use crate::streams::Streams;

/// How many appends to a partition may wait, so that one that nobody can write to holds little memory.
const QUEUE: usize = 64;
/// How many messages are under way at most: what the server stores in a few milliseconds.
const WINDOW: usize = 256;
/// How many bytes are under way at most, but for the first message.
const WINDOW_BYTES: usize = 4 * 1024 * 1024;

/// Takes appends to one partition.
#[derive(Clone, Debug)]
pub(crate) struct Appends {
    queue: mpsc::Sender<Append>,
}

struct Append {
    batch: Vec<Record>,
    deadline: Instant,
    done: oneshot::Sender<Result<Offset, Failure>>,
}

/// Sends what is taken.
pub(crate) struct Appender {
    queue: mpsc::Receiver<Append>,
    streams: Streams,
    counters: Arc<Counters>,
    ids: Ids,
    stream: Config,
    subject: String,
    window: usize,
}

impl Appends {
    /// Appends `batch`, which is not empty, and resolves with the last record's offset.
    pub(crate) async fn append(&self, batch: Vec<Record>) -> Result<Offset, BusError> {
        let deadline = Instant::now() + TRIED;
        let (done, answer) = oneshot::channel();
        let append = Append {
            batch,
            deadline,
            done,
        };
        match timeout_at(deadline, self.queue.send(append)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Err(Failure::Closed.into()),
            Err(_) => return Err(Failure::QueueFull.into()),
        }
        Ok(answer.await.map_err(|_| Failure::Closed)??)
    }
}

impl Appender {
    /// An appender to the log that is `stream`, and where it takes appends.
    pub(crate) fn new(
        streams: Streams,
        counters: Arc<Counters>,
        ids: Ids,
        stream: Config,
        subject: String,
    ) -> (Self, Appends) {
        let (sender, queue) = mpsc::channel(QUEUE);
        let appender = Self {
            queue,
            streams,
            counters,
            ids,
            stream,
            subject,
            window: 1,
        };
        (appender, Appends { queue: sender })
    }

    /// Appends until nobody can ask for it any more.
    pub(crate) async fn run(mut self) {
        while let Some(first) = self.queue.recv().await {
            let mut appends = vec![first];
            let mut records = appends[0].batch.len();
            while records < WINDOW
                && let Ok(next) = self.queue.try_recv()
            {
                records += next.batch.len();
                appends.push(next);
            }
            self.append(appends).await;
        }
    }

    /// Appends what waits as one run of messages, and tells each caller what became of its own.
    async fn append(&mut self, appends: Vec<Append>) {
        // The oldest waits the longest, and those behind it cannot be stored before it.
        let deadline = appends.first().map_or_else(Instant::now, |it| it.deadline);
        let mut run = Vec::new();
        let mut callers = Vec::with_capacity(appends.len());
        for append in appends {
            run.extend(append.batch);
            callers.push((run.len(), append.done));
        }
        let run: Vec<Outgoing> = run
            .into_iter()
            .map(|record| Outgoing::new(self.ids.next(), record.0))
            .collect();
        let mut sequences = Vec::with_capacity(run.len());
        let mut failure = self.store(&run, &mut sequences, deadline).await.err();
        if let Some(failure) = &failure {
            let failed = run.len() - sequences.len();
            let counter = &self.counters.failed_records;
            counter.fetch_add(failed as u64, Ordering::Relaxed);
            warn!(stream = self.stream.name, failed, %failure, "append failed");
        }
        for (end, done) in callers {
            let outcome = match sequences.get(end - 1) {
                Some(sequence) => Ok(Offset(*sequence)),
                None => Err(failure.take().unwrap_or(Failure::Silent)),
            };
            // Whoever has stopped waiting does not need to know.
            let _ = done.send(outcome);
        }
    }

    /// Sends `run` until all of it is stored or the deadline passes, which moves on with what is stored. The
    /// sequences of that, which is always the beginning, are added to `sequences`.
    async fn store(
        &mut self,
        run: &[Outgoing],
        sequences: &mut Vec<u64>,
        mut deadline: Instant,
    ) -> Result<(), Failure> {
        let mut tried: usize = 0;
        while sequences.len() < run.len() {
            self.streams.link.up(deadline).await?;
            let rest = &run[sequences.len()..];
            let flight = &rest[..self.fitting(rest)];
            let repeated = tried.saturating_sub(sequences.len());
            let counter = &self.counters.repeated_records;
            counter.fetch_add(repeated as u64, Ordering::Relaxed);
            tried = sequences.len() + flight.len();
            let outcome = tokio::select! {
                biased;
                outcome = self.fly(flight, sequences) => outcome,
                () = self.streams.link.lost() => Err(Failure::Away),
                () = sleep_until(deadline) => Err(Failure::Silent),
            };
            match outcome {
                Ok(()) => {
                    self.window = (2 * self.window).min(WINDOW);
                    deadline = deadline.max(Instant::now() + TRIED);
                }
                Err(failure) if is_unexpected(&failure) => self.window = (self.window / 2).max(1),
                Err(failure) if failure.passes() && Instant::now() < deadline => {
                    self.recover(failure, deadline).await?;
                }
                Err(failure) => return Err(failure),
            }
        }
        Ok(())
    }

    /// How many of `rest` may be under way at once.
    fn fitting(&self, rest: &[Outgoing]) -> usize {
        let mut bytes = 0;
        let fitting = rest.iter().take(self.window).take_while(|it| {
            bytes += it.payload.len();
            bytes <= WINDOW_BYTES
        });
        fitting.count().max(1).min(rest.len())
    }

    /// Sends `flight` once and waits for all of it.
    async fn fly(&self, flight: &[Outgoing], sequences: &mut Vec<u64>) -> Result<(), Failure> {
        let mut sent = Vec::with_capacity(flight.len());
        let mut former: Option<&Outgoing> = None;
        let mut failure = None;
        for message in flight {
            let mut message = message.clone();
            if let Some(former) = former {
                let name = header::NATS_EXPECTED_LAST_MESSAGE_ID;
                message.headers.insert(name, former.id.as_str());
            }
            match message.send(&self.streams, &self.subject).await {
                Ok(acknowledged) => sent.push(acknowledged.into_future()),
                Err(error) => {
                    failure = Some(error);
                    break;
                }
            }
            former = flight.get(sent.len() - 1);
        }
        for stored in join_all(sent).await {
            match stored {
                Ok(stored) => sequences.push(stored.sequence),
                Err(error) => return Err(error.into()),
            }
        }
        failure.map_or(Ok(()), Err)
    }

    /// Waits until it is worth to try again after `failure`.
    async fn recover(&self, failure: Failure, deadline: Instant) -> Result<(), Failure> {
        let there = || self.streams.ensure(&self.stream);
        let recovered = self.streams.link.persist(deadline, there).await;
        recovered.map(drop).map_err(|_| failure)
    }
}
