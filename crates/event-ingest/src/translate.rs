//! From an engine's words to the log's. Token ids end here.

mod gathered;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use domain::{
    BlockSize, EngineHash, EventSeq, KvOp, ModelName, Namespace, SessionTag, StoredBlock,
    StoredBlocks, Tier, block_hashes,
};
use engine_wire::{Event, EventBatch, Lora, Medium, Stored};

use crate::pages::{Changes, Counts, Pages};

/// Blocks of salted sequences whose salt is remembered, because vLLM says it with the first block only. A
/// rank of the largest engines holds some hundred thousand blocks. Beyond it the oldest are forgotten.
const MAX_SALTED: usize = 1 << 18;

/// One rank's translator. Where pages are blocks it remembers nothing but salts and which group is indexed.
#[derive(Debug)]
pub(crate) struct Translator {
    model: ModelName,
    block_size: BlockSize,
    session_secret: Option<Arc<str>>,
    /// The first group seen whose blocks stand for their prefix.
    group: Option<u32>,
    salts: Salts,
    /// The pages, where they are smaller than blocks.
    pages: Option<Pages>,
    /// The newest message that the pages stand for, and the one translated last.
    upto: Option<(EventSeq, EventSeq)>,
}

/// What a batch says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Translated {
    pub(crate) ops: Vec<KvOp>,
    /// Events left out, by reason: one of a fixed few names.
    pub(crate) skipped: BTreeMap<&'static str, u64>,
    /// Pages by what became of them; empty where pages are blocks.
    pub(crate) pages: Counts,
}

impl Translator {
    pub(crate) fn new(
        model: ModelName,
        block_size: BlockSize,
        session_secret: Option<Arc<str>>,
    ) -> Self {
        Self {
            model,
            block_size,
            session_secret,
            group: None,
            salts: Salts::default(),
            pages: None,
            upto: None,
        }
    }

    /// Forgets what it learnt: what follows is another incarnation's.
    pub(crate) fn reset(&mut self) {
        self.group = None;
        self.salts = Salts::default();
        self.forget_pages();
    }

    /// Forgets the pages: what was said of them is void.
    pub(crate) fn forget_pages(&mut self) {
        self.upto = None;
        if let Some(pages) = &mut self.pages {
            pages.clear();
        }
    }

    /// Translates one batch. Batches must come in the order of the log; `seq` may go back where a reader asked for
    /// batches again.
    pub(crate) fn translate(&mut self, seq: EventSeq, batch: &EventBatch) -> Translated {
        let mut out = Translated::default();
        if let Some(told) = self.told_again(seq) {
            out.ops = told;
            return out;
        }
        for event in &batch.events {
            match self.ops(event) {
                Ok(ops) => out.ops.extend(ops),
                Err(reason) => *out.skipped.entry(reason).or_default() += 1,
            }
        }
        if let Some(pages) = &mut self.pages {
            out.pages = pages.take_counts();
        }
        out
    }

    /// What has changed of the pages since the last time; none where pages are blocks.
    pub(crate) fn changes(&mut self) -> Option<Changes> {
        Some(self.pages.as_mut()?.changes())
    }

