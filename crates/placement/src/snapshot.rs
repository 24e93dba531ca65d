//! What a decision is made from. Nothing else enters it, so that a recorded one can be made again.

use domain::{BlockSize, Target, TargetState, Timestamp, Tokens};

use crate::Obligation;

/// What has to be placed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Input tokens.
    pub isl: Tokens,
    /// A hash of its conversation, the same at every router; none without a conversation.
    pub conversation: Option<u64>,
    /// What decides between targets that are as good as equal.
    pub hint: Option<Hint>,
    /// What this router alone remembers of its conversation, for policies that keep a table of their own.
    pub stuck: Option<Stuck>,
}

/// What a router remembers of a conversation without asking anybody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// Where it is stuck, live or not.
    pub target: Target,
    /// Its turns that this router placed.
    pub turns: u32,
    /// Input tokens of the last of them.
    pub isl: Tokens,
}

/// Where a request would rather go, at no price.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Hint {
    /// Where the conversation runs that it was started from.
    Near(Target),
    /// Where others of its bucket go; the number is the same at every router.
    Bucket(u64),
    /// Where its conversation's next turns will go too, whichever routers they come to and although nobody can say
    /// where it is bound: to who holds most, else by the conversation's own order. The number is the conversation's,
    /// the same at every router.
    Home(u64),
}

/// The fleet of one model as a router sees it at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// Every target in ascending order, also those that cannot be chosen.
    pub candidates: Vec<Candidate>,
    /// How many requests were placed in turn before.
    pub turn: u64,
    /// How likely a block in a full cache is to be wanted again, 0 to 1: the price of evicting it.
    pub reuse: f64,
}

/// One target.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The target.
    pub target: Target,
    /// Whether it may be chosen, and how far its claims are trusted.
    pub state: TargetState,
    /// Why it is left out of this decision, if it is.
    pub barred: Option<Barred>,
    /// Tokens per block.
    pub block_size: BlockSize,
    /// The leading part of the request it holds.
    pub held: Held,
    /// What of it no event shows: presumed from what was sent there.
    pub presumed: Tokens,
    /// Whether the index has said what it holds. If not, that is unknown rather than nothing.
    pub index_known: bool,
    /// Whether events show what it holds. If not, it may hold more than is known.
    pub has_events: bool,
    /// The leading part of the request that is being computed there.
    pub in_flight: Tokens,
    /// Prefill work sent there and not yet done.
    pub pending: Tokens,
    /// Prefill work queued there by others than the known routers, estimated.
    pub foreign: Tokens,
    /// Requests being served there.
    pub active: u32,
    /// The last word of its engine, while it is believed.
    pub gauge: Option<Gauge>,
    /// What this router alone has counted there.
    pub tally: Tally,
    /// Tokens in its cache, estimated from what was sent there.
    pub resident: Tokens,
    /// Tokens its cache can hold, where the engine says.
    pub capacity: Option<Tokens>,
    /// Seconds that the oldest request which its engine has not begun has waited beyond what it should have.
    pub overdue: f64,
    /// The share of its prefill speed that was asked for of late, from 0; above 1 it falls behind.
    pub utilisation: f64,
    /// What the conversations bound there will go on to ask, but for the request's own.
    pub obligation: Obligation,
    /// Prefill speed of a rank, in tokens per second, above zero.
    pub prefill_rate: f64,
    /// Time between two tokens of a sequence, in seconds.
    pub decode_step: f64,
}

/// What an engine says of a rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gauge {
    /// Requests being prefilled or decoded.
    pub running: u32,
    /// Requests in its queue.
    pub waiting: u32,
    /// The share of its KV blocks that running requests use, 0 to 1.
    pub kv_used: f64,
}

/// What a router counts at a target for published policies, and only while one is set that asks for it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tally {
    /// Conversations stuck there that had a turn in the last ten minutes.
    pub conversations: u32,
    /// Blocks of the requests it serves, each once.
    pub active_blocks: u32,
    /// Leading blocks of the request that are among them.
    pub joined_blocks: u32,
    /// Tokens of prefill assigned there in the last three minutes.
    pub assigned: f64,
    /// When it was last sent a request of which nobody held anything.
    pub cold_at: Option<Timestamp>,
}

/// Why a target that could serve is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Barred {
    /// This request has failed there already.
    Tried,
    /// This request found no way to its worker, whose cache is as it was.
    NoAdapter,
    /// Others failed there a moment ago. It is chosen all the same when nothing else is left.
    FailedLately,
}

/// Leading tokens of a request by the slowest tier they need: `gpu <= host <= disk`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// All in GPU memory.
    pub gpu: Tokens,
    /// All in GPU or host memory.
    pub host: Tokens,
    /// All in some tier.
    pub disk: Tokens,
}

impl Snapshot {
    /// Which may be chosen: those that take new requests; of them those that did not fail lately, unless all did.
    pub(crate) fn is_open(&self) -> impl Fn(&Candidate) -> bool + use<> {
        let failed = |it: &Candidate| it.barred == Some(Barred::FailedLately);
        let mut candidates = self.candidates.iter();
        let all_failed = !candidates.any(|it| it.takes_new() && !failed(it));
        move |it| it.takes_new() && (all_failed || !failed(it))
    }
}

impl Candidate {
    /// Whether a request without a binding may go there.
    pub fn takes_new(&self) -> bool {
        let is_out = matches!(self.barred, Some(Barred::Tried | Barred::NoAdapter));
        !is_out && trust(self.state).is_some()
    }
}

/// The share of a target's claims that is believed; none where nothing new may go.
pub(crate) const fn trust(state: TargetState) -> Option<f64> {
    match state {
        TargetState::Ready | TargetState::Partial => Some(1.0),
        TargetState::Suspect => Some(0.5),
        TargetState::Warming | TargetState::Draining | TargetState::Leaving | TargetState::Gone => {
            None
        }
    }
}
