//! What came of a run.

use std::collections::BTreeMap;
use std::time::Duration;

use accounting::Totals;
use domain::{Target, Tokens, WorkerId};
use placement::Policy;

/// What came of one workload in one setting. Only requests sent after the warm-up are in it.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The workload's name.
    pub workload: String,
    /// The policy.
    pub policy: Policy,
    /// Requests served to the end.
    pub requests: u64,
    /// Requests that nobody took.
    pub errors: u64,
    /// Requests whose engine died after their first token.
    pub broken: u64,
    /// Times that a request was tried elsewhere.
    pub retries: u64,
    /// The waterfall, added up.
    pub totals: Totals,
    /// Time to first token from arrival, of every request served, ascending.
    pub ttft: Vec<Duration>,
    /// What each target was asked, in ascending order. A worker that restarts is one.
    pub targets: Vec<TargetReport>,
    /// The pending prefill of the rank that has most of a worker's at each moment, added up over time and workers,
    /// in token-seconds.
    pub pending_at_most: f64,
    /// The same of the rank that has most of all.
    pub pending_at_most_of_all: f64,
    /// The requests at the rank that has most of a worker's at each moment, waiting or running, added up over time and
    /// workers: request-seconds.
    pub present_at_most: f64,
    /// The share of the time after the warm-up in which a worker has a pass under way, in the mean of all workers: one
    /// of its ranks computes then, and the others compute or wait for it.
    pub busy: f64,
    /// When the last request ended, from the start.
    pub took: Duration,
    /// Output tokens of the requests served.
    pub generated: Tokens,
    /// The mean time of a rollout's step: from the end of the group that its sessions waited for until all of
    /// them have ended. None where no session waits for a group.
    pub step: Option<Duration>,
    /// Passes of a rank in which it had nothing to compute while another of its worker had.
    pub idle_passes: u64,
    /// Passes of all ranks.
    pub passes: u64,
    /// What became of bindings.
    pub bindings: BindingCounts,
    /// Later turns of a conversation, or of a session without one, that ran where the one before did.
    pub kept: u64,
}

/// What one target was asked.
#[derive(Clone, Debug, PartialEq)]
pub struct TargetReport {
    /// Which one, in its worker's first incarnation.
    pub target: Target,
    /// Requests sent there.
    pub requests: u64,
    /// Prompt tokens computed there.
    pub computed: Tokens,
    /// Prompt tokens that waited there to be computed, as its routers expected, added up over time: token-seconds.
    pub pending: f64,
    /// Requests there, waiting or running, added up over time: request-seconds.
    pub present: f64,
}

/// What became of bindings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BindingCounts {
    /// Conversations bound, each time anew after a binding had ended.
    pub created: u64,
    /// Bindings moved to another target.
    pub moved: u64,
    /// Turns that ran elsewhere while the binding stayed.
    pub excursions: u64,
    /// Turns that followed a binding that another router had made first.
    pub followed: u64,
    /// Turns of which the store could not be asked.
    pub unasked: u64,
}

/// How far a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Requests that have ended.
    pub done: usize,
    /// Requests of the workload.
    pub total: usize,
    /// Simulated time.
    pub at: Duration,
}

impl Report {
    /// The time to first token that this share of the requests, 0 to 1, does not exceed.
    pub fn ttft_quantile(&self, share: f64) -> Option<Duration> {
        let last = self.ttft.len().checked_sub(1)?;
        // A float to integer cast saturates.
        let at = (share * last as f64).round() as usize;
        self.ttft.get(at.min(last)).copied()
    }

    /// The mean time to first token, in seconds.
    pub fn ttft_mean(&self) -> Option<f64> {
        let sum: f64 = self.ttft.iter().map(Duration::as_secs_f64).sum();
        (!self.ttft.is_empty()).then(|| sum / self.ttft.len() as f64)
    }

