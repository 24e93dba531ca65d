//! Where things lie in the store. Numbers are big-endian, so that a rank's segments lie together, in order.

use domain::WorkerId;

/// A rank's number in the store; never given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct RankNumber(pub(crate) u64);

pub(super) const FORMAT: &[u8] = b"!format";
/// How many ranks there are.
pub(super) const RANK_COUNT: &[u8] = b"!ranks";
pub(super) const CURSORS: &[u8] = b"!cursors";
pub(super) const FENCES: u8 = b'f';
pub(super) const RANKS: u8 = b'r';
pub(super) const BASES: u8 = b'b';
/// Between what is small and often written and what is large: sled rewrites a leaf of up to 16 entries for
/// every ten changes in it, so no leaf may hold both.
pub(super) const PADDING: u8 = b't';
pub(super) const CHUNKS: u8 = b'u';
pub(super) const SEGMENTS: u8 = b'v';
/// Entries of padding: enough that leaves on either side do not meet.
const PADDED: u8 = 64;

pub(super) fn fence(worker: &WorkerId) -> Vec<u8> {
    join(FENCES, &[worker.as_str().as_bytes()])
}

pub(super) fn rank(number: RankNumber) -> Vec<u8> {
    of_rank(RANKS, number)
}

pub(super) fn base(number: RankNumber) -> Vec<u8> {
    of_rank(BASES, number)
}

/// The key of a rank's only entry of a kind, or the prefix of all its entries.
pub(super) fn of_rank(kind: u8, number: RankNumber) -> Vec<u8> {
    join(kind, &[&number.0.to_be_bytes()])
}

/// Two generations of a base have places of their own; the one before is written over.
pub(super) fn chunk(number: RankNumber, generation: u64, chunk: u32) -> Vec<u8> {
    let parts: [&[u8]; 3] = [
        &number.0.to_be_bytes(),
        &[generation_place(generation)],
        &chunk.to_be_bytes(),
    ];
    join(CHUNKS, &parts)
}

pub(super) fn generation_place(generation: u64) -> u8 {
    u8::from(generation % 2 == 1)
}

pub(super) fn segment(number: RankNumber, slot: u32) -> Vec<u8> {
    join(SEGMENTS, &[&number.0.to_be_bytes(), &slot.to_be_bytes()])
}

pub(super) fn padding() -> impl Iterator<Item = Vec<u8>> {
    (0..PADDED).map(|number| vec![PADDING, number])
}

/// The big-endian number of `N` bytes at `from`.
pub(super) fn read<const N: usize>(key: &[u8], from: usize) -> Option<[u8; N]> {
    key.get(from..from + N)?.try_into().ok()
}

fn join(kind: u8, parts: &[&[u8]]) -> Vec<u8> {
    let mut key = vec![kind];
    parts.iter().for_each(|part| key.extend_from_slice(part));
    key
}
