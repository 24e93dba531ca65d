//! The KV events of a fake TensorRT-LLM, buffered until somebody asks for them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use domain::DpRank;
use engine_wire::Event;
use engine_wire::trtllm::encode_item;

use crate::Config;
use crate::dialect::Dialect;

/// The buffers of all ranks. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Drained {
    /// Guards the buffers and their counts.
    ranks: Arc<Mutex<Vec<Buffer>>>,
    /// Events that each keeps; of more the oldest are dropped without a word.
    keep: usize,
    /// Blocks of one rank.
    kv_blocks: u64,
    /// The longest prompt, in tokens: the only attention window.
    window: u64,
}

#[derive(Clone, Debug, Default)]
struct Buffer {
    next_id: u64,
    events: VecDeque<String>,
}

impl Drained {
    /// The buffers of an engine whose events are drained; none of another, or without events.
    pub(crate) fn of(config: &Config) -> Option<Self> {
        if config.engine != Dialect::TensorRtLlm || config.kv_events_port.is_none() {
            return None;
        }
        let drained = Self {
            ranks: Arc::new(Mutex::new(vec![Buffer::default(); config.dp_size as usize])),
            keep: config.buffer_steps as usize,
            kv_blocks: config.kv_blocks.into(),
            window: u64::from(config.kv_blocks) * u64::from(config.block_size),
        };
        drained.restart();
        Some(drained)
    }

    /// A cache came into being.
    pub(crate) fn created(&self) -> Event {
        Event::Created {
            blocks_per_level: vec![self.kv_blocks, 0],
        }
    }

    /// Buffers what a rank has to say.
    pub(crate) fn say(&self, rank: DpRank, event: &Event) {
        let (keep, window) = (self.keep, self.window);
        self.with(|ranks| {
            let Some(buffer) = ranks.get_mut(rank.get() as usize) else {
                return;
            };
            if let Some(item) = encode_item(buffer.next_id, rank, window, event) {
                buffer.next_id += 1;
                buffer.events.push_back(item);
            }
            while buffer.events.len() > keep {
                buffer.events.pop_front();
            }
        });
    }

    /// The engine begins anew, and so do the counts.
    pub(crate) fn restart(&self) {
        let ranks = self.with(|ranks| {
            ranks.fill(Buffer::default());
            ranks.len() as u32
        });
        for rank in 0..ranks {
            self.say(DpRank::new(rank), &self.created());
        }
    }

    /// All that is buffered, which nobody gets again: a JSON array.
    pub(crate) fn take(&self) -> String {
        let taken = self.with(|ranks| {
            let events = ranks.iter_mut().flat_map(|it| it.events.drain(..));
            events.collect::<Vec<_>>()
        });
        format!("[{}]", taken.join(","))
    }

    fn with<T>(&self, then: impl FnOnce(&mut Vec<Buffer>) -> T) -> T {
        // Nobody can leave a buffer half changed.
        then(&mut self.ranks.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
