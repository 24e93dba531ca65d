//! What the conversations are made of, and the index that holds them.
//!
//! Ten thousand conversations of 8,520 blocks each are 85 million blocks. So that they take little memory, all begin
//! with one system prompt, which every target holds, and ten at a time with what its family has, which up to twenty
//! targets hold. The rest is each one's own: its home has all of it, and another target the first half.

use std::collections::BTreeSet;

use domain::{
    BlockHash, EngineHash, KvOp, SequenceHash, StoredBlock, StoredBlocks, Target, Tier,
    block_hashes, sequence_hashes,
};
use prefix_index::PrefixIndex;

use super::world::{RANKS, WORKERS, block_size, holders, namespace, seed, target};
use crate::random::mix;

/// Tokens of a block.
pub(super) const BLOCK: usize = 16;
/// Tokens of a request.
pub(super) const TOKENS: usize = 142_000;
/// Blocks of the system prompt, of what a family has behind it, and of what is a conversation's own.
const SYSTEM: usize = 512;
const FAMILY: usize = 5_488;
const OWN: usize = 2_520;
/// Tokens of a request that its home holds: 96 of 100.
pub(super) const HELD: usize = (SYSTEM + FAMILY + OWN) * BLOCK;
/// Conversations of a family.
const RELATED: usize = 10;
/// Blocks of one event.
const STORED_AT_ONCE: usize = 1_024;
/// Names of chains of tokens, apart from each other.
const FAMILIES: u64 = 1 << 32;
const OWNS: u64 = 1 << 40;
const TURNS: u64 = 1 << 48;

/// The prompt of a conversation's turn, in place of what `tokens` was.
pub(super) fn prompt(conversation: usize, turn: u64, tokens: &mut Vec<u32>) {
    tokens.clear();
    chain(0, SYSTEM * BLOCK, tokens);
    chain(
        FAMILIES + (conversation / RELATED) as u64,
        FAMILY * BLOCK,
        tokens,
    );
    chain(OWNS + conversation as u64, OWN * BLOCK, tokens);
    chain(TURNS + turn, TOKENS - HELD, tokens);
}

fn chain(name: u64, count: usize, tokens: &mut Vec<u32>) {
    let name = mix(name);
    for place in 0..count as u64 / 2 {
        let two = mix(name ^ place);
        // A vocabulary of 131,072.
        tokens.extend([two as u32 & 0x1_ffff, (two >> 32) as u32 & 0x1_ffff]);
    }
}

/// The index when every conversation has had its last turn.
pub(super) fn index(conversations: usize) -> PrefixIndex {
    let mut index = PrefixIndex::new(4_000_000);
    let mut tokens = Vec::new();
    chain(0, SYSTEM * BLOCK, &mut tokens);
    let system = Chain::of(&tokens);
    for number in 0..WORKERS * RANKS {
        system.store(&mut index, &target(number), 0, SYSTEM);
    }
    for family in 0..conversations.div_ceil(RELATED) {
        let members = family * RELATED..conversations.min((family + 1) * RELATED);
        tokens.truncate(SYSTEM * BLOCK);
        chain(FAMILIES + family as u64, FAMILY * BLOCK, &mut tokens);
        let shared = Chain::of(&tokens);
        let all: BTreeSet<Target> = members.clone().flat_map(holders).collect();
        for at in all {
            shared.store(&mut index, &at, SYSTEM, SYSTEM + FAMILY);
        }
        for conversation in members {
            tokens.truncate((SYSTEM + FAMILY) * BLOCK);
            chain(OWNS + conversation as u64, OWN * BLOCK, &mut tokens);
            let whole = Chain::of(&tokens);
            let [home, second] = holders(conversation);
            whole.store(&mut index, &home, SYSTEM + FAMILY, SYSTEM + FAMILY + OWN);
            whole.store(
                &mut index,
                &second,
                SYSTEM + FAMILY,
                SYSTEM + FAMILY + OWN / 2,
            );
        }
    }
    index
}

struct Chain {
    blocks: Vec<BlockHash>,
    sequences: Vec<SequenceHash>,
}

impl Chain {
    fn of(tokens: &[u32]) -> Self {
        let blocks = block_hashes(tokens, block_size(), seed());
        let sequences = sequence_hashes(&blocks);
        Self { blocks, sequences }
    }

    /// `at` announces the blocks from one place to another.
    fn store(&self, index: &mut PrefixIndex, at: &Target, from: usize, to: usize) {
        for start in (from..to).step_by(STORED_AT_ONCE) {
            let name = |place: usize| EngineHash::Int(self.sequences[place].get());
            let block = |place| StoredBlock {
                engine_hash: name(place),
                block_hash: self.blocks[place],
            };
            let stored = KvOp::Stored(StoredBlocks {
                group: 0,
                parent: start.checked_sub(1).map(name),
                blocks: (start..to.min(start + STORED_AT_ONCE)).map(block).collect(),
                tier: Tier::Gpu,
                namespace: namespace(),
                session: None,
            });
            index.apply(at, &stored).expect("nothing is fenced");
        }
    }
}
