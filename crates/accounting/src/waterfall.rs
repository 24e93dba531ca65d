//! The waterfall of one request: how much of it could have come from a cache, and where the rest was lost.

use domain::{BlockSize, Tokens};

/// What is known of one request, as found: not yet in full blocks, not yet in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observation {
    /// The request's input tokens.
    pub isl: Tokens,
    /// The block size of the worker that served it.
    pub block_size: BlockSize,
    /// The longest prefix that an earlier request carried or a rank announced.
    pub ceiling: Tokens,
    /// The longest prefix a rank ever announced.
    pub stored: Tokens,
    /// The longest prefix any target held at the decision.
    pub best: Tokens,
    /// The longest prefix an eligible target held at the decision.
    pub ready: Tokens,
    /// The prefix the serving target held at the decision, before any discount for trust.
    pub chosen: Chosen,
    /// The cached tokens the engine reported; none when it reports none, which is not zero.
    pub realised: Option<Tokens>,
    /// Whether the request that first carried the ceiling's prefix had finished.
    pub carrier: Carrier,
}

/// The overlap at the target that served a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chosen {
    /// The target is known: it was asked for, or its rank was seen.
    Held(Tokens),
    /// Only the worker was named and no rank was seen.
    RankUnknown,
}

/// The state of the request that carried a prefix before any rank announced it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// It was still running: its blocks could not have been announced.
    Unfinished,
    /// It had finished, or nothing is known of it: its blocks should have been announced.
    FinishedOrUnknown,
}

/// Whether the rank that served a request is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankKnowledge {
    /// It was asked for or seen.
    Known,
    /// It was neither; `chosen` is then what was realised, else what was ready.
    Unknown,
}

/// One request's levels in tokens of full blocks, each at most the largest multiple of the block size
/// below `isl`, and `ceiling >= stored >= best >= ready >= chosen`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waterfall(Levels);

/// The levels of a waterfall as they are written down; read back they are a [`Waterfall`] if they are in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Levels {
    /// Input tokens of the request.
    pub isl: Tokens,
    /// The longest prefix an earlier request carried or a rank announced.
    pub ceiling: Tokens,
    /// Ever announced by a rank.
    pub stored: Tokens,
    /// Held by any target.
    pub best: Tokens,
    /// Held by an eligible target.
    pub ready: Tokens,
    /// Held by the chosen target.
    pub chosen: Tokens,
    /// What the engine took from its cache, in full blocks; none when it does not say.
    pub realised: Option<Tokens>,
    /// Cached tokens the engine reported beyond `realised`.
    pub sub_block: Tokens,
    /// Whether the rank that served it is known.
    pub rank: RankKnowledge,
    /// Whether whoever carried what nobody had announced was still running.
    pub carrier: Carrier,
}

/// Levels that are no waterfall's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a level is above the one before it")]
pub struct Inverted;

/// Where a request's uncached tokens were lost. Their sum is exactly `isl - realised`, or `isl - chosen`
/// where `realised` is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// Nobody had carried it before.
    pub cold: Tokens,
    /// A running request carried it; no rank had announced it yet.
    pub in_flight: Tokens,
    /// A finished request carried it, yet no rank announced it.
    pub unannounced: Tokens,
    /// Announced once, held by nobody now: memory was too small.
    pub capacity: Tokens,
    /// Held only by targets that could not be chosen.
    pub unavailable: Tokens,
    /// Held by an eligible target other than the chosen one.
    pub routing: Tokens,
    /// Tokens the index promised beyond what the engine found; negative where the engine found more.
    /// None where `realised` is unknown.
    pub index_error: Option<i64>,
}

