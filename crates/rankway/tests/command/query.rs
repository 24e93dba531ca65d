//! The index in the HTTP shape of other indexers, fed by engines with blocks of different sizes.

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use crate::fleet::{Engine, Up};
use crate::http_client::Client;
use crate::process::{PATIENCE, POLL};

#[tokio::test]
async fn what_engines_hold_is_scored_in_tokens_whatever_their_blocks() {
    let data = TempDir::new().unwrap();
    let small = Engine::start().await;
    let large = Engine::start_as(&["--block-size", "64"]).await;
    let up = Up::start(data.path(), &[&small, &large]).await;
    // Of 80 tokens and two more: five blocks of 16, one of 64.
    small.answer(1, 1_000).await;
    large.answer(2, 1_000).await;
    let prompt: Vec<u32> = (1_000..1_100).collect();
    let query = json!({"model_name": "fake-model", "token_ids": prompt});
    let url = format!("{}/query", up.admin);
    let expected = json!({small.name(): {"1": 80}, large.name(): {"2": 64}});

    let deadline = Instant::now() + PATIENCE;
    loop {
        let answer = Client::new().post(&url, &[], &query).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let answer = answer.json();
        // What has been announced is read by and by.
        if answer["scores"] == expected {
            let instance = &answer["instances"][small.name()];
            assert_eq!(instance["dp"], json!({"1": 80}));
            assert_eq!(instance["longest_matched"], 80);
            break;
        }
        assert!(Instant::now() < deadline, "{answer}");
        sleep(POLL).await;
    }
    let workers = Client::new().get(&format!("{}/workers", up.admin)).await;
    let mut sizes: Vec<Value> = workers.json().as_array().unwrap().clone();
    sizes.sort_by_key(|it| it["block_size"].as_u64());
    assert_eq!(sizes[0]["block_size"], 16);
    assert_eq!(sizes[1]["block_size"], 64);
}

#[tokio::test]
async fn a_query_needs_the_admin_token_where_one_is_set() {
    let data = TempDir::new().unwrap();
    let engine = Engine::start().await;
    let settings = format!(
        "worker_urls = [\"{}\"]\n[admin]\ntoken = \"a-token\"\n",
        engine.url
    );
    let up = Up::start_unready(data.path(), &settings).await;
    let url = format!("{}/query", up.admin);
    let query = json!({"model_name": "fake-model", "token_ids": [1]});

    let refused = Client::new().post(&url, &[], &query).await;
    assert_eq!(refused.status, 401, "{}", refused.text());
    let token = [("authorization", "Bearer a-token")];
    let answer = Client::new().post(&url, &token, &query).await;
    assert_ne!(answer.status, 401);
}
