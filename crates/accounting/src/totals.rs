//! Waterfalls added up over requests.

use domain::Tokens;

use crate::{Parts, RankKnowledge, Waterfall};

/// Waterfalls of many requests, added up. Those whose engine reported cached tokens are kept apart from
/// those whose engine did not: a ratio to `realised` is only true of the former.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Requests whose `realised` is known.
    pub measured: Sums,
    /// Requests whose `realised` is unknown.
    pub unmeasured: Sums,
    /// Requests whose rank is unknown, in either.
    pub rank_unknown: u64,
}

/// Sums over requests of one kind, in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// How many.
    pub requests: u64,
    /// Their input tokens.
    pub isl: Tokens,
    /// The sum of their ceilings; so for the other levels.
    pub ceiling: Tokens,
    /// Ever announced.
    pub stored: Tokens,
    /// Held by any target.
    pub best: Tokens,
    /// Held by an eligible target.
    pub ready: Tokens,
    /// Held by the chosen target.
    pub chosen: Tokens,
    /// Taken from the engines' caches, in full blocks; zero where it is unknown.
    pub realised: Tokens,
    /// Cached tokens beyond full blocks.
    pub sub_block: Tokens,
    /// Where the rest was lost.
    pub parts: Parts,
}

impl Totals {
    /// Adds one request.
    pub fn add(&mut self, waterfall: &Waterfall) {
        let sums = match waterfall.realised() {
            Some(_) => &mut self.measured,
            None => &mut self.unmeasured,
        };
        sums.add(&Sums::of(waterfall));
        if waterfall.rank() == RankKnowledge::Unknown {
            self.rank_unknown = self.rank_unknown.saturating_add(1);
        }
    }

    /// Adds the totals of other requests.
    pub fn merge(&mut self, other: &Self) {
        self.measured.add(&other.measured);
        self.unmeasured.add(&other.unmeasured);
        self.rank_unknown = self.rank_unknown.saturating_add(other.rank_unknown);
    }

    /// All requests, measured or not.
    pub fn all(&self) -> Sums {
        let mut all = self.measured;
        all.add(&self.unmeasured);
        all
    }

    /// The share of the cacheable tokens that engines took from their caches, over the measured requests;
    /// none when nothing of them was cacheable.
    pub fn realised_over_ceiling(&self) -> Option<f64> {
        ratio(self.measured.realised, self.measured.ceiling)
    }

    /// The cacheable share of all input tokens.
    pub fn ceiling_over_isl(&self) -> Option<f64> {
        let all = self.all();
        ratio(all.ceiling, all.isl)
    }
}

impl Sums {
    fn of(waterfall: &Waterfall) -> Self {
        Self {
            requests: 1,
            isl: waterfall.isl(),
            ceiling: waterfall.ceiling(),
            stored: waterfall.stored(),
            best: waterfall.best(),
            ready: waterfall.ready(),
            chosen: waterfall.chosen(),
            realised: waterfall.realised().unwrap_or(Tokens::ZERO),
            sub_block: waterfall.sub_block(),
            parts: waterfall.parts(),
        }
    }

    fn add(&mut self, other: &Self) {
        self.requests = self.requests.saturating_add(other.requests);
        self.isl += other.isl;
        self.ceiling += other.ceiling;
        self.stored += other.stored;
        self.best += other.best;
        self.ready += other.ready;
        self.chosen += other.chosen;
        self.realised += other.realised;
        self.sub_block += other.sub_block;
        let parts = &other.parts;
        self.parts.cold += parts.cold;
        self.parts.in_flight += parts.in_flight;
        self.parts.unannounced += parts.unannounced;
        self.parts.capacity += parts.capacity;
        self.parts.unavailable += parts.unavailable;
        self.parts.routing += parts.routing;
        self.parts.index_error = match (self.parts.index_error, parts.index_error) {
            (Some(ours), Some(theirs)) => Some(ours.saturating_add(theirs)),
            (ours, theirs) => ours.or(theirs),
        };
    }
}

fn ratio(part: Tokens, whole: Tokens) -> Option<f64> {
    (whole > Tokens::ZERO).then(|| part.as_f64() / whole.as_f64())
}
