//! What an engine says a request cost.

use crate::Tokens;

/// Token counts as the engine reports them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Input tokens.
    pub prompt: Tokens,
    /// Output tokens.
    pub completion: Tokens,
    /// Input tokens taken from the cache; none when the engine does not report it, which is not zero.
    pub cached: Option<Tokens>,
}
