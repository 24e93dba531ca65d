//! Whether what a request could have found is still being computed.

use accounting::Carrier;
use domain::{BlockSize, SequenceHash, Tokens};

use super::Router;
use crate::carriers::Carried;
use crate::{Decision, Overlap, Request};

impl Router {
    /// Whether a request on its way carries what was carried before this one and no rank has announced. Of peers'
    /// requests it is known until their first token, and to the landmark.
    pub(super) fn carrier(&self, decision: &Decision, request: &Request) -> Carrier {
        let Some(Overlap {
            ceiling, stored, ..
        }) = decision.overlap.filter(|it| it.stored < it.ceiling)
        else {
            return Carrier::FinishedOrUnknown;
        };
        let mut candidates = decision.snapshot.candidates.iter();
        let mut sizes = request.hashes.iter();
        let own = |(size, blocks): &(BlockSize, Vec<SequenceHash>)| {
            let carried = blocks.get(..blocks_of(ceiling, *size));
            carried.is_some_and(|it| self.carriers.is_carried(&request.model, it))
        };
        match sizes.any(own) || candidates.any(|it| stored < it.in_flight) {
            true => Carrier::Unfinished,
            false => Carrier::FinishedOrUnknown,
        }
    }

    /// From now on a request carries what of it no rank has announced.
    pub(super) fn carry(&mut self, decision: &Decision, request: &Request) -> Carried {
        let Some(overlap) = decision.overlap else {
            return Carried::default();
        };
        let Some(member) = self.fleet.member(decision.place.worker()) else {
            return Carried::default();
        };
        let stored = blocks_of(overlap.stored, member.block_size());
        let blocks = self.blocks_at(decision, request);
        self.carriers.carry(&request.model, blocks, stored)
    }
}

/// How many blocks are all within so many tokens.
fn blocks_of(tokens: Tokens, size: BlockSize) -> usize {
    usize::try_from(tokens.get() / u64::from(size.get())).unwrap_or(usize::MAX)
}
