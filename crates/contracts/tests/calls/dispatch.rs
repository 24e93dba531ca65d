//! Requests to engines and their answers, byte for byte.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use contracts::grpc::{RemoteDispatch, Services, limits};
use contracts::rpc::{
    CallEnd, CallHead, CallStream, Dispatch, DispatchError, Down, HttpHead, RankEvidence,
};
use domain::{DpRank, Tokens, Usage};
use futures::{StreamExt, stream};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use tokio::time::timeout;

use crate::origin::{Origins, PATIENCE, for_many};
use crate::samples;

type Answered = Result<(HttpHead, CallStream), DispatchError>;
type Engine = dyn Fn(CallHead, Bytes) -> Answered + Send + Sync;

/// An engine that does what a test says.
pub(crate) struct Stub(pub(crate) Box<Engine>);

#[async_trait]
impl Dispatch for Stub {
    async fn call(&self, head: CallHead, body: Bytes) -> Answered {
        (self.0)(head, body)
    }
}

pub(crate) fn origins(
    engine: impl Fn(CallHead, Bytes) -> Answered + Send + Sync + 'static,
) -> Origins<dyn Dispatch> {
    let remote = |peer| -> Arc<dyn Dispatch> { Arc::new(RemoteDispatch::new(peer)) };
    let stub: Arc<dyn Dispatch> = Arc::new(Stub(Box::new(engine)));
    Origins::of(stub, Services::dispatch, remote)
}

pub(crate) fn head() -> CallHead {
    CallHead {
        worker: "w1".parse().unwrap(),
        dp_rank: Some(DpRank::new(3)),
        conversation: None,
        method: "POST".to_owned(),
        path: "/v1/chat/completions".to_owned(),
        headers: Vec::new(),
        usage_injected: false,
    }
}

pub(crate) fn ok() -> HttpHead {
    HttpHead {
        status: 200,
        headers: Vec::new(),
    }
}

/// All of an answer.
pub(crate) async fn whole(mut answer: CallStream) -> (Vec<u8>, Result<CallEnd, DispatchError>) {
    let mut body = Vec::new();
    loop {
        let step = timeout(PATIENCE, answer.next()).await.unwrap().unwrap();
        let end = match step {
            Ok(Down::Chunk(chunk)) => {
                assert!(chunk.len() <= limits::CHUNK);
                body.extend_from_slice(&chunk);
                continue;
            }
            Ok(Down::End(end)) => Ok(end),
            Err(error) => Err(error),
        };
        assert!(answer.next().await.is_none(), "nothing follows the end");
        return (body, end);
    }
}

fn headers() -> impl Strategy<Value = Vec<(String, String)>> {
    vec(("[a-z-]{1,20}", "[ -~]{0,40}"), 0..6)
}

fn call() -> impl Strategy<Value = CallHead> {
    let asked = (
        samples::worker(),
        any::<Option<u32>>(),
        option::of("[a-z]{1,99}"),
    );
    let sent = ("[A-Z]{1,9}", "/[ -~]{0,40}", headers(), any::<bool>());
    (asked, sent).prop_map(|((worker, dp_rank, conversation), sent)| {
        let (method, path, headers, usage_injected) = sent;
        CallHead {
            worker,
            dp_rank: dp_rank.map(DpRank::new),
            conversation: conversation.map(|it| it.parse().unwrap()),
            method,
            path,
            headers,
            usage_injected,
        }
    })
}

fn end() -> impl Strategy<Value = CallEnd> {
    let usage = any::<Option<(u64, u64, Option<u64>)>>();
    (usage, any::<Option<(u32, bool)>>()).prop_map(|(usage, rank)| CallEnd {
        usage: usage.map(|(prompt, completion, cached)| Usage {
            prompt: Tokens::new(prompt),
            completion: Tokens::new(completion),
            cached: cached.map(Tokens::new),
        }),
        observed_rank: rank.map(|(rank, body)| {
            let evidence = if body {
                RankEvidence::Body
            } else {
                RankEvidence::Header
            };
            (DpRank::new(rank), evidence)
        }),
    })
}

