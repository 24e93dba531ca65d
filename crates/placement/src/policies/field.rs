//! What a published policy decides from, and its answer.

use domain::Target;

use crate::choose::{Place, Reason};
use crate::draw::Draw;
use crate::snapshot::{Candidate, Request};

/// A request and those that may take it, one at least.
pub(crate) struct Field<'a> {
    pub(crate) request: &'a Request,
    pub(crate) open: Vec<&'a Candidate>,
    pub(crate) turn: u64,
    pub(crate) reuse: f64,
}

/// What a policy chose, and what it made of each of them: the least wins.
pub(crate) struct Pick {
    pub(crate) place: Place,
    pub(crate) reason: Reason,
    /// Of each in order; empty where the policy weighs nothing.
    pub(crate) weighed: Vec<f64>,
}

impl Field<'_> {
    /// Tokens of the request.
    pub(crate) const fn isl(&self) -> f64 {
        self.request.isl.as_f64()
    }

    /// Tokens of the request that are not held there.
    pub(crate) const fn miss(&self, candidate: &Candidate) -> f64 {
        self.request
            .isl
            .saturating_sub(candidate.held.disk)
            .as_f64()
    }

    /// The share of the request that is held there.
    pub(crate) fn share(&self, candidate: &Candidate) -> f64 {
        held(candidate).min(self.isl()) / self.isl().max(1.0)
    }

    /// What a policy makes of each: finite, whatever the numbers are.
    pub(crate) fn weigh(&self, weight: impl Fn(&Candidate) -> f64) -> Vec<f64> {
        let finite = |it: f64| {
            if it.is_nan() {
                f64::MAX
            } else {
                it.clamp(f64::MIN, f64::MAX)
            }
        };
        self.open.iter().map(|it| finite(weight(it))).collect()
    }

    /// The largest of a quantity.
    pub(crate) fn most(&self, quantity: impl Fn(&Candidate) -> f64) -> f64 {
        let quantities = self.open.iter().map(|it| quantity(it));
        quantities.fold(f64::NEG_INFINITY, f64::max)
    }

    /// The smallest of a quantity.
    pub(crate) fn fewest(&self, quantity: impl Fn(&Candidate) -> f64) -> f64 {
        let quantities = self.open.iter().map(|it| quantity(it));
        quantities.fold(f64::INFINITY, f64::min)
    }

    /// The mean of a quantity.
    pub(crate) fn mean(&self, quantity: impl Fn(&Candidate) -> f64) -> f64 {
        let sum: f64 = self.open.iter().map(|it| quantity(it)).sum();
        sum / self.open.len() as f64
    }

    /// Which of them is this target.
    pub(crate) fn find(&self, target: &Target) -> Option<usize> {
        self.open.iter().position(|it| it.target == *target)
    }

    /// Chooses the one at `at`.
    pub(crate) fn pick(&self, at: usize, reason: Reason, weighed: Vec<f64>) -> Pick {
        Pick {
            place: Place::Target(self.open[at].target.clone()),
            reason,
            weighed,
        }
    }

    /// Chooses the least; one of several by uniform draw.
    pub(crate) fn least(&self, weighed: Vec<f64>, draw: &mut Draw) -> Pick {
        self.least_of(weighed, |_| true, draw)
    }

    /// Chooses the least of some, of all where there are none.
    pub(crate) fn least_of(
        &self,
        weighed: Vec<f64>,
        is_in: impl Fn(&Candidate) -> bool,
        draw: &mut Draw,
    ) -> Pick {
        let none = !self.open.iter().any(|it| is_in(it));
        let is_in = |at: usize| none || is_in(self.open[at]);
        let all = || weighed.iter().enumerate().filter(|(at, _)| is_in(*at));
        let least = all().map(|(_, weight)| *weight);
        let least = least.fold(f64::INFINITY, f64::min);
        let as_little = || all().filter(|(_, weight)| **weight <= least);
        let among = as_little().count();
        let drawn = if among > 1 { draw.below(among) } else { 0 };
        let at = as_little().nth(drawn).map_or(0, |(at, _)| at);
        let reason = match among {
            0 | 1 => Reason::LeastCost,
            _ => Reason::NearTie {
                among: u32::try_from(among).unwrap_or(u32::MAX),
            },
        };
        self.pick(at, reason, weighed)
    }
}

/// `m`: tokens of the request it holds in some tier.
pub(crate) const fn held(candidate: &Candidate) -> f64 {
    candidate.held.disk.as_f64()
}

/// `P`: tokens of prefill that are pending there.
pub(crate) fn pending(candidate: &Candidate) -> f64 {
    (candidate.pending + candidate.foreign).as_f64()
}

/// `A`: requests that are active there.
pub(crate) fn active(candidate: &Candidate) -> f64 {
    f64::from(candidate.active)
}
