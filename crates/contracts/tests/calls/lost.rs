//! What a caller sees of servers that die, hang, lie or are not there.

use std::future::pending;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use contracts::grpc::{Peer, RemoteDispatch, RemoteIndex, Services};
use contracts::rpc::{
    CallError, Dispatch, DispatchError, DumpItem, DumpStream, Index, LocateRequest, OverlapAnswer,
    OverlapRequest, PrefixHashes, TargetDigest,
};
use domain::{BlockSize, DpRank, Namespace};
use futures::stream::{self, StreamExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use crate::dispatch::head;
use crate::origin::{PATIENCE, Process};

/// Never answers an overlap, and says when it is asked.
struct Silent(mpsc::UnboundedSender<()>);

#[async_trait]
impl Index for Silent {
    async fn overlap(&self, _: OverlapRequest) -> Result<OverlapAnswer, CallError> {
        self.0.send(()).unwrap();
        pending().await
    }

    async fn locate(&self, _: LocateRequest) -> Result<Vec<DpRank>, CallError> {
        Ok(vec![DpRank::new(7)])
    }

    async fn digests(&self) -> Result<Vec<TargetDigest>, CallError> {
        self.0.send(()).unwrap();
        pending().await
    }

    async fn dump(&self) -> Result<DumpStream, CallError> {
        self.0.send(()).unwrap();
        let begin = stream::iter([Ok(DumpItem::End)]);
        Ok(begin.chain(stream::pending()).boxed())
    }
}

fn silent() -> (Services, mpsc::UnboundedReceiver<()>) {
    let (say, asked) = mpsc::unbounded_channel();
    (Services::default().index(Arc::new(Silent(say))), asked)
}

fn namespace() -> Namespace {
    Namespace {
        model: "m".parse().unwrap(),
        lora: None,
        salt: None,
        block_size: BlockSize::new(16).unwrap(),
    }
}

fn overlap() -> OverlapRequest {
    OverlapRequest {
        namespace: namespace(),
        hashes: PrefixHashes::Dense(Vec::new()),
        record: false,
    }
}

fn locate() -> LocateRequest {
    LocateRequest {
        namespace: namespace(),
        worker: "w1".parse().unwrap(),
        epoch: domain::Epoch::FIRST,
        hashes: PrefixHashes::Dense(Vec::new()),
        // Long enough for a busy machine: the call takes no longer than it must.
        deadline: PATIENCE,
    }
}

fn remote(process: &Process) -> RemoteIndex {
    RemoteIndex::new(process.peer())
}

#[tokio::test]
async fn a_server_that_never_answers_is_given_up_at_the_deadline() {
    let (services, mut asked) = silent();
    let process = Process::start(services);
    let begun = Instant::now();
    let answer = remote(&process).overlap(overlap()).await;
    let service = "indexer";
    assert_eq!(answer, Err(CallError::DeadlineExceeded { service }));
    assert!(contracts::grpc::limits::LOOKUP <= begun.elapsed());
    assert!(asked.recv().await.is_some(), "it was asked");
}

#[tokio::test]
async fn a_listener_that_never_speaks_is_given_up_at_the_deadline() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let index = RemoteIndex::new(Peer::at(&address, None).unwrap());
    let answer = timeout(PATIENCE, index.overlap(overlap())).await.unwrap();
    let service = "indexer";
    assert_eq!(answer, Err(CallError::DeadlineExceeded { service }));
}

#[tokio::test]
async fn a_server_killed_in_a_call_is_unavailable_and_its_successor_is_found() {
    let (services, mut asked) = silent();
    let process = Process::start(services);
    let index = remote(&process);
    assert_eq!(index.locate(locate()).await, Ok(vec![DpRank::new(7)]));
    let address = process.address;
    let kill = async {
        asked.recv().await.unwrap();
        drop(process);
    };
    // Not an overlap: what is seen is to be the kill and not the deadline.
    let (answer, ()) = tokio::join!(index.digests(), kill);
    assert!(
        matches!(
            answer,
            Err(CallError::Unavailable {
                service: "indexer",
                ..
            })
        ),
        "{answer:?}"
    );

    let answer = index.locate(locate()).await;
    assert!(
        matches!(answer, Err(CallError::Unreached { .. })),
        "{answer:?}"
    );

    let (services, _asked) = silent();
    let _successor = Process::start_at(address, services);
    assert_eq!(index.locate(locate()).await, Ok(vec![DpRank::new(7)]));
}

#[tokio::test]
async fn a_dump_whose_server_is_killed_breaks_off_with_an_error() {
    let (services, mut asked) = silent();
    let process = Process::start(services);
    let mut dump = remote(&process).dump().await.ok().unwrap();
    asked.recv().await.unwrap();
    assert_eq!(dump.next().await, Some(Ok(DumpItem::End)));
    drop(process);
    let broken = dump.next().await;
    assert!(
        matches!(broken, Some(Err(CallError::Unavailable { .. }))),
        "{broken:?}"
    );
    assert_eq!(dump.next().await, None);
}

#[tokio::test]
async fn nobody_there_means_that_nothing_was_done() {
    let (services, _asked) = silent();
    let process = Process::start(services);
    let index = remote(&process);
    let address = process.address.to_string();
    drop(process);
    let answer = index.digests().await.unwrap_err();
    let CallError::Unreached { service, why } = &answer else {
        panic!("{answer:?}");
    };
    assert_eq!(*service, "indexer");
    assert!(why.starts_with(&address), "{why}");
    assert!(answer.is_retryable());
}

#[tokio::test]
async fn what_a_server_does_not_serve_is_said() {
    let process = Process::start(Services::default());
    let answer = remote(&process).locate(locate()).await;
    let Err(CallError::Unavailable { why, .. }) = answer else {
        panic!("{answer:?}");
    };
    assert!(why.contains("Unimplemented"), "{why}");
}

#[tokio::test]
async fn an_adapter_that_shows_no_sign_of_life_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let dispatch = RemoteDispatch::new(Peer::at(&address, None).unwrap());
    let call = timeout(PATIENCE, dispatch.call(head(), Bytes::new()));
    let error = call.await.unwrap().err().unwrap();
    let DispatchError::Adapter { source, .. } = &error else {
        panic!("{error:?}");
    };
    assert!(source.to_string().starts_with(&address), "{source}");
    assert!(error.is_retryable());
}

#[test]
fn what_is_no_address_is_refused() {
    for address in ["", "a b:1", "a:99999999"] {
        assert!(Peer::at(address, None).is_err(), "{address:?}");
    }
}
