//! Blocks made of pages, for those who compare what an engine holds with an index of blocks.

use std::collections::BTreeMap;

use domain::{BlockSize, HashSeed, SequenceHash, block_hashes, sequence_hashes};

/// Smaller pages are gathered into blocks of at least so many tokens before they are indexed.
const MIN_BLOCK_TOKENS: u32 = 16;

/// The size of the blocks that pages are gathered into; none where a page is large enough to be a block.
pub(crate) fn block_size(page: BlockSize) -> Option<BlockSize> {
    let pages = MIN_BLOCK_TOKENS.div_ceil(page.get());
    let tokens = page.get().saturating_mul(pages);
    (pages > 1).then(|| BlockSize::new(tokens).expect("it is no less than a page"))
}

/// The blocks of a request, each behind its last page. Whoever holds that holds all of the block, since no page
/// outlives those before it.
pub(crate) fn blocks(
    tokens: &[u32],
    pages: &[SequenceHash],
    page: BlockSize,
    seed: HashSeed,
) -> Vec<(SequenceHash, SequenceHash)> {
    let Some(size) = block_size(page) else {
        return Vec::new();
    };
    let blocks = sequence_hashes(&block_hashes(tokens, size, seed));
    let per_block = (size.get() / page.get()) as usize;
    let last_pages = pages.iter().skip(per_block - 1).step_by(per_block);
    last_pages.copied().zip(blocks).collect()
}

/// The block behind each page that ends one, of requests not long ago.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    blocks: BTreeMap<SequenceHash, SequenceHash>,
}

impl Gathered {
    /// Adds those of a request.
    pub(crate) fn add(&mut self, blocks: &[(SequenceHash, SequenceHash)]) {
        self.blocks.extend(blocks.iter().copied());
    }

    /// How many are kept.
    pub(crate) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Forgets all but those of these pages.
    pub(crate) fn keep(&mut self, pages: impl Iterator<Item = SequenceHash>) {
        let kept = pages.filter_map(|page| Some((page, *self.blocks.get(&page)?)));
        self.blocks = kept.collect();
    }

    /// The blocks that these pages end.
    pub(crate) fn of(&self, pages: impl Iterator<Item = SequenceHash>) -> Vec<SequenceHash> {
        pages
            .filter_map(|page| self.blocks.get(&page).copied())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_behind_its_last_page() {
        let size = |tokens| BlockSize::new(tokens).unwrap();
        let seed = HashSeed::of(None, None);
        let tokens: Vec<u32> = (0..50).collect();
        let hashes =
            |tokens_per: u32| sequence_hashes(&block_hashes(&tokens, size(tokens_per), seed));
        for (page, block) in [(1, 16), (5, 20), (7, 21), (15, 30)] {
            let pages = hashes(page);
            let gathered = blocks(&tokens, &pages, size(page), seed);
            let expected = hashes(block);
            let (ends, found): (Vec<_>, Vec<_>) = gathered.into_iter().unzip();
            assert_eq!(found, expected, "pages of {page}");
            assert_eq!(ends[0], pages[(block / page) as usize - 1]);
        }
        assert_eq!((block_size(size(16)), block_size(size(17))), (None, None));
    }
}
