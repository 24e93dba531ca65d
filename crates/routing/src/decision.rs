//! A decision, whole: everything it was made from, so that it can be explained and made again.

use std::time::Duration;

use affinity::MoveReason;
use domain::{DecisionId, Endpoint, ModelName, Target, Timestamp, Tokens};
use placement::{Candidate, Choice, NoCandidate, Place, Policy, Scored, Snapshot};

use crate::Made;

/// Where one request goes, why, and what was weighed.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// Its id.
    pub id: DecisionId,
    /// When it was made.
    pub at: Timestamp,
    /// The model.
    pub model: ModelName,
    /// The endpoint asked.
    pub endpoint: Endpoint,
    /// Where the request goes.
    pub place: Place,
    /// The rank that was wanted, where its worker would ignore it. The work is reserved there all the same: the
    /// engine finds it some rank, and its ranks wait for each other.
    pub wanted: Option<Target>,
    /// Why there.
    pub reason: Reason,
    /// What is to become of the conversation's binding.
    pub binding: BindingAction,
    /// What was missing when it was made.
    pub degraded: Vec<Degraded>,
    /// Tokens expected to be computed at the place; none where no rank was named.
    pub uncached: Option<Tokens>,
    /// How much of the request could have come from a cache; none where the index was silent.
    pub overlap: Option<Overlap>,
    /// How far the index was behind the log.
    pub index_age: Option<Duration>,
    /// The policy.
    pub policy: Policy,
    /// The seed it drew from.
    pub seed: u64,
    /// What the policy was asked.
    pub request: placement::Request,
    /// The fleet it saw.
    pub snapshot: Snapshot,
    /// What the policy chose, with every candidate's terms, also where a binding overruled it.
    pub choice: Result<Choice, NoCandidate>,
}

/// Why a request goes where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The policy chose.
    Policy(placement::Reason),
    /// Its conversation is bound there.
    Bound,
    /// Its conversation is bound there, and although the target drains nothing else can serve.
    BoundForLackOfOthers,
    /// Its conversation is bound elsewhere, where it would have waited too long.
    Excursion,
    /// Another router bound its conversation there first.
    Followed,
    /// Somebody insisted.
    Pinned,
}

/// What the caller has to do about the conversation's binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BindingAction {
    /// Nothing: no conversation, or affinity is off.
    None,
    /// Bind it to the place.
    Create,
    /// Join the binding that it has.
    Keep,
    /// Move its binding to the place.
    Rebind(MoveReason),
    /// Hold the binding where it is, while this turn runs elsewhere.
    Excursion,
}

/// What a decision had to do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Degraded {
    /// The index did not answer.
    NoIndex,
    /// A part of the index did not answer: of some of the model's targets it is not known what they hold.
    PartialIndex,
    /// The store of bindings did not answer: nothing is written. Set by the caller that found it so.
    NoAffinity,
    /// The conversation is bound to a target that this router cannot use.
    BindingUnusable,
    /// The chosen worker publishes no KV events: what it holds is presumed.
    NoEvents,
    /// The chosen worker would ignore a rank at this endpoint: none is named, and its engine chooses.
    RankNotControlled,
    /// The chosen worker has been found to ignore the ranks it is asked for at this endpoint.
    RankUntrusted,
}

impl Degraded {
    /// Whether it comes of where the request goes, not of who could not be asked.
    pub const fn is_of_the_place(self) -> bool {
        match self {
            Self::NoEvents | Self::RankNotControlled | Self::RankUntrusted => true,
            Self::NoIndex | Self::PartialIndex | Self::NoAffinity | Self::BindingUnusable => false,
        }
    }
}

/// Levels of the waterfall, in tokens of full blocks. Where a part of the index was silent, what its targets hold
/// is not among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overlap {
    /// Carried by an earlier request or announced.
    pub ceiling: Tokens,
    /// Ever announced.
    pub stored: Tokens,
    /// Held by any target.
    pub best: Tokens,
    /// Held by a target that could be chosen.
    pub ready: Tokens,
}

impl Overlap {
    /// The levels that blame nobody for what is not known: anything between what was carried and what an eligible
    /// target is known to hold may have been held by one of which the index said nothing.
    pub(crate) const fn of_a_partial_index(self) -> Self {
        Self {
            stored: self.ready,
            best: self.ready,
            ..self
        }
    }
}

impl Decision {
    /// Whether the policy's choice was taken, rather than where a conversation is bound or somebody insisted.
    pub const fn is_free(&self) -> bool {
        matches!(self.reason, Reason::Policy(_))
    }

    /// What another policy may be asked about.
    pub const fn made(&self) -> Made<'_> {
        Made {
            asked: &self.request,
            snapshot: &self.snapshot,
            seed: self.seed,
            place: &self.place,
            free: self.is_free(),
        }
    }

    /// The target, where a rank is named.
    pub const fn target(&self) -> Option<&Target> {
        self.place.target()
    }

    /// Where its work is reserved; nowhere where the policy left the rank to the engine.
    pub fn reserved_at(&self) -> Option<&Target> {
        self.target().or(self.wanted.as_ref())
    }

    /// What was known of `target`.
    pub fn candidate(&self, target: &Target) -> Option<&Candidate> {
        let mut candidates = self.snapshot.candidates.iter();
        candidates.find(|it| it.target == *target)
    }

    /// The leading tokens of the request that `target` was known to hold.
    pub fn held_at(&self, target: &Target) -> Option<Tokens> {
        self.candidate(target).map(|it| it.held.disk)
    }

    /// Every candidate that could have been chosen, with its terms.
    pub fn scores(&self) -> &[Scored] {
        self.choice.as_ref().map_or(&[], |it| &it.scores)
    }
}

/// Makes the policy's choice again from what the decision recorded: equal to [`Decision::choice`], bit for
/// bit.
pub fn replay(decision: &Decision) -> Result<Choice, NoCandidate> {
    placement::choose(
        &decision.request,
        &decision.snapshot,
        decision.policy,
        decision.seed,
    )
}
