//! What becomes of the calls of an engine that hangs.

use std::time::Duration;

use bytes::Bytes;
use contracts::rpc::{CallHead, CallStream, DispatchError, Down};
use domain::{TargetState, Worker};
use futures::StreamExt;
use tokio::time::timeout;
use worker_adapter::WorkerConfig;

use crate::running::{DEADLINE, Running, get, memory};
use crate::stub::{NEVER, STREAM, Stub};

fn ready(worker: Option<&Worker>) -> bool {
    worker.is_some_and(|it| it.state == TargetState::Ready)
}

fn gone(worker: Option<&Worker>) -> bool {
    worker.is_some_and(|it| it.state == TargetState::Gone)
}

/// The watcher's next questions fail at once: the worker is gone soon.
fn fail(stub: &Stub) {
    stub.set("/metrics", 500, "");
}

async fn begin(running: &Running, head: CallHead) -> CallStream {
    let call = running.dispatch.call(head, Bytes::new());
    timeout(DEADLINE, call).await.unwrap().unwrap().1
}

async fn next(stream: &mut CallStream) -> Result<Down, DispatchError> {
    timeout(DEADLINE, stream.next()).await.unwrap().unwrap()
}

fn chunk(text: &'static str) -> Down {
    Down::Chunk(Bytes::from_static(text.as_bytes()))
}

fn assert_unreachable(error: &DispatchError, stub: &Stub) {
    assert!(matches!(error, DispatchError::Connect { .. }), "{error:?}");
    assert!(error.is_retryable());
    let expected = format!("connect to worker w1 at {}", stub.url);
    assert_eq!(error.to_string(), expected);
}

#[tokio::test]
async fn a_call_without_an_answer_breaks_off_when_its_worker_is_gone() {
    let stub = Stub::start(0, 1).await;
    let running = Running::start(&stub, memory());
    running.until(ready).await;
    let call = running.dispatch.call(get(NEVER), Bytes::new());
    let freeze = async {
        stub.until_calls(1).await;
        stub.freeze();
    };

    let (answer, ()) = timeout(DEADLINE, async { tokio::join!(call, freeze) })
        .await
        .unwrap();

    assert_unreachable(&answer.err().unwrap(), &stub);
    // The engine is told, should it ever wake up.
    stub.until_calls(0).await;
}

#[tokio::test]
async fn an_answer_of_which_only_the_head_came_breaks_off_when_its_worker_is_gone() {
    let stub = Stub::start(0, 1).await;
    let running = Running::start(&stub, memory());
    let mut stream = begin(&running, get(STREAM)).await;
    fail(&stub);

    let error = next(&mut stream).await.err().unwrap();

    assert_unreachable(&error, &stub);
    assert!(stream.next().await.is_none());
    drop(stream);
    stub.until_calls(0).await;
}

#[tokio::test]
async fn an_answer_of_which_nothing_could_be_passed_on_breaks_off_too() {
    let stub = Stub::start(0, 1).await;
    let running = Running::start(&stub, memory());
    let head = CallHead {
        usage_injected: true,
        ..get(STREAM)
    };
    let mut stream = begin(&running, head).await;
    // Half an event is held back: it may be the one nobody asked for.
    stub.send("data: {");
    fail(&stub);

    let error = next(&mut stream).await.err().unwrap();

    assert_unreachable(&error, &stub);
}

#[tokio::test]
async fn an_answer_that_has_begun_goes_on_though_its_worker_is_gone() {
    let stub = Stub::start(0, 1).await;
    let running = Running::start(&stub, memory());
    let mut stream = begin(&running, get(STREAM)).await;
    stub.send("data: 1\n\n");
    assert_eq!(next(&mut stream).await.unwrap(), chunk("data: 1\n\n"));
    fail(&stub);
    running.until(gone).await;

    stub.send("data: 2\n\n");

    assert_eq!(next(&mut stream).await.unwrap(), chunk("data: 2\n\n"));
}

#[tokio::test]
async fn a_worker_that_comes_back_serves_new_calls() {
    let stub = Stub::start(0, 1).await;
    let running = Running::start(&stub, memory());
    running.until(ready).await;
    stub.set("/health", 503, "");
    running.until(gone).await;
    stub.set("/health", 200, "");
    running.until(ready).await;

    let mut stream = begin(&running, get(STREAM)).await;
    stub.send("data: 1\n\n");

    assert_eq!(next(&mut stream).await.unwrap(), chunk("data: 1\n\n"));
}

#[tokio::test]
async fn a_call_outlives_the_adapters_watch_when_the_adapter_leaves() {
    let stub = Stub::start(0, 1).await;
    let mut running = Running::start(&stub, memory());
    let mut stream = begin(&running, get(STREAM)).await;
    running.shutdown.cancel();
    running.tasks.join_next().await.unwrap().unwrap().unwrap();

    stub.send("data: 1\n\n");

    assert_eq!(next(&mut stream).await.unwrap(), chunk("data: 1\n\n"));
}

/// An engine that answers its watcher and has forgotten the call.
#[tokio::test]
async fn a_call_breaks_off_whose_first_byte_does_not_come_in_time() {
    let stub = Stub::start(0, 1).await;
    let impatient = WorkerConfig {
        first_byte_seconds: Some(1),
        ..stub.config()
    };
    let running = Running::before(vec![impatient], memory());
    running.until(ready).await;
    let call = running.dispatch.call(get(NEVER), Bytes::new());
    let error = timeout(DEADLINE, call).await.unwrap().err().unwrap();
    assert_unreachable(&error, &stub);
    let why = std::error::Error::source(&error).unwrap().to_string();
    assert_eq!(why, "no first byte came within 1 s (`first_byte_seconds`)");
    stub.until_calls(0).await;

    let mut headless = begin(&running, get(STREAM)).await;
    let error = next(&mut headless).await.err().unwrap();
    assert_unreachable(&error, &stub);
    drop(headless);
    stub.until_calls(0).await;

    // What has begun may take its time.
    let mut stream = begin(&running, get(STREAM)).await;
    stub.send("one");
    assert_eq!(next(&mut stream).await.unwrap(), chunk("one"));
    let early = timeout(Duration::from_secs(2), stream.next()).await;
    assert!(early.is_err(), "nothing comes, and it is not broken off");
    stub.send("two");
    assert_eq!(next(&mut stream).await.unwrap(), chunk("two"));
}
