//! How a TensorRT-LLM places requests on attention-DP ranks when it keeps conversations: its conversation-aware router,
//! which every rank runs alike over what all have active.
//!
//! A conversation is bound to the rank of its first turn. A binding ends only when it has not been used for longest of
//! too many, or with the engine: a later turn's explicit rank is ignored, and a turn whose home is full runs elsewhere
//! and leaves the binding as it is.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use domain::{DpRank, Tokens};

use crate::Refused;

/// How conversations are kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConversationRules {
    /// Conversations bound at most, at least 1.
    pub max_sessions: usize,
    /// Requests that a rank has active at most.
    pub max_active: u32,
    /// Where conversations begin.
    pub beginning: Beginning,
    /// How many times its fair share of requests a rank may have before new conversations begin elsewhere.
    pub fair_share: f64,
    /// Whether a rank that a first turn names is kept. Without it (before pull request 16815) every turn's explicit
    /// rank is followed, bound or not, and none is recorded.
    pub records_first_rank: bool,
}

impl Default for ConversationRules {
    /// The engine's own.
    fn default() -> Self {
        Self {
            max_sessions: 65_536,
            max_active: 256,
            beginning: Beginning::RoundRobin,
            fair_share: 2.0,
            records_first_rank: true,
        }
    }
}

/// On which rank a conversation begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beginning {
    /// The next one below its share, else the one with the fewest requests.
    RoundRobin,
    /// The one with the fewest requests.
    LeastQueued,
    /// The one with the fewest tokens.
    LeastTokens,
}

/// What a rank has active.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Active {
    /// Requests.
    pub requests: u32,
    /// Their tokens.
    pub tokens: Tokens,
}

/// One request to be placed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Its conversation; without one it is placed and forgotten.
    pub conversation: Option<Arc<str>>,
    /// The rank it names.
    pub rank: Option<DpRank>,
    /// Whether it must run there: then it is placed before others.
    pub strict: bool,
    /// Its tokens.
    pub tokens: Tokens,
}

/// The router, with its bindings.
#[derive(Clone, Debug)]
pub struct ConversationRouter {
    rules: ConversationRules,
    /// The rank of each conversation, and when it was used last.
    homes: HashMap<Arc<str>, (usize, u64)>,
    /// Conversations by last use, the longest unused first.
    by_use: BTreeMap<u64, Arc<str>>,
    uses: u64,
    /// The rank that began a conversation last.
    cursor: usize,
}

impl ConversationRouter {
    /// A router that knows no conversation.
    pub fn new(rules: ConversationRules) -> Self {
        Self {
            rules,
            homes: HashMap::new(),
            by_use: BTreeMap::new(),
            uses: 0,
            cursor: usize::MAX,
        }
    }

    /// The router of the same engine once it has begun anew.
    pub fn begun_anew(&self) -> Self {
        Self::new(self.rules)
    }

    /// The rank to which a conversation is bound.
    pub fn home(&self, conversation: &str) -> Option<DpRank> {
        let (rank, _) = self.homes.get(conversation)?;
        Some(DpRank::new(*rank as u32))
    }

    /// Conversations that are bound.
    pub fn bound(&self) -> usize {
        self.homes.len()
    }

    /// Places `turns`, which arrived together, on ranks with this much active, at least one; the ranks in the order of
    /// the turns. Refuses all when one names a rank that does not exist, where the engine itself would break.
    pub fn route(&mut self, active: &[Active], turns: &[Turn]) -> Result<Vec<DpRank>, Refused> {
        let ranks = active.len() as u32;
        let named = turns.iter().filter_map(|turn| turn.rank);
        if let Some(rank) = named.into_iter().find(|rank| rank.get() >= ranks) {
            return Err(Refused::UnknownRank { rank, ranks });
        }
        let mut active = active.to_vec();
        let mut placed = vec![0; turns.len()];
        let mut order: Vec<usize> = (0..turns.len()).collect();
        order.sort_by_key(|at| !turns[*at].strict);
        order.retain(|at| {
            let explicit = self.explicit(&turns[*at], &active);
            if let Some(rank) = explicit {
                placed[*at] = rank;
                add(&mut active[rank], &turns[*at]);
            }
            explicit.is_none()
        });
        let share = self.share(&active, order.len());
        for at in order {
            let rank = self.remaining(&turns[at], &active, share);
            placed[at] = rank;
            add(&mut active[rank], &turns[at]);
        }
        Ok(placed
            .into_iter()
            .map(|rank| DpRank::new(rank as u32))
            .collect())
    }

