//! Engines of every kind behind one endpoint.

use serde_json::Value;
use tempfile::TempDir;

use crate::conversation::{Conversation, Turn};
use crate::fleet::{Engine, Up};
use crate::http_client::Client;
use crate::process::run;
use crate::settled::index_equals;

/// Turns of some conversations, each on its own rank from the first on and with its cache from the second on.
async fn keeps_conversations(up: &Up, conversations: u32) -> Vec<Turn> {
    let mut firsts = Vec::new();
    for number in 1..=conversations {
        let mut conversation = Conversation::new(number);
        let first = conversation.turn(&up.api).await;
        for _ in 0..2 {
            let next = conversation.turn(&up.api).await;
            assert_eq!(next.target, first.target, "{}", up.log());
            // Each turn's prompt is 100 tokens more than what the last one left.
            assert!(next.cached >= 64, "{next:?}");
            assert!(next.overlap <= next.cached + 16, "{next:?}");
        }
        firsts.push(first);
    }
    firsts
}

async fn workers(up: &Up) -> Vec<Value> {
    let answer = Client::new()
        .get(&format!("{}/api/v1/workers", up.admin))
        .await;
    answer.json()["workers"].as_array().unwrap().clone()
}

#[tokio::test]
async fn a_conversation_stays_on_its_rank_of_sglang() {
    let data = TempDir::new().unwrap();
    let engine = Engine::start_as(&["--engine", "sglang"]).await;
    let up = Up::start(data.path(), &[&engine]).await;
    keeps_conversations(&up, 4).await;
    index_equals(&up, 1).await;
    assert_eq!(workers(&up).await[0]["engine"], "sglang");
}

#[tokio::test]
async fn a_conversation_stays_on_its_rank_of_tensorrt_llm() {
    for affinity in [&[][..], &["--conversation-affinity", "router"]] {
        let data = TempDir::new().unwrap();
        // Room for few conversations, so that blocks leave as well.
        let flags = [&["--engine", "tensorrt-llm", "--kv-blocks", "60"], affinity].concat();
        let engine = Engine::start_as(&flags).await;
        let up = Up::start(data.path(), &[&engine]).await;
        keeps_conversations(&up, 16).await;
        index_equals(&up, 1).await;
        assert_eq!(workers(&up).await[0]["engine"], "tensorrt-llm");
    }
}

#[tokio::test]
async fn an_engine_that_chooses_ranks_is_told_conversations_and_keeps_them() {
    let data = TempDir::new().unwrap();
    let flags = [
        "--engine",
        "tensorrt-llm",
        "--conversation-affinity",
        "engine",
    ];
    let engine = Engine::start_as(&flags).await;
    let up = Up::start(data.path(), &[&engine]).await;
    // More than ranks, in turns: only who is told apart is kept apart.
    let mut conversations: Vec<_> = (1..=6).map(Conversation::new).collect();
    for turn in 1..=3 {
        for conversation in &mut conversations {
            let answer = conversation.attempt(&up.api).await.unwrap();
            assert_eq!(answer.status, 200, "{}", answer.text());
            let cached = &answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"];
            assert!(turn == 1 || cached.as_u64().unwrap() >= 64, "{cached}");
        }
    }
}

#[tokio::test]
async fn pages_of_one_token_are_gathered_into_blocks() {
    let data = TempDir::new().unwrap();
    // Room for few conversations, so that pages leave as well.
    let flags = [
        "--engine",
        "sglang",
        "--page-size",
        "1",
        "--kv-blocks",
        "900",
    ];
    let engine = Engine::start_as(&flags).await;
    let up = Up::start(data.path(), &[&engine]).await;
    keeps_conversations(&up, 16).await;
    index_equals(&up, 1).await;
    let mut conversation = Conversation::new(99);
    conversation.turn(&up.api).await;
    index_equals(&up, 1).await;
    let second = conversation.turn(&up.api).await;
    assert!(second.overlap >= 96, "{second:?}");
}

#[tokio::test]
async fn an_engine_without_events_is_served_and_said_to_be() {
    let data = TempDir::new().unwrap();
    let engine = Engine::start_as(&["--no-events"]).await;
    let up = Up::start(data.path(), &[&engine]).await;
    keeps_conversations(&up, 4).await;
    let mut conversation = Conversation::new(9);
    conversation.turn(&up.api).await;
    let answer = conversation.attempt(&up.api).await.unwrap();
    assert_eq!(answer.header("x-rankway-degraded"), Some("no_events"));
    let overlap: u64 = answer
        .header("x-rankway-overlap-tokens")
        .unwrap()
        .parse()
        .unwrap();
    assert!(
        overlap >= 96,
        "what was sent there is presumed to be there: {overlap}"
    );
}

#[tokio::test]
async fn two_engines_with_blocks_of_different_sizes_share_a_model() {
    let data = TempDir::new().unwrap();
    let vllm = Engine::start().await;
    let sglang = Engine::start_as(&["--engine", "sglang", "--page-size", "32"]).await;
    let both = [&vllm, &sglang];
    let up = Up::start(data.path(), &both).await;
    let firsts = keeps_conversations(&up, 12).await;
    for engine in both {
        let some = firsts.iter().any(|it| it.target.starts_with(engine.name()));
        assert!(some, "{} serves nothing: {firsts:?}", engine.name());
    }
    index_equals(&up, 2).await;
}

#[tokio::test]
async fn every_engine_can_be_named_in_the_settings() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("rankway.toml");
    for engine in ["vllm", "sglang", "tensorrt-llm", "llama-cpp"] {
        let worker = format!("[[workers]]\nurl = \"http://a:1\"\nengine = \"{engine}\"\n");
        std::fs::write(&file, worker).unwrap();
        let shown = run(
            &[
                "config",
                "show",
                "--json",
                "--config",
                file.to_str().unwrap(),
            ],
            &[],
        )
        .await;
        assert_eq!(shown.code, Some(0), "{}", shown.stderr);
        let settings: Value = serde_json::from_str(&shown.stdout).unwrap();
        assert_eq!(settings["workers"][0]["engine"], engine);
    }
}
