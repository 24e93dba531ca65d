//! One rank's event sockets: PUB for what happens, ROUTER for what a subscriber has missed.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::line::{LATEST, Line, LineState};
use bytes::Bytes;
use domain::{DpRank, EventSeq, RankEndpoint};
use engine_wire::{decode_replay_request, live_frames, replay_end_frames, replay_frames};
use service_kit::CancellationToken;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tracing::{debug, warn};
use zeromq::{
    Endpoint, PubSocket, RouterSocket, Socket as _, SocketRecv as _, SocketSend as _, ZmqError,
    ZmqMessage,
};

/// Batches on their way from the driver. The driver waits when it is full, as vLLM's scheduler does.
const BATCH_QUEUE: usize = 1024;
/// How long a subscriber may take to accept one replayed batch before its replay is given up.
const REPLAY_PATIENCE: Duration = Duration::from_secs(1);

/// What a publisher is given to publish.
#[derive(Debug)]
pub(crate) struct Publication {
    /// When it came about.
    pub(crate) made: Instant,
    pub(crate) word: Word,
}

/// What came about on a rank.
#[derive(Debug)]
pub(crate) enum Word {
    /// An encoded batch of events.
    Batch(Vec<u8>),
    /// Its engine began anew: so do its sequence numbers, and what it keeps for replay.
    Restart,
}

/// Where a rank publishes.
#[derive(Clone, Debug)]
pub(crate) struct Ports<'a> {
    pub(crate) host: IpAddr,
    /// 0 takes a free one.
    pub(crate) publish: u16,
    /// None without replay, 0 takes a free one.
    pub(crate) replay: Option<u16>,
    pub(crate) topic: &'a str,
    /// How many batches it keeps for replay.
    pub(crate) keep: u32,
    /// How long after it came about it publishes something.
    pub(crate) late: Duration,
    /// Whether its messages are lost, late and repeated on their way.
    pub(crate) lossy: bool,
    /// Whether requests for a replay are lost.
    pub(crate) lossy_replays: bool,
    /// What that follows from.
    pub(crate) seed: u64,
}

/// One rank's sockets, bound.
pub(crate) struct Publisher {
    publish: PubSocket,
    replay: Option<RouterSocket>,
    endpoint: RankEndpoint,
    publications: mpsc::Receiver<Publication>,
    late: Duration,
    next_seq: EventSeq,
    kept: VecDeque<(EventSeq, Vec<u8>)>,
    keep: usize,
    line: Line<ZmqMessage>,
    last_sent: Instant,
}

impl Publisher {
    /// Binds the sockets of `dp_rank`, and returns where its publications go. The error names the port.
    pub(crate) async fn bind(
        dp_rank: DpRank,
        ports: &Ports<'_>,
    ) -> Result<(Self, mpsc::Sender<Publication>), (u16, ZmqError)> {
        let mut publish = PubSocket::new();
        let bound = bind(&mut publish, ports.host, ports.publish).await?;
        let publish_endpoint = advertised(&bound);
        let (replay, replay_endpoint) = match ports.replay {
            None => (None, None),
            Some(port) => {
                let mut socket = RouterSocket::new();
                let bound = bind(&mut socket, ports.host, port).await?;
                (Some(socket), Some(advertised(&bound)))
            }
        };
        let (sender, publications) = mpsc::channel(BATCH_QUEUE);
        let publisher = Self {
            publish,
            replay,
            endpoint: RankEndpoint {
                dp_rank,
                publish: publish_endpoint,
                replay: replay_endpoint,
                topic: ports.topic.to_owned(),
            },
            publications,
            late: ports.late,
            next_seq: EventSeq::new(0),
            kept: VecDeque::new(),
            keep: ports.keep as usize,
            line: Line::new(ports.seed, dp_rank, ports.lossy, ports.lossy_replays),
            last_sent: Instant::now(),
        };
        Ok((publisher, sender))
    }

    /// Where it can be reached.
    pub(crate) fn endpoint(&self) -> &RankEndpoint {
        &self.endpoint
    }

    /// What becomes of its messages.
    pub(crate) fn line(&self) -> LineState {
        self.line.state()
    }

