//! Who decides ranks, set against what the engine does.

use serde_json::Value;
use tempfile::TempDir;

use crate::conversation::Conversation;
use crate::fleet::{Engine, Up};

fn told(engine: &Engine, source: &str) -> String {
    format!(
        "worker_urls = [\"{}\"]\n[router]\nrank_source = \"{source}\"\n",
        engine.url
    )
}

fn trtllm(conversations: &str) -> [&str; 4] {
    let kept = "--conversation-affinity";
    ["--engine", "tensorrt-llm", kept, conversations]
}

async fn worker(up: &Up) -> Value {
    let listed = up.ask(&["workers", "ls", "--json"]).await;
    serde_json::from_str(listed.stdout.lines().next().unwrap()).unwrap()
}

/// An engine that keeps first ranks, whose worker does not know it.
#[tokio::test]
async fn ranks_are_chosen_where_two_turns_show_that_the_first_is_kept() {
    let data = TempDir::new().unwrap();
    let engine = Engine::start_as(&trtllm("router,unsaid")).await;
    let up = Up::start_told(data.path(), 1, &told(&engine, "router")).await;
    let worker = worker(&up).await;
    assert_eq!(worker["first_rank"], "proved_kept");
    assert_eq!(worker["rank_control"]["chat"], "first_turn");
    for number in 1..=4 {
        let mut conversation = Conversation::new(number);
        let first = conversation.turn(&up.api).await;
        let second = conversation.turn(&up.api).await;
        assert_eq!(first.target, second.target);
        assert!(second.cached >= 64, "{second:?}");
    }
    let bindings = up.ask(&["bindings", "ls"]).await.stdout;
    assert!(!bindings.contains("rankway-"), "{bindings}");
}

/// An engine as before pull request 16815.
#[tokio::test]
async fn a_worker_whose_engine_forgets_first_ranks_is_refused_where_ranks_are_to_be_chosen() {
    let data = TempDir::new().unwrap();
    let engine = Engine::start_as(&trtllm("router,forgets-first-ranks")).await;
    let up = Up::start_unready(data.path(), &told(&engine, "router")).await;
    let why = "a conversation of two turns did not stay on the rank of its first";
    up.until_readyz(503, why).await;
    let worker = worker(&up).await;
    assert_eq!(
        (&worker["state"], &worker["first_rank"]),
        (&"gone".into(), &"proved_lost".into())
    );
    let listed = up.ask(&["workers", "ls"]).await.stdout;
    assert!(listed.contains(why), "{listed}");
    assert!(up.log().contains(why), "{}", up.log());
}

#[tokio::test]
async fn a_plain_engine_is_not_left_to_choose_ranks() {
    let data = TempDir::new().unwrap();
    let engine = Engine::start().await;
    let up = Up::start_unready(data.path(), &told(&engine, "engine")).await;
    let why = "keeps no conversations on ranks";
    up.until_readyz(503, why).await;
    let listed = up.ask(&["workers", "ls"]).await.stdout;
    assert!(
        listed.contains("why=refused: ") && listed.contains(why),
        "{listed}"
    );
    assert!(up.log().contains(why), "{}", up.log());
}
