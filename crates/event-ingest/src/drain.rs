//! Asks one server for the KV events of all its ranks, again and again.
//!
//! An answer empties the server's buffer, so what is lost on its way here is lost, and so is what another consumer
//! takes. Each rank counts its events: a hole in its count is the only sign, and each event goes to the rank's task as
//! a message of that number, so that a hole resets that rank alone and a count that begins anew is a restart.

mod stream;

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use domain::{DpRank, EventSeq, RankEndpoint, Timestamp, Worker};
use engine_wire::EventBatch;
use engine_wire::trtllm::{BodyError, Item, decode_body};
use event_feed::Message;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{Request, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use service_kit::Clock;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use crate::metrics::RankMetrics;
use crate::subscriber::{CONNECT_TIMEOUT, Intake};
use crate::warnings::Warnings;

use stream::Announcements;

/// Between an answer and the next question. A trtllm-serve gathers its ranks' events every 5 ms, and some releases
/// answer only after two seconds when there are none.
const EVERY: Duration = Duration::from_millis(50);
/// How long an answer may take: a full buffer is some hundred megabytes.
const PATIENCE: Duration = Duration::from_secs(30);
/// The first and the longest wait after a question that was not answered.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// The longest answer in bytes, as the decoder has it.
const MAX_BODY: usize = 256 << 20;
/// Idle connections are closed before the server does, so that no question meets a closing one.
const POOL_IDLE: Duration = Duration::from_secs(4);

/// Where a rank's part of a drain goes.
pub(crate) struct Lane {
    pub(crate) dp_rank: DpRank,
    pub(crate) to: mpsc::Sender<Intake>,
    pub(crate) metrics: RankMetrics,
}

/// One server's drain.
pub(crate) struct Drain {
    url: String,
    lanes: BTreeMap<DpRank, (Lane, Announcements)>,
    client: Client<HttpConnector, Full<Bytes>>,
    clock: Clock,
    /// When the last answer came.
    last: Timestamp,
    /// Whether the last question was answered; none before the first.
    reached: Option<bool>,
    warnings: Warnings,
}

/// Why a question has no answer.
#[derive(Debug, thiserror::Error)]
enum DrainError {
    #[error("{url} is no URL")]
    Url {
        url: String,
        #[source]
        source: hyper::http::Error,
    },
    #[error("ask {url}")]
    Ask {
        url: String,
        #[source]
        source: hyper_util::client::legacy::Error,
    },
    #[error("{url} does not answer within {} s", PATIENCE.as_secs())]
    Silent { url: String },
    #[error("{url} answers {status}: does the engine gather KV events?")]
    Status { url: String, status: StatusCode },
    #[error("read the answer of {url}")]
    Read {
        url: String,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("read the events of {url}")]
    Body {
        url: String,
        #[source]
        source: BodyError,
    },
}

/// What is registered for each rank of a worker whose events are drained from `url`.
pub(crate) fn endpoints(worker: &Worker, url: &str) -> Vec<RankEndpoint> {
    let endpoint = |dp_rank| RankEndpoint {
        dp_rank,
        publish: url.to_owned(),
        replay: None,
        topic: String::new(),
    };
    worker.ranks().map(endpoint).collect()
}

impl Drain {
    /// A drain that begins after `last`, the newest time at which events of the worker are known to have come: an
    /// event under a number that was there before shows a restart by being newer.
    pub(crate) fn new(
        worker: &Worker,
        url: String,
        lanes: Vec<Lane>,
        clock: Clock,
        last: Timestamp,
    ) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(POOL_IDLE)
            .build(connector);
        let page = worker.page_size.get();
        let lane = |lane: Lane| (lane.dp_rank, (lane, Announcements::new(page)));
        Self {
            url,
            lanes: lanes.into_iter().map(lane).collect(),
            client,
            clock,
            last,
            reached: None,
            warnings: Warnings::default(),
        }
    }

    /// Asks until nobody receives any more.
    pub(crate) async fn run(mut self) {
        // The ranks of a worker end together.
        let Some(rank) = self.lanes.values().next().map(|(lane, _)| lane.to.clone()) else {
            return;
        };
        tokio::select! {
            biased;
            () = rank.closed() => {}
            () = self.ask_for_ever() => {}
        }
    }

    async fn ask_for_ever(&mut self) {
        let mut wait = RETRY.0;
        loop {
            match self.ask().await {
                Ok(items) => {
                    wait = RETRY.0;
                    self.reach(true).await;
                    self.pass_on(items).await;
                    sleep(EVERY).await;
                }
                Err(error) => {
                    self.complain(&error);
                    self.reach(false).await;
                    sleep(wait).await;
                    wait = RETRY.1.min(wait * 2);
                }
            }
        }
    }

    fn complain(&mut self, error: &DrainError) {
        if self.warnings.is_due("drain") {
            let error: &dyn std::error::Error = error;
            tracing::warn!(url = self.url, error, "events are not given");
        }
    }

    async fn ask(&self) -> Result<Vec<Item>, DrainError> {
        let url = || self.url.clone();
        let request = Request::post(&self.url).body(Full::new(Bytes::new()));
        let request = request.map_err(|source| DrainError::Url { url: url(), source })?;
        let exchange = async {
            let asked = self.client.request(request).await;
            let answer = asked.map_err(|source| DrainError::Ask { url: url(), source })?;
            let status = answer.status();
            if status != StatusCode::OK {
                return Err(DrainError::Status { url: url(), status });
            }
            let body = Limited::new(answer.into_body(), MAX_BODY).collect().await;
            let body = body.map_err(|source| DrainError::Read { url: url(), source })?;
            Ok(body.to_bytes())
        };
        let body = timeout(PATIENCE, exchange).await;
        let body = body.map_err(|_| DrainError::Silent { url: url() })??;
        decode_body(&body).map_err(|source| DrainError::Body { url: url(), source })
    }

    /// Tells the ranks whether the server answers, when that changes.
    async fn reach(&mut self, reached: bool) {
        if self.reached.replace(reached) == Some(reached) {
            return;
        }
        for (lane, _) in self.lanes.values() {
            let intake = match reached {
                true => Intake::Connected,
                false => Intake::Unreachable,
            };
            // A rank that has ended needs to know nothing.
            let _ended = lane.to.send(intake).await;
        }
    }

    /// Waits for ranks that are behind: meanwhile the server's buffer holds what comes, or drops it and shows so.
    async fn pass_on(&mut self, items: Vec<Item>) {
        let now = self.clock.now().max(self.last + Duration::from_micros(1));
        if !items.is_empty() {
            self.last = now;
        }
        for item in items {
            // Without attention DP there is one rank, and nobody names it.
            let dp_rank = item.dp_rank.unwrap_or(DpRank::new(0));
            let Some((lane, announcements)) = self.lanes.get_mut(&dp_rank) else {
                self.refuse("rank_out_of_range", dp_rank);
                continue;
            };
            let Some(event_id) = item.event_id else {
                // The next one shows that something is missing.
                self.refuse("no_event_id", dp_rank);
                continue;
            };
            let told = announcements.tell(item);
            for (reason, count) in told.left_out {
                lane.metrics.events(reason, count);
            }
            let message = Message {
                seq: EventSeq::new(event_id),
                engine_ts: now,
                payload: EventBatch {
                    ts: now,
                    dp_rank: Some(dp_rank),
                    events: told.events,
                },
            };
            let _ended = lane.to.send(Intake::Message(message)).await;
        }
    }

    fn refuse(&mut self, why: &'static str, dp_rank: DpRank) {
        let lane = self.lanes.get(&dp_rank).or(self.lanes.values().next());
        if let Some((lane, _)) = lane {
            lane.metrics.event(why);
        }
        if self.warnings.is_due(why) {
            tracing::warn!(url = self.url, %dp_rank, why, "event refused");
        }
    }
}
