//! The adapter under test.

use std::sync::Arc;
use std::time::Duration;

use bus::{Bus, Change, MemoryBus};
use contracts::rpc::{CallHead, Dispatch};
use contracts::{Encoding, FleetEntry, topics};
use domain::Worker;
use futures::StreamExt;
use service_kit::{CancellationToken, Clock, Context, Health};
use tokio::task::JoinSet;
use tokio::time::timeout;
use worker_adapter::{Config, WorkerAdapter, WorkerConfig};

use crate::stub::Stub;

/// Nothing in these tests takes this long unless it never happens.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

/// An adapter of one engine.
pub(crate) struct Running {
    pub(crate) bus: Arc<dyn Bus>,
    pub(crate) health: Health,
    pub(crate) shutdown: CancellationToken,
    pub(crate) tasks: JoinSet<anyhow::Result<()>>,
    pub(crate) dispatch: Arc<dyn Dispatch>,
}

impl Running {
    pub(crate) fn start(stub: &Stub, bus: Arc<dyn Bus>) -> Self {
        Self::before(vec![stub.config()], bus)
    }

    pub(crate) fn before(workers: Vec<WorkerConfig>, bus: Arc<dyn Bus>) -> Self {
        let health = Health::default();
        let context = Context {
            registry: prometheus::Registry::new(),
            health: health.clone(),
            clock: Clock::system(),
        };
        let config = Config { workers };
        let adapter = WorkerAdapter::new(config, bus.clone(), context).unwrap();
        let dispatch = adapter.dispatch();
        let shutdown = CancellationToken::new();
        let mut tasks = JoinSet::new();
        tasks.spawn(adapter.run(shutdown.clone()));
        Self {
            bus,
            health,
            shutdown,
            tasks,
            dispatch,
        }
    }

    /// Waits until the fleet says of the worker what `wanted` accepts; none is an absent entry.
    pub(crate) async fn until(&self, mut wanted: impl FnMut(Option<&Worker>) -> bool) {
        let mut changes = self.bus.watch(&topics::FLEET.table).await.unwrap();
        let mut current = None;
        let reached = async {
            while let Some(change) = changes.next().await {
                match change.unwrap() {
                    Change::Put(_, entry) => match FleetEntry::from_bytes(&entry.value).unwrap() {
                        FleetEntry::Worker(worker) => current = Some(worker),
                        FleetEntry::Service(_) => panic!("no service registers here"),
                    },
                    Change::Deleted(_) => current = None,
                    Change::CaughtUp => {}
                }
                if wanted(current.as_ref()) {
                    return;
                }
            }
        };
        timeout(DEADLINE, reached).await.unwrap();
    }
}

pub(crate) fn memory() -> Arc<dyn Bus> {
    Arc::new(MemoryBus::new(&topics::LAYOUT))
}

/// A call to w1.
pub(crate) fn get(path: &str) -> CallHead {
    CallHead {
        worker: "w1".parse().unwrap(),
        dp_rank: None,
        conversation: None,
        method: "GET".to_owned(),
        path: path.to_owned(),
        headers: Vec::new(),
        usage_injected: false,
    }
}
