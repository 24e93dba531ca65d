//! One consumer of one stream: asks for messages a batch at a time and notices when some went missing.

use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, ReplayPolicy, pull};
use async_nats::jetstream::{self, Context};
use async_nats::{Message, StatusCode, Subscriber};
use futures::{FutureExt, StreamExt};
use tokio::task::unconstrained;
use tokio::time::{Instant, timeout};

use crate::failure::Failure;

/// How many messages are asked for at once. At most twice as many wait in memory.
const BATCH: u64 = 256;
/// How many bytes are asked for at once, so that big records do not make a batch huge.
const BATCH_BYTES: usize = 4 * 1024 * 1024;
/// How long a server waits for messages to send.
const WAIT: Duration = Duration::from_secs(20);
/// How often a server says that there are none.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// After how long without a word the consumer is taken for gone.
const SILENCE: Duration = Duration::from_secs(4);
/// For how long a server keeps a consumer that asks for nothing.
const KEPT: Duration = Duration::from_secs(60);

/// One consumer.
#[derive(Debug)]
pub(crate) struct Pull {
    jetstream: Context,
    inbox: Subscriber,
    inbox_name: String,
    requests: String,
    /// Messages asked for and not yet received.
    asked: u64,
    /// How many messages have come, which the server counts too.
    received: u64,
    /// When the last two requests were sent, the older first. What answers them was sent later.
    requested: (Instant, Instant),
    /// A moment at which the last word had not been sent yet.
    sent_after: Instant,
}

/// What a consumer has to say.
#[derive(Debug)]
pub(crate) enum Word {
    /// The next message.
    Message(Stored),
    /// There is nothing more.
    Idle,
}

/// A message of a stream.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) sequence: u64,
    /// Whether it was the newest when it was sent.
    pub(crate) newest: bool,
    pub(crate) message: Message,
}

/// Why a consumer has nothing more to say, which another one may have.
#[derive(Debug)]
pub(crate) struct Lost;

impl Pull {
    /// Begins at the sequence `first`, or behind it where that message is gone. With `only_headers` messages come
    /// without their payload.
    pub(crate) async fn begin(
        jetstream: &Context,
        stream: &str,
        first: u64,
        only_headers: bool,
    ) -> Result<Self, Failure> {
        let config = pull::Config {
            deliver_policy: DeliverPolicy::ByStartSequence {
                start_sequence: first,
            },
            ack_policy: AckPolicy::None,
            replay_policy: ReplayPolicy::Instant,
            inactive_threshold: KEPT,
            headers_only: only_headers,
            memory_storage: true,
            num_replicas: 1,
            ..pull::Config::default()
        };
        let consumer = jetstream.create_consumer_on_stream(config, stream).await?;
        let name = &consumer.cached_info().name;
        let client = jetstream.client();
        let inbox_name = client.new_inbox();
        let inbox = client.subscribe(inbox_name.clone()).await;
        let now = Instant::now();
        Ok(Self {
            jetstream: jetstream.clone(),
            inbox: inbox.map_err(|it| Failure::Other(Box::new(it)))?,
            inbox_name,
            requests: format!("CONSUMER.MSG.NEXT.{stream}.{name}"),
            asked: 0,
            received: 0,
            requested: (now, now),
            sent_after: now,
        })
    }

    /// A moment at which the last word had not been sent yet.
    pub(crate) fn sent_after(&self) -> Instant {
        self.sent_after
    }

    /// The next message, or word that there is none.
    pub(crate) async fn next(&mut self) -> Result<Word, Lost> {
        loop {
            if self.asked <= BATCH / 2 {
                self.ask().await?;
            }
            let message = self.hear().await.ok_or(Lost)?;
            match message.status {
                None | Some(StatusCode::OK) => return self.receive(message),
                Some(StatusCode::IDLE_HEARTBEAT) => return Ok(Word::Idle),
                Some(StatusCode::TIMEOUT | StatusCode::NOT_FOUND) => {
                    self.asked = self.asked.saturating_sub(unanswered(&message));
                }
                Some(StatusCode::REQUEST_TERMINATED) if is_for_bytes(&message) => {
                    self.asked = self.asked.saturating_sub(unanswered(&message));
                }
                // Its stream, its leader or itself is gone.
                Some(_) => return Err(Lost),
            }
        }
    }

    /// What comes next, or came while nobody looked.
    async fn hear(&mut self) -> Option<Message> {
        if let Some(waited) = unconstrained(self.inbox.next()).now_or_never() {
            self.sent_after = self.requested.0;
            return waited;
        }
        self.sent_after = Instant::now();
        timeout(SILENCE, self.inbox.next()).await.ok()?
    }

    async fn ask(&mut self) -> Result<(), Lost> {
        let request = format!(
            r#"{{"batch":{BATCH},"max_bytes":{BATCH_BYTES},"expires":{},"idle_heartbeat":{}}}"#,
            WAIT.as_nanos(),
            HEARTBEAT.as_nanos(),
        );
        let request = async_nats::Request::new()
            .inbox(self.inbox_name.clone())
            .payload(request.into());
        let subject = self.requests.clone();
        let sent = timeout(SILENCE, self.jetstream.send_request(subject, request)).await;
        sent.map_err(|_| Lost)?.map_err(|_| Lost)?;
        self.asked += BATCH;
        self.requested = (self.requested.1, Instant::now());
        Ok(())
    }

    fn receive(&mut self, message: Message) -> Result<Word, Lost> {
        let message = jetstream::Message {
            message,
            context: self.jetstream.clone(),
        };
        let info = message.info().map_err(|_| Lost)?;
        let (sequence, newest) = (info.stream_sequence, info.pending == 0);
        self.received += 1;
        if info.consumer_sequence != self.received {
            return Err(Lost);
        }
        self.asked = self.asked.saturating_sub(1);
        Ok(Word::Message(Stored {
            sequence,
            newest,
            message: message.message,
        }))
    }
}

/// How many messages a request that has ended asked for in vain.
fn unanswered(message: &Message) -> u64 {
    let headers = message.headers.as_ref();
    let pending = headers.and_then(|it| it.get("Nats-Pending-Messages"));
    let pending = pending.and_then(|it| it.as_str().parse().ok());
    // Asking once too often does no harm.
    pending.unwrap_or(BATCH)
}

/// Whether a request has ended because its bytes are used up.
fn is_for_bytes(message: &Message) -> bool {
    let said = message.description.as_deref().unwrap_or_default();
    said.contains("MaxBytes") || said.contains("Batch Completed")
}
