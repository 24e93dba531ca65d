//! What clients ask of a fleet: sessions whose turns follow each other.

mod agents;
mod agentx;
mod catalogue;
mod code_gen;
mod codex;
mod fleets;
mod grpo;
mod saas;
mod script;
#[cfg(test)]
mod tests;
mod traced;
mod weka;

use std::sync::Arc;
use std::time::Duration;

use domain::{BlockHash, BlockSize, SequenceHash, Tokens, sequence_hashes};

pub use self::agents::Decode;
pub use self::catalogue::{CATALOGUE, Named, Source, TRACE_BLOCK_TOKENS, named};

/// All that clients will ask.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// Its name in reports.
    pub name: String,
    /// Tokens per block of every content.
    pub block_size: BlockSize,
    /// Its sessions. One refers to another by its place in this list.
    pub sessions: Vec<Session>,
}

/// One client's requests, each sent after the answer to the one before. A request of a trace that names no session is
/// a session of one turn.
#[derive(Clone, Debug, PartialEq)]
pub struct Session {
    /// The conversation that its requests name, if they name one: its own where each waits for the answer to the one
    /// before, that of other sessions too where a trace says by the clock when each turn arrives.
    pub conversation: Option<u32>,
    /// The session it was started from, whose conversation its requests give as their parent's.
    pub parent: Option<usize>,
    /// The tenant, under whose salt its contents are hashed: no two tenants have a hash in common, whatever their texts.
    pub tenant: u32,
    /// When its first turn is sent.
    pub begins: Begins,
    /// Its turns, at least one.
    pub turns: Vec<Turn>,
}

/// When a session's first turn is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begins {
    /// So long after the start of the run.
    At(Duration),
    /// So long after another session's turn has ended.
    After {
        /// The session.
        session: usize,
        /// Its turn, from 0.
        turn: usize,
        /// The pause.
        pause: Duration,
    },
    /// As soon as every session of a group has ended: the next step of a rollout.
    AfterGroup {
        /// The first session of the group.
        first: usize,
        /// The one behind its last.
        end: usize,
    },
}

/// One request.
#[derive(Clone, Debug, PartialEq)]
pub struct Turn {
    /// What it begins with; its prompt is the first `isl` tokens of it, the last ones perhaps no full block.
    pub content: Arc<Content>,
    /// Input tokens.
    pub isl: Tokens,
    /// Output tokens.
    pub osl: Tokens,
    /// How many of its first tokens later turns repeat of what its engine has when it ends, prompt and answer: at
    /// least `isl`, at most `isl + osl`.
    pub kept: Tokens,
    /// How long after the end of the turn before it is sent; of no meaning for the first.
    pub gap: Duration,
}

/// Blocks of tokens that follow each other, shared by the turns that repeat them.
#[derive(Debug, PartialEq, Eq)]
pub struct Content {
    blocks: Vec<BlockHash>,
    chain: Vec<SequenceHash>,
}

impl Content {
    /// The content of these full blocks.
    pub fn new(blocks: Vec<BlockHash>) -> Self {
        let chain = sequence_hashes(&blocks);
        Self { blocks, chain }
    }

    /// Its blocks by content.
    pub fn blocks(&self) -> &[BlockHash] {
        &self.blocks
    }

    /// Its blocks as prefixes.
    pub fn chain(&self) -> &[SequenceHash] {
        &self.chain
    }
}

impl Turn {
    /// The prompt's full blocks as prefixes.
    pub fn prompt(&self, block_size: BlockSize) -> &[SequenceHash] {
        self.first(self.isl, block_size)
    }

    /// The full blocks that its engine can keep for later turns, prompt and answer, as prefixes.
    pub fn keeps(&self, block_size: BlockSize) -> &[SequenceHash] {
        self.first(self.kept.max(self.isl), block_size)
    }

    fn first(&self, tokens: Tokens, block_size: BlockSize) -> &[SequenceHash] {
        let blocks = tokens.get() / u64::from(block_size.get());
        let chain = self.content.chain();
        // More blocks than a usize holds are more than there are.
        let blocks = usize::try_from(blocks).unwrap_or(usize::MAX);
        &chain[..blocks.min(chain.len())]
    }
}

impl Workload {
    /// Its requests, of all sessions.
    pub fn requests(&self) -> usize {
        self.sessions.iter().map(|it| it.turns.len()).sum()
    }
}
