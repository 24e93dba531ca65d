//! Reads one rank's PUB socket into a bounded queue, reconnecting for ever.
//!
//! It decides nothing: what does not fit into the queue is dropped and the queue's reader is told once there
//! is room, so that it can ask the engine again.

use std::time::Duration;

use bytes::Bytes;
use domain::RankEndpoint;
use engine_wire::{EventBatch, decode_batch, decode_frames};
use event_feed::Message;
use futures::StreamExt;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use zeromq::{Socket, SocketEvent, SocketRecv, SubSocket, ZmqError, ZmqMessage};

use crate::metrics::RankMetrics;
use crate::warnings::Warnings;

/// Messages read ahead of the rank's task. A scheduler step publishes one, so this is some seconds' worth,
/// of at most a few hundred kilobytes each.
pub(crate) const QUEUE: usize = 256;
/// A connection that takes longer has failed.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// The first and the longest wait before another connection.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

type SocketEvents = futures::channel::mpsc::Receiver<SocketEvent>;

/// What a rank's task is told.
#[derive(Debug)]
pub(crate) enum Intake {
    /// The socket is connected; what was published before may be missing.
    Connected,
    /// It cannot be connected; it goes on trying.
    Unreachable,
    Message(Message<EventBatch>),
    /// Messages did not fit into the queue.
    Lost,
}

pub(crate) struct Subscriber {
    pub(crate) endpoint: RankEndpoint,
    pub(crate) to: mpsc::Sender<Intake>,
    pub(crate) metrics: RankMetrics,
    pub(crate) warnings: Warnings,
}

impl Subscriber {
    /// Reads until nobody receives any more.
    pub(crate) async fn run(mut self) {
        let mut wait = RETRY.0;
        while !self.to.is_closed() {
            match self.connect().await {
                Ok((socket, events)) => {
                    wait = RETRY.0;
                    self.read(socket, events).await;
                    tracing::info!(endpoint = self.endpoint.publish, "disconnected");
                }
                Err(error) => {
                    if self.warnings.is_due("connect") {
                        tracing::warn!(endpoint = self.endpoint.publish, %error, "connect failed");
                    }
                    if self.to.send(Intake::Unreachable).await.is_err() {
                        return;
                    }
                }
            }
            tokio::select! {
                biased;
                () = self.to.closed() => return,
                () = sleep(wait) => wait = RETRY.1.min(wait * 2),
            }
        }
    }

    async fn connect(&self) -> Result<(SubSocket, SocketEvents), ZmqError> {
        let mut socket = SubSocket::new();
        let events = socket.monitor();
        socket.subscribe(&self.endpoint.topic).await?;
        timeout(CONNECT_TIMEOUT, socket.connect(&self.endpoint.publish))
            .await
            .map_err(|_| ZmqError::Other("no connection in time"))??;
        Ok((socket, events))
    }

    /// Reads until the connection breaks. The socket would reconnect by itself, but then the moment in which
    /// messages were lost would pass unseen, and its waits grow to half a minute.
    async fn read(&mut self, mut socket: SubSocket, mut events: SocketEvents) {
        if self.to.send(Intake::Connected).await.is_err() {
            return;
        }
        let queue = self.to.clone();
        let mut lost = false;
        loop {
            tokio::select! {
                biased;
                () = queue.closed() => return,
                Some(event) = events.next() => {
                    if matches!(event, SocketEvent::Disconnected(_)) {
                        return;
                    }
                }
                Ok(permit) = queue.reserve(), if lost => {
                    permit.send(Intake::Lost);
                    lost = false;
                }
                message = socket.recv() => match message {
                    Ok(message) => lost |= !self.pass_on(&message, lost),
                    Err(error) => {
                        tracing::info!(endpoint = self.endpoint.publish, %error, "receive failed");
                        return;
                    }
                },
            }
        }
    }

    /// Whether nothing was lost.
    fn pass_on(&mut self, message: &ZmqMessage, lost: bool) -> bool {
        let Some(message) = self.decode(message) else {
            return true;
        };
        // After a loss the reader must hear of it before it hears of what followed.
        if !lost && self.to.try_send(Intake::Message(message)).is_ok() {
            return true;
        }
        self.metrics.event("overflow");
        false
    }

    /// What is unreadable is counted and left out: its number is then missing, which the reader notices.
    fn decode(&mut self, message: &ZmqMessage) -> Option<Message<EventBatch>> {
        let frames = frames_of(message);
        let (seq, payload) = match decode_frames(&frames) {
            Ok(live) => (live.seq, live.payload),
            Err(error) => {
                self.refuse(error.label(), &error);
                return None;
            }
        };
        match decode_batch(payload) {
            Ok(batch) => Some(Message {
                seq,
                engine_ts: batch.ts,
                payload: batch,
            }),
            Err(error) => {
                self.refuse(error.label(), &error);
                None
            }
        }
    }

    fn refuse(&mut self, label: &'static str, error: &dyn std::fmt::Display) {
        self.metrics.event(label);
        if self.warnings.is_due(label) {
            tracing::warn!(
                endpoint = self.endpoint.publish,
                %error,
                "unreadable message"
            );
        }
    }
}

/// The frames of a message.
pub(crate) fn frames_of(message: &ZmqMessage) -> Vec<&Bytes> {
    message.iter().collect()
}
