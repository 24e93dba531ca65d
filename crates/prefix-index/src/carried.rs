//! What earlier requests carried: the ceiling of what any cache could have held for a later one.

use domain::{Namespace, SequenceHash};

use crate::history::History;

/// Requests that send a sample send the hash of every so many blocks, or of more.
const SAMPLED: usize = 64;
/// Of a request so many blocks are remembered whole, in which requests part from each other: of what follows every 64th
/// and the last. Whoever parts there is found to have parted at the one before; what a rank
/// has announced is known to the block all the same, from the index.
const WHOLE: usize = 1_024;

/// The blocks of every recorded request, in arrival order, bounded.
///
/// Apart from the [`crate::PrefixIndex`], because requests write it and events write the other: each can
/// stand behind a lock of its own.
#[derive(Debug)]
pub struct Carried {
    history: History,
}

impl Carried {
    /// Remembers at most `bound` blocks, the most recently carried ones.
    pub fn new(bound: usize) -> Self {
        Self {
            history: History::new(bound),
        }
    }

    /// Leading blocks of `hashes` that some recorded request carried. `hashes` are one request's sequence
    /// hashes: from the first block, a sample, or some behind one that was carried.
    ///
    /// Of a request that was recorded by a sample of every 64th block and the last only those are found.
    pub fn depth(&self, namespace: &Namespace, hashes: &[SequenceHash]) -> u32 {
        let Some(seen) = self.history.of(namespace) else {
            return 0;
        };
        // Of those that every record has, a prefix is never forgotten before what extends it (see `record`), so
        // this is monotone. In between, a block is carried where any that extends it is.
        let (strides, rest) = hashes.as_chunks::<SAMPLED>();
        let carried = strides.partition_point(|it| seen.contains(it[SAMPLED - 1]));
        let beyond = strides.get(carried).map_or(rest, |it| &it[..]);
        let deepest = beyond.iter().rposition(|hash| seen.contains(*hash));
        let depth = carried * SAMPLED + deepest.map_or(0, |it| it + 1);
        u32::try_from(depth).unwrap_or(u32::MAX)
    }

    /// Adds a request's blocks. `hashes` are its sequence hashes from the first block.
    ///
    /// Deepest first, and only as far as they are not young already: so a block is always at least as young
    /// as what extends it, and a further turn costs no more than its new blocks. What was carried before is made
    /// young by every 64th block: whoever parts from it in between, long after those were last new, is found to
    /// have parted at the one before.
    pub fn record(&mut self, namespace: &Namespace, hashes: &[SequenceHash]) {
        self.history.write(namespace, |seen| {
            let (strides, rest) = hashes.as_chunks::<SAMPLED>();
            let rest = match WHOLE < hashes.len() {
                true => &rest[rest.len().saturating_sub(1)..],
                false => rest,
            };
            for hash in rest.iter().rev() {
                if seen.contains_young(*hash) {
                    return;
                }
                seen.insert(*hash);
            }
            for (number, stride) in strides.iter().enumerate().rev() {
                let [within @ .., last] = stride;
                if seen.contains_young(*last) {
                    return;
                }
                let is_new = !seen.contains(*last);
                seen.insert(*last);
                if is_new && number < WHOLE / SAMPLED {
                    within.iter().rev().for_each(|it| seen.insert(*it));
                }
            }
        });
    }

    /// Blocks forgotten because the bound was reached.
    pub fn forgotten(&self) -> u64 {
        self.history.forgotten()
    }
}