    /// The ops an event stands for, or why it is left out.
    fn ops(&mut self, event: &Event) -> Result<Vec<KvOp>, &'static str> {
        match (event, &self.pages) {
            (Event::Stored(stored), Some(_)) => self.gather(stored),
            (Event::Removed(removed), Some(_)) => self.remove_pages(removed),
            (Event::Moved(moved), Some(_)) => self.move_page(moved),
            _ => self.op(event).map(|op| op.into_iter().collect()),
        }
    }

    /// The op an event stands for, none if it changes nothing, or why it is left out.
    fn op(&mut self, event: &Event) -> Result<Option<KvOp>, &'static str> {
        match event {
            Event::Stored(stored) => self.stored(stored).map(|it| Some(KvOp::Stored(it))),
            Event::Removed(removed) => {
                let op = KvOp::Removed {
                    group: self.indexed_group(removed.group)?,
                    engine_hashes: removed.block_hashes.clone(),
                    tier: tier(&removed.medium)?,
                };
                Ok((!removed.block_hashes.is_empty()).then_some(op))
            }
            Event::Moved(moved) => Ok(Some(KvOp::Retiered {
                group: 0,
                engine_hashes: vec![moved.block_hash.clone()],
                from: tier(&moved.from)?,
                to: tier(&moved.to)?,
            })),
            // It comes from engines whose events are drained, and a drain says from which tiers.
            Event::Gone { .. } => Err("gone"),
            Event::Cleared | Event::Created { .. } => {
                self.salts = Salts::default();
                if let Some(pages) = &mut self.pages {
                    pages.clear();
                }
                Ok(Some(KvOp::Cleared))
            }
            Event::NothingMoved => Ok(None),
            Event::Unknown { .. } => Err("unknown_event"),
            Event::Malformed { why } => Err(why.label()),
        }
    }

    fn stored(&mut self, stored: &Stored) -> Result<StoredBlocks, &'static str> {
        let tier = tier(&stored.medium)?;
        let full = stored.full_blocks().map_err(|why| why.label())?;
        if stored.block_size != self.block_size.get() {
            return Err("block_size");
        }
        let group = self.stored_group(stored)?;
        let salt = self.salt_of(stored);
        let namespace = Namespace {
            model: self.model.clone(),
            lora: lora_of(stored),
            salt,
            block_size: self.block_size,
        };
        let count = full.len();
        let tokens = &stored.token_ids[..count * self.block_size.get() as usize];
        let contents = block_hashes(tokens, self.block_size, namespace.seed());
        let blocks: Vec<StoredBlock> = full
            .zip(contents)
            .map(|(block, block_hash)| StoredBlock {
                engine_hash: block.engine_hash.clone(),
                block_hash,
            })
            .collect();
        if let Some(salt) = &namespace.salt {
            let hashes = blocks.iter().map(|block| block.engine_hash.clone());
            self.salts.remember(hashes, salt);
        }
        Ok(StoredBlocks {
            group,
            parent: stored.parent.clone(),
            blocks,
            tier,
            namespace,
            session: self.session_tag(stored),
        })
    }

    /// The group of a store, if it is the one indexed: the first seen.
    fn stored_group(&mut self, stored: &Stored) -> Result<u32, &'static str> {
        let group = stored.group.unwrap_or(0);
        if *self.group.get_or_insert(group) != group {
            return Err("other_group");
        }
        Ok(group)
    }

    /// The store's own salt, else its parent's. A parent whose salt was forgotten counts as unsalted: the
    /// blocks then hang on a salted sequence under hashes that no request asks for, so they are not found,
    /// but they are not taken for an unsalted request's either.
    fn salt_of(&self, stored: &Stored) -> Option<Arc<str>> {
        let own = stored.salt.as_ref().filter(|salt| !salt.is_empty());
        let inherited = || self.salts.of(stored.parent.as_ref()?);
        own.cloned().or_else(inherited)
    }

    fn session_tag(&self, stored: &Stored) -> Option<SessionTag> {
        let secret = self.session_secret.as_ref()?;
        let session = stored.session.as_ref()?;
        Some(SessionTag::of(session, secret.as_bytes()))
    }

    fn indexed_group(&self, group: Option<u32>) -> Result<u32, &'static str> {
        let group = group.unwrap_or(0);
        match self.group {
            Some(indexed) if indexed != group => Err("other_group"),
            _ => Ok(group),
        }
    }
}

/// The salts of engine hashes, oldest first out.
#[derive(Debug, Default)]
struct Salts {
    of: HashMap<EngineHash, Arc<str>>,
    order: VecDeque<EngineHash>,
}

impl Salts {
    fn of(&self, engine_hash: &EngineHash) -> Option<Arc<str>> {
        self.of.get(engine_hash).cloned()
    }

    fn remember(&mut self, engine_hashes: impl Iterator<Item = EngineHash>, salt: &Arc<str>) {
        for engine_hash in engine_hashes {
            if self.of.insert(engine_hash.clone(), salt.clone()).is_none() {
                self.order.push_back(engine_hash);
            }
        }
        while MAX_SALTED < self.order.len() {
            if let Some(oldest) = self.order.pop_front() {
                self.of.remove(&oldest);
            }
        }
    }
}

fn lora_of(stored: &Stored) -> Option<Arc<str>> {
    match &stored.lora {
        Some(Lora::Named(name)) => Some(name.clone()).filter(|it| !it.is_empty()),
        Some(Lora::Unnamed(_)) | None => None,
    }
}

fn tier(medium: &Medium) -> Result<Tier, &'static str> {
    match medium {
        Medium::Tier(tier) => Ok(*tier),
        Medium::Remote => Err("remote_medium"),
        Medium::Unknown(_) => Err("unknown_medium"),
    }
}

#[cfg(test)]
mod captured;
#[cfg(test)]
mod salts;
#[cfg(test)]
mod tests;
