//! The partitions of `kv-events`: reading them, reading them again, and how far they have been read.

use std::time::Duration;

use bus::{Bus, BusError, Delivered, Generation, Offset, Partition, Start, Tail};
use contracts::index_store::{LogCursor, LogCursors};
use contracts::rpc::Shard;
use contracts::topics::KV_EVENTS;
use domain::Timestamp;
use futures::stream::{AbortHandle, BoxStream, SelectAll};
use futures::{StreamExt, stream};

/// How long to wait before a partition that could not be read is tried again.
const REOPEN_AFTER: Duration = Duration::from_secs(1);

/// All partitions, by number. Those of other shards are never opened.
pub(crate) struct Partitions {
    logs: Vec<Log>,
    shard: Shard,
    streams: SelectAll<BoxStream<'static, Read>>,
}

/// One partition.
struct Log {
    at: Partition,
    generation: Option<Generation>,
    /// The last record taken.
    taken: Option<Offset>,
    /// When to open it; none while it is open.
    open_at: Option<Timestamp>,
    /// Whether `taken` has moved since it was last saved.
    changed: bool,
    /// Ends the stream.
    abort: Option<AbortHandle>,
}

/// What comes of reading a partition.
pub(crate) struct Read {
    pub(crate) partition: u32,
    pub(crate) item: Item,
}

/// One step of a partition.
pub(crate) enum Item {
    /// A record.
    Record(Delivered),
    /// The stream has ended, perhaps with an error.
    Ended(Option<BusError>),
}

/// What opening a partition has shown.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Opened {
    /// It goes on where it was.
    Continued,
    /// Records have been lost, or the log is another: what came of it must be resynchronised.
    Lost,
}

impl Partitions {
    /// Those of `shard`, to be opened where `cursors` say that a store left off.
    pub(crate) fn new(cursors: &LogCursors, shard: Shard) -> Self {
        let log = |at: Partition| {
            let stored = cursors.0.iter().find(|it| it.partition == at.index);
            let followed = shard.follows(at.index);
            let cursor = stored.filter(|_| followed);
            Log {
                generation: cursor.map(|it| it.generation),
                taken: cursor.map(|it| it.offset),
                open_at: followed.then_some(Timestamp::ZERO),
                // What is not followed any more must not be taken up there later.
                changed: stored.is_some() && !followed,
                abort: None,
                at,
            }
        };
        Self {
            logs: KV_EVENTS.all_partitions().map(log).collect(),
            shard,
            streams: SelectAll::new(),
        }
    }

    /// The next step of any partition; none while none is open.
    pub(crate) async fn next(&mut self) -> Option<Read> {
        self.streams.next().await
    }

    /// Partitions that are to be opened now.
    pub(crate) fn to_open(&self, now: Timestamp) -> Vec<u32> {
        let due = |log: &&Log| log.open_at.is_some_and(|at| at <= now);
        self.logs
            .iter()
            .filter(due)
            .map(|log| log.at.index)
            .collect()
    }

    /// Whether none waits to be opened.
    pub(crate) fn all_open(&self) -> bool {
        self.logs.iter().all(|log| log.open_at.is_none())
    }

    /// Opens one, or puts it off.
    pub(crate) async fn open(
        &mut self,
        bus: &dyn Bus,
        partition: u32,
        now: Timestamp,
    ) -> Result<Opened, BusError> {
        let log = &mut self.logs[partition as usize];
        // Until it has succeeded.
        log.open_at = Some(now + REOPEN_AFTER);
        let tail = bus.tail(&log.at).await?;
        let mut opened = Opened::Continued;
        if log.generation.is_some_and(|known| known != tail.generation) {
            log.taken = None;
            opened = Opened::Lost;
        }
        log.generation = Some(tail.generation);
        let start = log.taken.map_or(Start::Earliest, Start::After);
        let records = match bus.read(&log.at, start).await {
            Err(BusError::Trimmed { .. }) => {
                log.taken = None;
                opened = Opened::Lost;
                bus.read(&log.at, Start::Earliest).await?
            }
            other => other?,
        };
        log.open_at = None;
        log.changed = true;
        let read = move |item| Read { partition, item };
        let items = records.map(|record| match record {
            Ok(delivered) => Item::Record(delivered),
            Err(error) => Item::Ended(Some(error)),
        });
        let end = stream::once(async { Item::Ended(None) });
        let (stream, abort) = stream::abortable(items.chain(end).map(read));
        log.abort = Some(abort);
        self.streams.push(stream.boxed());
        Ok(opened)
    }

    /// Ends the stream of a partition, which is to be opened again at once.
    pub(crate) fn reopen(&mut self, partition: u32) {
        let log = &mut self.logs[partition as usize];
        log.open_at = Some(Timestamp::ZERO);
        if let Some(abort) = log.abort.take() {
            abort.abort();
        }
    }

    /// A record was taken. Answers the one before it.
    pub(crate) fn took(&mut self, partition: u32, offset: Offset) -> Option<Offset> {
        let log = &mut self.logs[partition as usize];
        log.changed = true;
        log.taken.replace(offset)
    }

    /// A stream has ended: it is opened again a little later. Whether records after the last one taken are
    /// gone.
    pub(crate) fn ended(
        &mut self,
        partition: u32,
        error: Option<&BusError>,
        now: Timestamp,
    ) -> bool {
        let log = &mut self.logs[partition as usize];
        log.open_at.get_or_insert(now + REOPEN_AFTER);
        let lost = matches!(error, Some(BusError::Trimmed { .. }));
        if lost {
            log.taken = None;
        }
        lost
    }

    /// Whether `tail` has been reached.
    pub(crate) fn has_reached(&self, partition: u32, tail: &Tail) -> bool {
        let log = &self.logs[partition as usize];
        log.generation == Some(tail.generation) && tail.last <= log.taken
    }

    /// Whether the log of `partition` is known to be another than it was.
    pub(crate) fn is_another(&self, partition: u32, tail: &Tail) -> bool {
        let log = &self.logs[partition as usize];
        log.generation.is_some_and(|known| known != tail.generation)
    }

    /// The cursors to be saved, if any has moved. `held_since` gives the record after which a partition must
    /// be read again, where that is not the last one taken.
    pub(crate) fn changed(
        &mut self,
        held_since: impl Fn(u32) -> Option<Option<Offset>>,
    ) -> Option<LogCursors> {
        if !self.logs.iter().any(|log| log.changed) {
            return None;
        }
        self.logs.iter_mut().for_each(|log| log.changed = false);
        Some(self.cursors(held_since))
    }

    /// Where a reader who has what this one has applied is to go on; `held_since` as for [`Self::changed`].
    pub(crate) fn cursors(&self, held_since: impl Fn(u32) -> Option<Option<Offset>>) -> LogCursors {
        let mut cursors = Vec::new();
        for log in &self.logs {
            let partition = log.at.index;
            let offset = held_since(partition).unwrap_or(log.taken);
            if let Some((generation, offset)) = log.generation.zip(offset) {
                cursors.push(LogCursor {
                    partition,
                    generation,
                    offset,
                });
            }
        }
        LogCursors(cursors)
    }

    pub(crate) fn shard(&self) -> Shard {
        self.shard
    }
}

/// The tails of the partitions of `shard`, for readiness and age.
pub(crate) async fn tails(bus: &dyn Bus, shard: Shard) -> Result<Vec<(u32, Tail)>, BusError> {
    let mut tails = Vec::new();
    for at in KV_EVENTS.all_partitions() {
        if shard.follows(at.index) {
            tails.push((at.index, bus.tail(&at).await?));
        }
    }
    Ok(tails)
}
