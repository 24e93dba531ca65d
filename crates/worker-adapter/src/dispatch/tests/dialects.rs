//! How each engine is asked for a rank, and what its answers say of it.

use super::*;

const TWO: std::ops::Range<u32> = 0..2;

async fn sglang(version: &str) -> Engine {
    Engine::of(EngineKind::Sglang, version, HeaderSpace::Global, TWO).await
}

fn head_to(path: &str, dp_rank: Option<u32>) -> CallHead {
    CallHead {
        path: path.to_owned(),
        ..head(dp_rank, &[])
    }
}

fn json(status: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\ncontent-type: application/json");
    format!("{head}\r\ncontent-length: {length}\r\n\r\n{body}").into_bytes()
}

/// The rank header and the body of a request.
fn parts(request: &str) -> (Option<&str>, &str) {
    let (head, body) = request.split_once("\r\n\r\n").unwrap();
    let mut lines = head.lines();
    let rank = lines.find_map(|line| line.strip_prefix("x-data-parallel-rank: "));
    (rank, body)
}

#[tokio::test]
async fn each_engine_is_asked_for_a_rank_where_it_takes_one() {
    let check = async |engine: Engine, path, body, expected: (Option<&str>, &str)| {
        let (request, answer) = engine.exchange_body(head_to(path, Some(1)), body, OK).await;
        drop(answer.unwrap());
        assert_eq!(parts(&request), expected, "{path}");
    };
    let chat = r#"{"stream":true}"#;
    let header = (Some("1"), chat);
    check(sglang("0.5.23").await, "/v1/chat/completions", chat, header).await;
    check(sglang("0.5.23").await, "/v1/messages", chat, header).await;
    check(sglang("0.5.20").await, "/v1/responses", chat, header).await;
    let field = r#"{"stream":true,"data_parallel_rank":1}"#;
    check(
        sglang("0.5.9").await,
        "/v1/completions",
        chat,
        (None, field),
    )
    .await;
    let slots =
        async || Engine::of(EngineKind::LlamaCpp, "b0-unknown", HeaderSpace::Global, TWO).await;
    let field = r#"{"stream":true,"id_slot":1}"#;
    for path in ["/v1/chat/completions", "/v1/completions", "/v1/responses"] {
        check(slots().await, path, chat, (None, field)).await;
    }
}

#[tokio::test]
async fn a_rank_that_an_engine_would_ignore_is_an_error_and_sends_nothing() {
    let check = async |engine: Engine, path, expected: &str| {
        let call = engine.dispatch.call(head_to(path, Some(1)), "{}".into());
        let error = call.await.err().unwrap();
        let expected = format!("worker w1 cannot serve rank 1: {expected}");
        assert_eq!(error.to_string(), expected);
    };
    check(
        sglang("0.5.19").await,
        "/v1/responses?a=b",
        "SGLang 0.5.19 lets nobody choose a rank at /v1/responses, so none may be asked for",
    )
    .await;
    let slots = Engine::of(EngineKind::LlamaCpp, "b1", HeaderSpace::Global, TWO).await;
    check(
        slots,
        "/v1/messages",
        "llama.cpp b1 lets nobody choose a rank at /v1/messages, so none may be asked for",
    )
    .await;
    let vllm = Engine::of(EngineKind::Vllm, "0.33.0", HeaderSpace::Global, TWO).await;
    check(
        vllm,
        "/tokenize",
        "vLLM 0.33.0 lets nobody choose a rank at /tokenize, so none may be asked for",
    )
    .await;
}

#[tokio::test]
async fn an_only_rank_runs_though_nothing_could_name_it() {
    let old = Engine::of(EngineKind::Vllm, "0.10.2", HeaderSpace::Global, 0..1).await;
    for path in ["/v1/chat/completions", "/tokenize"] {
        let (request, answer) = old.exchange(head_to(path, Some(0)), OK).await;
        assert_eq!(answer.unwrap().0.status, 200);
        assert_eq!(parts(&request), (None, "{}"));
    }
}

