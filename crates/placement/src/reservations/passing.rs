//! Which targets compute how much of a prefix: live reservations by the landmarks they pass.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use domain::{Folding, SequenceHash};

/// Every so many blocks of a request its sequence hash is a landmark.
const LANDMARK_BLOCKS: usize = 64;

/// How many live reservations pass each landmark, by the slot of their target.
#[derive(Debug, Default)]
pub(super) struct Passing {
    landmarks: HashMap<SequenceHash, Slots, Folding>,
}

/// How many of one landmark, by slot; most are those of one request.
#[derive(Debug)]
enum Slots {
    One((usize, u32)),
    Several(Vec<(usize, u32)>),
}

/// How many leading blocks of a request are being computed, by the slot of the target.
#[derive(Debug, Default)]
pub struct InFlight(Vec<u32>);

/// The sequence hashes that stand for a request: every 64th, and the last.
pub fn landmarks(hashes: &[SequenceHash]) -> Vec<SequenceHash> {
    let (strides, rest) = hashes.as_chunks::<LANDMARK_BLOCKS>();
    let aligned = strides.iter().map(|it| it[LANDMARK_BLOCKS - 1]);
    aligned.chain(rest.last().copied()).collect()
}

impl Passing {
    /// One more reservation at `slot` passes these landmarks.
    pub(super) fn enter(&mut self, landmarks: &[SequenceHash], slot: usize) {
        for landmark in landmarks {
            match self.landmarks.entry(*landmark) {
                Entry::Vacant(entry) => drop(entry.insert(Slots::One((slot, 1)))),
                Entry::Occupied(entry) => entry.into_mut().enter(slot),
            }
        }
    }

    /// One of them has ended.
    pub(super) fn leave(&mut self, landmarks: &[SequenceHash], slot: usize) {
        for landmark in landmarks {
            if let Entry::Occupied(mut entry) = self.landmarks.entry(*landmark)
                && entry.get_mut().leave(slot)
            {
                entry.remove();
            }
        }
    }

    /// Who computes how much of a request with these sequence hashes.
    pub(super) fn in_flight(&self, hashes: &[SequenceHash]) -> InFlight {
        let mut found = InFlight::default();
        if self.landmarks.is_empty() {
            return found;
        }
        let (strides, _) = hashes.as_chunks::<LANDMARK_BLOCKS>();
        let passed = |stride: &[SequenceHash; LANDMARK_BLOCKS]| {
            self.landmarks.contains_key(&stride[LANDMARK_BLOCKS - 1])
        };
        // Whoever passes a landmark passes all before it.
        let deepest = strides.partition_point(passed);
        self.stride(hashes, deepest, &mut found);
        if 0 < deepest {
            // Of what is shorter than a stride no landmark tells how many it is.
            self.stride(hashes, 0, &mut found);
            self.between(hashes, (1, deepest), &mut found);
        }
        found
    }

    /// Looks at the strides behind landmark `from` and before landmark `to`, where some targets end: those of which
    /// as many pass the one as the other are passed over.
    fn between(&self, hashes: &[SequenceHash], (from, to): (usize, usize), found: &mut InFlight) {
        let passing = |landmark: usize| {
            let slots = self.landmarks.get(&hashes[landmark * LANDMARK_BLOCKS - 1]);
            slots.map_or(0, |it| it.all().len())
        };
        if from == to || passing(from) == passing(to) {
            return;
        }
        if to - from == 1 {
            return self.stride(hashes, from, found);
        }
        let middle = from.midpoint(to);
        self.between(hashes, (from, middle), found);
        self.between(hashes, (middle, to), found);
    }

    /// Notes who ends within a stride or passes the landmarks before and behind it.
    fn stride(&self, hashes: &[SequenceHash], stride: usize, found: &mut InFlight) {
        let start = (stride * LANDMARK_BLOCKS).saturating_sub(1);
        let end = hashes.len().min((stride + 1) * LANDMARK_BLOCKS);
        for (place, hash) in (start..end).zip(&hashes[start..end]) {
            let depth = u32::try_from(place + 1).unwrap_or(u32::MAX);
            let slots = self.landmarks.get(hash).map_or(&[][..], Slots::all);
            slots.iter().for_each(|(slot, _)| found.note(*slot, depth));
        }
    }
}

impl Slots {
    fn all(&self) -> &[(usize, u32)] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Several(several) => several,
        }
    }

    fn enter(&mut self, slot: usize) {
        let counts = match self {
            Self::One(one) => std::slice::from_mut(one),
            Self::Several(several) => several,
        };
        if let Some((_, count)) = counts.iter_mut().find(|it| it.0 == slot) {
            *count += 1;
            return;
        }
        match self {
            Self::One(one) => *self = Self::Several(vec![*one, (slot, 1)]),
            Self::Several(several) => several.push((slot, 1)),
        }
    }

    /// One at `slot` has ended. Whether none is left.
    fn leave(&mut self, slot: usize) -> bool {
        match self {
            Self::One((at, count)) => {
                *count -= u32::from(*at == slot);
                *count == 0
            }
            Self::Several(several) => {
                if let Some(at) = several.iter().position(|it| it.0 == slot) {
                    several[at].1 -= 1;
                    if several[at].1 == 0 {
                        several.swap_remove(at);
                    }
                }
                several.is_empty()
            }
        }
    }
}

impl InFlight {
    fn note(&mut self, slot: usize, depth: u32) {
        if self.0.len() <= slot {
            self.0.resize(slot + 1, 0);
        }
        self.0[slot] = self.0[slot].max(depth);
    }

    /// Leading blocks being computed at a target's slot.
    pub(super) fn at(&self, slot: usize) -> u32 {
        self.0.get(slot).copied().unwrap_or(0)
    }
}
