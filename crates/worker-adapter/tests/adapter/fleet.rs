//! How a worker lives in the fleet, seen over the bus.

use std::sync::Arc;
use std::time::Duration;

use bus::{Bus, Change, Expect, Key, MemoryBus, Start};
use bytes::Bytes;
use contracts::rpc::{CallHead, DispatchError};
use contracts::{Encoding, FleetEntry, LoadReport, topics};
use domain::{Epoch, Incarnation, TargetState, Timestamp, Worker};
use futures::StreamExt;
use service_kit::{CancellationToken, Clock, Context, Health};
use tokio::task::JoinSet;
use tokio::time::timeout;
use worker_adapter::{Config, WorkerAdapter};

use crate::stub::Stub;

const DEADLINE: Duration = Duration::from_secs(20);

struct Running {
    bus: Arc<dyn Bus>,
    health: Health,
    shutdown: CancellationToken,
    tasks: JoinSet<anyhow::Result<()>>,
    dispatch: Arc<dyn contracts::rpc::Dispatch>,
}

impl Running {
    fn start(stub: &Stub, bus: Arc<dyn Bus>) -> Self {
        let health = Health::default();
        let context = Context {
            registry: prometheus::Registry::new(),
            health: health.clone(),
            clock: Clock::system(),
        };
        let config = Config {
            workers: vec![stub.config()],
        };
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
    async fn until(&self, wanted: impl Fn(Option<&Worker>) -> bool) {
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

fn memory() -> Arc<dyn Bus> {
    Arc::new(MemoryBus::new(&topics::LAYOUT))
}

#[tokio::test]
async fn a_worker_is_registered_reports_its_load_and_leaves_with_its_adapter() {
    let stub = Stub::start(0, 2).await;
    let mut running = Running::start(&stub, memory());
    let before = Clock::system().now();
    running
        .until(|worker| {
            worker.is_some_and(|it| it.state == TargetState::Ready && before < it.lease_until)
        })
        .await;
    let partition = topics::LOAD.partition_of("w1");
    let mut reports = running.bus.read(&partition, Start::Earliest).await.unwrap();
    let report = timeout(DEADLINE, reports.next()).await.unwrap();
    let report = LoadReport::from_bytes(&report.unwrap().unwrap().record.0).unwrap();
    assert_eq!(report.ranks.len(), 2);
    assert_eq!((report.ranks[1].running, report.ranks[1].waiting), (3, 1));
    assert!(running.health.missing().is_empty());

    running.shutdown.cancel();
    running.tasks.join_next().await.unwrap().unwrap().unwrap();
    running.until(|worker| worker.is_none()).await;
}

#[tokio::test]
async fn a_worker_warms_up_serves_and_is_gone_when_nobody_answers() {
    let stub = Stub::start(0, 1).await;
    stub.set("/health", 503, "");
    let running = Running::start(&stub, memory());
    let in_state =
        |state| move |worker: Option<&Worker>| worker.is_some_and(|it| it.state == state);
    running.until(in_state(TargetState::Warming)).await;
    assert!(running.health.missing().contains_key("engines"));
    stub.set("/health", 200, "");
    running.until(in_state(TargetState::Ready)).await;
    // It still answers everything else, but a dead engine core shows here.
    stub.set("/health", 503, "");
    running.until(in_state(TargetState::Gone)).await;
    stub.set("/health", 200, "");
    running.until(in_state(TargetState::Ready)).await;
    stub.stop().await;
    running.until(in_state(TargetState::Gone)).await;
    let answer = running.dispatch.call(models_of_w1(), Bytes::new()).await;
    let error = answer.err().unwrap();
    assert!(matches!(error, DispatchError::UnknownWorker { .. }));
}

#[tokio::test]
async fn a_call_right_after_the_start_waits_for_the_workers_first_answer() {
    let stub = Stub::start(0, 1).await;
    let running = Running::start(&stub, memory());

    let answer = running.dispatch.call(models_of_w1(), Bytes::new()).await;

    assert_eq!(answer.unwrap().0.status, 200);
}

fn models_of_w1() -> CallHead {
    CallHead {
        worker: "w1".parse().unwrap(),
        dp_rank: None,
        method: "GET".to_owned(),
        path: "/v1/models".to_owned(),
        headers: Vec::new(),
        usage_injected: false,
    }
}

#[tokio::test]
async fn the_incarnation_that_others_recorded_is_the_one_registered() {
    let bus = memory();
    let incarnation = Incarnation {
        epoch: Epoch::new(7),
        why: "it restarted".to_owned(),
        since: Timestamp::ZERO,
    };
    let key = Key(Bytes::from_static(b"w1"));
    let table = &topics::INCARNATIONS.table;
    bus.put(table, key, Some(incarnation.to_bytes()), Expect::Absent)
        .await
        .unwrap();
    let stub = Stub::start(0, 1).await;
    let running = Running::start(&stub, bus);
    running
        .until(|worker| worker.is_some_and(|it| it.epoch == Epoch::new(7)))
        .await;
}
