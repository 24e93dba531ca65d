//! A request's hashes, checked, as the index takes them.

use contracts::rpc::{CallError, PrefixHashes};
use domain::{Namespace, SequenceHash};
use prefix_index::{Overlap, Reader, Sparse, Window};

/// What is asked for.
pub(crate) enum Asked<'a> {
    /// Each block's hash.
    Dense(&'a [SequenceHash]),
    /// A sample of them.
    Sparse {
        hashes: &'a [SequenceHash],
        every: u32,
        blocks: u32,
        sparse: Sparse<'a>,
    },
    /// Those behind some.
    Window {
        hashes: &'a [SequenceHash],
        after: u32,
        window: Window<'a>,
    },
}

impl<'a> Asked<'a> {
    /// Fails where the sample does not fit the number of blocks.
    pub(crate) fn new(hashes: &'a PrefixHashes) -> Result<Self, CallError> {
        match hashes {
            PrefixHashes::Dense(hashes) => Ok(Self::Dense(hashes)),
            PrefixHashes::Sparse {
                every,
                blocks,
                hashes,
            } => {
                let (every, blocks) = (every.get(), *blocks);
                let sparse = Sparse::new(every, blocks, hashes);
                let sparse = sparse.map_err(|why| CallError::InvalidArgument {
                    why: why.to_string(),
                })?;
                Ok(Self::Sparse {
                    hashes,
                    every,
                    blocks,
                    sparse,
                })
            }
            PrefixHashes::Window {
                after,
                last,
                hashes,
            } => {
                let after = after.get();
                let window = Window::new(after, *last, hashes);
                let window = window.map_err(|why| CallError::InvalidArgument {
                    why: why.to_string(),
                })?;
                Ok(Self::Window {
                    hashes,
                    after,
                    window,
                })
            }
        }
    }

    /// The hashes given, in order.
    pub(crate) fn hashes(&self) -> &'a [SequenceHash] {
        match self {
            Self::Dense(hashes) | Self::Sparse { hashes, .. } | Self::Window { hashes, .. } => {
                hashes
            }
        }
    }

    /// How many leading blocks `given` leading hashes stand for.
    pub(crate) fn blocks_of(&self, given: u32) -> u32 {
        match self {
            Self::Dense(_) => given,
            Self::Sparse { every, blocks, .. } => given.saturating_mul(*every).min(*blocks),
            Self::Window { .. } if given == 0 => 0,
            Self::Window { after, .. } => after.saturating_add(given),
        }
    }

    pub(crate) fn overlap(&self, reader: &Reader, namespace: &Namespace) -> Overlap {
        match self {
            Self::Dense(hashes) => reader.overlap(namespace, *hashes),
            Self::Sparse { sparse, .. } => reader.overlap(namespace, *sparse),
            Self::Window { window, .. } => reader.overlap(namespace, *window),
        }
    }
}
