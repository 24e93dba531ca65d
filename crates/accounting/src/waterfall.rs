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
pub struct Waterfall {
    isl: Tokens,
    ceiling: Tokens,
    stored: Tokens,
    best: Tokens,
    ready: Tokens,
    chosen: Tokens,
    realised: Option<Tokens>,
    sub_block: Tokens,
    rank: RankKnowledge,
    carrier: Carrier,
}

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
        Self {
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
        }
    }

    /// Input tokens of the request.
    pub const fn isl(&self) -> Tokens {
        self.isl
    }

    /// The longest prefix an earlier request carried or a rank announced.
    pub const fn ceiling(&self) -> Tokens {
        self.ceiling
    }

    /// The longest prefix a rank ever announced.
    pub const fn stored(&self) -> Tokens {
        self.stored
    }

    /// The longest prefix any target held.
    pub const fn best(&self) -> Tokens {
        self.best
    }

    /// The longest prefix an eligible target held.
    pub const fn ready(&self) -> Tokens {
        self.ready
    }

    /// The prefix the chosen target held.
    pub const fn chosen(&self) -> Tokens {
        self.chosen
    }

    /// What the engine took from its cache, in full blocks; none when it does not say.
    pub const fn realised(&self) -> Option<Tokens> {
        self.realised
    }

    /// Cached tokens the engine reported beyond `realised`.
    pub const fn sub_block(&self) -> Tokens {
        self.sub_block
    }

    /// Whether the rank that served it is known.
    pub const fn rank(&self) -> RankKnowledge {
        self.rank
    }

    /// Where the uncached tokens were lost.
    pub fn parts(&self) -> Parts {
        let not_stored = self.ceiling.saturating_sub(self.stored);
        let (in_flight, unannounced) = match self.carrier {
            Carrier::Unfinished => (not_stored, Tokens::ZERO),
            Carrier::FinishedOrUnknown => (Tokens::ZERO, not_stored),
        };
        Parts {
            cold: self.isl.saturating_sub(self.ceiling),
            in_flight,
            unannounced,
            capacity: self.stored.saturating_sub(self.best),
            unavailable: self.best.saturating_sub(self.ready),
            routing: self.ready.saturating_sub(self.chosen),
            index_error: self
                .realised
                .map(|realised| signed(self.chosen) - signed(realised)),
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