    /// The busiest target's computed tokens over the mean of all; none when nothing was computed.
    pub fn work_max_over_mean(&self) -> Option<f64> {
        max_over_mean(self.targets.iter().map(|it| it.computed.as_f64()))
    }

    /// The target with the most requests over the mean of all.
    pub fn requests_max_over_mean(&self) -> Option<f64> {
        max_over_mean(self.targets.iter().map(|it| it.requests as f64))
    }

    /// Queue skew over the run: the requests at the rank that had most, waiting and running, in the mean over time, over
    /// the mean of all ranks.
    pub fn queue_max_over_mean(&self) -> Option<f64> {
        max_over_mean(self.targets.iter().map(|it| it.present))
    }

    /// The same within a worker, whose ranks wait for each other: of the worker where it is worst.
    pub fn queue_max_over_mean_in_a_worker(&self) -> Option<f64> {
        self.in_a_worker(|it| it.present)
    }

    /// Queue skew at each moment, in the mean over time: the requests at the rank of a worker that has most then, over
    /// the mean of its ranks.
    pub fn queue_skew(&self) -> Option<f64> {
        let most = self.present_at_most * self.ranks_of_a_worker();
        self.skew(most, |it| it.present)
    }

    /// Skew of the work that waits, over the run: the pending prefill of the rank where most waited, over the mean of all
    /// ranks.
    pub fn pending_max_over_mean(&self) -> Option<f64> {
        max_over_mean(self.targets.iter().map(|it| it.pending))
    }

    /// The same within a worker, whose ranks wait for each other: of the worker where it is worst.
    pub fn pending_max_over_mean_in_a_worker(&self) -> Option<f64> {
        self.in_a_worker(|it| it.pending)
    }

    fn in_a_worker(&self, of: fn(&TargetReport) -> f64) -> Option<f64> {
        let mut workers: BTreeMap<&WorkerId, Vec<f64>> = BTreeMap::new();
        for it in &self.targets {
            let ranks = workers.entry(&it.target.worker).or_default();
            ranks.push(of(it));
        }
        let skews = workers.into_values().filter_map(max_over_mean);
        skews.reduce(f64::max)
    }

    /// Skew of the work that waits at each moment, in the mean over time: what waits at the rank of a worker that has most
    /// then, over the mean of its ranks.
    pub fn pending_skew(&self) -> Option<f64> {
        let most = self.pending_at_most * self.ranks_of_a_worker();
        self.skew(most, |it| it.pending)
    }

    /// The same over the ranks of all workers.
    pub fn pending_skew_of_all(&self) -> Option<f64> {
        let most = self.pending_at_most_of_all * self.targets.len() as f64;
        self.skew(most, |it| it.pending)
    }

    fn skew(&self, most: f64, of: fn(&TargetReport) -> f64) -> Option<f64> {
        let all: f64 = self.targets.iter().map(of).sum();
        (all > 0.0).then(|| most / all)
    }

    fn ranks_of_a_worker(&self) -> f64 {
        let of_first = self.targets.iter().map(|it| &it.target.worker);
        let first = self.targets.first().map(|it| &it.target.worker);
        of_first.filter(|it| Some(*it) == first).count() as f64
    }

    /// The share of the passes in which a rank had nothing to do while a sibling had.
    pub fn idle_share(&self) -> Option<f64> {
        (self.passes > 0).then(|| self.idle_passes as f64 / self.passes as f64)
    }

    /// Output tokens a second, from the start to the last end.
    pub fn decode_throughput(&self) -> Option<f64> {
        let seconds = self.took.as_secs_f64();
        (seconds > 0.0).then(|| self.generated.as_f64() / seconds)
    }
}

/// None where there is nothing.
fn max_over_mean(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let (mut most, mut sum, mut count) = (0.0_f64, 0.0, 0.0);
    for value in values {
        most = most.max(value);
        sum += value;
        count += 1.0;
    }
    (sum > 0.0).then(|| most * count / sum)
}
