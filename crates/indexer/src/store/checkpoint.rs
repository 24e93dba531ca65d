//! Folding a rank's segments into a new base, and erasing ranks.
//!
//! A fold reads the store and not the live index, so it takes no lock and its outcome is the state at one
//! segment's end, whatever is applied meanwhile.

use std::collections::BTreeMap;

use contracts::Encoding;
use contracts::index_store::{Base, Segment};
use domain::Target;
use prefix_index::{HeldBlock, PrefixIndex, RankSnapshot};

use super::keys::{self, RankNumber};
use super::{Store, StoreError};

/// Blocks in one chunk: about 25 KiB, so that sled keeps a leaf of them within a segment of its own.
const CHUNK_BLOCKS: usize = 1000;
/// Chunks written at a time, so that other writers do not wait long.
const CHUNKS_AT_ONCE: usize = 16;

/// What a fold has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Folded {
    /// Bytes of the new base.
    pub(crate) base_bytes: u64,
    /// Bytes of the segments that are in it.
    pub(crate) segment_bytes: u64,
    /// The first segment that is not.
    pub(crate) first_segment: u64,
}

impl Store {
    /// Folds the segments of `target` that lie in `slots`, by number, into a new base. They are all that
    /// count and were saved, from the first on. Their slots may be written over when this has returned.
    pub(crate) fn fold(
        &self,
        number: RankNumber,
        target: &Target,
        slots: &BTreeMap<u64, u32>,
    ) -> Result<Folded, StoreError> {
        let base = self.db.get(keys::base(number))?;
        let base = base.map(|it| Base::from_bytes(&it)).transpose()?;
        let mut index = PrefixIndex::new(0);
        if let Some(base) = base {
            for chunk in 0..base.chunks {
                let key = keys::chunk(number, base.generation, chunk);
                let value = self.db.get(&key)?.ok_or_else(|| missing(target))?;
                index
                    .restore(target, &RankSnapshot::from_bytes(&value)?)
                    .map_err(|why| StoreError::Damaged(why.to_string()))?;
            }
        }
        let mut segment_bytes = 0;
        let mut first_segment = base.map_or(0, |it| it.first_segment);
        for slot in slots.values() {
            let value = self.db.get(keys::segment(number, *slot))?;
            let value = value.ok_or_else(|| missing(target))?;
            let segment = Segment::from_bytes(&value)?;
            if segment.number != first_segment {
                return Err(missing(target));
            }
            first_segment += 1;
            segment_bytes += value.len() as u64;
            for op in segment.ops {
                index
                    .apply(target, &op)
                    .map_err(|why| StoreError::Damaged(why.to_string()))?;
            }
        }
        let generation = base.map_or(0, |it| it.generation + 1);
        let (chunks, base_bytes) = match index.snapshot(target) {
            Some(snapshot) => self.write_chunks(number, generation, &snapshot)?,
            None => (0, 0),
        };
        let base = Base {
            generation,
            chunks,
            first_segment,
        };
        self.db.insert(keys::base(number), &base.to_bytes()[..])?;
        Ok(Folded {
            base_bytes,
            segment_bytes,
            first_segment,
        })
    }

    fn write_chunks(
        &self,
        number: RankNumber,
        generation: u64,
        snapshot: &RankSnapshot,
    ) -> Result<(u32, u64), StoreError> {
        let mut chunks = 0;
        let mut bytes = 0;
        let mut blocks = snapshot.blocks.clone();
        // So that most chunks have one namespace.
        blocks.sort_unstable_by_key(|it| it.namespace);
        let pieces: Vec<_> = blocks.chunks(CHUNK_BLOCKS).collect();
        for some in pieces.chunks(CHUNKS_AT_ONCE) {
            let mut batch = sled::Batch::default();
            for blocks in some {
                let piece = piece(snapshot, blocks).to_bytes();
                bytes += piece.len() as u64;
                batch.insert(keys::chunk(number, generation, chunks), &piece[..]);
                chunks += 1;
            }
            self.db.apply_batch(batch)?;
        }
        Ok((chunks, bytes))
    }

    /// Removes what is left of a rank that is not there any more.
    pub(crate) fn erase(&self, number: RankNumber) -> Result<(), StoreError> {
        for kind in [keys::BASES, keys::CHUNKS, keys::SEGMENTS] {
            let keys = self.db.scan_prefix(keys::of_rank(kind, number)).keys();
            self.remove(keys.collect::<Result<_, _>>()?)?;
        }
        Ok(())
    }
}

/// `blocks` of `snapshot`, sorted by namespace, with the namespaces that they need.
fn piece(snapshot: &RankSnapshot, blocks: &[HeldBlock]) -> RankSnapshot {
    let mut piece = RankSnapshot {
        claims: snapshot.claims,
        namespaces: Vec::new(),
        blocks: Vec::with_capacity(blocks.len()),
    };
    for of_one in blocks.chunk_by(|a, b| a.namespace == b.namespace) {
        let namespace = piece.namespaces.len() as u32;
        let name = &snapshot.namespaces[of_one[0].namespace as usize];
        piece.namespaces.push(name.clone());
        let renumbered = of_one.iter().map(|it| HeldBlock {
            namespace,
            ..it.clone()
        });
        piece.blocks.extend(renumbered);
    }
    piece
}

fn missing(target: &Target) -> StoreError {
    StoreError::Damaged(format!("{target}: a chunk or segment is missing"))
}
