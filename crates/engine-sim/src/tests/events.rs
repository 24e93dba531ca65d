//! KV events on the wire.

use std::collections::BTreeMap;
use std::time::Duration;

use domain::{DpRank, EngineHash, EventSeq, HashSeed, SequenceHash, block_hashes, sequence_hashes};
use engine_wire::{
    Event, EventBatch, Replay, Stored, decode_batch, decode_frames, decode_replay,
    replay_request_frames,
};
use serde_json::{Value, json};
use zeromq::{DealerSocket, Socket as _, SocketRecv as _, SocketSend as _, SubSocket, ZmqMessage};

use super::client::{PATIENCE, Sim, config, words};
use crate::Config;

/// What a subscriber that starts with the engine knows of one rank: copies of each block, and the content
/// hash behind each engine hash.
#[derive(Debug, Default)]
struct Known {
    copies: BTreeMap<EngineHash, u32>,
    sequence: BTreeMap<EngineHash, SequenceHash>,
    salts: BTreeMap<EngineHash, Option<String>>,
}

impl Known {
    fn apply(&mut self, batch: &EventBatch) {
        for event in &batch.events {
            match event {
                Event::Stored(stored) => self.store(stored),
                Event::Removed(removed) => {
                    for hash in &removed.block_hashes {
                        let copies = self.copies.get_mut(hash).unwrap();
                        *copies -= 1;
                        if *copies == 0 {
                            self.copies.remove(hash);
                        }
                    }
                }
                Event::Cleared => *self = Self::default(),
                other => panic!("{other:?}"),
            }
        }
    }

    fn store(&mut self, stored: &Stored) {
        let parent = stored.parent.as_ref();
        let salt = match parent {
            Some(parent) => self.salts[parent].clone(),
            None => stored.salt.as_deref().map(str::to_owned),
        };
        let size = domain::BlockSize::new(stored.block_size).unwrap();
        let seed = HashSeed::of(None, salt.as_deref());
        let blocks = block_hashes(&stored.token_ids, size, seed);
        assert_eq!(blocks.len(), stored.block_hashes.len());
        let mut last = parent.map(|parent| self.sequence[parent]);
        for (hash, block) in stored.block_hashes.iter().zip(blocks) {
            let sequence = match last {
                Some(last) => last.extend(block),
                None => sequence_hashes(&[block])[0],
            };
            *self.copies.entry(hash.clone()).or_default() += 1;
            self.sequence.insert(hash.clone(), sequence);
            self.salts.insert(hash.clone(), salt.clone());
            last = Some(sequence);
        }
    }

    /// As `/debug/kv_blocks?list=1` says it.
    fn summary(&self) -> Value {
        let mut held: Vec<_> = self.copies.keys().map(|it| self.sequence[it]).collect();
        held.sort_unstable();
        let terms = held.iter().map(|it| it.digest_term());
        let digest = terms.fold(0_u64, u64::wrapping_add);
        let hashes: Vec<_> = held.iter().map(|it| it.get().to_string()).collect();
        json!({"blocks": held.len(), "digest": format!("{digest:016x}"), "sequence_hashes": hashes})
    }
}

/// All batches that a rank still keeps, from `first` on.
pub(super) async fn replayed(sim: &Sim, rank: usize, first: u64) -> Vec<(EventSeq, EventBatch)> {
    let endpoint = sim.endpoints[rank].replay.as_ref().unwrap();
    let mut socket = DealerSocket::new();
    socket.connect(endpoint).await.unwrap();
    let frames = replay_request_frames(EventSeq::new(first)).map(bytes::Bytes::from);
    let request = ZmqMessage::try_from(frames.to_vec()).unwrap();
    socket.send(request).await.unwrap();
    let mut batches = Vec::new();
    loop {
        let answer = tokio::time::timeout(PATIENCE, socket.recv()).await.unwrap();
        match decode_replay(&answer.unwrap().into_vec()).unwrap() {
            Replay::End => return batches,
            Replay::Batch { seq, payload } => batches.push((seq, decode_batch(payload).unwrap())),
        }
    }
}

async fn debug_blocks(sim: &Sim, rank: usize) -> Value {
    sim.get("/debug/kv_blocks?list=1").await["ranks"][rank.to_string()].clone()
}

