//! Asking an engine for messages again: one DEALER connection per replay, read until its end marker.

use std::time::Duration;

use domain::EventSeq;
use engine_wire::{EventBatch, Replay, decode_batch, decode_replay, replay_request_frames};
use event_feed::Message;
use tokio::sync::mpsc;
use tokio::time::timeout;
use zeromq::{DealerSocket, Socket, SocketRecv, SocketSend, ZmqMessage};

use crate::metrics::RankMetrics;
use crate::subscriber::{CONNECT_TIMEOUT, frames_of};

/// Replayed messages read ahead. An engine before vLLM 0.33 drops what is not read soon, beyond a thousand.
pub(crate) const QUEUE: usize = 1_024;
/// How long the engine may be silent the first time it is asked, doubling with each attempt up to the patience that is set:
/// a request that was lost is soon made again, and an engine that is slow gets its time.
const FIRST_PATIENCE: Duration = Duration::from_millis(500);
/// The wait before a replay that learnt nothing is asked again, doubling with each attempt.
const RETRY: Duration = Duration::from_millis(200);
/// The longest such wait.
const MAX_RETRY: Duration = Duration::from_secs(5);

/// A replay in which the engine is never silent, and never at its end, has failed after so many times the silence it
/// may keep: by default two minutes, some hundred times what the largest ring takes.
const LONGEST_IN_PATIENCES: u32 = 24;

/// What a replay brings.
#[derive(Debug)]
pub(crate) enum Replayed {
    Message(Message<EventBatch>),
    End,
    Failed,
}

/// One replay to be asked.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) endpoint: String,
    pub(crate) from: EventSeq,
    pub(crate) attempt: u32,
    /// How long the engine may be silent, at the last attempt.
    pub(crate) patience: Duration,
}

impl Request {
    fn patience_now(&self) -> Duration {
        let doubled = 2_u32.saturating_pow(self.attempt.saturating_sub(1));
        self.patience.min(FIRST_PATIENCE.saturating_mul(doubled))
    }
}

/// Why a replay broke off.
#[derive(Debug, thiserror::Error)]
enum ReplayError {
    #[error("connect to {endpoint}")]
    Connect {
        endpoint: String,
        #[source]
        source: zeromq::ZmqError,
    },
    #[error("exchange messages with {endpoint}")]
    Exchange {
        endpoint: String,
        #[source]
        source: zeromq::ZmqError,
    },
    #[error("{endpoint} does not answer")]
    Silent { endpoint: String },
    #[error("{endpoint} does not come to an end")]
    Endless { endpoint: String },
}

/// Asks and passes on what comes, up to the end or the failure. Ends early when nobody receives any more.
pub(crate) async fn fetch(request: Request, to: mpsc::Sender<Replayed>, metrics: RankMetrics) {
    tokio::time::sleep(delay(request.attempt)).await;
    let longest = request.patience.saturating_mul(LONGEST_IN_PATIENCES);
    let exchanged = match timeout(longest, exchange(&request, &to, &metrics)).await {
        Ok(exchanged) => exchanged,
        Err(_) => Err(ReplayError::Endless {
            endpoint: request.endpoint.clone(),
        }),
    };
    let last = match exchanged {
        Ok(()) => {
            metrics.replay("ended");
            Replayed::End
        }
        Err(error) => {
            metrics.replay("failed");
            let error: &dyn std::error::Error = &error;
            tracing::info!(endpoint = request.endpoint, from = %request.from, error, "replay failed");
            Replayed::Failed
        }
    };
    // Whoever asked may have begun another replay in the meantime.
    let _superseded = to.send(last).await;
}

async fn exchange(
    request: &Request,
    to: &mpsc::Sender<Replayed>,
    metrics: &RankMetrics,
) -> Result<(), ReplayError> {
    let endpoint = || request.endpoint.clone();
    let silent = || ReplayError::Silent {
        endpoint: endpoint(),
    };
    let failed = |source| ReplayError::Exchange {
        endpoint: endpoint(),
        source,
    };
    let mut socket = DealerSocket::new();
    timeout(CONNECT_TIMEOUT, socket.connect(&request.endpoint))
        .await
        .map_err(|_| silent())?
        .map_err(|source| ReplayError::Connect {
            endpoint: endpoint(),
            source,
        })?;
    let [delimiter, from] = replay_request_frames(request.from);
    let mut ask = ZmqMessage::from(delimiter);
    ask.push_back(from.into());
    socket.send(ask).await.map_err(failed)?;
    loop {
        let answer = timeout(request.patience_now(), socket.recv())
            .await
            .map_err(|_| silent())?
            .map_err(failed)?;
        let message = match decode_replay(&frames_of(&answer)) {
            Ok(Replay::End) => return Ok(()),
            Ok(Replay::Batch { seq, payload }) => match decode_batch(payload) {
                Ok(batch) => Replayed::Message(Message {
                    seq,
                    engine_ts: batch.ts,
                    payload: batch,
                }),
                Err(error) => {
                    metrics.event(error.label());
                    continue;
                }
            },
            Err(error) => {
                metrics.event(error.label());
                continue;
            }
        };
        if to.send(message).await.is_err() {
            return Ok(());
        }
    }
}

fn delay(attempt: u32) -> Duration {
    match attempt {
        0 | 1 => Duration::ZERO,
        more => MAX_RETRY.min(RETRY * 2_u32.saturating_pow(more - 2)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_attempt_gives_the_engine_more_time_up_to_what_is_set() {
        let patience = |attempt, millis| {
            let request = Request {
                endpoint: String::new(),
                from: EventSeq::new(0),
                attempt,
                patience: Duration::from_millis(millis),
            };
            request.patience_now().as_millis()
        };
        let attempts: Vec<_> = (1..=5).map(|it| patience(it, 5_000)).collect();
        assert_eq!(attempts, [500, 1_000, 2_000, 4_000, 5_000]);
        assert_eq!(patience(1, 300), 300);
        assert_eq!(patience(u32::MAX, 5_000), 5_000);
    }
}
