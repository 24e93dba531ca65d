//! What real engines sent, through the translator into an index, against a naive replay of the same events.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use domain::{Depths, HashSeed, Target, sequence_hashes};
use engine_wire::{decode_batch, decode_frames};
use prefix_index::PrefixIndex;
use serde_json::Value;

use super::*;

/// Every captured session and every hand-made one of an engine's own publisher.
fn streams() -> BTreeMap<String, Vec<(EventSeq, EventBatch)>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine-wire/testdata");
    let mut streams: BTreeMap<String, Vec<_>> = BTreeMap::new();
    let mut todo: Vec<_> = ["sglang", "sglang-real", "vllm", "vllm-real"]
        .map(|it| root.join(it))
        .into();
    let mut files = Vec::new();
    while let Some(path) = todo.pop() {
        if path.is_dir() {
            todo.extend(
                std::fs::read_dir(path)
                    .unwrap()
                    .map(|it| it.unwrap().path()),
            );
        } else {
            files.push(path);
        }
    }
    files.sort();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let documents = serde_json::Deserializer::from_str(&text).into_iter::<Value>();
        for document in documents.map_while(Result::ok) {
            let messages = match document.get("messages") {
                Some(messages) => messages.as_array().unwrap().clone(),
                None => vec![document],
            };
            for message in messages {
                let Some((seq, batch)) = decoded(&message) else {
                    continue;
                };
                let rank = batch.dp_rank.map_or(0, |it| it.get());
                // One message a file there, one session a file here.
                let is_session = message.get("ep").is_some();
                let session = if is_session {
                    &file
                } else {
                    file.parent().unwrap()
                };
                let name = format!("{}/{rank}", session.strip_prefix(&root).unwrap().display());
                streams.entry(name).or_default().push((seq, batch));
            }
        }
    }
    streams
}

fn decoded(message: &Value) -> Option<(EventSeq, EventBatch)> {
    let frames: Vec<Vec<u8>> = message
        .get("frames_hex")?
        .as_array()?
        .iter()
        .map(|it| unhex(it.as_str().unwrap()))
        .collect();
    let live = decode_frames(&frames).ok()?;
    Some((live.seq, decode_batch(live.payload).ok()?))
}

fn unhex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks(2);
    digits
        .map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

/// All tokens up to the end of a block, under their salt and adapter.
type Prefix = (Option<Arc<str>>, Option<Arc<str>>, Vec<u32>);

/// Copies of each block in each tier, by the engine's name, and what the name stands for.
#[derive(Default)]
struct Naive {
    held: BTreeMap<EngineHash, (Prefix, BTreeMap<Tier, u32>)>,
    /// Everything that was ever there, held or not.
    ever: BTreeSet<Prefix>,
    block_sizes: BTreeSet<u32>,
}

impl Naive {
    /// Events of blocks of `block_size` tokens; `counted` where the engine announces each copy.
    fn replay(stream: &[(EventSeq, EventBatch)], block_size: u32, counted: bool) -> Self {
        let mut naive = Self::default();
        for event in stream.iter().flat_map(|(_, batch)| &batch.events) {
            match event {
                Event::Stored(stored) => naive.store(stored, block_size, counted),
                Event::Removed(removed) => {
                    for hash in &removed.block_hashes {
                        naive.remove(hash, removed.medium.tier());
                    }
                }
                Event::Cleared => naive.held.clear(),
                _ => {}
            }
        }
        naive
    }

