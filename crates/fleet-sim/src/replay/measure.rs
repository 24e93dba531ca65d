//! What is measured of each request and added up.

use std::collections::BTreeMap;
use std::time::Duration;

use accounting::{Totals, Waterfall};
use domain::{Target, Timestamp, Tokens};
use placement::Policy;

use super::Report;
use super::fleet::Fleet;

/// What is known of a request while it runs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Served {
    pub(super) cached: Tokens,
    pub(super) ttft: Option<Duration>,
}

pub(super) struct Measure {
    served: Vec<Served>,
    totals: Totals,
    ttft: Vec<Duration>,
    work: BTreeMap<Target, Tokens>,
    requests: u64,
    errors: u64,
}

impl Measure {
    pub(super) fn new(requests: usize) -> Self {
        Self {
            served: vec![Served::default(); requests],
            totals: Totals::default(),
            ttft: Vec::with_capacity(requests),
            work: BTreeMap::new(),
            requests: 0,
            errors: 0,
        }
    }

    pub(super) fn error(&mut self) {
        self.errors += 1;
    }

    pub(super) fn cached(&mut self, number: usize, tokens: Tokens) {
        self.served[number].cached = tokens;
    }

    pub(super) fn first_token(&mut self, number: usize, ttft: Duration) {
        self.served[number].ttft = Some(ttft);
        self.ttft.push(ttft);
    }

    pub(super) fn served(&self, number: usize) -> Served {
        self.served[number]
    }

    pub(super) fn finish(&mut self, target: Target, computed: Tokens, row: Option<&Waterfall>) {
        self.requests += 1;
        *self.work.entry(target).or_default() += computed;
        if let Some(row) = row {
            self.totals.add(row);
        }
    }

    pub(super) fn into_report(mut self, policy: Policy, fleet: &Fleet, now: Timestamp) -> Report {
        self.ttft.sort_unstable();
        let work = fleet.targets().into_iter().map(|target| {
            let computed = self.work.get(&target).copied().unwrap_or_default();
            (target, computed)
        });
        Report {
            policy,
            requests: self.requests,
            errors: self.errors,
            totals: self.totals,
            work: work.collect(),
            took: now.since(Timestamp::ZERO),
            ttft: self.ttft,
        }
    }
}

impl Report {
    /// The time to first token that this share of the requests, 0 to 1, does not exceed.
    pub fn ttft_quantile(&self, share: f64) -> Option<Duration> {
        let last = self.ttft.len().checked_sub(1)?;
        // A float to integer cast saturates.
        let at = (share * last as f64).round() as usize;
        self.ttft.get(at.min(last)).copied()
    }

    /// The busiest target's computed tokens over the mean of all; none when nothing was computed.
    pub fn work_max_over_mean(&self) -> Option<f64> {
        let total: Tokens = self.work.iter().map(|it| it.1).sum();
        let most = self.work.iter().map(|it| it.1).max()?;
        let mean = total.as_f64() / self.work.len() as f64;
        (mean > 0.0).then(|| most.as_f64() / mean)
    }
}
