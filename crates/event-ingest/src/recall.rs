//! Learning the pages again from an engine's ring that reaches back to its first message.
//!
//! What is kept across a restart has no tokens, so blocks that were not whole could not be completed. Everything up
//! to where the rank was published is translated once more, and what comes of it is not published.

use domain::EventSeq;
use engine_wire::EventBatch;
use event_feed::{Message, Position, RankFeed};

use crate::translate::Translator;

/// A translator that reads what was published before.
#[derive(Debug)]
pub(crate) struct Recall {
    translator: Translator,
    next: EventSeq,
    upto: Position,
}

/// What came of a message.
#[derive(Debug)]
pub(crate) enum Recalled {
    /// More is needed.
    Going(Recall),
    /// The translator stands where the rank was published.
    Done(Translator),
    /// The ring does not hold all, or it is another engine's.
    Impossible,
}

impl Recall {
    /// What a rank that resumes where it was published can learn again; none where pages are not gathered.
    pub(crate) fn of(feed: &RankFeed<EventBatch>, translator: &Translator) -> Option<Self> {
        let upto = feed.position()?;
        translator.gathers().then(|| Self {
            translator: translator.afresh(),
            next: EventSeq::new(0),
            upto,
        })
    }

    pub(crate) fn take(mut self, message: &Message<EventBatch>) -> Recalled {
        if message.seq != self.next {
            return Recalled::Impossible;
        }
        self.translator.recall(message.seq, &message.payload);
        self.next = message.seq.next();
        if message.seq != self.upto.seq {
            return Recalled::Going(self);
        }
        match message.engine_ts == self.upto.engine_ts {
            true => Recalled::Done(self.translator),
            false => Recalled::Impossible,
        }
    }
}
