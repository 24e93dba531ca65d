//! Mooncake traces, and caches that evict as engines do.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use anyhow::Context as _;
use domain::SequenceHash;
use serde::Deserialize;

use crate::event::{Block, Change, Event, Naming, Request};
use crate::random::{Random, mix};

/// Tokens that one id of a trace stands for.
const ID_TOKENS: usize = 512;
/// Tokens of a block.
const BLOCK_TOKENS: usize = 128;
/// Blocks that one target has room for.
const CACHE_BLOCKS: usize = 16_384;
/// Blocks of one event while a prompt is computed.
const PREFILL_BLOCKS: usize = 128;

/// One request of a trace.
#[derive(Clone, Debug, Deserialize)]
pub struct Line {
    input_length: usize,
    output_length: usize,
    hash_ids: Vec<u64>,
    #[serde(default)]
    session_id: Option<String>,
}

/// Reads a trace: one JSON object a line.
pub fn read(path: &Path) -> anyhow::Result<Vec<Line>> {
    let text = std::fs::read_to_string(path)?;
    let line = |(at, line): (usize, &str)| {
        serde_json::from_str(line).with_context(|| format!("line {} is no such request", at + 1))
    };
    let lines: Vec<Line> = text
        .lines()
        .enumerate()
        .map(line)
        .collect::<anyhow::Result<_>>()?;
    anyhow::ensure!(!lines.is_empty(), "it is empty");
    Ok(lines)
}

/// A trace as routers and indexes see it.
pub struct Replay {
    /// What is asked, in order.
    pub requests: Vec<Request>,
    /// What the target that serves each request then announces.
    pub events: Vec<Vec<Event>>,
    caches: Vec<Cache>,
}

impl Replay {
    /// Plays `lines` `copies` times, side by side with contents of their own, over `targets` targets. A session
    /// stays where it began; a request without one goes anywhere.
    pub fn new(lines: &[Line], copies: u64, targets: u32, naming: Naming) -> Self {
        let mut random = Random::new(31);
        let mut played = Self {
            requests: Vec::new(),
            events: Vec::new(),
            caches: vec![Cache::default(); targets as usize],
        };
        let mut sessions: HashMap<(&str, u64), usize> = HashMap::new();
        for (number, line) in lines.iter().enumerate() {
            for copy in 0..copies {
                let mut anywhere = || random.below(targets as usize);
                let target = match line.session_id.as_deref() {
                    Some(session) => *sessions.entry((session, copy)).or_insert_with(anywhere),
                    None => anywhere(),
                };
                let prompt = line.prompt(copy);
                let output = line.output(prompt.len(), mix(number as u64) ^ copy);
                let whole = Request::new(prompt.iter().copied().chain(output).collect());
                let name = |sequence| naming.name(target as u32, sequence);
                let changes = played.caches[target].serve(&whole, prompt.len(), name);
                let target = target as u32;
                let event = |change| Event { target, change };
                played.events.push(changes.into_iter().map(event).collect());
                played.requests.push(Request::new(prompt));
            }
        }
        played
    }

    /// Blocks asked for, stored and evicted.
    pub fn blocks(&self) -> usize {
        let asked: usize = self.requests.iter().map(Request::blocks).sum();
        let changed: usize = self.events.iter().flatten().map(Event::blocks).sum();
        asked + changed
    }

    /// Leading blocks of `request` that each target holds in the end.
    pub fn right(&self, request: &Request) -> Vec<u32> {
        let depth = |it: &Cache| it.depth(request) as u32;
        self.caches.iter().map(depth).collect()
    }
}

impl Line {
    fn prompt(&self, copy: u64) -> Vec<u64> {
        let a_block = |at: usize| {
            let id = self.hash_ids.get(at * BLOCK_TOKENS / ID_TOKENS)?;
            Some(mix(
                mix(*id) ^ mix(copy << 32 | (at % (ID_TOKENS / BLOCK_TOKENS)) as u64)
            ))
        };
        (0..self.input_length / BLOCK_TOKENS)
            .map_while(a_block)
            .collect()
    }

    /// Blocks that decoding fills, which nobody asks for again.
    fn output(&self, prompt: usize, unique: u64) -> Vec<u64> {
        let all = (self.input_length + self.output_length) / BLOCK_TOKENS;
        (prompt..all)
            .map(|at| mix(mix(unique) ^ at as u64))
            .collect()
    }
}

