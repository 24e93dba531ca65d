//! How calls to engines end otherwise than well: errors, readers that stop, callers that leave, adapters that die.

use std::future::pending;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use contracts::grpc::{RemoteDispatch, Services, limits};
use contracts::rpc::{CallEnd, CallHead, CallStream, Dispatch, DispatchError, Down, HttpHead};
use domain::DpRank;
use futures::{StreamExt, stream};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use crate::dispatch::{Stub, head, ok, origins, whole};
use crate::origin::{PATIENCE, Process};

/// An error and its causes.
fn chain(error: &DispatchError) -> Vec<String> {
    let first: &(dyn std::error::Error + 'static) = error;
    let all = std::iter::successors(Some(first), |&it| it.source());
    all.map(ToString::to_string).collect()
}

#[derive(Debug, thiserror::Error)]
#[error("the socket is gone")]
struct Deep(#[source] io::Error);

fn deep() -> Box<dyn std::error::Error + Send + Sync> {
    Deep(io::Error::other("reset by \u{20ac} peer")).into()
}

fn errors() -> Vec<DispatchError> {
    let worker = || "w1".parse().unwrap();
    vec![
        DispatchError::UnknownWorker { worker: worker() },
        DispatchError::Rank {
            worker: worker(),
            dp_rank: DpRank::new(9),
            why: "it has ranks 0 to 3".to_owned(),
        },
        DispatchError::Connect {
            worker: worker(),
            url: "http://10.0.0.1:8000".to_owned(),
            source: deep(),
        },
        DispatchError::Broken {
            worker: worker(),
            source: deep(),
        },
    ]
}

fn same(one: &DispatchError, other: &DispatchError) {
    assert_eq!(std::mem::discriminant(one), std::mem::discriminant(other));
    assert_eq!(chain(one), chain(other));
    if let (
        DispatchError::Rank { dp_rank, why, .. },
        DispatchError::Rank {
            dp_rank: other_rank,
            why: other_why,
            ..
        },
    ) = (one, other)
    {
        assert_eq!((dp_rank, why), (other_rank, other_why));
    }
}

#[tokio::test]
async fn an_error_keeps_its_kind_its_details_and_its_causes() {
    for number in 0..errors().len() {
        let origins = origins(move |_, _| Err(errors().swap_remove(number)));
        for dispatch in &origins.all {
            let error = dispatch.call(head(), Bytes::new()).await.err().unwrap();
            same(&error, &errors()[number]);
        }
    }
}

#[tokio::test]
async fn an_answer_that_breaks_off_half_way_says_why() {
    for number in 0..errors().len() {
        let origins = origins(move |_, _| {
            let half = Ok(Down::Chunk(Bytes::from_static(b"half")));
            let steps = [half, Err(errors().swap_remove(number))];
            Ok((ok(), stream::iter(steps).boxed()))
        });
        for dispatch in &origins.all {
            let (_, answer) = dispatch.call(head(), Bytes::new()).await.unwrap();
            let (body, end) = whole(answer).await;
            assert_eq!(body, b"half");
            same(&end.unwrap_err(), &errors()[number]);
        }
    }
}

#[tokio::test]
async fn an_answer_without_an_end_is_broken() {
    let origins = origins(|_, _| Ok((ok(), stream::iter([]).boxed())));
    let [_, dispatch] = &origins.all;
    let (_, answer) = dispatch.call(head(), Bytes::new()).await.unwrap();
    let error = whole(answer).await.1.unwrap_err();
    assert!(matches!(error, DispatchError::Broken { .. }), "{error:?}");
}

/// Endless answers, of which it counts the chunks taken.
fn endless() -> (Arc<AtomicUsize>, Stub) {
    let taken = Arc::new(AtomicUsize::new(0));
    let counted = taken.clone();
    let stub = Stub(Box::new(move |_, _| {
        let counted = counted.clone();
        let chunks = stream::repeat_with(move || {
            counted.fetch_add(1, Ordering::Relaxed);
            Ok(Down::Chunk(Bytes::from(vec![0; limits::CHUNK])))
        });
        Ok((ok(), chunks.boxed()))
    }));
    (taken, stub)
}

/// An answer that has begun.
async fn begin(dispatch: &RemoteDispatch) -> (HttpHead, CallStream) {
    let called = timeout(PATIENCE, dispatch.call(head(), Bytes::new())).await;
    called.unwrap().unwrap()
}

/// What it comes to once it does not grow any more.
async fn settled(count: &AtomicUsize) -> usize {
    let mut last = count.load(Ordering::Relaxed);
    loop {
        sleep(Duration::from_millis(300)).await;
        let now = count.load(Ordering::Relaxed);
        if now == last && 0 < now {
            return now;
        }
        last = now;
    }
}

#[tokio::test]
async fn readers_that_stop_hold_back_their_own_answers_and_no_others() {
    let (taken, stub) = endless();
    let process = Process::start(Services::default().dispatch(Arc::new(stub)));
    let dispatch = RemoteDispatch::new(process.peer());
    let mut stopped = Vec::new();
    // Far more than a connection's window would hold if it were not that of all its streams.
    for _ in 0..64 {
        let (_, answer) = begin(&dispatch).await;
        stopped.push(answer);
    }
    let held = settled(&taken).await;
    // A stream's window at the reader, and as much on its way and being sent.
    let most = 64 * (4 * limits::STREAM_WINDOW as usize / limits::CHUNK);
    assert!(held <= most, "{held} chunks are held, more than {most}");

    let (_, mut answer) = begin(&dispatch).await;
    for _ in 0..100 {
        let step = timeout(PATIENCE, answer.next()).await.unwrap();
        assert!(matches!(step, Some(Ok(Down::Chunk(_)))), "{step:?}");
    }
    // One that goes on reading is given more.
    let first = &mut stopped[0];
    for _ in 0..100 {
        let step = timeout(PATIENCE, first.next()).await.unwrap();
        assert!(matches!(step, Some(Ok(Down::Chunk(_)))), "{step:?}");
    }
}

/// Says so when it is dropped.
struct Gone(mpsc::UnboundedSender<&'static str>);

impl Drop for Gone {
    fn drop(&mut self) {
        // A test that has ended does not mind.
        let _ = self.0.send("gone");
    }
}

/// Never answers, or never goes on.
struct Hanging {
    answers: bool,
    say: mpsc::UnboundedSender<&'static str>,
}

#[async_trait]
impl Dispatch for Hanging {
    async fn call(&self, _: CallHead, _: Bytes) -> Result<(HttpHead, CallStream), DispatchError> {
        let gone = Gone(self.say.clone());
        self.say.send("called").unwrap();
        if !self.answers {
            pending::<()>().await;
        }
        let begin = stream::iter([Ok(Down::Chunk(Bytes::from_static(b"a")))]);
        let rest = begin.chain(stream::pending()).map(move |step| {
            let _held = &gone;
            step
        });
        Ok((ok(), rest.boxed()))
    }
}

fn hanging(
    answers: bool,
) -> (
    Process,
    RemoteDispatch,
    mpsc::UnboundedReceiver<&'static str>,
) {
    let (say, said) = mpsc::unbounded_channel();
    let stub = Hanging { answers, say };
    let process = Process::start(Services::default().dispatch(Arc::new(stub)));
    let dispatch = RemoteDispatch::new(process.peer());
    (process, dispatch, said)
}

async fn next(said: &mut mpsc::UnboundedReceiver<&'static str>) -> &'static str {
    timeout(PATIENCE, said.recv()).await.unwrap().unwrap()
}

#[tokio::test]
async fn a_caller_that_leaves_before_the_head_stops_the_engine() {
    let (_process, dispatch, mut said) = hanging(false);
    let called = async { assert_eq!(next(&mut said).await, "called") };
    tokio::select! {
        _ = dispatch.call(head(), Bytes::from_static(b"{}")) => panic!("no answer comes"),
        () = called => {}
    }
    assert_eq!(next(&mut said).await, "gone");
}

#[tokio::test]
async fn a_caller_that_leaves_in_the_middle_stops_the_engine_though_it_is_silent() {
    let (_process, dispatch, mut said) = hanging(true);
    let (_, mut answer) = dispatch.call(head(), Bytes::new()).await.unwrap();
    let step = timeout(PATIENCE, answer.next()).await.unwrap();
    assert!(matches!(step, Some(Ok(Down::Chunk(_)))), "{step:?}");
    assert_eq!(next(&mut said).await, "called");
    drop(answer);
    assert_eq!(next(&mut said).await, "gone");
}

#[tokio::test]
async fn an_adapter_that_is_killed_is_named_and_not_its_engine() {
    let (process, dispatch, mut said) = hanging(false);
    let kill = async {
        next(&mut said).await;
        drop(process);
    };
    let (called, ()) = tokio::join!(dispatch.call(head(), Bytes::new()), kill);
    let error = called.err().unwrap();
    assert!(matches!(error, DispatchError::Adapter { .. }), "{error:?}");

    let (process, dispatch, _said) = hanging(true);
    let (_, mut answer) = dispatch.call(head(), Bytes::new()).await.unwrap();
    assert!(matches!(answer.next().await, Some(Ok(Down::Chunk(_)))));
    drop(process);
    let error = whole(answer).await.1.unwrap_err();
    assert!(matches!(error, DispatchError::Adapter { .. }), "{error:?}");
}

#[tokio::test]
async fn after_a_call_all_that_it_held_is_free() {
    let (say, mut said) = mpsc::unbounded_channel();
    let process = {
        let stub = Stub(Box::new(move |_, _| {
            let gone = Gone(say.clone());
            let end = stream::iter([Ok(Down::End(CallEnd::default()))]);
            let end = end.map(move |step| {
                let _held = &gone;
                step
            });
            Ok((ok(), end.boxed()))
        }));
        Process::start(Services::default().dispatch(Arc::new(stub)))
    };
    let dispatch = RemoteDispatch::new(process.peer());
    // More bodies, one after the other, than an adapter holds at once.
    for _ in 0..40 {
        let body = Bytes::from(vec![0; 32 << 20]);
        let (_, answer) = dispatch.call(head(), body).await.unwrap();
        whole(answer).await.1.unwrap();
        assert_eq!(next(&mut said).await, "gone");
    }
}