    /// The rank that a turn names, if it is followed.
    fn explicit(&mut self, turn: &Turn, active: &[Active]) -> Option<usize> {
        let rank = turn.rank?.get() as usize;
        let conversation = turn.conversation.as_ref();
        let bound = conversation.is_some_and(|it| self.homes.contains_key(it));
        if active[rank].requests >= self.rules.max_active
            || (bound && self.rules.records_first_rank)
        {
            return None;
        }
        if let Some(conversation) = conversation.filter(|_| self.rules.records_first_rank) {
            self.bind(conversation, rank);
        }
        Some(rank)
    }

    /// Requests that a rank may have before conversations begin elsewhere.
    fn share(&self, active: &[Active], remaining: usize) -> u32 {
        let all: u64 = active.iter().map(|it| u64::from(it.requests)).sum();
        let fair = (all + remaining as u64).div_ceil(active.len() as u64);
        let share = (self.rules.fair_share * fair as f64).ceil() as u32;
        let most = active.iter().map(|it| it.requests).max().unwrap_or(0);
        share.max(most).min(self.rules.max_active)
    }

    /// Where a turn goes that follows no explicit rank.
    fn remaining(&mut self, turn: &Turn, active: &[Active], share: u32) -> usize {
        let Some(conversation) = &turn.conversation else {
            return self.begin(active, share);
        };
        match self.homes.get(conversation).copied() {
            Some((home, _)) if active[home].requests < self.rules.max_active => {
                self.bind(conversation, home);
                home
            }
            // It comes home with its next turn.
            Some(_) => self.begin(active, share),
            None => {
                let rank = self.begin(active, share);
                self.bind(conversation, rank);
                rank
            }
        }
    }

    /// The rank of a conversation's beginning. One that is full is taken only when all are.
    fn begin(&mut self, active: &[Active], share: u32) -> usize {
        let full = |it: &Active| it.requests >= self.rules.max_active;
        let least_queued = || least(active, |it| (full(it), it.requests.into(), 0));
        match self.rules.beginning {
            Beginning::LeastQueued => least_queued(),
            Beginning::LeastTokens => {
                least(active, |it| (full(it), it.tokens.get(), it.requests.into()))
            }
            Beginning::RoundRobin => {
                let count = active.len();
                let mut next = (1..=count).map(|step| self.cursor.wrapping_add(step) % count);
                match next.find(|rank| active[*rank].requests < share) {
                    Some(rank) => {
                        self.cursor = rank;
                        rank
                    }
                    None => least_queued(),
                }
            }
        }
    }

    /// Binds a conversation, or notes that it was used.
    fn bind(&mut self, conversation: &Arc<str>, rank: usize) {
        self.uses += 1;
        let before = self.homes.insert(conversation.clone(), (rank, self.uses));
        if let Some((_, used)) = before {
            self.by_use.remove(&used);
        }
        self.by_use.insert(self.uses, conversation.clone());
        if self.rules.max_sessions.max(1) < self.homes.len()
            && let Some((_, oldest)) = self.by_use.pop_first()
        {
            self.homes.remove(&oldest);
        }
    }
}

fn add(active: &mut Active, turn: &Turn) {
    active.requests += 1;
    active.tokens = Tokens::new(active.tokens.get() + turn.tokens.get());
}

/// The first rank with the least of something.
fn least(active: &[Active], of: impl Fn(&Active) -> (bool, u64, u64)) -> usize {
    let ranks = 0..active.len();
    let least = ranks.min_by_key(|rank| of(&active[*rank]));
    least.expect("an engine has at least one rank")
}

#[cfg(test)]
mod tests;
