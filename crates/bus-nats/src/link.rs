//! Whether a server is connected, and the rule by which an operation is tried again until its deadline.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::Event;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};
use tracing::{info, warn};

use crate::counts::Counters;
use crate::failure::Failure;
use crate::outage::{Outage, Seldom};

/// Between two tries of what may succeed later.
const PAUSE: Duration = Duration::from_millis(50);

/// What is known of the connection.
#[derive(Clone, Debug)]
struct State {
    connected: bool,
    /// How often it was lost.
    losses: u64,
    /// What the server last said that this user may not do.
    forbidden: Option<Arc<str>>,
}

/// How a server begins to say that a user may not do something.
const FORBIDDEN: &str = "permissions violation";

/// Tells of one connection. Clones tell of the same.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    state: watch::Receiver<State>,
}

/// Hears what the client says of its connection.
pub(crate) struct Listener {
    state: watch::Sender<State>,
    counters: Arc<Counters>,
    said: Mutex<Said>,
}

/// What the log was told.
#[derive(Default)]
struct Said {
    outage: Outage,
    errors: Seldom,
}

/// A connection, and a way to say how it is.
pub(crate) fn link(counters: Arc<Counters>) -> (Listener, Link) {
    let (sender, state) = watch::channel(State {
        connected: true,
        losses: 0,
        forbidden: None,
    });
    let listener = Listener {
        state: sender,
        counters,
        said: Mutex::default(),
    };
    (listener, Link { state })
}

impl Listener {
    pub(crate) fn hear(&self, event: &Event) {
        let now = Instant::now();
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Connected => {
                self.state.send_modify(|it| it.connected = true);
                if let Some(away) = said.outage.over(now) {
                    info!(away_seconds = away.as_secs(), "nats is back");
                }
            }
            Event::Disconnected => {
                self.counters.losses.fetch_add(1, Ordering::Relaxed);
                self.state.send_modify(|it| {
                    it.connected = false;
                    it.losses += 1;
                });
                if let Some(kept_back) = said.outage.worse(now) {
                    warn!(kept_back, "nats is away");
                }
            }
            Event::Closed => self.state.send_modify(|it| it.connected = false),
            Event::SlowConsumer(_) => {
                let lost = &self.counters.lost_ephemeral_records;
                lost.fetch_add(1, Ordering::Relaxed);
            }
            Event::LameDuckMode => info!("nats is about to stop"),
            Event::ServerError(error) => {
                let text = error.to_string();
                if text.to_lowercase().contains(FORBIDDEN) {
                    let forbidden = Some(text.as_str().into());
                    self.state.send_modify(|it| it.forbidden = forbidden);
                }
                if let Some(kept_back) = said.errors.admit(now) {
                    warn!(error = text, kept_back, "nats");
                }
            }
            Event::ClientError(error) => {
                if let Some(kept_back) = said.outage.worse(now) {
                    warn!(%error, kept_back, "nats is not reached");
                }
            }
            Event::Draining => {}
        }
    }
}

impl Link {
    /// Whether a server is connected.
    pub(crate) fn is_up(&self) -> bool {
        self.state.borrow().connected
    }

    /// What a server last said that this user may not do, if it ever did.
    pub(crate) fn forbidden(&self) -> Option<Arc<str>> {
        self.state.borrow().forbidden.clone()
    }

    /// Resolves when a server is connected.
    pub(crate) async fn up(&self, deadline: Instant) -> Result<(), Failure> {
        let mut state = self.state.clone();
        match timeout_at(deadline, state.wait_for(|it| it.connected)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(Failure::Away),
        }
    }

    /// Resolves when the connection that exists now is lost.
    pub(crate) fn lost(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut state = self.state.clone();
        let before = state.borrow().losses;
        async move {
            // Without a listener there is no connection any more either.
            let _ = state.wait_for(|it| it.losses != before).await;
        }
    }

    /// Tries `attempt` while a server is connected, until it succeeds, fails for good, or the deadline passes.
    pub(crate) async fn persist<T, F: Future<Output = Result<T, Failure>>>(
        &self,
        deadline: Instant,
        attempt: impl Fn() -> F,
    ) -> Result<T, Failure> {
        let mut last = None;
        loop {
            if let Err(away) = self.up(deadline).await {
                return Err(last.unwrap_or(away));
            }
            let outcome = tokio::select! {
                biased;
                outcome = timeout_at(deadline, attempt()) => outcome,
                () = self.lost() => Ok(Err(Failure::Away)),
            };
            match outcome {
                Ok(Err(failure)) if failure.passes() => last = Some(failure),
                Ok(outcome) => return outcome,
                Err(_) => return Err(last.unwrap_or(Failure::Silent)),
            }
            sleep(PAUSE).await;
        }
    }
}
