//! What one run of the script showed, by what the engines say they served.

use std::collections::BTreeMap;

use anyhow::Context as _;
use serde::Serialize;

use super::script::{LATER_TURNS, parse_request_id};
use crate::world::{Noticed, Served};

/// How much more than the mean a rank may serve.
pub(super) const MAX_OVER_MEAN: f64 = 1.10;

/// One run of the script.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) engine: &'static str,
    pub(super) seed: u64,
    /// Later turns that ran on the rank of the turn before.
    pub(super) kept: u32,
    /// Requests of each rank, worker after worker.
    pub(super) requests: Vec<u32>,
    pub(super) max_over_mean: f64,
    /// The share of all prompt tokens that came from the ranks' caches.
    pub(super) cached: f64,
    pub(super) errors: u32,
    #[serde(flatten)]
    pub(super) noticed: Noticed,
}

impl Row {
    /// What `served`, by worker, shows of a fleet with `ranks` ranks each.
    pub(super) fn new(
        engine: &'static str,
        seed: u64,
        served: &[Vec<Served>],
        ranks: u32,
        errors: u32,
        noticed: Noticed,
    ) -> anyhow::Result<Self> {
        let mut requests = vec![0; served.len() * ranks as usize];
        let mut places = BTreeMap::new();
        for (worker, served) in served.iter().enumerate() {
            for it in served {
                let name = it.request_id.as_deref().and_then(parse_request_id);
                let turn = name.context("an engine served a request of no turn")?;
                let place = worker * ranks as usize + it.dp_rank as usize;
                *requests
                    .get_mut(place)
                    .context("an engine has ranks too many")? += 1;
                places.insert(turn, place);
            }
        }
        let stayed = |((conversation, turn), place): (&(u32, u32), &usize)| {
            let before = turn
                .checked_sub(1)
                .and_then(|it| places.get(&(*conversation, it)));
            before == Some(place)
        };
        let kept = places.iter().filter(|it| stayed(*it)).count();
        let all = || served.iter().flatten();
        let prompt: u64 = all().map(|it| it.prompt_tokens).sum();
        let cached: u64 = all().map(|it| it.cached_tokens).sum();
        Ok(Self {
            engine,
            seed,
            kept: u32::try_from(kept)?,
            max_over_mean: max_over_mean(&requests),
            requests,
            cached: cached as f64 / prompt.max(1) as f64,
            errors,
            noticed,
        })
    }

    /// Whether all that was to hold held.
    pub(super) fn holds(&self) -> bool {
        self.kept == LATER_TURNS && self.max_over_mean <= MAX_OVER_MEAN && self.errors == 0
    }
}

/// The busiest over the mean of all; infinite where nobody served anything.
fn max_over_mean(requests: &[u32]) -> f64 {
    let all: u32 = requests.iter().sum();
    let most = requests.iter().copied().max().unwrap_or(0);
    match all {
        0 => f64::INFINITY,
        all => f64::from(most) * requests.len() as f64 / f64::from(all),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A run in which so many turns stayed, and the ranks served so many conversations each.
    pub(crate) fn row(kept: u32, conversations: [u32; 4]) -> Row {
        let requests = conversations.map(|it| 4 * it).to_vec();
        Row {
            engine: "vllm",
            seed: 1,
            kept,
            max_over_mean: max_over_mean(&requests),
            requests,
            cached: 0.7,
            errors: 0,
            noticed: Noticed::default(),
        }
    }

    fn served(turn: &str, dp_rank: u32) -> Served {
        Served {
            request_id: Some(turn.to_owned()),
            dp_rank,
            asked_dp_rank: Some(dp_rank),
            prompt_tokens: 100,
            cached_tokens: 25,
        }
    }

    #[test]
    fn turns_are_counted_as_kept_on_the_same_rank_of_the_same_worker() {
        let first = vec![served("0.0", 0), served("0.1", 0), served("1.0", 1)];
        let second = vec![served("0.2", 0), served("0.3", 1), served("1.1", 1)];

        let row = Row::new("vllm", 1, &[first, second], 2, 0, Noticed::default()).unwrap();

        assert_eq!((row.kept, row.requests), (1, vec![2, 1, 1, 2]));
        assert!((row.max_over_mean - 2.0 * 4.0 / 6.0).abs() < 1e-9);
        assert!((row.cached - 0.25).abs() < 1e-9);
    }

    #[test]
    fn a_run_holds_where_all_turns_stayed_and_no_rank_served_a_tenth_too_many() {
        assert!(row(192, [16; 4]).holds());
        assert!(row(192, [17, 17, 17, 13]).holds());
        assert!(!row(192, [18, 16, 16, 14]).holds());
        assert!(!row(191, [16; 4]).holds());
        let mut failed = row(192, [16; 4]);
        failed.errors = 1;
        assert!(!failed.holds());
        assert!(!row(192, [0; 4]).holds());
    }
}
