//! The answer to a lookup with the targets' names.

use domain::OverlapGroup;

/// Who holds how much of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overlap {
    /// Targets that hold at least one leading block, by what they hold, deepest first.
    pub groups: Vec<OverlapGroup>,
    /// Leading blocks that any target ever announced, as far as is remembered; of a sparse request, the
    /// deepest given position that was.
    pub stored: u32,
}
