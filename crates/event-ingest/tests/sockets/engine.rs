//! A tiny engine: per rank a PUB socket, and a ROUTER socket over a ring of what was published.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::{DpRank, EngineHash, EventSeq, RankEndpoint, Tier, Timestamp};
use engine_wire::{
    Medium, SpecKind, Stored, decode_replay_request, live_frames, replay_end_frames, replay_frames,
};
use engine_wire::{sglang, vllm::BatchEncoder};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use zeromq::{PubSocket, RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage};

const TOPIC: &str = "kv@m";
/// Tokens per block.
pub(crate) const BLOCK: u32 = 4;

/// What a rank published, as far as its ring reaches.
#[derive(Default)]
struct Ring {
    messages: VecDeque<(u64, Vec<u8>)>,
    asked: Vec<u64>,
    endless: bool,
}

/// One rank of the engine.
pub(crate) struct Rank {
    dp_rank: DpRank,
    /// What its batches call it.
    pub(crate) named: DpRank,
    window: usize,
    live: PubSocket,
    ring: Arc<Mutex<Ring>>,
    pub(crate) endpoint: RankEndpoint,
    next: u64,
    clock: u64,
    _replays: JoinSet<()>,
}

impl Rank {
    pub(crate) async fn start(dp_rank: u32, window: usize) -> Self {
        let any = "tcp://127.0.0.1:0".to_owned();
        Self::bind(DpRank::new(dp_rank), window, 1_000, &any, &any).await
    }

    /// The same rank in another process: same ports, numbers from 0, a later clock.
    pub(crate) async fn restart(self) -> Self {
        let (publish, replay) = (self.endpoint.publish, self.endpoint.replay.unwrap());
        let (dp_rank, window, clock) = (self.dp_rank, self.window, self.clock + 1_000);
        drop((self.live, self._replays));
        Self::bind(dp_rank, window, clock, &publish, &replay).await
    }

    async fn bind(dp_rank: DpRank, window: usize, clock: u64, publish: &str, replay: &str) -> Self {
        let ring = Arc::new(Mutex::new(Ring::default()));
        let (live, publish) = bound::<PubSocket>(publish).await;
        let (router, replay) = bound::<RouterSocket>(replay).await;
        let mut replays = JoinSet::new();
        replays.spawn(answer(router, ring.clone()));
        Self {
            dp_rank,
            named: dp_rank,
            window,
            live,
            ring,
            endpoint: RankEndpoint {
                dp_rank,
                publish,
                replay: Some(replay),
                topic: TOPIC.to_owned(),
            },
            next: 0,
            clock,
            _replays: replays,
        }
    }

    /// Publishes the next message: one block named after its number.
    pub(crate) async fn publish(&mut self) {
        let (seq, payload) = self.record();
        self.send(&live_frames(TOPIC, EventSeq::new(seq), payload))
            .await;
    }

    pub(crate) async fn publish_many(&mut self, count: usize) {
        for _ in 0..count {
            self.publish().await;
        }
    }

    /// Publishes whatever SGLang may say, to those who listen or to the ring alone.
    pub(crate) async fn publish_pages(
        &mut self,
        heard: bool,
        events: impl FnOnce(&mut sglang::BatchEncoder),
    ) {
        let mut batch = sglang::BatchEncoder::new();
        events(&mut batch);
        self.clock += 1;
        let payload = batch.finish(Timestamp::from_micros(self.clock * 1_000), self.named);
        let seq = self.keep(&payload);
        if heard {
            self.send(&live_frames(TOPIC, EventSeq::new(seq), payload))
                .await;
        }
    }

    /// Begins anew without a word: the sockets stay, the cache and the numbers do not.
    pub(crate) fn forget(&mut self) {
        self.next = 0;
        self.clock += 1_000;
        self.ring.lock().unwrap().messages.clear();
    }

    /// Publishes a message that nobody hears.
    pub(crate) fn publish_unheard(&mut self) {
        self.record();
    }

