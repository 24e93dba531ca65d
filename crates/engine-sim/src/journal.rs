//! The last requests served, for those who must know where each ran.

use std::collections::VecDeque;
use std::sync::Arc;

use domain::{DpRank, Tokens};

/// Requests kept: those of the longest scenario, in some megabytes.
const MAX_SERVED: usize = 65_536;
/// The longest name kept, in bytes: beyond, a request is listed without its name.
const MAX_NAME: usize = 128;

/// A request that was served to its end. Ranks are numbered as in the deployment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Served {
    /// Its `x-request-id`.
    pub(crate) name: Option<Arc<str>>,
    /// The rank that ran it.
    pub(crate) rank: DpRank,
    /// The rank that was asked for.
    pub(crate) asked: Option<DpRank>,
    /// The length of its prompt.
    pub(crate) isl: Tokens,
    /// Of those, tokens taken from the cache.
    pub(crate) cached: Tokens,
}

/// The last requests served, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    served: VecDeque<Served>,
}

impl Journal {
    /// Lists a request, and forgets the oldest where there are too many.
    pub(crate) fn add(&mut self, mut served: Served) {
        served.name = served.name.filter(|it| it.len() <= MAX_NAME);
        if self.served.len() >= MAX_SERVED {
            self.served.pop_front();
        }
        self.served.push_back(served);
    }

    /// All that is known.
    pub(crate) fn list(&self) -> Vec<Served> {
        self.served.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_are_forgotten_and_long_names_are_not_kept() {
        let named = |name: String| Served {
            name: Some(Arc::from(name)),
            rank: DpRank::new(0),
            asked: None,
            isl: Tokens::new(1),
            cached: Tokens::ZERO,
        };
        let mut journal = Journal::default();
        for number in 0..=MAX_SERVED {
            journal.add(named(number.to_string()));
        }
        assert_eq!(journal.list().len(), MAX_SERVED);
        assert_eq!(journal.list()[0], named("1".to_owned()));

        journal.add(named("x".repeat(MAX_NAME + 1)));
        assert_eq!(journal.list()[MAX_SERVED - 1].name, None);
    }
}
