//! The incarnation of one worker, raised by compare-and-set so that ranks that restart together raise it once.

use std::sync::Arc;
use std::time::Duration;

use bus::{Bus, BusError, Entry, Expect, Key, Revision};
use contracts::topics::INCARNATIONS;
use contracts::{DecodeError, Encoding};
use domain::{Epoch, Incarnation, WorkerId};
use service_kit::Clock;
use tokio::sync::watch;

/// The wait before a read or a raise that the bus did not take is tried again.
pub(crate) const RETRY: Duration = Duration::from_secs(1);

/// What is known of the table's entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) epoch: Epoch,
    pub(crate) revision: Revision,
}

/// Why an incarnation cannot be read or raised.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EpochError {
    #[error("read or raise the worker's incarnation")]
    Bus(#[from] BusError),
    #[error("read the worker's incarnation")]
    Decode(#[from] DecodeError),
    #[error("no incarnation of {0} comes after {1}: register it under another id")]
    Last(WorkerId, Epoch),
}

impl EpochError {
    pub(crate) fn is_retryable(&self) -> bool {
        match self {
            Self::Bus(error) => error.is_retryable(),
            Self::Decode(_) => false,
            // Other workers go on.
            Self::Last(..) => true,
        }
    }
}

/// One worker's incarnation, shared by its ranks.
#[derive(Clone)]
pub(crate) struct WorkerEpoch {
    bus: Arc<dyn Bus>,
    clock: Clock,
    worker: WorkerId,
    known: Arc<watch::Sender<Option<Known>>>,
}

impl WorkerEpoch {
    pub(crate) fn new(bus: Arc<dyn Bus>, clock: Clock, worker: WorkerId) -> Self {
        Self {
            bus,
            clock,
            worker,
            known: Arc::new(watch::Sender::new(None)),
        }
    }

    /// Wakes at every raise, whoever made it.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Option<Known>> {
        self.known.subscribe()
    }

    /// The epoch as far as it is known here.
    pub(crate) fn current(&self) -> Option<Epoch> {
        self.known.borrow().map(|known| known.epoch)
    }

    /// Takes note of an entry of the table, unless a newer one is known.
    pub(crate) fn learn(&self, entry: &Entry) -> Result<(), DecodeError> {
        let incarnation = Incarnation::from_bytes(&entry.value)?;
        self.note(incarnation.epoch, entry.revision);
        Ok(())
    }

    /// The worker's epoch, which is `least` or more from now on: the table's entry is made or raised if it
    /// is absent or below.
    pub(crate) async fn at_least(&self, least: Epoch, why: &str) -> Result<Epoch, EpochError> {
        loop {
            self.read().await?;
            let known = *self.known.borrow();
            if let Some(known) = known.filter(|known| least <= known.epoch) {
                return Ok(known.epoch);
            }
            self.write(least, known, why).await?;
        }
    }

    /// The worker's epoch, which is above `above` from now on. Of those who raise it at the same time one
    /// does, and the others learn so.
    pub(crate) async fn raise(&self, above: Epoch, why: &str) -> Result<Epoch, EpochError> {
        let known = self.current();
        if let Some(epoch) = known.filter(|epoch| above < *epoch) {
            return Ok(epoch);
        }
        match self.at_least(above.next(), why).await? {
            epoch if above < epoch => Ok(epoch),
            last => Err(EpochError::Last(self.worker.clone(), last)),
        }
    }

    /// Reads the table, and returns the epoch it says.
    pub(crate) async fn read(&self) -> Result<Option<Epoch>, EpochError> {
        let entry = self.bus.get(&INCARNATIONS.table, &self.key()).await?;
        if let Some(entry) = entry {
            self.learn(&entry)?;
        } else {
            self.known.send_if_modified(|known| known.take().is_some());
        }
        Ok(self.current())
    }

    /// Losing to another writer is not an error: the caller reads again.
    async fn write(&self, epoch: Epoch, known: Option<Known>, why: &str) -> Result<(), EpochError> {
        let incarnation = Incarnation {
            epoch,
            why: why.to_owned(),
            since: self.clock.now(),
        };
        let expect = known.map_or(Expect::Absent, |known| Expect::At(known.revision));
        let written = self
            .bus
            .put(
                &INCARNATIONS.table,
                self.key(),
                Some(incarnation.to_bytes()),
                expect,
            )
            .await;
        match written {
            Ok(revision) => {
                tracing::info!(worker = %self.worker, %epoch, why, "incarnation raised");
                self.note(epoch, revision);
                Ok(())
            }
            Err(BusError::Conflict { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn note(&self, epoch: Epoch, revision: Revision) {
        self.known.send_if_modified(|known| {
            let newer = known.is_none_or(|known| known.revision < revision);
            if newer {
                *known = Some(Known { epoch, revision });
            }
            newer
        });
    }

    fn key(&self) -> Key {
        Key(self.worker.to_string().into())
    }
}

#[cfg(test)]
mod tests {
    use bus::MemoryBus;
    use contracts::topics::LAYOUT;

    use super::*;

    #[tokio::test]
    async fn what_cannot_rise_is_an_error_and_no_epoch() {
        let bus = Arc::new(MemoryBus::new(&LAYOUT));
        let worker = "w1".parse().expect("an id");
        let epoch = WorkerEpoch::new(bus, Clock::system(), worker);
        let last = Epoch::new(u64::MAX);

        let before = epoch.raise(Epoch::new(u64::MAX - 1), "test").await;
        assert_eq!(before.expect("one is left"), last);

        let error = epoch.raise(last, "test").await.expect_err("none is left");
        assert_eq!(
            error.to_string(),
            "no incarnation of w1 comes after 18446744073709551615: register it under another id"
        );
        assert!(error.is_retryable());
    }
}
