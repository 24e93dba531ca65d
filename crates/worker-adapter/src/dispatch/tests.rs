//! Dispatch against an engine of which every byte is written by the test.

use std::time::Duration;

use contracts::rpc::{CallHead, CallStream, Dispatch, DispatchError, Down, HttpHead};
use domain::{
    BlockSize, Capability, DpRank, EngineKind, Epoch, HeaderSpace, KvEndpoints, RankControl,
    TargetState, Timestamp, Tokens, Usage, Worker,
};
use futures::StreamExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::*;
use crate::address::EngineUrl;

mod dialects;

/// Nothing in these tests takes this long unless it never happens.
const DEADLINE: Duration = Duration::from_secs(10);

struct Engine {
    listener: TcpListener,
    dispatch: std::sync::Arc<EngineDispatch>,
}

impl Engine {
    /// A vLLM.
    async fn start(header_space: HeaderSpace, start_rank: u32, dp_size: u32) -> Self {
        let ranks = start_rank..start_rank + dp_size;
        Self::of(EngineKind::Vllm, "", header_space, ranks).await
    }

    async fn of(
        engine: EngineKind,
        version: &str,
        header_space: HeaderSpace,
        ranks: std::ops::Range<u32>,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let url: EngineUrl = format!("http://{address}").parse().unwrap();
        let roster = Roster::default();
        let worker = Worker {
            id: "w1".parse().unwrap(),
            epoch: Epoch::FIRST,
            engine,
            version: version.to_owned(),
            model: "m".parse().unwrap(),
            start_rank: ranks.start,
            dp_size: ranks.end - ranks.start,
            block_size: BlockSize::new(16).unwrap(),
            page_size: BlockSize::new(16).unwrap(),
            kv_blocks: None,
            capability: Capability {
                owns_bindings: engine == EngineKind::TensorRtLlm,
                ..Capability::uniform(RankControl::Strict, header_space)
            },
            state: TargetState::Ready,
            url: url.to_string(),
            kv_endpoints: KvEndpoints::None,
            lease_until: Timestamp::ZERO,
        };
        roster.set(url, worker, DEADLINE);
        let dispatch = EngineDispatch {
            roster,
            client: EngineClient::new(),
            metrics: Metrics::new(&prometheus::Registry::new()).unwrap(),
        };
        let dispatch = dispatch.into();
        Self { listener, dispatch }
    }

    /// The next request, whole, and the connection it came over.
    async fn accept(&self) -> (String, TcpStream) {
        let accepted = timeout(DEADLINE, self.listener.accept()).await.unwrap();
        let mut connection = accepted.unwrap().0;
        let request = read_request(&mut connection).await;
        (request, connection)
    }

    /// Sends a request and answers it with `response`.
    async fn exchange(
        &self,
        head: CallHead,
        response: &[u8],
    ) -> (String, Result<(HttpHead, CallStream), DispatchError>) {
        self.exchange_body(head, "{}", response).await
    }

    async fn exchange_body(
        &self,
        head: CallHead,
        body: &'static str,
        response: &[u8],
    ) -> (String, Result<(HttpHead, CallStream), DispatchError>) {
        let engine = async {
            let (request, mut connection) = self.accept().await;
            connection.write_all(response).await.unwrap();
            request
        };
        tokio::join!(engine, self.dispatch.call(head, body.into()))
    }
}

async fn read_request(connection: &mut TcpStream) -> String {
    let mut request = Vec::new();
    while !is_whole(&request) {
        let mut buffer = [0; 4096];
        let read = timeout(DEADLINE, connection.read(&mut buffer)).await;
        let read = read.unwrap().unwrap();
        assert_ne!(read, 0, "the request broke off");
        request.extend_from_slice(&buffer[..read]);
    }
    String::from_utf8(request).unwrap()
}

fn is_whole(request: &[u8]) -> bool {
    let text = str::from_utf8(request).unwrap();
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return false;
    };
    let mut lines = head.lines();
    let length = lines.find_map(|line| line.strip_prefix("content-length: "));
    body.len() == length.unwrap().parse::<usize>().unwrap()
}

fn head(dp_rank: Option<u32>, headers: &[(&str, &str)]) -> CallHead {
    CallHead {
        worker: "w1".parse().unwrap(),
        dp_rank: dp_rank.map(DpRank::new),
        conversation: None,
        method: "POST".to_owned(),
        path: "/v1/chat/completions?a=b".to_owned(),
        headers: headers
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect(),
        usage_injected: false,
    }
}

fn events(body: &str) -> Vec<u8> {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
    format!("{head}{body}").into_bytes()
}

