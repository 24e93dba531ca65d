//! A store over a bus in memory that can be made to hold back or fail writes, and callers in few words.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use affinity::{Binding, BindingKey, BindingSecret, ConversationKey, Evidence, MoveReason, Owner};
use affinity::{BindingState, TurnEnd};
use affinity_store::{AffinityStore, Config, Secret};
use async_trait::async_trait;
use bus::{
    Bus, BusError, Change, Changes, Entry, Expect, Key, MemoryBus, Offset, Partition, Record,
    Records, Revision, Start, Table, Tail,
};
use bytes::Bytes;
use contracts::rpc::{Acquire, Affinity, Bound, CallError, Confirm, Move, Release, Renew};
use contracts::{Encoding as _, topics};
use domain::{Target, Tokens};
use futures::StreamExt as _;
use service_kit::{CancellationToken, Clock, Context, Health};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

const SECRET: &str = "a secret of the tests";

/// A bus whose writes can be held back or refused.
pub(crate) struct RigBus {
    pub(crate) memory: MemoryBus,
    pub(crate) refuses: AtomicBool,
    gates: std::sync::Mutex<BTreeMap<Key, Arc<Semaphore>>>,
}

impl RigBus {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            memory: MemoryBus::new(&topics::LAYOUT),
            refuses: AtomicBool::new(false),
            gates: Default::default(),
        })
    }

    /// Holds back writes to `id` until the semaphore has a permit for each.
    pub(crate) fn gate(&self, id: &str) -> Arc<Semaphore> {
        let gate = Arc::new(Semaphore::new(0));
        let mut gates = self.gates.lock().unwrap();
        gates.insert(table_key(id), gate.clone());
        gate
    }

    /// The table's bindings.
    pub(crate) async fn table(&self) -> Vec<Binding> {
        let mut changes = self.memory.watch(&topics::BINDINGS.table).await.unwrap();
        let mut bindings = Vec::new();
        while let Change::Put(_, entry) = changes.next().await.unwrap().unwrap() {
            bindings.push(Binding::from_bytes(&entry.value).unwrap());
        }
        bindings
    }

    pub(crate) async fn entry(&self, id: &str) -> Option<Entry> {
        let table = &topics::BINDINGS.table;
        self.memory.get(table, &table_key(id)).await.unwrap()
    }

    /// Writes as another store would.
    pub(crate) async fn write(&self, id: &str, value: Option<Bytes>, expect: Expect) -> Revision {
        let table = &topics::BINDINGS.table;
        let put = self.memory.put(table, table_key(id), value, expect);
        put.await.unwrap()
    }
}

#[async_trait]
impl Bus for RigBus {
    async fn append(&self, at: &Partition, batch: Vec<Record>) -> Result<Offset, BusError> {
        self.memory.append(at, batch).await
    }

    async fn read(&self, at: &Partition, start: Start) -> Result<Records, BusError> {
        self.memory.read(at, start).await
    }

    async fn tail(&self, at: &Partition) -> Result<Tail, BusError> {
        self.memory.tail(at).await
    }

    async fn get(&self, table: &Table, key: &Key) -> Result<Option<Entry>, BusError> {
        self.memory.get(table, key).await
    }

    async fn put(
        &self,
        table: &Table,
        key: Key,
        value: Option<Bytes>,
        expect: Expect,
    ) -> Result<Revision, BusError> {
        if self.refuses.load(Ordering::Relaxed) {
            return Err(BusError::Unavailable("refused".into()));
        }
        let gate = self.gates.lock().unwrap().get(&key).cloned();
        if let Some(gate) = gate {
            gate.acquire().await.unwrap().forget();
        }
        self.memory.put(table, key, value, expect).await
    }

    async fn watch(&self, table: &Table) -> Result<Changes, BusError> {
        self.memory.watch(table).await
    }
}

/// A running store.
pub(crate) struct Rig {
    pub(crate) store: Arc<dyn Affinity>,
    pub(crate) context: Context,
    shutdown: CancellationToken,
    running: JoinSet<anyhow::Result<()>>,
}

impl Rig {
    pub(crate) async fn start(bus: Arc<dyn Bus>) -> Self {
        Self::start_with(bus, Config::default()).await
    }

