//! The store as its callers see it.

use std::time::Duration;

use affinity::{Binding, BindingKey, BindingSecret, ConversationKey};
use async_trait::async_trait;
use contracts::rpc::{
    Acquire, Affinity, Bound, CallError, Confirm, Move, Page, Reassign, Release, Renew, Search,
    Unbind,
};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::ask::{Ask, Message, Reply, SERVICE};
use crate::metrics::Metrics;

/// For calls that no request waits for: reports, renewals, listings.
const REPORT_DEADLINE: Duration = Duration::from_secs(5);
/// How many conversations one renewal may name: a router with more in flight sends several.
const MAX_RENEWED: usize = 65_536;

/// A caller's end of the queue.
#[derive(Clone)]
pub(crate) struct Handle {
    pub(crate) queue: mpsc::Sender<Message>,
    pub(crate) secret: BindingSecret,
    pub(crate) decision_deadline: Duration,
    pub(crate) metrics: Metrics,
}

impl Handle {
    async fn one<T>(
        &self,
        deadline: Duration,
        key: &ConversationKey,
        ask: impl FnOnce(Reply<T>) -> Ask,
    ) -> Result<T, CallError> {
        let key = BindingKey::of(key, &self.secret);
        self.call(deadline, |reply| Message::One(key, ask(reply)))
            .await
    }

    async fn call<T>(
        &self,
        deadline: Duration,
        message: impl FnOnce(Reply<T>) -> Message,
    ) -> Result<T, CallError> {
        let (reply, answer) = oneshot::channel();
        let message = message(reply);
        let answered = async {
            match self.queue.try_send(message) {
                Ok(()) => {}
                Err(TrySendError::Closed(_)) => return Err(stopped()),
                Err(TrySendError::Full(message)) => {
                    self.metrics.queue_full.inc();
                    let sent = self.queue.send(message).await;
                    sent.map_err(|_| stopped())?;
                }
            }
            answer.await.map_err(|_| stopped())?
        };
        let answered = timeout(deadline, answered).await;
        answered.unwrap_or(Err(CallError::DeadlineExceeded { service: SERVICE }))
    }
}

fn stopped() -> CallError {
    CallError::Unavailable {
        service: SERVICE,
        why: "it has stopped".to_owned(),
    }
}

#[async_trait]
impl Affinity for Handle {
    async fn get(&self, key: &ConversationKey) -> Result<Option<Bound>, CallError> {
        self.one(self.decision_deadline, key, Ask::Get).await
    }

    async fn acquire(&self, request: Acquire) -> Result<Bound, CallError> {
        let key = request.key.clone();
        let ask = |reply| Ask::Acquire(request, reply);
        self.one(self.decision_deadline, &key, ask).await
    }

    async fn confirm(&self, request: Confirm) -> Result<Bound, CallError> {
        let key = request.key.clone();
        let ask = |reply| Ask::Confirm(request, reply);
        self.one(REPORT_DEADLINE, &key, ask).await
    }

    async fn rebind(&self, request: Move) -> Result<Bound, CallError> {
        let key = request.key.clone();
        let ask = |reply| Ask::Rebind(request, reply);
        self.one(self.decision_deadline, &key, ask).await
    }

    async fn release(&self, request: Release) -> Result<(), CallError> {
        let key = request.key.clone();
        let ask = |reply| Ask::Release(request, reply);
        self.one(REPORT_DEADLINE, &key, ask).await
    }

    async fn renew(&self, request: Renew) -> Result<(), CallError> {
        if MAX_RENEWED < request.keys.len() {
            let why = format!("a renewal names at most {MAX_RENEWED} conversations");
            return Err(CallError::InvalidArgument { why });
        }
        let keys = request.keys.iter();
        let keys = keys.map(|key| BindingKey::of(key, &self.secret)).collect();
        let message = |reply| Message::Renew {
            actor: request.actor,
            keys,
            reply,
        };
        self.call(REPORT_DEADLINE, message).await
    }

    async fn list(&self, limit: usize) -> Result<Vec<Bound>, CallError> {
        let message = |reply| Message::List { limit, reply };
        self.call(REPORT_DEADLINE, message).await
    }

    async fn search(&self, search: Search) -> Result<Page, CallError> {
        let message = |reply| Message::Search { search, reply };
        self.call(REPORT_DEADLINE, message).await
    }

    async fn reassign(&self, request: Reassign) -> Result<Bound, CallError> {
        let key = request.key.clone();
        let ask = |reply| Ask::Reassign(request, reply);
        self.one(REPORT_DEADLINE, &key, ask).await
    }

    async fn unbind(&self, request: Unbind) -> Result<(), CallError> {
        let key = request.key.clone();
        let ask = |reply| Ask::Unbind(request, reply);
        self.one(REPORT_DEADLINE, &key, ask).await
    }

    async fn import(&self, binding: Binding) -> Result<Option<Bound>, CallError> {
        let key = binding.key.clone();
        let ask = |reply| Ask::Import(Box::new(binding), reply);
        self.one(REPORT_DEADLINE, &key, ask).await
    }
}