    /// Sends whatever frames.
    pub(crate) async fn send<F: AsRef<[u8]>>(&mut self, frames: &[F]) {
        self.live.send(message(frames)).await.unwrap();
    }

    /// From now on each replay sends its first message again and again.
    pub(crate) fn never_end_replays(&self) {
        self.ring.lock().unwrap().endless = true;
    }

    /// How many messages it has published.
    pub(crate) fn published(&self) -> u64 {
        self.next
    }

    /// The numbers from which replays were asked.
    pub(crate) fn asked(&self) -> Vec<u64> {
        self.ring.lock().unwrap().asked.clone()
    }

    fn record(&mut self) -> (u64, Vec<u8>) {
        self.clock += 1;
        let mut batch = BatchEncoder::new();
        batch.stored(&block(self.next));
        let payload = batch.finish(Timestamp::from_micros(self.clock * 1_000), self.named);
        (self.keep(&payload), payload)
    }

    fn keep(&mut self, payload: &[u8]) -> u64 {
        let seq = self.next;
        self.next += 1;
        let mut ring = self.ring.lock().unwrap();
        ring.messages.push_back((seq, payload.to_vec()));
        while self.window < ring.messages.len() {
            ring.messages.pop_front();
        }
        seq
    }
}

/// The block that message `seq` announces.
pub(crate) fn block(seq: u64) -> Stored {
    let first = seq as u32 * BLOCK;
    Stored {
        block_hashes: vec![EngineHash::Int(seq)],
        parent: seq.checked_sub(1).map(EngineHash::Int),
        token_ids: (first..first + BLOCK).collect(),
        opaque_tokens: 0,
        block_size: BLOCK,
        medium: Medium::Tier(Tier::Gpu),
        group: Some(0),
        spec_kind: Some(SpecKind::FullAttention),
        lora: None,
        salt: None,
        session: None,
    }
}

/// Binds, waiting for an earlier owner of the port to let go.
async fn bound<S: Socket>(endpoint: &str) -> (S, String) {
    let binding = async {
        loop {
            let mut socket = S::new();
            if let Ok(endpoint) = socket.bind(endpoint).await {
                return (socket, endpoint.to_string());
            }
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(10), binding).await.unwrap()
}

async fn answer(mut router: RouterSocket, ring: Arc<Mutex<Ring>>) {
    while let Ok(request) = router.recv().await {
        let mut frames = request.into_vec();
        let identity = frames.remove(0);
        let from = decode_replay_request(&frames).unwrap();
        let mut endless;
        let messages: Vec<_> = {
            let mut ring = ring.lock().unwrap();
            ring.asked.push(from.get());
            endless = ring.endless;
            let wanted = ring.messages.iter().filter(|(seq, _)| from.get() <= *seq);
            wanted.cloned().collect()
        };
        while endless && let Some((seq, payload)) = messages.first() {
            let frames = replay_frames(TOPIC, EventSeq::new(*seq), payload.clone());
            let mut answer = message(&frames);
            answer.push_front(identity.clone());
            endless = router.send(answer).await.is_ok();
            sleep(Duration::from_millis(5)).await;
        }
        let batches = messages
            .into_iter()
            .map(|(seq, payload)| replay_frames(TOPIC, EventSeq::new(seq), payload));
        for frames in batches.chain([replay_end_frames()]) {
            let mut answer = message(&frames);
            answer.push_front(identity.clone());
            // Who asked may have left.
            if router.send(answer).await.is_err() {
                break;
            }
        }
    }
}

fn message<F: AsRef<[u8]>>(frames: &[F]) -> ZmqMessage {
    let mut frames = frames
        .iter()
        .map(|frame| bytes::Bytes::copy_from_slice(frame.as_ref()));
    let mut message = ZmqMessage::from(frames.next().unwrap_or_default());
    frames.for_each(|frame| message.push_back(frame));
    message
}
