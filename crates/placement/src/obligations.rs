//! What bound conversations will go on to ask of their targets, learnt from the turns that were seen.
//!
//! A conversation's work comes at a rate that is not known when it is placed. Until it has shown one, it is taken for
//! the mean of all; what is expected of it fades with its silence.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use domain::{DecisionId, Folding, Target, Timestamp, Tokens};

/// How far ahead work is expected, in seconds.
pub(crate) const HORIZON: f64 = 60.0;
/// Over how many seconds what was seen fades: longer than most gaps between turns, shorter than the time in which
/// conversations come and go.
const MEMORY: f64 = 120.0;
/// How many seconds of the mean a conversation's own turns have to outweigh: enough that a quick second turn says
/// little.
const PRIOR_SECONDS: f64 = 10.0;
/// Tokens per second a conversation asks for before any has shown better.
const FIRST_RATE: f64 = 10.0;
/// Silent for so long, a conversation is forgotten: less than a hundredth of what was expected of it is left.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);
/// Conversations remembered, a hundred bytes each; beyond, the one that has been silent longest is forgotten.
const MAX_CONVERSATIONS: usize = 131_072;

/// One turn of a conversation at the target it is bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundTurn {
    /// A hash of its conversation, the same at every router.
    pub conversation: u64,
    /// The decision that placed it.
    pub id: DecisionId,
    /// Where the conversation is bound.
    pub target: Target,
    /// Tokens to be computed there.
    pub uncached: Tokens,
}

/// What is expected of a target.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Obligation {
    /// Uncached tokens in the next minute.
    pub tokens: f64,
    /// Conversations bound there that were heard of lately.
    pub conversations: u32,
}

/// What bound conversations will go on to ask of every target.
#[derive(Debug, Default)]
pub struct Obligations {
    conversations: HashMap<u64, Conversation, Folding>,
    by_silence: BTreeSet<(Timestamp, u64)>,
    targets: HashMap<Target, Faded, Folding>,
    /// Uncached tokens of all later turns, and the seconds in which conversations could have had turns, both fading.
    work: Faded,
    seconds: Faded,
}

#[derive(Debug)]
struct Conversation {
    target: Target,
    turn: DecisionId,
    /// Uncached tokens of its later turns, fading.
    work: f64,
    /// Seconds in which it could have had turns, fading.
    seconds: f64,
    /// Tokens expected of it in the next minute, as of its last turn.
    expected: f64,
    last: Timestamp,
}

/// A sum whose parts fade, and how many conversations it is of.
#[derive(Clone, Copy, Debug, Default)]
struct Faded {
    sum: f64,
    as_of: Timestamp,
    count: u32,
}

impl Obligations {
    /// A turn was placed. A second word of the same turn corrects its target only.
    pub fn turn(&mut self, turn: BoundTurn, now: Timestamp) {
        let before = self.leave(turn.conversation, now);
        let (mut work, mut seconds) = (0.0, 0.0);
        if let Some(before) = before {
            let since = now.since(before.last).as_secs_f64();
            (work, seconds) = (before.work * kept(since), faded_span(before.seconds, since));
            if before.turn != turn.id {
                work += turn.uncached.as_f64();
                self.work.add(turn.uncached.as_f64(), now);
            }
        } else if self.conversations.len() >= MAX_CONVERSATIONS
            && let Some((_, longest)) = self.by_silence.first().copied()
        {
            self.leave(longest, now);
        }
        let mean = self.mean_rate(now);
        let rate = (work + PRIOR_SECONDS * mean) / (seconds + PRIOR_SECONDS);
        let expected = HORIZON * rate;
        let at = self.targets.entry(turn.target.clone()).or_default();
        at.add(expected, now);
        at.count += 1;
        self.seconds.count += 1;
        self.by_silence.insert((now, turn.conversation));
        let conversation = Conversation {
            target: turn.target,
            turn: turn.id,
            work,
            seconds,
            expected,
            last: now,
        };
        self.conversations.insert(turn.conversation, conversation);
    }

    /// What is expected of `target`, but for what one conversation, which is to be placed, will ask itself.
    pub fn at(&self, target: &Target, but: Option<u64>, now: Timestamp) -> Obligation {
        let Some(at) = self.targets.get(target) else {
            return Obligation::default();
        };
        let own = but.and_then(|it| self.conversations.get(&it));
        let own = own.filter(|it| it.target == *target);
        let own = own.map_or((0.0, 0), |it| (it.left(now), 1));
        Obligation {
            tokens: (at.now(now) - own.0).max(0.0),
            conversations: at.count.saturating_sub(own.1),
        }
    }

    /// Forgets conversations that have been silent for long.
    pub fn expire(&mut self, now: Timestamp) {
        while let Some((last, conversation)) = self.by_silence.first().copied() {
            if now.since(last) < FORGOTTEN_AFTER {
                break;
            }
            self.leave(conversation, now);
        }
    }

    /// Conversations that were heard of lately.
    pub fn len(&self) -> usize {
        self.conversations.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.conversations.is_empty()
    }

    /// Takes a conversation away from its target.
    fn leave(&mut self, conversation: u64, now: Timestamp) -> Option<Conversation> {
        let left = self.conversations.remove(&conversation)?;
        self.by_silence.remove(&(left.last, conversation));
        self.mean_seconds(now);
        self.seconds.count -= 1;
        if let Some(at) = self.targets.get_mut(&left.target) {
            at.add(-left.left(now), now);
            at.count -= 1;
            if at.count == 0 {
                self.targets.remove(&left.target);
            }
        }
        Some(left)
    }

    /// Tokens per second of a conversation of which nothing is known.
    fn mean_rate(&mut self, now: Timestamp) -> f64 {
        let seconds = self.mean_seconds(now);
        let work = self.work.now(now);
        (work + PRIOR_SECONDS * FIRST_RATE) / (seconds + PRIOR_SECONDS)
    }

    /// Brings the seconds of all conversations up to `now`.
    fn mean_seconds(&mut self, now: Timestamp) -> f64 {
        let since = now.since(self.seconds.as_of).as_secs_f64();
        let count = f64::from(self.seconds.count);
        self.seconds.sum = self.seconds.sum * kept(since) + count * MEMORY * (1.0 - kept(since));
        self.seconds.as_of = self.seconds.as_of.max(now);
        self.seconds.sum
    }
}

impl Conversation {
    fn left(&self, now: Timestamp) -> f64 {
        self.expected * kept(now.since(self.last).as_secs_f64())
    }
}

impl Faded {
    fn now(&self, now: Timestamp) -> f64 {
        self.sum * kept(now.since(self.as_of).as_secs_f64())
    }

    fn add(&mut self, more: f64, now: Timestamp) {
        self.sum = (self.now(now) + more).max(0.0);
        self.as_of = self.as_of.max(now);
    }
}

/// The share that is left after so many seconds.
fn kept(seconds: f64) -> f64 {
    (-seconds / MEMORY).exp()
}

/// A span of seconds that fade, and goes on for `more`.
fn faded_span(span: f64, more: f64) -> f64 {
    span * kept(more) + MEMORY * (1.0 - kept(more))
}
