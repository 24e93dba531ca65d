//! Between what could have come from a cache and what did: whose share of it is whose.

use domain::Tokens;

use crate::waterfall::signed;
use crate::{Sums, Totals};

/// Tokens between `ceiling` and `realised`, by what they were lost to. They sum exactly to the difference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gap {
    /// Evicted everywhere: more memory would have kept them.
    pub memory: i64,
    /// Held by an eligible target, and the request went to another.
    pub router: i64,
    /// Promised and not found, or computed and never announced. Negative where engines found more than was promised.
    pub index: i64,
    /// Held only where nothing new may go.
    pub unavailable: i64,
    /// Being computed for another request.
    pub in_flight: i64,
}

impl Gap {
    /// Of the requests whose `realised` is known.
    pub fn of(totals: &Totals) -> Self {
        let Sums { parts, .. } = totals.measured;
        Self {
            memory: signed(parts.capacity),
            router: signed(parts.routing),
            index: signed(parts.unannounced) + parts.index_error.unwrap_or(0),
            unavailable: signed(parts.unavailable),
            in_flight: signed(parts.in_flight),
        }
    }

    /// Every part with its name.
    pub const fn named(&self) -> [(&'static str, i64); 5] {
        [
            ("memory", self.memory),
            ("router", self.router),
            ("index", self.index),
            ("unavailable", self.unavailable),
            ("in_flight", self.in_flight),
        ]
    }

    /// All parts together: `ceiling - realised`.
    pub fn sum(&self) -> i64 {
        self.named().iter().map(|it| it.1).sum()
    }

    /// What a part is of all that was lost, 0 to 1; none where nothing was. What was found beyond the promise is no loss
    /// and makes none of the others smaller.
    pub fn share(&self, part: i64) -> Option<f64> {
        let losses = self.named();
        let lost = losses.iter().map(|it| it.1.max(0)).sum::<i64>();
        let tokens = |it: i64| Tokens::new(u64::try_from(it).unwrap_or(0)).as_f64();
        (0 < lost).then(|| tokens(part) / tokens(lost))
    }

    /// The part to which most was lost, with its name; none where nothing was.
    pub fn largest(&self) -> Option<(&'static str, i64)> {
        let parts = self.named().into_iter();
        let losses = parts.filter(|it| 0 < it.1);
        losses.max_by_key(|it| it.1)
    }
}