    fn store(&mut self, stored: &Stored, block_size: u32, counted: bool) {
        self.block_sizes.insert(stored.block_size);
        let Some(tier) = stored.medium.tier() else {
            return;
        };
        if stored.block_size != block_size || stored.full_blocks().is_err() {
            return;
        }
        let mut prefix: Prefix = match &stored.parent {
            Some(parent) => match self.held.get(parent) {
                // Some hand-made ones change the adapter on the way, which no engine does.
                Some((prefix, _)) if prefix.1 == lora_of(stored) => prefix.clone(),
                _ => return,
            },
            None => (stored.salt.clone(), lora_of(stored), Vec::new()),
        };
        for block in stored.full_blocks().unwrap() {
            prefix.2.extend(block.token_ids);
            self.ever.insert(prefix.clone());
            let held = self.held.entry(block.engine_hash.clone());
            let (named, tiers) = held.or_insert((prefix.clone(), BTreeMap::new()));
            // An engine has only one block under a name.
            if *named != prefix {
                (*named, *tiers) = (prefix.clone(), BTreeMap::new());
            }
            let copies = tiers.entry(tier).or_default();
            *copies = if counted { *copies + 1 } else { 1 };
        }
    }

    fn remove(&mut self, hash: &EngineHash, tier: Option<Tier>) {
        let Some(((_, tiers), tier)) = self.held.get_mut(hash).zip(tier) else {
            return;
        };
        let Some(copies) = tiers.get_mut(&tier) else {
            return;
        };
        *copies -= 1;
        if *copies == 0 {
            tiers.remove(&tier);
        }
        if tiers.is_empty() {
            self.held.remove(hash);
        }
    }

    /// The fastest tier of what ends a prefix.
    fn tier(&self, prefix: &Prefix) -> Option<Tier> {
        let of_prefix = self.held.values().filter(|(it, _)| it == prefix);
        of_prefix.flat_map(|(_, tiers)| tiers.keys()).min().copied()
    }

    /// Leading blocks of `blocks` pages each, through each tier.
    fn depths(&self, (salt, lora, tokens): &Prefix, page_size: u32, pages: usize) -> Depths {
        let page_size = page_size as usize;
        let through = |last: Tier| {
            let is_held = |block: &usize| {
                let ends = (1..=pages).map(|page| (block * pages + page) * page_size);
                ends.into_iter().all(|end| {
                    let prefix = (salt.clone(), lora.clone(), tokens[..end].to_vec());
                    self.tier(&prefix).is_some_and(|tier| tier <= last)
                })
            };
            let blocks = tokens.len() / (page_size * pages);
            (0..blocks).take_while(is_held).count() as u32
        };
        Depths {
            gpu: through(Tier::Gpu),
            host: through(Tier::Host),
            disk: through(Tier::Disk),
        }
    }
}

fn target() -> Target {
    "w#1/0".parse().unwrap()
}

fn followed(translator: &mut Translator, stream: &[(EventSeq, EventBatch)]) -> PrefixIndex {
    let mut index = PrefixIndex::new(0);
    for (number, (_, batch)) in stream.iter().enumerate() {
        // Sessions were captured from somewhere in the middle, and of some files only a part is live.
        let seq = EventSeq::new(number as u64);
        for op in translator.translate(seq, batch).ops {
            index.apply(&target(), &op).unwrap();
        }
    }
    index
}

/// Compares the answers for every prefix there ever was, and for some that never were. Returns how many blocks are
/// held at the end.
fn check(name: &str, stream: &[(EventSeq, EventBatch)], page_size: u32, pages: usize) -> u32 {
    let size = |tokens| BlockSize::new(tokens).unwrap();
    let block_size = size(page_size * pages as u32);
    let mut translator = Translator::new("m".parse().unwrap(), block_size, None);
    if 1 < pages {
        translator = translator.gathering(size(page_size), None);
    }
    let naive = Naive::replay(stream, page_size, pages == 1);
    let index = followed(&mut translator, stream);
    let mut held = 0;
    for prefix in &naive.ever {
        let other: Option<Arc<str>> = Some("nobody's".into());
        for salt in [prefix.0.clone(), None, other] {
            let asked = (salt, prefix.1.clone(), prefix.2.clone());
            let namespace = Namespace {
                model: "m".parse().unwrap(),
                lora: asked.1.clone(),
                salt: asked.0.clone(),
                block_size,
            };
            let seed = HashSeed::of(asked.1.as_deref(), asked.0.as_deref());
            let blocks = block_hashes(&asked.2, block_size, seed);
            let overlap = index.overlap(&namespace, &sequence_hashes(&blocks));
            let depths = overlap
                .groups
                .first()
                .map(|it| it.depths)
                .unwrap_or_default();
            let expected = naive.depths(&asked, page_size, pages);
            assert_eq!(depths, expected, "{name} {:?}", asked.2.len());
            held = held.max(expected.disk);
        }
    }
    held
}