#[tokio::test]
async fn an_engine_that_keeps_conversations_is_told_which_and_no_other_is() {
    let check = async |engine: EngineKind, path, sent, expected: (Option<&str>, &str)| {
        let engine = Engine::of(engine, "", HeaderSpace::Global, TWO).await;
        let head = CallHead {
            conversation: Some("c\"1".parse().unwrap()),
            ..head_to(path, Some(1))
        };
        let (request, answer) = engine.exchange_body(head, sent, OK).await;
        drop(answer.unwrap());
        assert_eq!(parts(&request), expected, "{path}");
    };
    let (chat, sent) = ("/v1/chat/completions", r#"{"n":1}"#);
    let told = r#"{"n":1,"conversation_params":{"conversation_id":"c\"1"}}"#;
    check(EngineKind::TensorRtLlm, chat, sent, (Some("1"), told)).await;
    check(
        EngineKind::TensorRtLlm,
        "/v1/completions",
        sent,
        (Some("1"), told),
    )
    .await;
    // Its client's word is followed by the router's, which counts.
    let client = r#"{"conversation_params":{"conversation_id":"x"}}"#;
    let both = r#"{"conversation_params":{"conversation_id":"x"},"conversation_params":{"conversation_id":"c\"1"}}"#;
    check(EngineKind::TensorRtLlm, chat, client, (Some("1"), both)).await;
    check(EngineKind::Vllm, chat, sent, (Some("1"), sent)).await;
}

const WITHOUT: &str =
    r#"{"choices":[{"index":0}],"usage":{"prompt_tokens":120,"completion_tokens":2}}"#;
const WITH: &str = r#"{"choices":[{"index":0,"meta_info":{"dp_rank":1,"cached_tokens":112}}],"usage":{"prompt_tokens":120,"completion_tokens":2}}"#;
const SEEN: Option<(DpRank, RankEvidence)> = Some((DpRank::new(1), RankEvidence::Body));

#[tokio::test]
async fn an_sglang_says_which_rank_ran_and_its_client_does_not_see_that_it_was_asked() {
    let check = async |sent, asked: &str, passed: &str| {
        let engine = sglang("0.5.23").await;
        let head = head_to("/v1/chat/completions", None);
        let (request, answer) = engine
            .exchange_body(head, sent, &json("200 OK", WITH))
            .await;
        assert_eq!(parts(&request), (None, asked));
        let (body, end) = collect(answer.unwrap().1).await;
        assert_eq!(String::from_utf8(body).unwrap(), passed);
        assert_eq!(end.observed_rank, SEEN);
        // Its usage says it only with `--enable-cache-report`.
        assert_eq!(end.usage.unwrap().cached, Some(Tokens::new(112)));
    };
    check(r#"{"n":1}"#, r#"{"n":1,"return_meta_info":true}"#, WITHOUT).await;
    let other = r#"{"report":true}"#;
    let asked = r#"{"report":true,"return_meta_info":true}"#;
    check(other, asked, WITHOUT).await;
    let wished = r#"{"return_meta_info":true}"#;
    check(wished, wished, WITH).await;
}

#[tokio::test]
async fn an_answer_too_long_to_be_looked_into_passes_as_it_came() {
    let engine = sglang("0.5.23").await;
    let long = WITH.replace(
        "\"index\":0",
        &format!("\"text\":\"{}\"", "x".repeat(2 << 20)),
    );
    let head = head_to("/v1/chat/completions", None);
    let (_, answer) = engine.exchange(head, &json("200 OK", &long)).await;
    let (body, end) = collect(answer.unwrap().1).await;
    assert!(body == long.as_bytes());
    assert_eq!((end.usage, end.observed_rank), (None, None));
    assert_eq!(engine.dispatch.metrics.unread_usage.get(), 1);
}

#[tokio::test]
async fn what_has_its_own_wish_or_is_streamed_is_not_asked_and_neither_are_others() {
    let chat = "/v1/chat/completions";
    for (version, path, body) in [
        ("0.5.23", chat, r#"{"return_meta_info":false}"#),
        ("0.5.23", chat, r#"{"return_meta_info":null,"n":1}"#),
        ("0.5.23", chat, r#"{"return_meta_info":"true"}"#),
        ("0.5.23", chat, r#"{"return_meta\u005finfo":0}"#),
        (
            "0.5.23",
            chat,
            r#"{"return_meta_info":true,"return_meta_info":null}"#,
        ),
        ("0.5.23", "/v1/chat/completions", r#"{"stream":true}"#),
        ("0.5.12", "/v1/chat/completions", "{}"),
        ("0.5.23", "/v1/completions", "{}"),
        ("0.5.23", "/v1/models", "{}"),
    ] {
        let engine = sglang(version).await;
        let (request, answer) = engine.exchange_body(head_to(path, None), body, OK).await;
        drop(answer.unwrap());
        assert_eq!(parts(&request), (None, body), "{path}");
    }
}

#[tokio::test]
async fn a_rank_that_an_engine_refuses_is_no_answer_for_the_client() {
    let check = async |kind, body: &str, words: &str| {
        let engine = Engine::of(kind, "", HeaderSpace::Global, TWO).await;
        let refusal = json("400 Bad Request", body);
        let (_, answer) = engine.exchange(head(Some(1), &[]), &refusal).await;
        let error = answer.err().unwrap();
        assert!(error.is_retryable());
        let expected = format!("worker w1 cannot serve rank 1: the engine refuses it: {words}");
        assert_eq!(error.to_string(), expected);
    };
    check(
        EngineKind::Vllm,
        r#"{"error":{"message":"data_parallel_rank 1 is out of range [0, 1).","type":"BadRequestError","param":null,"code":400}}"#,
        "data_parallel_rank 1 is out of range [0, 1).",
    )
    .await;
    check(
        EngineKind::Sglang,
        r#"{"object":"error","message":"routed_dp_rank=1 out of range [0, 1)","type":"BadRequestError","param":null,"code":400}"#,
        "routed_dp_rank=1 out of range [0, 1)",
    )
    .await;
}

#[tokio::test]
async fn any_other_mistake_is_answered_to_the_client_byte_for_byte() {
    let long = format!(r#"{{"message":"{}"}}"#, "x".repeat(200 << 10));
    let refusal = r#"{"message":"routed_dp_rank=7 out of range [0, 2)"}"#;
    let quoted = r#"{"error":{"message":"max_tokens: 'data_parallel_rank 1 is out of range [0, 1).' is no integer"}}"#;
    for (dp_rank, body) in [
        (Some(1), r#"{"error":{"message":"no such model"}}"#),
        (Some(1), ""),
        (Some(1), &long),
        // Its client wrote it.
        (Some(1), quoted),
        // It is not about the rank that was asked for.
        (Some(1), refusal),
        // Nobody asked for a rank, so this is not about ours.
        (None, refusal),
    ] {
        let engine = sglang("0.5.23").await;
        let response = json("400 Bad Request", body);
        let (_, answer) = engine.exchange(head(dp_rank, &[]), &response).await;
        let (head, stream) = answer.unwrap();
        assert_eq!(head.status, 400);
        assert!(collect(stream).await.0 == body.as_bytes());
    }
}

#[tokio::test]
async fn a_connection_that_llama_cpp_promises_to_keep_is_not_used_again() {
    let slots = Engine::of(EngineKind::LlamaCpp, "b1", HeaderSpace::Global, TWO).await;
    let stream = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\
                  keep-alive: timeout=5, max=100\r\n\r\n9\r\ndata: 1\n\n\r\n0\r\n\r\n";
    for _ in 0..2 {
        // Each exchange takes a connection of its own from the listener.
        let (request, answer) = slots.exchange(head(None, &[]), stream.as_bytes()).await;
        assert!(request.contains("\r\nconnection: close\r\n"));
        assert_eq!(collect(answer.unwrap().1).await.0, b"data: 1\n\n");
    }
}
