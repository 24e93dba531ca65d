//! What passes did to the caches, told to the event publishers in the engine's own words.

use std::collections::BTreeMap;

use domain::{BlockSize, DpRank, EngineHash, SequenceHash, Timestamp};
use engine_model::{Effect, RequestId};
use engine_wire::{Event, Lora, Medium, Removed, SpecKind, Stored, sglang, vllm};
use service_kit::Clock;
use tokio::sync::mpsc;
use tokio::time::Instant;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::dialect::Dialect;
use crate::drained::Drained;
use crate::driver::Job;
use crate::publisher::{Publication, Word};
use crate::ranks::Ranks;

/// Sets the engine's hashes apart from those of `domain`, as a real engine's are.
const ENGINE_HASH_SEED: u64 = 0x76_6c_6c_6d_66_61_6b_65;

/// Encodes events and hands them on.
pub(crate) struct Announcer {
    pub(crate) dialect: Dialect,
    pub(crate) ranks: Ranks,
    pub(crate) block_size: BlockSize,
    pub(crate) clock: Clock,
    /// Whether only the first rank publishes.
    pub(crate) only_first: bool,
    /// One for each rank; empty without events, or where they are drained.
    pub(crate) publishers: Vec<mpsc::Sender<Publication>>,
    /// Where they are drained from.
    pub(crate) drained: Option<Drained>,
}

impl Announcer {
    /// One batch for each rank whose cache changed. `job` knows the requests whose blocks were stored.
    pub(crate) async fn announce<'a>(
        &self,
        effects: &[Effect],
        job: impl Fn(RequestId) -> &'a Job,
    ) {
        if let Some(drained) = &self.drained {
            return self.buffer(drained, effects, job);
        }
        let mut batches = BTreeMap::<DpRank, Batch>::new();
        let new = || Batch::new(self.dialect);
        for effect in effects {
            match effect {
                Effect::Cleared { rank } => batches.entry(*rank).or_insert_with(new).cleared(),
                Effect::Removed { rank, blocks } => {
                    let batch = batches.entry(*rank).or_insert_with(new);
                    for removed in self.removed(blocks) {
                        batch.removed(&removed);
                    }
                }
                Effect::Stored {
                    rank,
                    id,
                    first_block,
                    parent,
                    blocks,
                } => {
                    let stored = self.stored(job(*id), *first_block as usize, *parent, blocks);
                    batches.entry(*rank).or_insert_with(new).stored(&stored);
                }
                _ => {}
            }
        }
        for (rank, batch) in batches {
            let heard = !self.only_first || rank.get() == 0;
            if let Some(publisher) = self.publishers.get(rank.get() as usize).filter(|_| heard) {
                let payload = batch.finish(self.clock.now(), self.ranks.global(rank));
                publish(publisher, Word::Batch(payload)).await;
            }
        }
    }

    /// What a TensorRT-LLM buffers of it.
    fn buffer<'a>(
        &self,
        drained: &Drained,
        effects: &[Effect],
        job: impl Fn(RequestId) -> &'a Job,
    ) {
        for effect in effects {
            let (rank, event) = match effect {
                Effect::Cleared { rank } => (rank, drained.created()),
                Effect::Removed { rank, blocks } => {
                    let block_hashes = blocks.iter().copied().map(engine_hash).collect();
                    (rank, Event::Gone { block_hashes })
                }
                Effect::Stored {
                    rank,
                    id,
                    first_block,
                    parent,
                    blocks,
                } => {
                    let stored = self.stored(job(*id), *first_block as usize, *parent, blocks);
                    (rank, Event::Stored(stored))
                }
                _ => continue,
            };
            if !self.only_first || rank.get() == 0 {
                drained.say(*rank, &event);
            }
        }
    }

    /// The engine begins anew.
    pub(crate) async fn restart(&self) {
        if let Some(drained) = &self.drained {
            drained.restart();
        }
        for publisher in &self.publishers {
            publish(publisher, Word::Restart).await;
        }
    }

    /// One event for each block, as vLLM sends them, or one for all, as SGLang does.
    fn removed(&self, blocks: &[SequenceHash]) -> Vec<Removed> {
        let at_a_time = match self.dialect {
            Dialect::Vllm => 1,
            Dialect::Sglang | Dialect::TensorRtLlm => blocks.len().max(1),
        };
        let removed = |blocks: &[SequenceHash]| Removed {
            block_hashes: blocks.iter().copied().map(engine_hash).collect(),
            medium: Medium::Tier(domain::Tier::Gpu),
            group: self.group(),
        };
        blocks.chunks(at_a_time).map(removed).collect()
    }

    fn stored(
        &self,
        job: &Job,
        first: usize,
        parent: Option<SequenceHash>,
        blocks: &[SequenceHash],
    ) -> Stored {
        let block_size = self.block_size.get();
        let size = block_size as usize;
        Stored {
            block_hashes: blocks.iter().copied().map(engine_hash).collect(),
            parent: parent.map(engine_hash),
            token_ids: job.tokens[first * size..(first + blocks.len()) * size].to_vec(),
            opaque_tokens: 0,
            block_size,
            medium: Medium::Tier(domain::Tier::Gpu),
            group: self.group(),
            spec_kind: (self.dialect == Dialect::Vllm).then_some(SpecKind::FullAttention),
            lora: job.lora.clone().map(Lora::Named),
            salt: job.salt.clone(),
            session: job.session.clone(),
        }
    }

    fn group(&self) -> Option<u32> {
        (self.dialect == Dialect::Vllm).then_some(0)
    }
}

/// A batch in one of the dialects.
enum Batch {
    Vllm(vllm::BatchEncoder),
    Sglang(sglang::BatchEncoder),
}

impl Batch {
    fn new(dialect: Dialect) -> Self {
        match dialect {
            Dialect::Vllm => Self::Vllm(vllm::BatchEncoder::new()),
            // Of a TensorRT-LLM nothing is published.
            Dialect::Sglang | Dialect::TensorRtLlm => Self::Sglang(sglang::BatchEncoder::new()),
        }
    }

    fn stored(&mut self, stored: &Stored) {
        match self {
            Self::Vllm(batch) => batch.stored(stored),
            Self::Sglang(batch) => batch.stored(stored),
        }
    }

    fn removed(&mut self, removed: &Removed) {
        match self {
            Self::Vllm(batch) => batch.removed(removed),
            Self::Sglang(batch) => batch.removed(removed),
        }
    }

    fn cleared(&mut self) {
        match self {
            Self::Vllm(batch) => batch.cleared(),
            Self::Sglang(batch) => batch.cleared(),
        }
    }

    fn finish(self, ts: Timestamp, dp_rank: DpRank) -> Vec<u8> {
        match self {
            Self::Vllm(batch) => batch.finish(ts, dp_rank),
            Self::Sglang(batch) => batch.finish(ts, dp_rank),
        }
    }
}

async fn publish(publisher: &mpsc::Sender<Publication>, word: Word) {
    let made = Instant::now();
    // It only goes away at the end of the process, when nobody listens.
    drop(publisher.send(Publication { made, word }).await);
}

/// The fake engine's own name for a block: keyed unlike `domain`'s, equal on all ranks and in all processes,
/// as vLLM's are from 0.29 on and SGLang's are.
fn engine_hash(sequence: SequenceHash) -> EngineHash {
    EngineHash::Int(xxh3_64_with_seed(
        &sequence.get().to_le_bytes(),
        ENGINE_HASH_SEED,
    ))
}