    /// Publishes and replays until told to stop.
    pub(crate) async fn run(mut self, shutdown: CancellationToken) {
        let mut next: Option<Publication> = None;
        loop {
            let due = next.as_ref().map(|it| it.made + self.late);
            let arrives = self.line.is_late().then(|| self.last_sent + LATEST);
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                () = at(due), if due.is_some() => {
                    if let Some(publication) = next.take() {
                        self.speak(publication.word).await;
                    }
                }
                publication = self.publications.recv(), if due.is_none() => match publication {
                    // No timer: it would let a replay that is asked for now come first.
                    Some(publication) if self.late.is_zero() => self.speak(publication.word).await,
                    Some(publication) => next = Some(publication),
                    None => return,
                },
                () = at(arrives), if arrives.is_some() => {
                    for message in self.line.arrive() {
                        self.send(message).await;
                    }
                }
                request = receive(self.replay.as_mut()) => self.answer(request).await,
            }
        }
    }

    async fn speak(&mut self, word: Word) {
        match word {
            Word::Batch(payload) => self.publish(payload).await,
            Word::Restart => {
                self.next_seq = EventSeq::new(0);
                self.kept.clear();
            }
        }
    }

    async fn publish(&mut self, payload: Vec<u8>) {
        let seq = self.next_seq;
        self.next_seq = seq.next();
        if self.keep > 0 {
            if self.kept.len() == self.keep {
                self.kept.pop_front();
            }
            self.kept.push_back((seq, payload.clone()));
        }
        let frames = live_frames(&self.endpoint.topic, seq, payload);
        self.last_sent = Instant::now();
        for message in self.line.carry(message(None, frames)) {
            self.send(message).await;
        }
    }

    async fn send(&mut self, message: ZmqMessage) {
        // PUB drops for subscribers that do not keep up, who see the gap; it has no other error.
        if let Err(error) = self.publish.send(message).await {
            warn!(rank = %self.endpoint.dp_rank, %error, "batch not published");
        }
    }

    async fn answer(&mut self, request: Result<ZmqMessage, ZmqError>) {
        let rank = self.endpoint.dp_rank;
        let frames = match request {
            Ok(message) => message.into_vec(),
            Err(error) => return debug!(%rank, %error, "replay request not received"),
        };
        let Some((peer, request)) = frames.split_first() else {
            return;
        };
        if !self.line.hears_request() {
            return;
        }
        let first = match decode_replay_request(request) {
            Ok(first) => first,
            Err(error) => return warn!(%rank, %error, "not a replay request"),
        };
        if let Err(error) = self.replay_from(first, peer).await {
            debug!(%rank, %first, %error, "replay given up");
        }
    }

    async fn replay_from(&mut self, first: EventSeq, peer: &Bytes) -> Result<(), ZmqError> {
        let Some(socket) = self.replay.as_mut() else {
            return Ok(());
        };
        let topic = &self.endpoint.topic;
        let wanted = self.kept.iter().filter(|(seq, _)| *seq >= first);
        let batches = wanted.map(|(seq, payload)| replay_frames(topic, *seq, payload.clone()));
        for frames in batches.chain([replay_end_frames()]) {
            let sent = socket.send(message(Some(peer), frames));
            match tokio::time::timeout(REPLAY_PATIENCE, sent).await {
                Ok(sent) => sent?,
                Err(_) => return Err(ZmqError::Other("the subscriber does not keep up")),
            }
        }
        Ok(())
    }
}

async fn bind(
    socket: &mut impl zeromq::Socket,
    host: IpAddr,
    port: u16,
) -> Result<Endpoint, (u16, ZmqError)> {
    let address = format!("tcp://{}", SocketAddr::new(host, port));
    socket.bind(&address).await.map_err(|error| (port, error))
}

/// As vLLM writes it: a wildcard stays a star, for the reader to replace by the host it knows.
fn advertised(endpoint: &Endpoint) -> String {
    let text = endpoint.to_string();
    for wildcard in ["tcp://0.0.0.0:", "tcp://[::]:"] {
        if let Some(port) = text.strip_prefix(wildcard) {
            return format!("tcp://*:{port}");
        }
    }
    text
}

async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

async fn receive(socket: Option<&mut RouterSocket>) -> Result<ZmqMessage, ZmqError> {
    match socket {
        Some(socket) => socket.recv().await,
        None => std::future::pending().await,
    }
}

fn message<const N: usize>(peer: Option<&Bytes>, frames: [Vec<u8>; N]) -> ZmqMessage {
    let frames: Vec<Bytes> = peer
        .cloned()
        .into_iter()
        .chain(frames.map(Bytes::from))
        .collect();
    ZmqMessage::try_from(frames).expect("a message has at least one frame")
}