#[test]
fn a_call_arrives_and_its_answer_comes_back_byte_for_byte() {
    type Script = (HttpHead, Vec<Vec<u8>>, CallEnd);
    let script: Arc<Mutex<Option<Script>>> = Arc::default();
    let asked: Arc<Mutex<Option<(CallHead, Bytes)>>> = Arc::default();
    let (told, noted) = (script.clone(), asked.clone());
    let origins = origins(move |head, body| {
        *noted.lock().unwrap() = Some((head, body));
        let (head, chunks, end) = told.lock().unwrap().clone().unwrap();
        let chunks = chunks
            .into_iter()
            .map(|it| Ok(Down::Chunk(Bytes::from(it))));
        let steps = chunks.chain([Ok(Down::End(end))]);
        Ok((head, stream::iter(steps.collect::<Vec<_>>()).boxed()))
    });
    let bytes = |most| vec(any::<u8>(), 0..most);
    let answer = (100_u16..1000, headers(), vec(bytes(300), 0..5), end());
    let values = (call(), bytes(3_000), answer);
    for_many(
        values,
        async |(call, body, (status, headers, chunks, end))| {
            let head = HttpHead { status, headers };
            *script.lock().unwrap() = Some((head.clone(), chunks.clone(), end.clone()));
            for dispatch in &origins.all {
                let answered = dispatch.call(call.clone(), body.clone().into()).await;
                let (head_back, answer) = answered.unwrap();
                prop_assert_eq!(&head_back, &head);
                let (body_back, end_back) = whole(answer).await;
                prop_assert_eq!(&body_back, &chunks.concat());
                prop_assert_eq!(&end_back.unwrap(), &end);
                let (head_there, body_there) = asked.lock().unwrap().take().unwrap();
                prop_assert_eq!(&head_there, &call);
                prop_assert_eq!(&body_there[..], &body[..]);
            }
            Ok(())
        },
    );
}

#[tokio::test]
async fn bodies_of_every_size_pass_in_chunks_that_are_small_enough() {
    let origins = origins(|_, body| {
        let chunks: Vec<_> = body
            .chunks(limits::CHUNK)
            .map(Bytes::copy_from_slice)
            .collect();
        let chunks = chunks.into_iter().map(|it| Ok(Down::Chunk(it)));
        let end = Ok(Down::End(CallEnd::default()));
        Ok((
            ok(),
            stream::iter(chunks).chain(stream::iter([end])).boxed(),
        ))
    });
    let chunk = limits::CHUNK;
    for dispatch in &origins.all {
        for size in [0, 1, chunk - 1, chunk, chunk + 1, 5 * chunk, 20_000_001] {
            let body: Vec<u8> = (0..size).map(|it| (it % 251) as u8).collect();
            let answered = dispatch.call(head(), body.clone().into()).await;
            let (back, end) = whole(answered.unwrap().1).await;
            assert!(back == body, "{size} bytes");
            assert_eq!(end.unwrap(), CallEnd::default());
        }
    }
}

#[tokio::test]
async fn a_chunk_that_is_too_large_is_cut() {
    let origins = origins(|_, body| {
        let steps = [Ok(Down::Chunk(body)), Ok(Down::End(CallEnd::default()))];
        Ok((ok(), stream::iter(steps).boxed()))
    });
    let [_, dispatch] = &origins.all;
    let body = vec![7; 3 * limits::CHUNK + 1];
    let answered = dispatch.call(head(), body.clone().into()).await;
    assert!(whole(answered.unwrap().1).await.0 == body);
}

#[tokio::test]
async fn a_body_that_no_adapter_takes_is_an_error_that_says_so() {
    let origins = origins(|_, _| panic!("nothing of it arrives"));
    let [_, dispatch] = &origins.all;
    let body = Bytes::from(vec![0; limits::BODY as usize + 1]);
    let error = dispatch.call(head(), body).await.err().unwrap();
    let DispatchError::Adapter { source, .. } = error else {
        panic!("{error:?}");
    };
    let over = "a body of 268435457 bytes is over the limit of 268435456";
    assert!(source.to_string().contains(over), "{source}");
}