async fn collect(mut stream: CallStream) -> (Vec<u8>, CallEnd) {
    let mut body = Vec::new();
    loop {
        match timeout(DEADLINE, stream.next()).await.unwrap().unwrap() {
            Ok(Down::Chunk(chunk)) => {
                assert!(chunk.len() <= 64 << 10);
                body.extend_from_slice(&chunk);
            }
            Ok(Down::End(end)) => {
                assert!(stream.next().await.is_none(), "nothing follows the end");
                return (body, end);
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Resolves when the peer has closed the connection.
async fn closed(mut connection: TcpStream) {
    let mut byte = [0];
    match timeout(DEADLINE, connection.read(&mut byte)).await.unwrap() {
        Ok(0) | Err(_) => {}
        Ok(_) => panic!("more bytes came"),
    }
}

const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

#[tokio::test]
async fn the_rank_is_sent_as_the_front_end_numbers_it() {
    let check = async |space, start, size, rank, expected: Option<&str>| {
        let engine = Engine::start(space, start, size).await;
        let (request, answer) = engine.exchange(head(Some(rank), &[]), OK).await;
        drop(answer.unwrap());
        let line = request
            .lines()
            .find_map(|line| line.strip_prefix("x-data-parallel-rank: "));
        assert_eq!(line, expected);
    };
    check(HeaderSpace::Global, 4, 4, 6, Some("6")).await;
    check(HeaderSpace::Local, 4, 4, 6, Some("2")).await;
    check(HeaderSpace::None, 6, 1, 6, None).await;
}

#[tokio::test]
async fn a_rank_that_cannot_be_asked_for_is_an_error_and_sends_nothing() {
    let check = async |space, size, rank, expected| {
        let engine = Engine::start(space, 0, size).await;
        let answer = engine.dispatch.call(head(Some(rank), &[]), "{}".into());
        let error = answer.await.err().unwrap();
        // Another worker may have it.
        assert!(error.is_retryable());
        assert_eq!(error.to_string(), expected);
    };
    check(
        HeaderSpace::None,
        2,
        1,
        "worker w1 cannot serve rank 1: it takes no rank (header_space = \"none\"); set header_space to \
         \"global\" or \"local\"",
    )
    .await;
    check(
        HeaderSpace::Global,
        2,
        2,
        "worker w1 cannot serve rank 2: it has ranks 0 to 1",
    )
    .await;
}

#[tokio::test]
async fn rank_and_hop_headers_of_the_client_stop_here_and_all_others_pass() {
    let engine = Engine::start(HeaderSpace::Global, 0, 2).await;
    let headers = [
        ("X-Data-Parallel-Rank", "0"),
        ("connection", "keep-alive, x-private"),
        ("x-private", "1"),
        ("transfer-encoding", "chunked"),
        ("content-length", "999"),
        ("host", "router:8080"),
        ("authorization", "Bearer key"),
        ("x-request-id", "r-1"),
    ];
    let (request, answer) = engine.exchange(head(Some(1), &headers), OK).await;
    drop(answer.unwrap());
    let mut lines: Vec<&str> = request.lines().take_while(|it| !it.is_empty()).collect();
    lines.sort_unstable();
    let host = format!("host: {}", engine.listener.local_addr().unwrap());
    assert_eq!(
        lines,
        [
            "POST /v1/chat/completions?a=b HTTP/1.1",
            "authorization: Bearer key",
            "content-length: 2",
            &host,
            "x-data-parallel-rank: 1",
            "x-request-id: r-1",
        ]
    );
    assert_eq!(engine.dispatch.metrics.stripped_headers.get(), 1);
}

#[tokio::test]
async fn an_answer_passes_whole_with_its_end_to_end_headers_and_its_usage() {
    let engine = Engine::start(HeaderSpace::Global, 0, 1).await;
    let body = r#"{"choices":[{}],"usage":{"prompt_tokens":40,"completion_tokens":2,
        "prompt_tokens_details":{"cached_tokens":32}}}"#;
    let response = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-engine: a\r\nkeep-alive: timeout=5\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    let (_, answer) = engine.exchange(head(None, &[]), response.as_bytes()).await;
    let (head, stream) = answer.unwrap();
    assert_eq!(head.status, 200);
    let content_type = ("content-type".to_owned(), "application/json".to_owned());
    assert_eq!(
        head.headers,
        [content_type, ("x-engine".to_owned(), "a".to_owned())]
    );
    let (passed, end) = collect(stream).await;
    assert_eq!(passed, body.as_bytes());
    let usage = Usage {
        prompt: Tokens::new(40),
        completion: Tokens::new(2),
        cached: Some(Tokens::new(32)),
    };
    assert_eq!(end.usage, Some(usage));
    assert_eq!(end.observed_rank, None);
}

#[tokio::test]
async fn an_injected_usage_frame_is_read_and_taken_out() {
    const USAGE: &str =
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":1}}\n\n";
    let text = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}],\"usage\":null}\n\n";
    let all = format!("{text}{USAGE}data: [DONE]\n\n");
    for (usage_injected, expected) in [
        (true, format!("{text}data: [DONE]\n\n")),
        (false, all.clone()),
    ] {
        let engine = Engine::start(HeaderSpace::Global, 0, 1).await;
        let head = CallHead {
            usage_injected,
            ..head(None, &[])
        };
        let (_, answer) = engine.exchange(head, &events(&all)).await;
        let (passed, end) = collect(answer.unwrap().1).await;
        assert_eq!(String::from_utf8(passed).unwrap(), expected);
        assert_eq!(end.usage.unwrap().prompt, Tokens::new(9));
    }
}

