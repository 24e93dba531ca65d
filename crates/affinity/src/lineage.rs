//! Conversations without an id: a request that goes on where a recent one ended is its next turn.
//!
//! A conversation is born when a request first extends such an end. It is named after the second block that
//! this request adds, so that two requests that go on differently from one end are two conversations, and so
//! that every router that hears of the name finds it in all later turns.
//!
//! Until it has a name, and where nothing else says what targets hold, an end leads to the target where the
//! request that ended there ran: its prefix is there.
//!
//! What others may miss of this: the ends that a router has not heard of, after a restart or a loss, make it
//! name a conversation a turn later than another would have; and where two name one at once, the deeper name
//! is found from then on.

use std::fmt;
use std::time::Duration;

use domain::{ConversationId, ModelName, SequenceHash, Target, Timestamp};
use xxhash_rust::xxh3::xxh3_64;

use crate::ConversationKey;
use crate::recent::Recent;

/// Ends and origins remembered, about 70 bytes each: several of each of 50,000 live conversations.
const MAX_MARKS: usize = 262_144;
/// How long at least an end is remembered: as long as a binding lives.
const PERIOD: Duration = Duration::from_secs(30 * 60);
/// The block after an end that names a conversation, counted from the end's own. The first one may hold a few
/// tokens of what the two share; with the second there is at least a block of what they do not.
const NAMED_AFTER: usize = 2;
/// What its id begins with.
const PREFIX: &str = "lineage-";

/// The block that names a conversation, by its sequence hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Origin(SequenceHash);

impl Origin {
    /// The id of the conversation, the same at every router.
    pub fn id(self) -> ConversationId {
        ConversationId::new(&self.to_string()).expect("a short printable text is an id")
    }

    /// The origin that an id names, if it names one.
    pub fn of(id: &ConversationId) -> Option<Self> {
        let digits = id.as_str().strip_prefix(PREFIX)?;
        let hash = u64::from_str_radix(digits, 16).ok()?;
        let origin = Self(SequenceHash::new(hash));
        // Only one text names it.
        (origin.to_string() == id.as_str()).then_some(origin)
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{:016x}", self.0.get())
    }
}

/// Whose prefixes are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kin(u64);

impl Kin {
    /// Requests to one model. Those of different tenants have no hash in common, because a tenant's are seeded by its
    /// salt: so ends that peers tell need not say whose they are.
    pub fn of(model: &ModelName) -> Self {
        Self(xxh3_64(model.as_str().as_bytes()))
    }
}

/// What is known of a request by what came before it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Descent {
    /// Its conversation.
    pub origin: Option<Origin>,
    /// Where the nameless request ran whose end it goes on from.
    pub lead: Option<Lead>,
}

/// Where a request ran that another goes on with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lead {
    /// There.
    pub target: Target,
    /// Leading blocks that both have, at least one.
    pub blocks: usize,
}

/// Where recent requests ended, and which conversations go through there.
#[derive(Debug)]
pub struct Lineage {
    marks: Recent<(Kin, SequenceHash), Mark>,
}

/// What is known of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Mark {
    /// A request ended here of which no conversation is known, and ran there, where that is known.
    End(Option<Target>),
    /// A turn of this conversation ended here.
    EndOf(Origin),
    /// It names a conversation of which no turn has been seen here.
    Heard,
    /// It names a conversation whose turns are known by their ends. A request that has none of them merely
    /// shares its beginning: a prompt that many begin with must not make one conversation of them.
    Seen,
}

impl Default for Lineage {
    fn default() -> Self {
        Self {
            marks: Recent::new(MAX_MARKS, PERIOD),
        }
    }
}

impl Lineage {
    /// The conversation of a request with these blocks: the deepest that it goes on with, else the one that
    /// is born with it. And where the request ran that it goes on with, if that had no name.
    ///
    /// Looks at one block after the other from the last: at as many as were added since the last turn, and
    /// at all of them where there was none.
    pub fn find(&self, kin: Kin, hashes: &[SequenceHash], now: Timestamp) -> Descent {
        let mut born = None;
        let mut lead = None;
        for (at, hash) in hashes.iter().enumerate().rev() {
            let named = match self.marks.get(&(kin, *hash), now) {
                Some(Mark::EndOf(origin)) => *origin,
                Some(Mark::Heard) => Origin(*hash),
                Some(Mark::End(ran)) => {
                    born = born.or_else(|| hashes.get(at + NAMED_AFTER));
                    lead = lead.or_else(|| ran.as_ref().map(|target| (target, at + 1)));
                    continue;
                }
                Some(Mark::Seen) => break,
                None => continue,
            };
            return Descent::of(Some(named), lead);
        }
        Descent::of(born.copied().map(Origin), lead)
    }

    /// Remembers where a request ended, and the conversation it was found to belong to.
    ///
    /// Leave out what is not certain to come back: a template's opening of the answer, for one.
    pub fn record(
        &mut self,
        kin: Kin,
        hashes: &[SequenceHash],
        found: Option<Origin>,
        now: Timestamp,
    ) {
        if let Some(origin) = found {
            self.marks.put((kin, origin.0), Mark::Seen, now);
        }
        let Some(end) = hashes.last() else {
            return;
        };
        let mark = match (found, self.marks.get(&(kin, *end), now)) {
            (Some(origin), _) => Mark::EndOf(origin),
            (None, Some(Mark::End(ran))) => Mark::End(ran.clone()),
            (None, _) => Mark::End(None),
        };
        self.marks.put((kin, *end), mark, now);
    }

    /// Takes in where a request ran that ended so, this router's or a peer's. Of one that has a name its binding
    /// says it.
    pub fn ran(&mut self, kin: Kin, end: SequenceHash, target: &Target, now: Timestamp) {
        match self.marks.get(&(kin, end), now) {
            None | Some(Mark::End(_)) => {
                let mark = Mark::End(Some(target.clone()));
                self.marks.put((kin, end), mark, now);
            }
            Some(Mark::EndOf(_) | Mark::Heard | Mark::Seen) => {}
        }
    }

    /// Takes in a conversation that some router has bound; those that have an id of their own are passed
    /// over.
    pub fn hear(&mut self, key: &ConversationKey, now: Timestamp) {
        let Some(origin) = Origin::of(&key.conversation) else {
            return;
        };
        let mark = (Kin::of(&key.model), origin.0);
        match self.marks.get(&mark, now) {
            None | Some(Mark::End(_)) => self.marks.put(mark, Mark::Heard, now),
            Some(Mark::EndOf(_) | Mark::Heard | Mark::Seen) => {}
        }
    }
}

impl Descent {
    fn of(origin: Option<Origin>, lead: Option<(&Target, usize)>) -> Self {
        let lead = lead.map(|(target, blocks)| Lead {
            target: target.clone(),
            blocks,
        });
        Self { origin, lead }
    }
}

#[cfg(test)]
mod tests;
