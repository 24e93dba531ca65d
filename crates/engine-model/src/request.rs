//! What an engine is asked to do.

use std::fmt;
use std::sync::Arc;

use domain::{DpRank, SequenceHash, Tokens};

/// A request's name, chosen by the caller and unique among the requests an engine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(u64);

impl RequestId {
    /// Wraps a number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Its number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One request, with its content as hashes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its name.
    pub id: RequestId,
    /// Input tokens, at least 1.
    pub isl: Tokens,
    /// Output tokens it generates before it ends, at least 1.
    pub osl: Tokens,
    /// The full blocks of the prompt and, where they are known, of the output after it. Blocks beyond the
    /// end of the list take room and are never cached, as those of a trace whose answers are unknown.
    pub chain: Arc<[SequenceHash]>,
    /// The rank that must run it; without one the engine balances.
    pub rank: Option<DpRank>,
}

/// Why an engine does not take a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Its rank does not exist.
    #[error("rank {rank} is out of range [0, {ranks})")]
    UnknownRank {
        /// What was asked.
        rank: DpRank,
        /// How many ranks there are.
        ranks: u32,
    },
    /// It needs more blocks than a rank has.
    #[error("it needs {needed} blocks of a rank that has {available}")]
    NeverFits {
        /// Blocks at its end.
        needed: u64,
        /// Blocks of a rank.
        available: u32,
    },
    /// It has no input or no output.
    #[error("a request has at least one input and one output token")]
    Empty,
    /// A request of this name is waiting or running.
    #[error("request {0} is already here")]
    Duplicate(RequestId),
}
