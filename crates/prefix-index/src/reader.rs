//! Looking up while the writer applies.

use std::cmp::Reverse;
use std::sync::Arc;

use domain::{BlockHash, Depths, Namespace, OverlapGroup, SequenceHash, Target};

use crate::board::{Board, Directory};
use crate::{Answer, Overlap, Request, Sparse, Window};

/// Blocks in a row that must be unknown before no more are looked for. Of departed blocks some may have been
/// forgotten before others that they lead to.
const UNKNOWN_IN_A_ROW: usize = 8;

/// Looks up in a [`crate::PrefixIndex`] from any thread while its owner writes. Cheap to clone.
///
/// A lookup takes no lock and answers what the index held at one moment between its call and its return. One
/// whom the writer disturbs 16 times in a row asks it to wait before its next operation.
#[derive(Clone, Debug)]
pub struct Reader {
    board: Arc<Board>,
}

/// A namespace as lookups name it; the same for the index's whole life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NamespaceKey(pub(crate) u64);

impl Reader {
    pub(crate) fn new(board: Arc<Board>) -> Self {
        Self { board }
    }

    /// The key of `namespace`, to be kept by whoever asks often.
    pub fn key(&self, namespace: &Namespace) -> NamespaceKey {
        NamespaceKey(self.board.secrets.key(namespace))
    }

    /// Who holds how much of `request`, into `answer`.
    #[inline]
    pub fn lookup<'a>(
        &self,
        namespace: NamespaceKey,
        request: impl Into<Request<'a>>,
        answer: &mut Answer,
    ) {
        self.board.lookup(namespace.0, request.into(), answer);
    }

    /// The target that `slot` of `answer` means; none if any target has come or gone since.
    pub fn target_of(&self, answer: &Answer, slot: u32) -> Option<Target> {
        let directory = self.board.directory();
        if directory.version != answer.targets_version {
            return None;
        }
        directory.targets.get(slot as usize)?.clone()
    }

    /// The groups of `answer` with their targets' names, deepest first; none if any target has come or gone
    /// since: ask again.
    pub fn name(&self, answer: &Answer) -> Option<Vec<OverlapGroup>> {
        let directory = self.board.directory();
        (directory.version == answer.targets_version).then(|| named(&directory, answer))
    }

    /// Who holds how much of `request`, with the targets' names.
    pub fn overlap<'a>(&self, namespace: &Namespace, request: impl Into<Request<'a>>) -> Overlap {
        let key = self.key(namespace);
        let request = request.into();
        let mut answer = Answer::new();
        loop {
            self.lookup(key, request, &mut answer);
            if let Some(groups) = self.name(&answer) {
                let stored = self.stored(key, request, answer.known());
                return Overlap { groups, stored };
            }
        }
    }

    /// Leading blocks of `request` that any target ever announced, as far as is remembered; the index knows
    /// `known` of them still.
    fn stored(&self, key: NamespaceKey, request: Request<'_>, known: u32) -> u32 {
        match request {
            Request::Sequences(hashes) => {
                let beyond = hashes[known as usize..].iter().copied();
                known + self.departed(key, beyond)
            }
            Request::Blocks(blocks) => {
                let mut last = None;
                let chain = blocks.iter().map(|block: &BlockHash| {
                    let next = last.map_or_else(
                        || SequenceHash::root(*block),
                        |it: SequenceHash| it.extend(*block),
                    );
                    last = Some(next);
                    next
                });
                known + self.departed(key, chain.skip(known as usize))
            }
            Request::Sparse(sparse) => self.stored_sparsely(key, sparse, known),
            Request::Window(window) => self.stored_in(key, window, known),
        }
    }

    /// How many of the first of `hashes` have departed.
    fn departed(&self, key: NamespaceKey, hashes: impl Iterator<Item = SequenceHash>) -> u32 {
        let mut deepest = 0;
        let mut unknown = 0;
        for (place, hash) in (1..).zip(hashes) {
            if self.board.has_departed(key.0, hash.get()) {
                deepest = place;
                unknown = 0;
            } else if unknown + 1 == UNKNOWN_IN_A_ROW {
                break;
            } else {
                unknown += 1;
            }
        }
        deepest
    }

    fn stored_in(&self, key: NamespaceKey, window: Window<'_>, known: u32) -> u32 {
        let from = known.max(window.after);
        let beyond = window.hashes.iter().skip((from - window.after) as usize);
        match self.departed(key, beyond.copied()) {
            0 => known,
            deepest => from + deepest,
        }
    }

    fn stored_sparsely(&self, key: NamespaceKey, sparse: Sparse<'_>, known: u32) -> u32 {
        let hashes = sparse.hashes();
        let places: Vec<usize> = (0..hashes.len())
            .filter(|it| known < sparse.depth(*it))
            .collect();
        let beyond = places.iter().map(|place| hashes[*place]);
        match self.departed(key, beyond) {
            0 => known,
            deepest => sparse.depth(places[deepest as usize - 1]),
        }
    }
}

fn named(directory: &Directory, answer: &Answer) -> Vec<OverlapGroup> {
    let order = directory.order();
    let mut held: Vec<(Depths, u32, &Target)> = Vec::new();
    for (depths, bits) in answer.groups() {
        for (index, word) in bits.iter().enumerate() {
            let mut word = *word;
            while word != 0 {
                let slot = index * 64 + word.trailing_zeros() as usize;
                word &= word - 1;
                let target = directory.targets[slot].as_ref();
                let target = target.expect("a slot of this version has a target");
                held.push((depths, order[slot], target));
            }
        }
    }
    held.sort_unstable_by_key(|(depths, order, _)| (Reverse(*depths), *order));
    held.chunk_by(|a, b| a.0 == b.0)
        .map(|group| OverlapGroup {
            depths: group[0].0,
            targets: group.iter().map(|(.., target)| (*target).clone()).collect(),
        })
        .collect()
}
