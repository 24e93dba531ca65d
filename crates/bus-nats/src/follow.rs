//! Follows a stream through whatever happens to its consumers, its server and the connection.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bus::Generation;
use tokio::time::{Instant, sleep};
use tracing::debug;

use crate::TRIED;
use crate::counts::Counters;
use crate::failure::Failure;
use crate::pull::{Lost, Pull, Word};
use crate::streams::{Seen, Streams};

/// Between two tries to go on.
const PAUSE: Duration = Duration::from_millis(200);

/// Yields the messages of one stream in order, each at least once, for ever.
pub(crate) struct Follower {
    streams: Streams,
    counters: Arc<Counters>,
    name: String,
    generation: Generation,
    /// The sequence of the last message yielded, or what stands for it at the beginning.
    after: u64,
    only_headers: bool,
    pull: Option<Pull>,
    /// When the newest message had been received, at the latest.
    drained: Instant,
}

/// Why following ends.
#[derive(Debug)]
pub(crate) enum End {
    /// The stream is another one, or none.
    Anew,
    /// The server has less than was read before.
    Lessened(Seen),
    /// Something that does not pass by itself.
    Failed(Failure),
}

impl Follower {
    /// Begins behind the sequence `after` of the stream that was `seen`, and says how it was when it began.
    pub(crate) async fn begin(
        streams: &Streams,
        counters: Arc<Counters>,
        name: String,
        seen: Seen,
        after: u64,
        only_headers: bool,
    ) -> Result<(Self, Seen), Failure> {
        let mut follower = Self {
            streams: streams.clone(),
            counters,
            name,
            generation: seen.generation,
            after,
            only_headers,
            pull: None,
            drained: Instant::now(),
        };
        let deadline = Instant::now() + TRIED;
        let begun = streams.link.persist(deadline, || follower.consumer());
        let (pull, seen) = begun.await?;
        if seen.generation != follower.generation {
            return Err(Failure::Anew);
        }
        follower.pull = Some(pull);
        Ok((follower, seen))
    }

    /// The next message, or word that there is none.
    pub(crate) async fn next(&mut self) -> Result<Word, End> {
        loop {
            let Some(pull) = &mut self.pull else {
                self.resume().await?;
                continue;
            };
            let lost = self.streams.link.lost();
            let word = tokio::select! {
                biased;
                word = pull.next() => word,
                () = lost => Err(Lost),
            };
            match word {
                Ok(Word::Message(stored)) => {
                    self.after = stored.sequence;
                    if stored.newest {
                        self.drained = pull.sent_after();
                    }
                    return Ok(Word::Message(stored));
                }
                Ok(Word::Idle) => {
                    self.drained = pull.sent_after();
                    return Ok(Word::Idle);
                }
                Err(Lost) => self.pull = None,
            }
        }
    }

    /// For how long messages may have waited to be received.
    pub(crate) fn behind(&self) -> Duration {
        self.drained.elapsed()
    }

    async fn resume(&mut self) -> Result<(), End> {
        loop {
            let deadline = Instant::now() + TRIED;
            let begun = self.streams.link.persist(deadline, || self.consumer());
            let (pull, seen) = match begun.await {
                Ok(begun) => begun,
                Err(failure) if failure.is_no_stream() => return Err(End::Anew),
                Err(failure) if !failure.passes() => return Err(End::Failed(failure)),
                Err(failure) => {
                    debug!(stream = self.name, %failure, "not resumed yet");
                    sleep(PAUSE).await;
                    continue;
                }
            };
            if seen.generation != self.generation {
                return Err(End::Anew);
            }
            if seen.last < self.after {
                return Err(End::Lessened(seen));
            }
            self.counters
                .resumed_streams
                .fetch_add(1, Ordering::Relaxed);
            self.pull = Some(pull);
            return Ok(());
        }
    }

    /// A consumer of what comes next, and how the stream is after it was made: of that one, if it is the same.
    async fn consumer(&self) -> Result<(Pull, Seen), Failure> {
        let jetstream = &self.streams.jetstream;
        let pull = Pull::begin(jetstream, &self.name, self.after + 1, self.only_headers).await?;
        let seen = self.streams.seen(&self.name).await?;
        Ok((pull, seen))
    }
}
