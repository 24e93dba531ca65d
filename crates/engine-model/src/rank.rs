//! One rank: its queue, its running requests, its blocks.

mod decoders;

use std::collections::VecDeque;
use std::sync::Arc;

use domain::{DpRank, SequenceHash, Tokens};

use self::decoders::Decoders;
use crate::pool::{BlockIndex, BlockPool};
use crate::{Cache, Config, Effect, RankInUse, Request, RequestId};

/// What a rank does at the moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RankStatus {
    /// Requests being prefilled or decoded.
    pub running: u32,
    /// Requests in its queue.
    pub waiting: u32,
    /// The share of its blocks in use by running requests, 0 to 1. Idle cached blocks do not count.
    pub kv_used: f64,
    /// Input tokens of its requests that are neither computed nor taken from the cache yet.
    pub pending_prefill: Tokens,
    /// Prompt tokens it has computed since it began.
    pub prefilled: Tokens,
}

#[derive(Debug)]
pub(crate) struct Rank {
    number: DpRank,
    pool: BlockPool,
    waiting: VecDeque<Sequence>,
    running: Vec<Sequence>,
    prefilled: u64,
    cleared: bool,
    /// Evictions not yet published.
    evicted: Vec<SequenceHash>,
    /// Requests put back in the pass under way.
    preempted: Vec<RequestId>,
    /// Whether the pass under way computes anything here.
    in_pass: bool,
    /// Where nobody is told of the tokens between a request's first and last.
    decoders: Option<Decoders>,
}

/// A request on its rank.
#[derive(Debug)]
struct Sequence {
    id: RequestId,
    isl: u64,
    osl: u64,
    chain: Arc<[SequenceHash]>,
    /// Tokens taken from the cache or computed.
    computed: u64,
    generated: u64,
    /// Tokens that the pass under way computes.
    scheduled: u64,
    /// Its leading blocks that are in the cache.
    filled: usize,
    blocks: Vec<BlockIndex>,
    start: Start,
}

/// Whether a sequence has run yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    NotYet,
    /// In the pass under way, with this many tokens from the cache.
    Now(u64),
    Before,
}

impl Sequence {
    fn known(&self) -> u64 {
        self.isl + self.generated
    }

    /// Blocks it lacks for its next `tokens`.
    fn lacks(&self, tokens: u64, block_size: u64) -> u64 {
        let needed = (self.computed + tokens).div_ceil(block_size);
        needed.saturating_sub(self.blocks.len() as u64)
    }

    /// Whether the pass that has just ended computed all it knows and its next token is its last.
    fn ends(&self) -> bool {
        self.computed == self.known() && self.generated + 1 >= self.osl
    }

    /// Whether its next tokens are those of a prompt, or of one that is computed again.
    fn prefills(&self) -> bool {
        self.known() - self.computed > 1 || self.generated == 0
    }
}

/// What one rank adds to the time of a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Work {
    pub(crate) prefill_tokens: u64,
    pub(crate) sequences: u64,
}

impl Rank {
    /// An empty one, which tells of every token or only of each request's first.
    pub(crate) fn new(number: DpRank, kv_blocks: u32, tells_tokens: bool) -> Self {
        Self {
            number,
            pool: BlockPool::new(kv_blocks),
            waiting: VecDeque::new(),
            running: Vec::new(),
            prefilled: 0,
            cleared: false,
            evicted: Vec::new(),
            preempted: Vec::new(),
            in_pass: false,
            decoders: (!tells_tokens).then(Decoders::default),
        }
    }

    pub(crate) fn pool(&self) -> &BlockPool {
        &self.pool
    }

    pub(crate) fn has_work(&self) -> bool {
        !self.running.is_empty() || !self.waiting.is_empty()
    }

