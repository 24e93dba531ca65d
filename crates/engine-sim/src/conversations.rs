//! How a fake TensorRT-LLM keeps conversations on its ranks.

use std::str::FromStr;

use domain::{DpRank, Tokens};
use engine_model::{Active, ConversationRouter, ConversationRules, Engine, Refused, Turn};
use serde::{Deserialize, Serialize};

use crate::driver::Job;

/// How conversations are kept. Text form: who chooses first ranks, then what differs from today's engine, such as
/// `router,forgets-first-ranks,max-sessions=100`. With `unsaid` it keeps first ranks as today's engine does, but its
/// worker cannot tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Conversations {
    /// Who chooses the rank of a first turn.
    pub rank_source: RankSource,
    /// Conversations bound at most.
    pub max_sessions: usize,
    /// Whether a first turn's explicit rank is kept, as since TensorRT-LLM's pull request 16815.
    pub records_first_rank: bool,
    /// Whether its worker says so: of an engine that does not, it never knows.
    pub says_first_rank: bool,
}

/// Who chooses the rank of a first turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RankSource {
    /// The engine.
    Engine,
    /// Whoever sends it.
    Router,
}

/// A text that says nothing of how conversations are kept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} says not how conversations are kept: write engine or router, and behind it forgets-first-ranks, \
     unsaid or max-sessions=NUMBER, with commas between"
)]
pub struct InvalidConversations {
    text: String,
}

impl FromStr for Conversations {
    type Err = InvalidConversations;

    fn from_str(text: &str) -> Result<Self, InvalidConversations> {
        let parsed = || {
            let mut items = text.split(',').map(str::trim);
            let mut it = Self {
                rank_source: match items.next()? {
                    "engine" => RankSource::Engine,
                    "router" | "dynamo" => RankSource::Router,
                    _ => return None,
                },
                max_sessions: ConversationRules::default().max_sessions,
                records_first_rank: true,
                says_first_rank: true,
            };
            for item in items {
                match item.split_once('=') {
                    None if item == "forgets-first-ranks" => it.records_first_rank = false,
                    None if item == "unsaid" => it.says_first_rank = false,
                    Some(("max-sessions", number)) => {
                        it.max_sessions = number.parse().ok().filter(|it| *it > 0)?;
                    }
                    _ => return None,
                }
            }
            Some(it)
        };
        parsed().ok_or_else(|| InvalidConversations {
            text: text.to_owned(),
        })
    }
}

impl Conversations {
    /// What the worker says of whether first ranks are kept: `auto` finds what today's engine has, or nothing.
    pub(crate) fn first_rank_recorded(self) -> Option<bool> {
        (self.records_first_rank && self.says_first_rank).then_some(true)
    }

    /// The router of an engine whose ranks have so many requests at most.
    pub(crate) fn router(self, max_active: u32) -> ConversationRouter {
        ConversationRouter::new(ConversationRules {
            max_sessions: self.max_sessions,
            max_active,
            records_first_rank: self.records_first_rank,
            ..ConversationRules::default()
        })
    }
}

/// The model's rank that a request goes to. One that must run on a full rank waits for it, as a strict one does.
pub(crate) fn place(
    router: &mut ConversationRouter,
    engine: &Engine,
    job: &Job,
) -> Result<DpRank, Refused> {
    let active = |rank| {
        let status = engine.status(rank).expect("an engine knows its own ranks");
        Active {
            requests: status.running.saturating_add(status.waiting),
            tokens: status.pending_prefill,
        }
    };
    let active: Vec<Active> = engine.ranks().map(active).collect();
    let turn = Turn {
        conversation: job.conversation.clone(),
        rank: job.rank,
        strict: job.rank.is_some(),
        tokens: Tokens::new(job.isl as u64),
    };
    let placed = router.route(&active, &[turn])?;
    Ok(placed[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_conversations_are_kept_is_read_from_a_text() {
        let router = Conversations {
            rank_source: RankSource::Router,
            max_sessions: 65_536,
            records_first_rank: true,
            says_first_rank: true,
        };
        assert_eq!("router".parse(), Ok(router));
        let unsaid = Conversations {
            says_first_rank: false,
            ..router
        };
        assert_eq!("router,unsaid".parse(), Ok(unsaid));
        let old = Conversations {
            rank_source: RankSource::Engine,
            max_sessions: 5,
            records_first_rank: false,
            says_first_rank: true,
        };
        assert_eq!(
            "engine, forgets-first-ranks,max-sessions=5".parse(),
            Ok(old)
        );
        for wrong in [
            "",
            "client",
            "router,max-sessions=0",
            "router,max-sessions",
            "forgets-first-ranks",
        ] {
            assert!(wrong.parse::<Conversations>().is_err(), "{wrong}");
        }
    }
}
