//! What targets are presumed to hold where no event says it: the prompts that were sent there, each for ten
//! minutes, corrected by what their engines found in their caches.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use domain::{EngineKind, SequenceHash, Target, Timestamp, Worker};

/// How long a prompt is presumed to be held after its first token.
const LEASE: Duration = Duration::from_secs(10 * 60);
/// Prompts remembered of one target: each is compared with every request, a few nanoseconds each.
const MAX_CHAINS: usize = 256;
/// Blocks remembered of one target whose engine does not say how many it holds: 1 MiB of hashes.
const MAX_BLOCKS: u64 = 131_072;

/// How much of what was sent to a target can still be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    /// Blocks of all prompts together; what they share counts for each.
    pub(crate) blocks: u64,
    /// Prompts.
    pub(crate) chains: usize,
}

/// What is presumed of every target.
#[derive(Debug, Default)]
pub(crate) struct Presumed {
    targets: HashMap<Target, Chains>,
}

/// Prompts of one target, the one sent last at the end.
#[derive(Debug, Default)]
struct Chains(VecDeque<Chain>);

/// The leading blocks of a prompt.
#[derive(Debug)]
struct Chain {
    blocks: Vec<SequenceHash>,
    lease_until: Timestamp,
}

impl Room {
    /// That of one rank of `worker`.
    pub(crate) fn of(worker: &Worker) -> Self {
        let chains = match worker.engine {
            // A slot holds the tokens of its last request and no others.
            EngineKind::LlamaCpp => 1,
            EngineKind::Vllm | EngineKind::Sglang | EngineKind::TensorRtLlm => MAX_CHAINS,
        };
        let blocks = worker.kv_blocks.unwrap_or(MAX_BLOCKS).min(MAX_BLOCKS);
        Self { blocks, chains }
    }

    /// Whether a new prompt takes the place of the last one, however short both are.
    pub(crate) const fn is_for_one(self) -> bool {
        self.chains == 1
    }
}

impl Presumed {
    /// How many leading blocks of a prompt `target` is presumed to hold.
    pub(crate) fn depth(&self, target: &Target, blocks: &[SequenceHash], now: Timestamp) -> u32 {
        let chains = self.targets.get(target).into_iter().flat_map(|it| &it.0);
        let live = chains.filter(|it| now < it.lease_until);
        let deepest = live.map(|it| shared(&it.blocks, blocks)).max();
        u32::try_from(deepest.unwrap_or(0)).unwrap_or(u32::MAX)
    }

    /// How many blocks of prompts `target` is presumed to hold.
    pub(crate) fn blocks(&self, target: &Target, now: Timestamp) -> u32 {
        let chains = self.targets.get(target).into_iter().flat_map(|it| &it.0);
        let live = chains.filter(|it| now < it.lease_until);
        let blocks = live.map(|it| it.blocks.len()).sum::<usize>();
        u32::try_from(blocks).unwrap_or(u32::MAX)
    }

    /// `target` holds these leading blocks of a prompt from now on, in place of what has no room beside them. A
    /// prompt of which no block is known still takes the place of the only one that has room.
    pub(crate) fn hold(
        &mut self,
        target: &Target,
        blocks: &[SequenceHash],
        room: Room,
        now: Timestamp,
    ) {
        if blocks.is_empty() && 1 < room.chains {
            return;
        }
        let Chains(chains) = self.targets.entry(target.clone()).or_default();
        let fits = blocks
            .len()
            .min(usize::try_from(room.blocks).unwrap_or(usize::MAX));
        let blocks = &blocks[..fits];
        chains.retain(|it| now < it.lease_until && shared(&it.blocks, blocks) < it.blocks.len());
        chains.push_back(Chain {
            blocks: blocks.to_vec(),
            lease_until: now + LEASE,
        });
        let mut total: u64 = chains.iter().map(|it| it.blocks.len() as u64).sum();
        while room.blocks < total || room.chains < chains.len() {
            let Some(oldest) = chains.pop_front() else {
                break;
            };
            total -= oldest.blocks.len() as u64;
        }
    }

    /// `target` was found to hold no more than `found` leading blocks of a prompt: whatever else was presumed
    /// to follow them is not there.
    pub(crate) fn cut(&mut self, target: &Target, blocks: &[SequenceHash], found: u32) {
        let found = found as usize;
        let Some(Chains(chains)) = self.targets.get_mut(target) else {
            return;
        };
        for chain in chains.iter_mut() {
            if found < shared(&chain.blocks, blocks) {
                chain.blocks.truncate(found);
            }
        }
        chains.retain(|it| !it.blocks.is_empty());
    }

    /// Forgets what has run out, and targets that are no more.
    pub(crate) fn expire(&mut self, now: Timestamp, is_live: impl Fn(&Target) -> bool) {
        self.targets.retain(|target, Chains(chains)| {
            chains.retain(|it| now < it.lease_until);
            !chains.is_empty() && is_live(target)
        });
    }
}

/// The length of the common prefix of two prompts. Equal hashes stand for equal prefixes, so that it can be
/// searched for by halves.
fn shared(one: &[SequenceHash], other: &[SequenceHash]) -> usize {
    let (mut equal, mut unequal) = (0, one.len().min(other.len()) + 1);
    while equal + 1 < unequal {
        let middle = equal + (unequal - equal) / 2;
        if one[middle - 1] == other[middle - 1] {
            equal = middle;
        } else {
            unequal = middle;
        }
    }
    equal
}

#[cfg(test)]
mod tests;
