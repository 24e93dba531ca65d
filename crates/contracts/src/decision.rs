//! What routers decided and what came of it, as it is recorded: payloads of `decisions` and `outcomes`.
//!
//! A whole record has all that its decision was made from, so that it can be made again, also under another policy. Of
//! what routing calls a reason, a binding's fate or a lack only the words are here, as the admin API has them.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::time::Duration;

use accounting::Waterfall;
use domain::{
    DecisionId, DpRank, Endpoint, InstanceId, ModelName, Target, Timestamp, Tokens, Usage,
};
use placement::{Choice, Place, Policy, Request, Scored, Snapshot};

/// Candidates that are left of a decision which is not recorded whole.
pub const EXCERPT: usize = 8;

/// One decision.
#[derive(Clone, Debug, PartialEq)]
pub struct DecisionRecord {
    /// Its id.
    pub id: DecisionId,
    /// The router that made it.
    pub router: InstanceId,
    /// When.
    pub at: Timestamp,
    /// The model.
    pub model: ModelName,
    /// The endpoint asked.
    pub endpoint: Endpoint,
    /// How long the request waited for a target before.
    pub queued: Duration,
    /// The decision of the failed attempt that this one follows.
    pub retry_of: Option<DecisionId>,
    /// Where the request went.
    pub place: Place,
    /// The rank that was wanted and could not be asked for.
    pub wanted: Option<Target>,
    /// Why there.
    pub reason: String,
    /// What became of the conversation's binding.
    pub binding: String,
    /// What was missing when it was made.
    pub degraded: Vec<String>,
    /// Whether the policy's choice was taken, rather than where a conversation is bound or somebody insisted.
    pub free: bool,
    /// Tokens expected to be computed at the place; none where no rank was named.
    pub uncached: Option<Tokens>,
    /// How much could have come from a cache; none where the index was silent.
    pub cacheable: Option<Cacheable>,
    /// How far the index was behind the log.
    pub index_age: Option<Duration>,
    /// The policy.
    pub policy: Policy,
    /// The seed it drew from.
    pub seed: u64,
    /// What it was asked.
    pub asked: Request,
    /// The fleet it saw; of one that is not whole, a part.
    pub snapshot: Snapshot,
    /// What it chose; none where no target could take the request.
    pub choice: Option<RecordedChoice>,
    /// Of what is left out; none where the record is whole.
    pub digest: Option<Digest>,
}

/// Levels of the waterfall as they were known before the request was sent, in tokens of full blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cacheable {
    /// Carried by an earlier request or announced.
    pub ceiling: Tokens,
    /// Ever announced.
    pub stored: Tokens,
    /// Held by any target.
    pub best: Tokens,
    /// Held by a target that could be chosen.
    pub ready: Tokens,
}

/// What a policy chose, with the price of every candidate that could be chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedChoice {
    /// Where to.
    pub place: Place,
    /// What decided.
    pub reason: String,
    /// In the snapshot's order.
    pub scores: Vec<RecordedScore>,
}

/// A candidate and its price. Terms go by their names, so that one that has been given up can still be read.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedScore {
    /// The candidate.
    pub target: Target,
    /// In seconds.
    pub cost: f64,
    /// Leading tokens credited.
    pub credited: Tokens,
    /// Tokens to be computed.
    pub uncached: Tokens,
    /// What the cost is made of, in seconds.
    pub terms: Vec<(Cow<'static, str>, f64)>,
    /// What a published policy made of it, where it weighs; less is better.
    pub weighed: Option<f64>,
}

/// Of a whole snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest {
    /// How many candidates it had.
    pub candidates: u32,
    /// xxh3-64 of it as it is encoded.
    pub snapshot: u64,
}

/// What came of one decision.
#[derive(Clone, Debug, PartialEq)]
pub struct OutcomeRecord {
    /// The decision's id.
    pub id: DecisionId,
    /// The router that made it.
    pub router: InstanceId,
    /// When it ended.
    pub at: Timestamp,
    /// The model.
    pub model: ModelName,
    /// How it ended.
    pub status: String,
    /// From the dispatch to the first token.
    pub ttft: Option<Duration>,
    /// From the dispatch to the end.
    pub duration: Option<Duration>,
    /// The rank that its answer named.
    pub observed_rank: Option<DpRank>,
    /// What the engine says of its tokens.
    pub usage: Option<Usage>,
    /// Where its cacheable tokens went; none where nothing was served.
    pub waterfall: Option<Waterfall>,
}

impl DecisionRecord {
    /// Whether it has all that the decision was made from.
    pub const fn is_whole(&self) -> bool {
        self.digest.is_none()
    }

    /// What is recorded where it is not recorded whole: the place and the cheapest candidates, [`EXCERPT`] in all, and a
    /// digest of the rest.
    pub fn excerpt(mut self) -> Self {
        if !self.is_whole() {
            return self;
        }
        self.digest = Some(Digest::of(&self.snapshot));
        let scores = self.choice.iter().flat_map(|it| &it.scores);
        let mut cheapest: Vec<&RecordedScore> = scores.collect();
        cheapest.sort_by(|a, b| a.cost.total_cmp(&b.cost));
        let place = self.place.target().or(self.wanted.as_ref());
        let rest = self.snapshot.candidates.iter().map(|it| &it.target);
        let by_weight = place
            .into_iter()
            .chain(cheapest.into_iter().map(|it| &it.target))
            .chain(rest);
        let mut kept = BTreeSet::new();
        for target in by_weight {
            if kept.len() == EXCERPT {
                break;
            }
            kept.insert(target.clone());
        }
        let candidates = &mut self.snapshot.candidates;
        candidates.retain(|it| kept.contains(&it.target));
        if let Some(choice) = &mut self.choice {
            choice.scores.retain(|it| kept.contains(&it.target));
        }
        self
    }
}

impl RecordedChoice {
    /// Of what a policy chose.
    pub fn of(choice: &Choice) -> Self {
        Self {
            place: choice.place.clone(),
            reason: choice.reason.to_string(),
            scores: choice.scores.iter().map(RecordedScore::of).collect(),
        }
    }
}

impl RecordedScore {
    fn of(scored: &Scored) -> Self {
        let Scored {
            target,
            terms,
            cost,
            weighed,
        } = scored;
        let named = terms.named().into_iter();
        Self {
            target: target.clone(),
            cost: *cost,
            credited: terms.credited,
            uncached: terms.uncached,
            weighed: *weighed,
            terms: named
                .map(|(name, seconds)| (Cow::Borrowed(name), seconds))
                .collect(),
        }
    }
}
