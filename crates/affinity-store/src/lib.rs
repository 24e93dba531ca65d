//! The affinity store: the one writer of the table of bindings.
//!
//! Every change of a binding is a compare-and-set on the revision it was decided on; where that fails, the
//! entry is read and the change is decided anew. What is in flight is known in memory only, under leases, so
//! a store that begins gives each provisional binding one lease, in which routers name theirs again.
//!
//! Calls that a request waits for carry a deadline of 50 ms from the caller's side of the queue, others of
//! 5 s. A call that is given up before it was begun is not carried out; an acquire given up later is given
//! back, at the latest by its lease.

mod ask;
mod config;
mod handle;
mod metrics;
mod names;
mod owner;
mod secret;
mod slots;
mod table;

use std::sync::Arc;

use affinity::Terms;
use bus::Bus;
use contracts::rpc::Affinity;
use service_kit::{CancellationToken, Context};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

pub use config::{Config, InvalidConfig, Secret};
pub use secret::SecretError;

use crate::ask::Message;
use crate::handle::Handle;
use crate::metrics::Metrics;
use crate::names::Names;
use crate::owner::{BusState, Owner, Phase};
use crate::slots::Slots;

/// Calls that wait to be taken; the owner takes thousands each millisecond, and callers give up in 50.
const QUEUE: usize = 4_096;

/// The service. Take its [`AffinityStore::affinity`] before [`AffinityStore::run`].
pub struct AffinityStore {
    handle: Handle,
    queue: mpsc::Receiver<Message>,
    bus: Arc<dyn Bus>,
    terms: Terms,
    capacity: usize,
    context: Context,
}

/// Why there is no store.
#[derive(Debug, thiserror::Error)]
pub enum NewError {
    /// A setting makes no sense.
    #[error(transparent)]
    Config(#[from] InvalidConfig),
    /// There is no secret for the keys.
    #[error("obtain the secret of binding keys")]
    Secret(#[from] SecretError),
    /// Its metrics have been registered before.
    #[error("register metrics of the affinity store")]
    Metrics(#[from] prometheus::Error),
}

impl AffinityStore {
    /// A store that has read nothing yet. Reads, or creates, the secret of binding keys.
    pub fn new(config: Config, bus: Arc<dyn Bus>, context: Context) -> Result<Self, NewError> {
        config.check()?;
        let secret = secret::obtain(&config)?;
        let metrics = Metrics::register(&context.registry)?;
        let (sender, queue) = mpsc::channel(QUEUE);
        let handle = Handle {
            queue: sender,
            secret,
            decision_deadline: config.decision_deadline(),
            metrics,
        };
        Ok(Self {
            handle,
            queue,
            bus,
            terms: config.terms(),
            capacity: config.capacity,
            context,
        })
    }

    /// Calls of this process. They are answered once the store runs and has read the table.
    pub fn affinity(&self) -> Arc<dyn Affinity> {
        Arc::new(self.handle.clone())
    }

    /// Serves until told to stop, and then finishes the writes under way.
    pub async fn run(self, shutdown: CancellationToken) -> anyhow::Result<()> {
        let metrics = self.handle.metrics;
        let owner = Owner {
            bus: self.bus,
            terms: self.terms,
            clock: self.context.clock,
            slots: Slots::new(self.capacity, self.terms, metrics.clone()),
            metrics,
            names: Names::default(),
            health: self.context.health.component("affinity-store"),
            jobs: JoinSet::new(),
            waiting: 0,
            phase: Phase::Loading,
            bus_state: BusState::Works,
        };
        owner.run(self.queue, shutdown).await
    }
}
