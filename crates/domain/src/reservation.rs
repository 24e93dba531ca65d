//! Prefill work just sent, before any engine shows it as load.

use crate::{DecisionId, SequenceHash, Target, Timestamp, Tokens};

/// One change of a router's reservations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReservationChange {
    /// Prefill work was sent to a target.
    Reserve {
        /// The decision that sent it.
        id: DecisionId,
        /// Where to.
        target: Target,
        /// Tokens to be computed there.
        uncached: Tokens,
        /// Every 64th sequence hash of the request and its last: the prefix in flight.
        landmarks: Vec<SequenceHash>,
        /// When it ends by itself.
        lease_until: Timestamp,
        /// A hash of the conversation that is bound there, if one is.
        conversation: Option<u64>,
    },
    /// It has ended: first token, failure, or the client left.
    Release {
        /// The decision that made it.
        id: DecisionId,
    },
}