#[test]
fn captured_streams_become_the_index_that_a_naive_replay_has() {
    let streams = streams();
    let mut held = 0;
    for (name, stream) in &streams {
        let sizes = Naive::replay(stream, 0, true).block_sizes;
        for size in sizes.into_iter().filter(|it| 0 < *it) {
            held += check(name, stream, size, 1);
        }
    }
    for expected in [
        "vllm-real/evict-removed.json/0",
        "sglang-real/two-turn-salt-flush.json/0",
    ] {
        assert!(streams.contains_key(expected), "{:?}", streams.keys());
    }
    assert!(40 < held, "{held}");
}

#[test]
fn captured_pages_of_sglang_are_gathered_into_larger_blocks() {
    let mut held = 0;
    for (name, stream) in streams() {
        if !name.starts_with("sglang") {
            continue;
        }
        let sizes = Naive::replay(&stream, 0, true).block_sizes;
        for size in sizes.into_iter().filter(|it| 0 < *it) {
            for pages in [2, 3, 4] {
                held += check(&name, &stream, size, pages);
            }
        }
    }
    assert!(20 < held, "{held}");
}

/// Stored on the host, then removed from the GPU, as HiCache does.
#[test]
fn a_page_that_is_stored_on_the_host_before_it_leaves_the_gpu_is_never_gone() {
    let streams = streams();
    let stream = &streams["sglang/0.5.23/0"];
    let moves = |batch: &EventBatch| {
        matches!(
            &batch.events[..],
            [Event::Stored(stored), Event::Removed(removed)]
                if stored.medium == Medium::Tier(Tier::Host) && removed.medium == Medium::Tier(Tier::Gpu)
        )
    };
    let (_, moved) = stream.iter().find(|(_, batch)| moves(batch)).unwrap();
    let Event::Stored(on_host) = &moved.events[0] else {
        panic!("it begins with a store");
    };
    let on_gpu = Stored {
        medium: Medium::Tier(Tier::Gpu),
        ..on_host.clone()
    };
    let first = EventBatch {
        events: vec![Event::Stored(on_gpu)],
        ..moved.clone()
    };
    let stream = [(EventSeq::new(0), first), (EventSeq::new(1), moved.clone())];
    assert_eq!(check("moved", &stream, on_host.block_size, 1), 1);
}

/// Pairs of neighbours in place of tokens, as with EAGLE: the first of each counts.
#[test]
fn pages_of_pairs_are_gathered_by_the_first_of_each_pair() {
    let streams = streams();
    let pairs = streams["sglang/0.5.23/0"].iter().find_map(|(seq, batch)| {
        let is_pairs = |event: &Event| matches!(event, Event::Stored(it) if it.token_ids == [1, 2]);
        batch
            .events
            .iter()
            .any(is_pairs)
            .then(|| (*seq, batch.clone()))
    });
    let (_, batch) = pairs.unwrap();
    let Event::Stored(first) = &batch.events[0] else {
        panic!("it is a store");
    };
    let second = Stored {
        block_hashes: vec![EngineHash::Int(77)],
        parent: first.block_hashes.last().cloned(),
        token_ids: vec![3, 4],
        ..first.clone()
    };
    let next = EventBatch {
        events: vec![Event::Stored(second)],
        ..batch.clone()
    };
    let stream = [(EventSeq::new(0), batch.clone()), (EventSeq::new(1), next)];
    assert_eq!(check("pairs", &stream, 2, 2), 1);
}
