//! What goes into a feed and what comes out of it.

use domain::{Epoch, EventSeq, ResetReason, Timestamp};

/// One batch as its publisher numbered it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message<P> {
    /// The publisher's number.
    pub seq: EventSeq,
    /// When the engine says it published.
    pub engine_ts: Timestamp,
    /// What it carries.
    pub payload: P,
}

/// How far a rank has been published: what a driver keeps to resume from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The worker's incarnation.
    pub epoch: Epoch,
    /// The newest message published in it.
    pub seq: EventSeq,
    /// That message's timestamp.
    pub engine_ts: Timestamp,
}

/// What a driver has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action<P> {
    /// Publish the message under `epoch`.
    Deliver {
        /// The incarnation it belongs to.
        epoch: Epoch,
        /// The message.
        message: Message<P>,
    },
    /// Publish that what was known of the rank is void, as the message at `position`: the one before the
    /// first that can still be had. Until it clears, the rank is partial.
    Reset {
        /// Where in the stream it stands.
        position: Position,
        /// Why.
        reason: ResetReason,
    },
    /// Ask the engine for every message from `from` on and abandon the replay that runs, if any. It ends
    /// with [`crate::RankFeed::replay_ended`] or [`crate::RankFeed::replay_failed`].
    AskReplay {
        /// The first message wanted.
        from: EventSeq,
        /// How many times in a row this was asked without learning anything, from 1; wait longer each time.
        attempt: u32,
    },
    /// Make the worker's incarnation one above `above`, unless it is already, abandon the replay that runs,
    /// and call [`crate::RankFeed::epoch_raised`].
    RaiseEpoch {
        /// The incarnation in which this rank has spoken.
        above: Epoch,
        /// How it showed that the engine began anew.
        cause: RestartCause,
    },
    /// Count a gap: `expected` was next and `found` came.
    Gap {
        /// The first message missing.
        expected: EventSeq,
        /// The message that showed it.
        found: EventSeq,
    },
    /// Count a message that is not published.
    Drop {
        /// Its number.
        seq: EventSeq,
        /// Why.
        cause: DropCause,
    },
}

/// How it shows that an engine began anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RestartCause {
    /// A number came again with a newer timestamp.
    Sequence,
    /// Its ring holds the newest message published, or one before it, under another timestamp.
    Timestamp,
    /// Its ring lacks the newest message published and begins with the one after.
    RingStart,
    /// Its ring lacks the newest message published and holds nothing, or nothing that fits.
    EmptyReplay,
}

impl RestartCause {
    /// Its name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sequence => "sequence",
            Self::Timestamp => "timestamp",
            Self::RingStart => "ring_start",
            Self::EmptyReplay => "empty_replay",
        }
    }
}

/// Why a message is not published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DropCause {
    /// It has been published before.
    Duplicate,
    /// It was held back, and the replay brought it too.
    Replayed,
    /// It belongs to an incarnation that has ended.
    Stale,
    /// Too many were held back; it is asked for again once the replay has ended.
    HoldFull,
    /// It was held back while the connection broke or the engine began anew; the next replay brings what
    /// is still valid.
    Refetched,
    /// It was a replayed message, and no replay runs.
    Unasked,
}

impl DropCause {
    /// Its name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Duplicate => "duplicate",
            Self::Replayed => "replayed",
            Self::Stale => "stale",
            Self::HoldFull => "hold_full",
            Self::Refetched => "refetched",
            Self::Unasked => "unasked",
        }
    }
}
