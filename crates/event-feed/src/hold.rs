//! Live messages held back, by number, while a replay runs or an epoch is being raised.

use std::collections::BTreeMap;

use domain::EventSeq;

use crate::Message;

/// Messages of one incarnation, at most `limit`.
#[derive(Clone, Debug)]
pub(crate) struct Hold<P> {
    messages: BTreeMap<EventSeq, Message<P>>,
    limit: usize,
}

/// What became of a message offered to the hold.
pub(crate) enum Held {
    /// It is in.
    Kept,
    /// It was there already.
    Known,
    /// There is no room.
    Full,
}

impl<P> Hold<P> {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            messages: BTreeMap::new(),
            limit: limit.max(1),
        }
    }

    pub(crate) fn offer(&mut self, message: Message<P>) -> Held {
        if self.messages.contains_key(&message.seq) {
            return Held::Known;
        }
        if self.limit <= self.messages.len() {
            return Held::Full;
        }
        self.messages.insert(message.seq, message);
        Held::Kept
    }

    /// Whether `message` cannot be of the incarnation of what is held: it is not after the last one held,
    /// but was published later.
    pub(crate) fn contradicts(&self, message: &Message<P>) -> bool {
        self.messages
            .last_key_value()
            .is_some_and(|(seq, last)| message.seq <= *seq && last.engine_ts < message.engine_ts)
    }

    pub(crate) fn first(&self) -> Option<&Message<P>> {
        self.messages.first_key_value().map(|(_, message)| message)
    }

    pub(crate) fn pop_first(&mut self) -> Option<Message<P>> {
        self.messages.pop_first().map(|(_, message)| message)
    }

    /// Empties it and returns the numbers of what was held.
    pub(crate) fn clear(&mut self) -> Vec<EventSeq> {
        std::mem::take(&mut self.messages).into_keys().collect()
    }
}
