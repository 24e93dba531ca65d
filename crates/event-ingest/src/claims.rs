//! Which socket speaks for which rank of a worker: the first that does.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use domain::{DpRank, Worker};

/// The ranks of one worker and who speaks for them.
#[derive(Clone, Debug)]
pub(crate) struct Claims {
    worker: Worker,
    /// The socket that speaks for each rank, by its place in the registration.
    speakers: Arc<Mutex<BTreeMap<DpRank, usize>>>,
}

/// Why a socket may not speak for a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refused {
    #[error("the rank is outside the worker's registered range")]
    OutOfRange,
    #[error("another publisher speaks for the rank")]
    SecondPublisher,
    #[error("the publisher already speaks for another rank")]
    OtherRank,
}

impl Refused {
    /// A name for metrics.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::OutOfRange => "rank_out_of_range",
            Self::SecondPublisher => "second_publisher",
            Self::OtherRank => "other_rank",
        }
    }
}

impl Claims {
    pub(crate) fn new(worker: Worker) -> Self {
        Self {
            worker,
            speakers: Arc::default(),
        }
    }

    /// Lets `socket` speak for `rank` from now on, unless it may not.
    pub(crate) fn claim(&self, socket: usize, rank: DpRank) -> Result<(), Refused> {
        if !self.worker.owns(rank) {
            return Err(Refused::OutOfRange);
        }
        // Nobody can leave the map half changed.
        let mut speakers = self.speakers.lock().unwrap_or_else(PoisonError::into_inner);
        let claimed = speakers.iter().find(|(_, speaker)| **speaker == socket);
        match (claimed, speakers.get(&rank)) {
            (Some((own, _)), _) if *own != rank => Err(Refused::OtherRank),
            (_, Some(speaker)) if *speaker != socket => Err(Refused::SecondPublisher),
            (Some(_), _) => Ok(()),
            (None, _) => {
                speakers.insert(rank, socket);
                Ok(())
            }
        }
    }
}