#[tokio::test]
async fn a_chunk_passes_while_the_engine_holds_the_rest() {
    let engine = Engine::start(HeaderSpace::Global, 0, 1).await;
    let call = engine.dispatch.call(head(None, &[]), "{}".into());
    let first = async {
        let (_, mut connection) = engine.accept().await;
        connection.write_all(&events("data: 1\n\n")).await.unwrap();
        connection
    };
    let (mut connection, answer) = tokio::join!(first, call);
    let mut stream = answer.unwrap().1;
    let chunk = timeout(DEADLINE, stream.next()).await.unwrap();
    assert_eq!(
        chunk.unwrap().unwrap(),
        Down::Chunk(Bytes::from_static(b"data: 1\n\n"))
    );
    connection.write_all(b"data: 2\n\n").await.unwrap();
    drop(connection);
    assert_eq!(collect(stream).await.0, b"data: 2\n\n");
}

#[tokio::test]
async fn dropping_the_call_before_its_first_byte_closes_the_connection() {
    let engine = Engine::start(HeaderSpace::Global, 0, 1).await;
    let dispatch = engine.dispatch.clone();
    let mut calls = tokio::task::JoinSet::new();
    calls.spawn(async move {
        let answer = dispatch.call(head(None, &[]), "{}".into()).await;
        answer.map(|_| ())
    });
    let (_, connection) = engine.accept().await;
    calls.abort_all();
    closed(connection).await;
}

#[tokio::test]
async fn dropping_the_stream_closes_the_connection_though_the_engine_is_silent() {
    let engine = Engine::start(HeaderSpace::Global, 0, 1).await;
    let call = engine.dispatch.call(head(None, &[]), "{}".into());
    let engine_side = async {
        let (_, mut connection) = engine.accept().await;
        connection.write_all(&events("data: 1\n\n")).await.unwrap();
        connection
    };
    let (connection, answer) = tokio::join!(engine_side, call);
    let mut stream = answer.unwrap().1;
    stream.next().await.unwrap().unwrap();
    drop(stream);
    closed(connection).await;
}

#[tokio::test]
async fn an_answer_that_breaks_off_ends_in_an_error() {
    let engine = Engine::start(HeaderSpace::Global, 0, 1).await;
    let (_, answer) = engine
        .exchange(
            head(None, &[]),
            b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf",
        )
        .await;
    let mut stream = answer.unwrap().1;
    let chunk = stream.next().await.unwrap().unwrap();
    assert_eq!(chunk, Down::Chunk(Bytes::from_static(b"half")));
    let error = timeout(DEADLINE, stream.next()).await.unwrap().unwrap();
    assert!(matches!(error, Err(DispatchError::Broken { .. })));
    assert!(stream.next().await.is_none());
}

#[tokio::test]
async fn nobody_there_is_a_retryable_error_that_names_the_url() {
    let engine = Engine::start(HeaderSpace::Global, 0, 1).await;
    let address = engine.listener.local_addr().unwrap();
    drop(engine.listener);
    let answer = engine.dispatch.call(head(None, &[]), "{}".into()).await;
    let error = answer.err().unwrap();
    assert!(error.is_retryable());
    let expected = format!("connect to worker w1 at http://{address}");
    assert_eq!(error.to_string(), expected);
}

#[tokio::test]
async fn connections_are_kept_for_the_next_request() {
    let engine = Engine::start(HeaderSpace::Global, 0, 1).await;
    let engine_side = async {
        let (_, mut connection) = engine.accept().await;
        connection.write_all(OK).await.unwrap();
        read_request(&mut connection).await;
        connection.write_all(OK).await.unwrap();
    };
    let client_side = async {
        for _ in 0..2 {
            let answer = engine.dispatch.call(head(None, &[]), "{}".into()).await;
            collect(answer.unwrap().1).await;
        }
    };
    timeout(DEADLINE, async { tokio::join!(engine_side, client_side) })
        .await
        .unwrap();
}

#[tokio::test]
async fn a_call_breaks_off_when_its_worker_is_lost_after_it_was_registered_again() {
    let engine = Engine::start(HeaderSpace::Global, 0, 1).await;
    let roster = &engine.dispatch.roster;
    let call = engine.dispatch.call(head(None, &[]), "{}".into());
    let watcher = async {
        let (_, connection) = engine.accept().await;
        let id = "w1".parse().unwrap();
        let entry = roster.find(&id).await.unwrap();
        roster.set(entry.url, entry.worker, DEADLINE);
        roster.lose(&id);
        connection
    };
    let (connection, answer) = timeout(DEADLINE, async { tokio::join!(watcher, call) })
        .await
        .unwrap();
    let error = answer.err().unwrap();
    assert!(matches!(error, DispatchError::Connect { .. }), "{error:?}");
    closed(connection).await;
}
