//! Reads a durable partition: every record from a place on, or word that some are gone.

use std::sync::Arc;

use async_nats::jetstream::stream::Config;
use bus::{BusError, Delivered, Offset, Record, Records, Start};
use futures::{StreamExt, stream};

use crate::counts::Counters;
use crate::failure::Failure;
use crate::follow::{End, Follower};
use crate::pull::Word;
use crate::streams::{Seen, Streams};

/// One read of a partition.
struct Reader {
    follower: Follower,
    /// The sequence of the last record yielded. Without a gap, the next is one more: each log is one stream.
    after: u64,
}

/// Begins at `start`, if everything after it is still there.
pub(crate) async fn read(
    streams: &Streams,
    counters: Arc<Counters>,
    config: &Config,
    start: Start,
) -> Result<Records, BusError> {
    let seen = streams.look(config).await?;
    let after = match start {
        Start::Earliest => seen.first - 1,
        Start::After(Offset(offset)) => offset,
    };
    check(&seen, after)?;
    let name = config.name.clone();
    let (follower, _) = Follower::begin(streams, counters, name, seen, after, false).await?;
    Ok(records(Reader { follower, after }))
}

/// Refuses a place whose next record is gone, also because the server has lost what was read before: it will give
/// those offsets to other records.
fn check(seen: &Seen, after: u64) -> Result<(), BusError> {
    if after + 1 < seen.first || seen.last < after {
        return Err(BusError::Trimmed {
            oldest: seen.oldest(),
        });
    }
    Ok(())
}

fn records(reader: Reader) -> Records {
    let records = stream::unfold(Some(reader), |reader| async move {
        let mut reader = reader?;
        match reader.next().await {
            Ok(record) => Some((Ok(record), Some(reader))),
            Err(error) => Some((Err(error), None)),
        }
    });
    records.boxed()
}

impl Reader {
    async fn next(&mut self) -> Result<Delivered, BusError> {
        loop {
            let stored = match self.follower.next().await {
                Ok(Word::Message(stored)) => stored,
                Ok(Word::Idle) => continue,
                Err(End::Anew) => return Err(Failure::Anew.into()),
                Err(End::Failed(failure)) => return Err(failure.into()),
                Err(End::Lessened(seen)) => {
                    return Err(BusError::Trimmed {
                        oldest: seen.oldest(),
                    });
                }
            };
            let offset = Offset(stored.sequence);
            if stored.sequence != self.after + 1 {
                return Err(BusError::Trimmed {
                    oldest: Some(offset),
                });
            }
            self.after = stored.sequence;
            return Ok(Delivered {
                offset,
                record: Record(stored.message.payload),
            });
        }
    }
}
