//! Adapters and ingests, each asked about its own workers.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use contracts::grpc::Services;
use contracts::rpc::{
    CallEnd, CallError, CallHead, CallStream, Dispatch, DispatchError, Down, Feed, HttpHead,
};
use domain::{EventSeq, ServiceKind, Share, Target};
use futures::{StreamExt, stream};

use crate::world::{Process, World};

/// Answers with its own number.
struct Adapter(u16);

#[async_trait]
impl Dispatch for Adapter {
    async fn call(&self, _: CallHead, _: Bytes) -> Result<(HttpHead, CallStream), DispatchError> {
        let head = HttpHead {
            status: self.0,
            headers: Vec::new(),
        };
        let end = stream::iter([Ok(Down::End(CallEnd::default()))]);
        Ok((head, end.boxed()))
    }
}

fn workers(ids: &[&str]) -> Share {
    Share::Workers(ids.iter().map(|it| it.parse().unwrap()).collect())
}

async fn adapter(world: &World, id: &str, ids: &[&str], number: u16) -> Process {
    let services = Services::default().dispatch(Arc::new(Adapter(number)));
    let kind = ServiceKind::WorkerAdapter;
    world.start((id, kind, workers(ids)), services).await
}

async fn call(world: &World, worker: &str) -> Result<u16, DispatchError> {
    let head = CallHead {
        worker: worker.parse().unwrap(),
        dp_rank: None,
        conversation: None,
        method: "POST".to_owned(),
        path: "/v1/completions".to_owned(),
        headers: Vec::new(),
        usage_injected: false,
    };
    let called = world.fleet.dispatch().call(head, Bytes::new()).await;
    called.map(|(head, _)| head.status)
}

#[tokio::test]
async fn a_request_goes_to_the_adapter_of_its_worker() {
    let world = World::new();
    let _one = adapter(&world, "one", &["w1", "w2"], 201).await;
    let two = adapter(&world, "two", &["w3"], 202).await;
    let spare = adapter(&world, "spare", &["w3"], 203).await;
    for (worker, number) in [("w1", 201), ("w2", 201)] {
        assert_eq!(call(&world, worker).await.unwrap(), number);
    }
    let unknown = call(&world, "w4").await.unwrap_err();
    assert!(
        matches!(unknown, DispatchError::Adapter { .. }),
        "{unknown:?}"
    );

    let (first, left) = match call(&world, "w3").await.unwrap() {
        202 => (two, (203, spare)),
        203 => (spare, (202, two)),
        other => panic!("{other}"),
    };
    drop(first);
    assert_eq!(call(&world, "w3").await.unwrap(), left.0);
    drop(left);
    let gone = call(&world, "w3").await.unwrap_err();
    assert!(matches!(gone, DispatchError::Adapter { .. }), "{gone:?}");

    // It is asked again as soon as it is heard of.
    let _back = adapter(&world, "two", &["w3"], 204).await;
    let back = async {
        while !matches!(call(&world, "w3").await, Ok(204)) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(crate::world::PATIENCE, back)
        .await
        .unwrap();
}

/// Knows no worker.
struct Lost;

#[async_trait]
impl Dispatch for Lost {
    async fn call(
        &self,
        head: CallHead,
        _: Bytes,
    ) -> Result<(HttpHead, CallStream), DispatchError> {
        let worker = head.worker;
        Err(DispatchError::UnknownWorker { worker })
    }
}

#[tokio::test]
async fn where_one_adapter_does_not_find_the_worker_another_is_asked() {
    let world = World::new();
    let kind = ServiceKind::WorkerAdapter;
    let mut lost = Vec::new();
    // Whichever of them is asked first.
    for id in ["a", "b", "c"] {
        let services = Services::default().dispatch(Arc::new(Lost));
        lost.push(world.start((id, kind, workers(&["w1"])), services).await);
    }
    let unknown = call(&world, "w1").await.unwrap_err();
    assert!(
        matches!(unknown, DispatchError::UnknownWorker { .. }),
        "{unknown:?}"
    );
    let _finds = adapter(&world, "d", &["w1"], 201).await;
    assert_eq!(call(&world, "w1").await.unwrap(), 201);
}

#[derive(Default)]
struct Ingest(Mutex<Vec<(Target, EventSeq)>>);

#[async_trait]
impl Feed for Ingest {
    async fn resync(&self, target: &Target, from: EventSeq) -> Result<(), CallError> {
        self.0.lock().unwrap().push((target.clone(), from));
        Ok(())
    }
}

#[tokio::test]
async fn events_are_asked_for_where_the_worker_is_followed() {
    let world = World::new();
    let stubs = [Arc::new(Ingest::default()), Arc::new(Ingest::default())];
    let kind = ServiceKind::EventIngest;
    let serve = |stub: &Arc<Ingest>| Services::default().feed(stub.clone());
    let own = ("own", kind, workers(&["w1"]));
    let _own = world.start(own, serve(&stubs[0])).await;
    let _all = world
        .start(("all", kind, Share::Whole), serve(&stubs[1]))
        .await;

    for (worker, stub) in [("w1", &stubs[0]), ("w2", &stubs[1])] {
        let target: Target = format!("{worker}#1/0").parse().unwrap();
        let from = EventSeq::new(7);
        assert_eq!(world.fleet.feed().resync(&target, from).await, Ok(()));
        assert_eq!(*stub.0.lock().unwrap(), [(target, from)]);
    }
}