    pub(crate) async fn start_with(bus: Arc<dyn Bus>, config: Config) -> Self {
        let context = Context {
            registry: prometheus::Registry::new(),
            health: Health::default(),
            clock: Clock::system(),
        };
        let config = Config {
            secret: Some(Secret::new(SECRET)),
            ..config
        };
        let store = AffinityStore::new(config, bus, context.clone()).unwrap();
        let handle = store.affinity();
        let shutdown = CancellationToken::new();
        let mut running = JoinSet::new();
        running.spawn(store.run(shutdown.clone()));
        let rig = Self {
            store: handle,
            context,
            shutdown,
            running,
        };
        let ready = async {
            while !rig.context.health.missing().is_empty() || rig.store.list(1).await.is_err() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let within = Duration::from_secs(10);
        tokio::time::timeout(within, ready).await.unwrap();
        rig
    }

    /// Ends it as a crash does: nothing is finished.
    pub(crate) async fn kill(mut self) {
        self.running.shutdown().await;
    }

    /// Ends it as told to.
    pub(crate) async fn stop(mut self) {
        self.shutdown.cancel();
        while let Some(ended) = self.running.join_next().await {
            ended.unwrap().unwrap();
        }
    }

    pub(crate) async fn acquire(
        &self,
        router: &str,
        id: &str,
        to: &str,
    ) -> Result<Bound, CallError> {
        self.store.acquire(acquire(router, id, to)).await
    }

    pub(crate) async fn confirm(
        &self,
        id: &str,
        asked: &str,
        observed: &str,
    ) -> Result<Bound, CallError> {
        let evidence = match asked == observed {
            true => Evidence::Asked,
            false => Evidence::Answer,
        };
        let request = Confirm {
            key: key(id),
            asked: target(asked),
            observed: target(observed),
            evidence,
            actor: "r1".parse().unwrap(),
        };
        self.store.confirm(request).await
    }

    pub(crate) async fn rebind(
        &self,
        id: &str,
        at: Revision,
        to: &str,
    ) -> Result<Bound, CallError> {
        self.store.rebind(rebind(id, at, to)).await
    }

    pub(crate) async fn release(&self, router: &str, id: &str, ran: &str, end: TurnEnd) {
        let request = Release {
            key: key(id),
            target: target(ran),
            end,
            actor: router.parse().unwrap(),
        };
        self.store.release(request).await.unwrap();
    }

    pub(crate) async fn renew(&self, router: &str, ids: &[&str]) {
        let request = Renew {
            actor: router.parse().unwrap(),
            keys: ids.iter().map(|id| key(id)).collect(),
        };
        self.store.renew(request).await.unwrap();
    }

    /// A whole turn that leaves `held` tokens at `to` or where the conversation is bound.
    pub(crate) async fn turn(&self, id: &str, to: &str, held: u64) -> Target {
        let bound = self.acquire("r1", id, to).await.unwrap();
        let ran = bound.binding.target.to_string();
        self.confirm(id, &ran, &ran).await.unwrap();
        self.release("r1", id, &ran, served(held)).await;
        bound.binding.target
    }

    pub(crate) async fn bound(&self, id: &str) -> Option<Binding> {
        let bound = self.store.get(&key(id)).await.unwrap();
        bound.map(|it| it.binding)
    }

    /// Where a conversation is bound, and whether a token was served there.
    pub(crate) async fn place(&self, id: &str) -> Option<(String, bool)> {
        let binding = self.bound(id).await?;
        let confirmed = binding.state == BindingState::Confirmed;
        Some((binding.target.to_string(), confirmed))
    }

    pub(crate) fn metric(&self, name: &str, label: &str) -> f64 {
        let families = self.context.registry.gather();
        let family = families.iter().find(|it| it.name() == name).unwrap();
        let has_label = |it: &&prometheus::proto::Metric| {
            it.get_label().iter().any(|pair| pair.value() == label)
        };
        let metric = match label {
            "" => family.get_metric().first(),
            _ => family.get_metric().iter().find(has_label),
        };
        metric.map_or(0.0, |it| {
            it.get_gauge().get_value() + it.get_counter().get_value()
        })
    }
}

pub(crate) fn acquire(router: &str, id: &str, to: &str) -> Acquire {
    Acquire {
        key: key(id),
        proposed: target(to),
        owner: Owner::Router,
        actor: router.parse().unwrap(),
    }
}

pub(crate) fn rebind(id: &str, at: Revision, to: &str) -> Move {
    Move {
        key: key(id),
        at,
        to: target(to),
        reason: MoveReason::Gone,
        actor: "r1".parse().unwrap(),
    }
}

pub(crate) fn served(held: u64) -> TurnEnd {
    TurnEnd::Served {
        held: Tokens::new(held),
    }
}

pub(crate) fn key(id: &str) -> ConversationKey {
    ConversationKey {
        tenant: "t".parse().unwrap(),
        model: "m".parse().unwrap(),
        conversation: id.parse().unwrap(),
    }
}

pub(crate) fn target(text: &str) -> Target {
    text.parse().unwrap()
}

pub(crate) async fn wait(seconds: u64) {
    tokio::time::advance(Duration::from_secs(seconds)).await;
    settle().await;
}

/// Lets everything run that can.
pub(crate) async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

fn table_key(id: &str) -> Key {
    let secret = BindingSecret::new(SECRET.as_bytes()).unwrap();
    let key = BindingKey::of(&key(id), &secret);
    Key(Bytes::copy_from_slice(&key.to_bytes()))
}