/// Requests that share prefixes, evict, repeat and salt.
async fn work(sim: &Sim) {
    for turn in 0..12 {
        let shared = words("shared", 30 + 20 * (turn % 3));
        let prompt = shared + &words(&format!("own{turn}."), 200);
        let mut body = json!({"prompt": prompt, "max_tokens": 40, "session_id": "s-1"});
        if turn % 4 == 3 {
            body["cache_salt"] = json!("tenant-a");
        }
        for _ in 0..=(turn % 2) {
            let headers = [(
                "X-data-parallel-rank",
                if turn % 3 == 0 { "1" } else { "0" },
            )];
            let (status, answer) = sim
                .post_with("/v1/completions", &headers, body.clone())
                .await;
            assert!(status.is_success(), "{answer}");
        }
    }
}

fn small() -> Config {
    Config {
        kv_blocks: 40,
        ..config()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_replayed_from_the_start_add_up_to_what_each_rank_holds() {
    let sim = Sim::start(small()).await;
    work(&sim).await;
    for rank in 0..2 {
        let batches = replayed(&sim, rank, 0).await;
        let mut known = Known::default();
        for (at, (seq, batch)) in batches.iter().enumerate() {
            assert_eq!(*seq, EventSeq::new(at as u64));
            assert_eq!(batch.dp_rank, Some(DpRank::new(rank as u32)));
            known.apply(batch);
        }
        assert_eq!(known.summary(), debug_blocks(&sim, rank).await);
        let events = || batches.iter().flat_map(|(_, batch)| &batch.events);
        assert!(events().any(|it| matches!(it, Event::Removed(_))));
        let of_session = |it: &Event| matches!(it, Event::Stored(stored) if stored.session.as_deref() == Some("s-1"));
        assert!(events().any(of_session));
    }
    sim.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscriber_hears_live_what_replay_tells_later() {
    let sim = Sim::start(small()).await;
    let mut subscriber = SubSocket::new();
    subscriber.connect(&sim.endpoints[0].publish).await.unwrap();
    subscriber.subscribe("kv-events").await.unwrap();
    // Until the subscription has arrived nothing is heard, so ask until something is.
    let first = async {
        loop {
            let prompt: Vec<u32> = (0..32).map(|at| at * 7).collect();
            let body = json!({"prompt": prompt, "max_tokens": 1});
            let headers = [("X-data-parallel-rank", "0")];
            sim.post_with("/v1/completions", &headers, body).await;
            let heard = tokio::time::timeout(Duration::from_millis(200), subscriber.recv()).await;
            if let Ok(message) = heard {
                return message.unwrap();
            }
        }
    };
    let heard = tokio::time::timeout(PATIENCE, first)
        .await
        .unwrap()
        .into_vec();
    let message = decode_frames(&heard).unwrap();
    let batch = decode_batch(message.payload).unwrap();
    let later = replayed(&sim, 0, message.seq.get()).await;
    assert_eq!(later[0], (message.seq, batch));
    sim.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_last_batches_are_kept_for_replay() {
    let sim = Sim::start(Config {
        buffer_steps: 3,
        ..small()
    })
    .await;
    work(&sim).await;
    let kept = replayed(&sim, 0, 0).await;
    assert_eq!(kept.len(), 3);
    assert!(kept[0].0 > EventSeq::new(3));
    sim.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_cache_is_empty_at_once_and_announced_with_the_next_request() {
    let sim = Sim::start(small()).await;
    work(&sim).await;
    let before = replayed(&sim, 0, 0).await.len();
    let (_, reset) = sim.post("/reset_prefix_cache", json!({})).await;
    assert_eq!(reset, json!({"success": true}));
    assert_eq!(debug_blocks(&sim, 0).await["blocks"], 0);
    assert_eq!(replayed(&sim, 0, 0).await.len(), before);
    sim.chat(
        "0",
        &json!([{"role": "user", "content": words("new", 30)}]),
        1,
    )
    .await;
    let batches = replayed(&sim, 0, before as u64).await;
    assert_eq!(batches[0].1.events[0], Event::Cleared);
    sim.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_salt_keeps_the_same_tokens_apart() {
    let sim = Sim::start(config()).await;
    let mut cached = Vec::new();
    for salt in [json!(null), json!("a"), json!("b"), json!("a")] {
        let body = json!({"prompt": words("same", 40), "max_tokens": 1, "cache_salt": salt});
        let headers = [("X-data-parallel-rank", "0")];
        let (_, answer) = sim.post_with("/v1/completions", &headers, body).await;
        cached.push(answer["usage"]["prompt_tokens_details"]["cached_tokens"].clone());
    }
    assert_eq!(cached, [0, 0, 0, 32]);
    sim.stop().await;
}