impl Waterfall {
    /// Brings an observation into full blocks and into order.
    ///
    /// The levels from `ceiling` to `ready` are raised to the one below them, so that late or lost events
    /// cannot invert them; `realised` raises nothing.
    pub fn new(observed: Observation) -> Self {
        let Observation {
            isl, block_size, ..
        } = observed;
        let cap = block_size.tokens(block_size.cacheable_blocks(isl));
        let full = |tokens: Tokens| {
            let size = u64::from(block_size.get());
            Tokens::new(tokens.min(cap).get() / size * size)
        };
        let realised = observed.realised.map(full);
        let (chosen, rank) = match observed.chosen {
            Chosen::Held(held) => (full(held), RankKnowledge::Known),
            Chosen::RankUnknown => (
                realised.unwrap_or(full(observed.ready)),
                RankKnowledge::Unknown,
            ),
        };
        let ready = full(observed.ready).max(chosen);
        let best = full(observed.best).max(ready);
        let stored = full(observed.stored).max(best);
        let ceiling = full(observed.ceiling).max(stored);
        let reported = observed.realised.unwrap_or(Tokens::ZERO);
        Self(Levels {
            isl,
            ceiling,
            stored,
            best,
            ready,
            chosen,
            realised,
            sub_block: reported.saturating_sub(realised.unwrap_or(Tokens::ZERO)),
            rank,
            carrier: observed.carrier,
        })
    }

    /// Its levels, to be written down.
    pub const fn levels(&self) -> Levels {
        self.0
    }

    /// Input tokens of the request.
    pub const fn isl(&self) -> Tokens {
        self.0.isl
    }

    /// The longest prefix an earlier request carried or a rank announced.
    pub const fn ceiling(&self) -> Tokens {
        self.0.ceiling
    }

    /// The longest prefix a rank ever announced.
    pub const fn stored(&self) -> Tokens {
        self.0.stored
    }

    /// The longest prefix any target held.
    pub const fn best(&self) -> Tokens {
        self.0.best
    }

    /// The longest prefix an eligible target held.
    pub const fn ready(&self) -> Tokens {
        self.0.ready
    }

    /// The prefix the chosen target held.
    pub const fn chosen(&self) -> Tokens {
        self.0.chosen
    }

    /// What the engine took from its cache, in full blocks; none when it does not say.
    pub const fn realised(&self) -> Option<Tokens> {
        self.0.realised
    }

    /// Cached tokens the engine reported beyond `realised`.
    pub const fn sub_block(&self) -> Tokens {
        self.0.sub_block
    }

    /// Whether the rank that served it is known.
    pub const fn rank(&self) -> RankKnowledge {
        self.0.rank
    }

    /// Where the uncached tokens were lost.
    pub fn parts(&self) -> Parts {
        let not_stored = self.0.ceiling.saturating_sub(self.0.stored);
        let (in_flight, unannounced) = match self.0.carrier {
            Carrier::Unfinished => (not_stored, Tokens::ZERO),
            Carrier::FinishedOrUnknown => (Tokens::ZERO, not_stored),
        };
        Parts {
            cold: self.0.isl.saturating_sub(self.0.ceiling),
            in_flight,
            unannounced,
            capacity: self.0.stored.saturating_sub(self.0.best),
            unavailable: self.0.best.saturating_sub(self.0.ready),
            routing: self.0.ready.saturating_sub(self.0.chosen),
            index_error: self
                .0
                .realised
                .map(|realised| signed(self.0.chosen) - signed(realised)),
        }
    }
}

impl TryFrom<Levels> for Waterfall {
    type Error = Inverted;

    fn try_from(levels: Levels) -> Result<Self, Inverted> {
        let Levels {
            isl,
            ceiling,
            stored,
            best,
            ready,
            chosen,
            ..
        } = levels;
        let falling = [isl, ceiling, stored, best, ready, chosen];
        match falling.is_sorted_by(|higher, lower| lower <= higher) {
            true => Ok(Self(levels)),
            false => Err(Inverted),
        }
    }
}

impl Parts {
    /// The sum of all parts in tokens.
    pub fn sum(&self) -> i64 {
        let unsigned = [
            self.cold,
            self.in_flight,
            self.unannounced,
            self.capacity,
            self.unavailable,
            self.routing,
        ];
        let lost: Tokens = unsigned.into_iter().sum();
        signed(lost) + self.index_error.unwrap_or(0)
    }
}

/// Saturates, far beyond any prompt.
pub(crate) fn signed(tokens: Tokens) -> i64 {
    i64::try_from(tokens.get()).unwrap_or(i64::MAX)
}