/// One target's blocks: those of a finished request are freed from its end, and the one that was freed first
/// makes room.
#[derive(Clone, Debug, Default)]
struct Cache {
    held: HashMap<SequenceHash, u64>,
    by_age: BTreeMap<u64, SequenceHash>,
    clock: u64,
}

impl Cache {
    /// Serves a request whose first `prompt` blocks are computed at once and the rest one by one.
    fn serve(
        &mut self,
        whole: &Request,
        prompt: usize,
        name: impl Fn(SequenceHash) -> u64,
    ) -> Vec<Change> {
        let mut changes = Vec::new();
        let sequence = &whole.sequence[..whole.blocks().min(CACHE_BLOCKS)];
        let leading = self.depth(whole).min(sequence.len());
        // What is in use cannot be evicted, whatever lies behind a hole neither.
        for block in sequence {
            if let Some(age) = self.held.get(block) {
                self.by_age.remove(age);
            }
        }
        let mut at = leading;
        while at < sequence.len() {
            let event = if at < prompt {
                (prompt - at).min(PREFILL_BLOCKS)
            } else {
                1
            };
            let missing = |it: &&SequenceHash| !self.held.contains_key(it);
            let end = sequence.len().min(at + event);
            let new = sequence[at..end].iter().take_while(missing).count();
            if new == 0 {
                at += 1;
                continue;
            }
            let evicted = self.make_room(new);
            if !evicted.is_empty() {
                changes.push(Change::Removed(evicted.into_iter().map(&name).collect()));
            }
            let block = |at: usize| Block {
                name: name(sequence[at]),
                content: whole.content[at],
            };
            changes.push(Change::Stored {
                parent: at.checked_sub(1).map(|it| block(it).name),
                blocks: (at..at + new).map(block).collect(),
            });
            self.held
                .extend(sequence[at..at + new].iter().map(|it| (*it, 0)));
            at += new;
        }
        for block in sequence.iter().rev() {
            self.clock += 1;
            self.held.insert(*block, self.clock);
            self.by_age.insert(self.clock, *block);
        }
        changes
    }

    fn make_room(&mut self, blocks: usize) -> Vec<SequenceHash> {
        let mut evicted = Vec::new();
        while CACHE_BLOCKS < self.held.len() + blocks {
            let Some((_, block)) = self.by_age.pop_first() else {
                break;
            };
            self.held.remove(&block);
            evicted.push(block);
        }
        evicted
    }

    fn depth(&self, request: &Request) -> usize {
        let held = |it: &&SequenceHash| self.held.contains_key(it);
        request.sequence.iter().take_while(held).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Model;

    fn line(ids: std::ops::Range<u64>) -> Line {
        Line {
            input_length: 512 * ids.clone().count(),
            output_length: 300,
            hash_ids: ids.collect(),
            session_id: Some("one".into()),
        }
    }

    #[test]
    fn what_is_announced_is_what_the_caches_hold() {
        // 20,000 blocks in turn on one target overflow it.
        let lines: Vec<Line> = (0..50).map(|it| line(it * 60..it * 60 + 100)).collect();
        let replay = Replay::new(&lines, 1, 2, Naming::Foreign);
        let mut model = Model::default();
        replay
            .events
            .iter()
            .flatten()
            .for_each(|it| model.apply(it));

        let held: usize = (0..2).map(|it| model.names(it).count()).sum();
        assert_eq!(held, CACHE_BLOCKS);
        for request in &replay.requests {
            assert_eq!(model.depths(request, 2), replay.right(request));
        }
        assert!(
            replay
                .requests
                .iter()
                .any(|it| replay.right(it).iter().any(|it| 0 < *it))
        );
    }

    #[test]
    fn copies_share_nothing_and_ids_are_four_blocks() {
        let replay = Replay::new(&[line(0..3)], 2, 1, Naming::Canonical);

        assert_eq!(replay.requests[0].blocks(), 12);
        assert_ne!(
            replay.requests[0].sequence[0],
            replay.requests[1].sequence[0]
        );
        assert_eq!(replay.blocks(), 2 * (12 + 12 + 2));
    }
}
