//! Endpoints at which engines take ranks differently.

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::fleet::{Engine, Up};
use crate::http_client::{Answer, Client};

const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";

/// The body of a conversation's turn at an endpoint: each is 100 words longer than the last.
fn body(path: &str, conversation: &str, turn: u32) -> Value {
    let words = (0..100 * turn).map(|at| format!("{conversation}{at} "));
    let text: String = words.collect();
    match path {
        RESPONSES => json!({"model": "fake-model", "input": text, "max_output_tokens": 2}),
        _ => json!({
            "model": "fake-model",
            "messages": [{"role": "user", "content": text}],
            "max_tokens": 2,
        }),
    }
}

async fn turn(up: &Up, path: &str, conversation: &str, turn: u32) -> Answer {
    let headers = [("x-rankway-conversation", conversation)];
    let url = format!("{}{path}", up.api);
    let body = body(path, conversation, turn);
    let answer = Client::new().post(&url, &headers, &body).await;
    assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    answer
}

fn cached(answer: &Answer) -> u64 {
    let usage = &answer.json()["usage"];
    let places = [
        &usage["prompt_tokens_details"]["cached_tokens"],
        &usage["input_tokens_details"]["cached_tokens"],
        &usage["cache_read_input_tokens"],
    ];
    places.iter().find_map(|it| it.as_u64()).unwrap()
}

/// Where a turn ran, as far as Rankway says it.
fn place(answer: &Answer) -> [Option<&str>; 2] {
    ["x-rankway-worker", "x-rankway-dp-rank"].map(|it| answer.header(it))
}

#[tokio::test]
async fn a_conversation_stays_with_its_cache_wherever_its_engine_takes_a_rank() {
    for flags in [&[][..], &["--engine", "sglang"]] {
        let data = TempDir::new().unwrap();
        let engine = Engine::start_as(flags).await;
        let up = Up::start(data.path(), &[&engine]).await;
        for path in [CHAT, RESPONSES, MESSAGES] {
            let conversation = path.rsplit('/').next().unwrap();
            let first = turn(&up, path, conversation, 1).await;
            for number in 2..4 {
                let next = turn(&up, path, conversation, number).await;
                assert_eq!(place(&next), place(&first), "{flags:?} {path}");
                assert!(place(&next)[1].is_some(), "{flags:?} {path}");
                assert!(cached(&next) >= 64, "{flags:?} {path}: {}", next.text());
                // The tokens of responses and messages are not asked for.
                let degraded = next.header("x-rankway-degraded");
                let expected = (path != CHAT).then_some("no_tokens");
                assert_eq!(degraded, expected, "{flags:?} {path}");
            }
        }
    }
}

#[tokio::test]
async fn where_an_engine_would_ignore_a_rank_none_is_promised() {
    let data = TempDir::new().unwrap();
    let flags = ["--engine", "sglang", "--engine-version", "0.5.19"];
    let engine = Engine::start_as(&flags).await;
    let up = Up::start(data.path(), &[&engine]).await;
    let answer = turn(&up, RESPONSES, "r", 1).await;
    let degraded = answer.header("x-rankway-degraded").unwrap_or_default();
    assert!(degraded.contains("rank_not_controlled"), "{degraded:?}");
    assert_eq!(place(&answer)[1], None);
    let answer = turn(&up, CHAT, "c", 1).await;
    assert_eq!(answer.header("x-rankway-degraded"), None);
    assert!(place(&answer)[1].is_some());
}
