//! How a worker lives in the fleet, seen over the bus.

use std::collections::BTreeSet;
use std::time::Duration;

use bus::{Expect, Key, Start};
use bytes::Bytes;
use contracts::rpc::DispatchError;
use contracts::{Encoding, LoadReport, topics};
use domain::{Epoch, Incarnation, TargetState, Timestamp, Worker};
use futures::StreamExt;
use service_kit::Clock;
use tokio::time::{sleep, timeout};
use worker_adapter::{EngineUrl, WorkerConfig};

use crate::running::{DEADLINE, Running, get, memory};
use crate::stub::Stub;

#[tokio::test]
async fn a_worker_is_registered_reports_its_load_and_outlives_its_adapter_by_its_lease() {
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
    let mut left = None;
    let ended = Clock::system().now();
    running
        .until(|worker| {
            left = worker.cloned();
            left.is_some()
        })
        .await;
    let left = left.unwrap();
    assert_eq!(left.state, TargetState::Ready);
    assert!(ended < left.lease_until);
}

#[tokio::test]
async fn of_two_adapters_of_a_worker_one_that_does_not_reach_it_says_nothing_of_it() {
    let (near, far) = (Stub::start(0, 1).await, Stub::start(0, 1).await);
    let bus = memory();
    let one = Running::start(&near, bus.clone());
    one.until(|it| it.is_some()).await;
    let other = Running::start(&far, bus);
    // Each has seen what the other says.
    let mut leases = BTreeSet::new();
    one.until(|it| {
        leases.extend(it.map(|it| it.lease_until));
        3 < leases.len()
    })
    .await;

    near.stop().await;
    let lost = async {
        let call = || one.dispatch.call(get("/v1/models"), Bytes::new());
        while !matches!(call().await, Err(DispatchError::UnknownWorker { .. })) {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(DEADLINE, lost).await.unwrap();
    let (mut leases, mut gone) = (BTreeSet::new(), false);
    other
        .until(|it| {
            leases.extend(it.map(|it| it.lease_until));
            gone |= it.is_some_and(|it| it.state == TargetState::Gone);
            1 < leases.len()
        })
        .await;
    assert!(!gone);

    far.stop().await;
    other
        .until(|it| it.is_some_and(|it| it.state == TargetState::Gone))
        .await;
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
    let answer = running.dispatch.call(get("/v1/models"), Bytes::new()).await;
    let error = answer.err().unwrap();
    assert!(matches!(error, DispatchError::UnknownWorker { .. }));
}

#[tokio::test]
async fn a_call_right_after_the_start_waits_for_the_workers_first_answer() {
    let stub = Stub::start(0, 1).await;
    let running = Running::start(&stub, memory());

    let answer = running.dispatch.call(get("/v1/models"), Bytes::new()).await;

    assert_eq!(answer.unwrap().0.status, 200);
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

#[tokio::test]
async fn an_engine_that_does_not_answer_is_named_while_others_work() {
    let stub = Stub::start(0, 1).await;
    let dead: EngineUrl = "http://127.0.0.1:1".parse().unwrap();
    let workers = vec![WorkerConfig::at(dead), stub.config()];
    let running = Running::before(workers, memory());
    let named = async {
        loop {
            let amiss = running.health.findings();
            let amiss = amiss.get("engines").cloned().unwrap_or_default();
            if let [only] = &amiss[..]
                && running.health.missing().is_empty()
            {
                return only.clone();
            }
            sleep(Duration::from_millis(20)).await;
        }
    };
    let named = timeout(DEADLINE, named).await.unwrap();
    assert!(named.contains("http://127.0.0.1:1"), "{named}");

    stub.stop().await;
    let both = async {
        loop {
            let missing = running.health.missing().remove("engines");
            if let Some(missing) = missing.filter(|it| it.matches("no engine answers").count() == 2)
            {
                return missing;
            }
            sleep(Duration::from_millis(20)).await;
        }
    };
    let both = timeout(DEADLINE, both).await.unwrap();
    assert!(running.health.findings().is_empty(), "{both}");
}