    pub(crate) fn running(&self) -> usize {
        self.running.len()
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn kv_used(&self) -> f64 {
        f64::from(self.pool.in_use()) / f64::from(self.pool.size())
    }

    pub(crate) fn status(&self) -> RankStatus {
        let pending = |sequence: &Sequence| sequence.isl.saturating_sub(sequence.computed);
        RankStatus {
            running: self.running.len() as u32,
            waiting: self.waiting.len() as u32,
            kv_used: self.kv_used(),
            pending_prefill: Tokens::new(
                self.running.iter().chain(&self.waiting).map(pending).sum(),
            ),
            prefilled: Tokens::new(self.prefilled),
        }
    }

    pub(crate) fn enqueue(&mut self, request: Request) {
        self.waiting.push_back(Sequence {
            id: request.id,
            isl: request.isl.get(),
            osl: request.osl.get(),
            chain: request.chain,
            computed: 0,
            generated: 0,
            scheduled: 0,
            filled: 0,
            blocks: Vec::new(),
            start: Start::NotYet,
        });
    }

    /// Takes a request out, and its blocks back.
    pub(crate) fn abort(&mut self, id: RequestId) {
        if let Some(at) = self.running.iter().position(|it| it.id == id) {
            if let Some(decoders) = &mut self.decoders {
                decoders.take_out(at, &mut self.running);
            }
            let mut sequence = self.running.remove(at);
            release(&mut self.pool, &mut sequence);
        }
        self.waiting.retain(|it| it.id != id);
        self.preempted.retain(|it| *it != id);
    }

    /// Empties the cache, and returns what is to be announced at once. An error, and nothing happens, while
    /// requests use it.
    pub(crate) fn clear(&mut self, cache: Cache) -> Result<Option<Effect>, RankInUse> {
        if self.pool.in_use() > 0 {
            return Err(RankInUse(self.number));
        }
        self.pool.clear_idle();
        self.evicted.clear();
        match cache {
            Cache::Blocks => {
                self.cleared = true;
                Ok(None)
            }
            Cache::Radix => Ok(Some(Effect::Cleared { rank: self.number })),
        }
    }

    /// Decides what the next pass computes, and gets the room for it.
    pub(crate) fn schedule(&mut self, config: &Config) -> Work {
        let mut budget = u64::from(config.pass_tokens);
        let mut work = Work::default();
        self.schedule_running(config, &mut budget, &mut work);
        if self.preempted.is_empty() {
            self.admit(config, &mut budget, &mut work);
        }
        self.prefilled += work.prefill_tokens;
        self.in_pass = work.sequences > 0;
        work
    }

    fn schedule_running(&mut self, config: &Config, budget: &mut u64, work: &mut Work) {
        let decoders = self.decoders.as_mut();
        let mut at = decoders.map_or(0, Decoders::begin_pass);
        *budget -= at as u64;
        work.sequences += at as u64;
        while at < self.running.len() && *budget > 0 {
            let sequence = &self.running[at];
            let tokens = (*budget).min(sequence.known() - sequence.computed);
            let lacks = sequence.lacks(tokens, u64::from(config.block_size.get()));
            if lacks > u64::from(self.pool.room()) {
                // The latest gives way, at worst this one itself.
                self.preempt_latest();
                continue;
            }
            let sequence = &mut self.running[at];
            give_room(&mut self.pool, sequence, lacks, &mut self.evicted);
            start_pass(sequence, tokens, budget, work);
            at += 1;
        }
    }

    fn preempt_latest(&mut self) {
        let Some(mut sequence) = self.running.pop() else {
            return;
        };
        release(&mut self.pool, &mut sequence);
        sequence.computed = 0;
        sequence.filled = 0;
        self.preempted.push(sequence.id);
        self.waiting.push_front(sequence);
    }

    fn admit(&mut self, config: &Config, budget: &mut u64, work: &mut Work) {
        let size = u64::from(config.block_size.get());
        while self.running.len() < config.max_running as usize && *budget > 0 {
            let Some(sequence) = self.waiting.front() else {
                return;
            };
            let cacheable = config
                .block_size
                .cacheable_blocks(Tokens::new(sequence.known()))
                as usize;
            let hits = self
                .pool
                .overlap(&sequence.chain[..cacheable.min(sequence.chain.len())])
                as usize;
            let room = self.pool.room() - self.pool.idle_among(&sequence.chain[..hits]);
            // All of its tokens must fit, though it takes blocks only as it computes them.
            if sequence.known().div_ceil(size) - hits as u64 > u64::from(room) {
                return;
            }
            let Some(mut sequence) = self.waiting.pop_front() else {
                return;
            };
            let cached = &sequence.chain[..hits];
            let hit_blocks = cached.iter().filter_map(|it| self.pool.use_cached(*it));
            sequence.blocks.extend(hit_blocks);
            sequence.filled = hits;
            sequence.computed = hits as u64 * size;
            if sequence.start == Start::NotYet {
                sequence.start = Start::Now(sequence.computed);
            }
            let tokens = (*budget).min(sequence.known() - sequence.computed);
            let lacks = sequence.lacks(tokens, size);
            give_room(&mut self.pool, &mut sequence, lacks, &mut self.evicted);
            start_pass(&mut sequence, tokens, budget, work);
            self.running.push(sequence);
        }
    }

    /// Ends the pass: what was computed is there.
    pub(crate) fn finish_pass(&mut self, config: &Config, effects: &mut Vec<Effect>) {
        if !std::mem::take(&mut self.in_pass) {
            return;
        }
        let rank = self.number;
        if std::mem::take(&mut self.cleared) {
            effects.push(Effect::Cleared { rank });
        }
        if !self.evicted.is_empty() {
            let blocks = std::mem::take(&mut self.evicted);
            effects.push(Effect::Removed { rank, blocks });
        }
        let left_out = self.decoders.as_ref().map_or(0, Decoders::left_out);
        for sequence in &mut self.running[left_out..] {
            sequence.computed += std::mem::take(&mut sequence.scheduled);
            effects.extend(fill_blocks(&mut self.pool, sequence, rank, config));
        }
        let preempted = self.preempted.drain(..);
        effects.extend(preempted.map(|id| Effect::Preempted { id }));
        self.report(left_out, effects);
        if let Some(decoders) = &mut self.decoders {
            decoders.end_pass(&mut self.running, config.block_size, config.pass_tokens);
        }
    }

    /// Says what became of the requests from this place on in a pass that has ended; those that are done are gone.
    fn report(&mut self, first: usize, effects: &mut Vec<Effect>) {
        let tells_tokens = self.decoders.is_none();
        let mut at = first;
        while let Some(sequence) = self.running.get_mut(at) {
            if report(sequence, tells_tokens, effects) {
                at += 1;
            } else {
                release(&mut self.pool, sequence);
                self.running.remove(at);
            }
        }
    }
}

/// Gives `sequence` `count` more blocks; the caller has made sure that there is room.
fn give_room(
    pool: &mut BlockPool,
    sequence: &mut Sequence,
    count: u64,
    evicted: &mut Vec<SequenceHash>,
) {
    for _ in 0..count {
        let block = pool
            .allocate(evicted)
            .expect("the caller compared the count with the pool's room");
        sequence.blocks.push(block);
    }
}

fn start_pass(sequence: &mut Sequence, tokens: u64, budget: &mut u64, work: &mut Work) {
    if sequence.prefills() {
        work.prefill_tokens += tokens;
    }
    work.sequences += 1;
    *budget -= tokens;
    sequence.scheduled = tokens;
}

/// Puts the blocks that are now full and whose content is known into the cache.
fn fill_blocks(
    pool: &mut BlockPool,
    sequence: &mut Sequence,
    rank: DpRank,
    config: &Config,
) -> Option<Effect> {
    let radix = config.cache == Cache::Radix;
    if radix && sequence.generated > 0 && !sequence.ends() {
        return None;
    }
    let full = (sequence.computed / u64::from(config.block_size.get())) as usize;
    let known = full.min(sequence.chain.len());
    if radix {
        share_held(pool, sequence, known);
    }
    let first = sequence.filled;
    if known <= first {
        return None;
    }
    let blocks = sequence.chain[first..known].to_vec();
    for (block, content) in sequence.blocks[first..known].iter().zip(&blocks) {
        pool.fill(*block, *content);
    }
    sequence.filled = known;
    Some(Effect::Stored {
        rank,
        id: sequence.id,
        first_block: first as u32,
        parent: first.checked_sub(1).map(|parent| sequence.chain[parent]),
        blocks,
    })
}

/// Gives up the blocks before `known` whose content is held elsewhere for those that hold it. What is held is
/// a prefix: whoever uses a block uses its parents, so no child outlives one.
fn share_held(pool: &mut BlockPool, sequence: &mut Sequence, known: usize) {
    while sequence.filled < known {
        let Some(held) = pool.use_cached(sequence.chain[sequence.filled]) else {
            return;
        };
        let own = std::mem::replace(&mut sequence.blocks[sequence.filled], held);
        pool.release(own);
        sequence.filled += 1;
    }
}

/// Says what became of a request in a pass that has ended; false when that was its end.
fn report(sequence: &mut Sequence, tells_tokens: bool, effects: &mut Vec<Effect>) -> bool {
    let id = sequence.id;
    if let Start::Now(tokens) = sequence.start {
        sequence.start = Start::Before;
        let tokens = Tokens::new(tokens);
        effects.push(Effect::Cached { id, tokens });
    }
    if sequence.computed < sequence.known() {
        return true;
    }
    sequence.generated += 1;
    match sequence.generated {
        1 => effects.push(Effect::FirstToken { id }),
        _ if tells_tokens => effects.push(Effect::Token { id }),
        _ => {}
    }
    if sequence.generated < sequence.osl {
        return true;
    }
    effects.push(Effect::Finished { id });
    false
}

/// Gives all blocks back, the last one first, so that children leave before their parents.
fn release(pool: &mut BlockPool, sequence: &mut Sequence) {
    for block in sequence.blocks.drain(..).rev() {
        pool.release(block);
    }
}
