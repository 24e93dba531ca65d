//! Who may ask, and what one tenant's requests mean to another's.

use std::collections::BTreeSet;

use contracts::{DecisionRecord, OutcomeRecord, topics};
use http::StatusCode;
use router_api::{Config, SaltSecret, TenantConfig};
use serde_json::{Value, json};
use worker_adapter::{EngineName, WorkerConfig};

use crate::client::Answer;
use crate::engine::Engine;
use crate::index::FakeIndex;
use crate::world::{World, config, workers};

const A: (&str, &str) = ("authorization", "Bearer key-of-a");
const B: (&str, &str) = ("x-api-key", "key-of-b");
const SERVED: &str = r#"{"usage":{"prompt_tokens":9,"completion_tokens":4}}"#;

fn tenant(name: &str, key: &str) -> TenantConfig {
    TenantConfig {
        keys: vec![key.parse().unwrap()],
        fail_closed: name == "b",
        ..TenantConfig::new(name.parse().unwrap())
    }
}

fn two_tenants() -> Config {
    Config {
        tenants: vec![tenant("a", "key-of-a"), tenant("b", "key-of-b")],
        salt_secret: Some(SaltSecret::new("a secret of the tests")),
        ..config()
    }
}

fn prompt(tokens: std::ops::Range<u32>) -> Value {
    json!({"model": "m", "prompt": tokens.collect::<Vec<_>>()})
}

/// Sends a body and answers as its engine; gives the answer, and the body and headers that the engine saw.
async fn ask(
    world: &World,
    engine: &mut Engine,
    headers: &[(&str, &str)],
    body: &Value,
) -> (Answer, Value, http::HeaderMap) {
    let body = body.to_string();
    let engine_side = async {
        let arrival = engine.next().await;
        let seen = serde_json::from_slice(&arrival.body).unwrap();
        let headers = arrival.headers.clone();
        arrival.answer(200, SERVED);
        (seen, headers)
    };
    let asked = world.client.post("/v1/completions", headers, &body);
    let (answer, (seen, headers)) = tokio::join!(asked, engine_side);
    assert_eq!(answer.status, StatusCode::OK);
    (answer, seen, headers)
}

/// The salt that the index was asked about last.
fn asked_salt(index: &FakeIndex) -> Option<String> {
    let asked = index.asked.lock().unwrap();
    let namespace = &asked.last().unwrap().namespace;
    namespace.salt.as_deref().map(str::to_owned)
}

#[tokio::test(flavor = "multi_thread")]
async fn where_keys_are_set_nobody_is_served_without_one() {
    let engine = Engine::start().await;
    let world = World::with(two_tenants(), &[&engine]).await;
    let body = prompt(0..9).to_string();
    let wrong: [&[(&str, &str)]; 4] = [
        &[],
        &[
            ("authorization", "Bearer key-of-c"),
            ("x-api-key", "key-of-"),
        ],
        &[("authorization", "key-of-a")],
        &[
            ("authorization", "Basic key-of-a"),
            ("x-rankway-conversation", "c"),
        ],
    ];
    for headers in wrong {
        for path in [
            "/v1/chat/completions",
            "/v1/completions",
            "/v1/responses",
            "/v1/messages",
            "/v1/embeddings",
            "/v1/route",
            "/v1/outcome",
            "/finish_session?session_id=c",
        ] {
            let answer = world.client.post(path, headers, &body).await;
            assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{path}");
            assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
            let error = &answer.json()["error"];
            assert_eq!(error["code"], "invalid_api_key");
            assert_eq!(error["type"], "invalid_request_error");
        }
    }
    let models = world.client.get("/v1/models").await;
    assert_eq!(models.status, StatusCode::UNAUTHORIZED);
    for path in [
        "/health",
        "/readiness",
        "/workers",
        "/metrics",
        "/openapi.json",
    ] {
        assert_eq!(
            world.client.get(path).await.status,
            StatusCode::OK,
            "{path}"
        );
    }
    let refused = world
        .metric(r#"rankway_requests_total{model="unknown",status="401"}"#)
        .await;
    assert_eq!(refused, Some(33.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_opens_what_its_tenant_needs_and_is_never_shown() {
    let engine = Engine::start().await;
    let world = World::with(two_tenants(), &[&engine]).await;
    let body = prompt(0..9).to_string();
    for key in [A, B] {
        let answer = world.client.post("/v1/route", &[key], &body).await;
        assert_eq!(answer.status, StatusCode::OK);
        let salt = &answer.json()["send"]["fields"]["cache_salt"];
        assert_eq!(salt.as_str().unwrap().len(), 64);
    }
    let hashes = json!({"model": "m", "block_hashes": [1, 2]}).to_string();
    let answer = world.client.post("/v1/route", &[A], &hashes).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert!(answer.error().contains("token_ids"), "{}", answer.error());
    let shown = world.admin("config").await;
    let keys: Vec<_> = shown["tenants"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| &it["keys"])
        .collect();
    assert_eq!(keys, [&json!(["***"]), &json!(["***"])]);
    assert_eq!(shown["salt_secret"], "***");
}

/// <https://github.com/vllm-project/vllm/pull/53347> (BC-59)
#[tokio::test(flavor = "multi_thread")]
async fn a_salt_of_another_tenant_is_made_anew_and_counted() {
    let mut engine = Engine::start().await;
    let world = World::with(two_tenants(), &[&engine]).await;
    let salted = |salt: &Value| {
        let mut body = prompt(0..9);
        body["cache_salt"] = salt.clone();
        body
    };
    let mut made = Vec::new();
    for (key, salt) in [
        (A, json!(null)),
        (A, json!("secret of a")),
        (B, json!(null)),
        (B, json!("secret of a")),
    ] {
        let (_, seen, headers) = ask(&world, &mut engine, &[key], &salted(&salt)).await;
        assert!(!headers.contains_key("authorization") && !headers.contains_key("x-api-key"));
        let salt = seen["cache_salt"].as_str().unwrap().to_owned();
        assert_eq!(asked_salt(&world.index), Some(salt.clone()));
        assert!(!made.contains(&salt));
        made.push(salt);
    }
    // What was made for A, and has got about, is a text as any other of B.
    let (_, seen, _) = ask(&world, &mut engine, &[B], &salted(&json!(made[1]))).await;
    assert!(!made.contains(&seen["cache_salt"].as_str().unwrap().to_owned()));
    let counted = async |tenant: &str, kind: &str| {
        let line = format!(r#"rankway_client_salts_total{{kind="{kind}",tenant="{tenant}"}}"#);
        world.metric(&line).await
    };
    assert_eq!(counted("a", "own").await, Some(1.0));
    assert_eq!(counted("b", "foreign").await, Some(2.0));
    assert_eq!(counted("b", "own").await, None);
    let asked = world.index.asked.lock().unwrap();
    let first = |at: usize| match &asked[at].hashes {
        contracts::rpc::PrefixHashes::Dense(hashes) => hashes[0],
        other => panic!("{other:?}"),
    };
    assert!((1..5).all(|at| first(at) != first(0)));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_takes_no_salt_is_sent_none() {
    let mut engine = Engine::llama_cpp().await;
    let worker = WorkerConfig {
        engine: Some(EngineName::LlamaCpp),
        kv_events: None,
        ..workers(&[&engine.url]).swap_remove(0)
    };
    let world = World::of(two_tenants(), vec![worker]).await;
    let mut body = prompt(0..9);
    body["cache_salt"] = json!("given");
    let (_, seen, _) = ask(&world, &mut engine, &[A], &body).await;
    assert_eq!(seen.get("cache_salt"), None);
    assert_eq!(seen["prompt"], body["prompt"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_is_its_tenants_and_ends_for_it_alone() {
    let mut engine = Engine::start().await;
    let world = World::with(two_tenants(), &[&engine]).await;
    let named = ("x-rankway-conversation", "c");
    for key in [A, B] {
        ask(&world, &mut engine, &[key, named], &prompt(0..9)).await;
    }
    let bound = async || world.affinity.list(10).await.unwrap().len();
    world.until(async || bound().await == 2).await;
    let ambiguous = world.admin_get("bindings/c").await;
    assert_eq!(ambiguous.status, StatusCode::BAD_REQUEST);
    assert!(
        ambiguous
            .error()
            .contains("choose one of a, b (`rankway move --tenant`)"),
        "{}",
        ambiguous.error()
    );
    let of_b = world.admin_get("bindings/c?tenant=b").await.json();
    assert_eq!(of_b["tenant"], "b");
    // One from before there were tenants.
    let mut older = of_b;
    older["tenant"] = json!("default");
    let imported = json!({ "bindings": [older] });
    let imported = world.admin_post("bindings", &imported).await.json();
    assert_eq!(imported["imported"], 1, "{imported}");
    let ambiguous = world.admin_get("bindings/c").await.error();
    assert!(ambiguous.contains("one of a, b, default"), "{ambiguous}");
    let release = "bindings/c/release?tenant=default";
    let released = world.admin_post(release, &json!({})).await;
    assert_eq!(released.status, StatusCode::OK);

    let finish = "/finish_session?session_id=c";
    let over = world.client.post(finish, &[B], "").await.json();
    assert_eq!(over["released"], 1);
    let over = world.client.post(finish, &[B], "").await.json();
    assert_eq!(over["released"], 0);
    assert_eq!(world.admin_get("bindings/c").await.json()["tenant"], "a");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_outcome_of_a_decision_is_told_by_its_tenant_alone() {
    let engine = Engine::start().await;
    let world = World::with(two_tenants(), &[&engine]).await;
    let mut body = prompt(0..9);
    body["commit"] = json!(true);
    let body = body.to_string();
    let routed = world.client.post("/v1/route", &[A], &body).await.json();
    let told = json!({"decision": routed["id"]}).to_string();
    let told_by = async |key| world.client.post("/v1/outcome", &[key], &told).await;
    assert_eq!(told_by(B).await.status, StatusCode::NOT_FOUND);
    assert_eq!(told_by(A).await.json()["repeated"], false);
    assert_eq!(told_by(B).await.status, StatusCode::NOT_FOUND);
    assert_eq!(told_by(A).await.json()["repeated"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_tenants_prompts_go_on_with_is_its_own() {
    let mut engine = Engine::start().await;
    let world = World::with(two_tenants(), &[&engine]).await;
    for tokens in [21, 41, 61] {
        ask(&world, &mut engine, &[A], &prompt(0..tokens)).await;
    }
    let of = async |key: (&str, &str), tokens: u32| {
        let body = prompt(0..tokens).to_string();
        world.client.post("/v1/route", &[key], &body).await.json()
    };
    let of_a = of(A, 81).await;
    let name = of_a["conversation"].as_str().unwrap();
    assert!(name.starts_with("lineage-"), "{of_a}");
    assert_eq!(of(B, 81).await["conversation"], json!(null));
    for tokens in [61, 81] {
        ask(&world, &mut engine, &[B], &prompt(0..tokens)).await;
    }
    let of_b = of(B, 101).await;
    assert_ne!(of_b["conversation"].as_str().unwrap(), name);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_that_fails_closed_is_refused_while_the_store_is_silent() {
    let mut engine = Engine::start().await;
    let world = World::with(two_tenants(), &[&engine]).await;
    let named = ("x-rankway-conversation", "c");
    ask(&world, &mut engine, &[B, named], &prompt(0..9)).await;
    assert!(!world.health.findings().contains_key("router"));
    world.silence_affinity().await;
    world
        .until(async || {
            let findings = world.health.findings();
            let findings = findings.get("router").into_iter().flatten();
            let closed = "tenants that fail closed get 503 for conversations: b";
            findings.filter(|it| it.ends_with(closed)).count() == 1
        })
        .await;
    let body = prompt(0..9).to_string();
    let answer = world
        .client
        .post("/v1/completions", &[B, named], &body)
        .await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(answer.header("retry-after").is_some());
    assert!(
        answer.error().contains("affinity store"),
        "{}",
        answer.error()
    );
    world.until_nothing_is_left().await;
    // Without a conversation there is nothing to ask the store for, and another tenant does without.
    ask(&world, &mut engine, &[B], &prompt(100..109)).await;
    ask(&world, &mut engine, &[A, named], &prompt(0..9)).await;
    // Of the one that was refused nothing is recorded, as it was placed nowhere.
    let decided: Vec<(DecisionRecord, _)> = world.recorded(&topics::DECISIONS, 3).await;
    let ended: Vec<(OutcomeRecord, _)> = world.recorded(&topics::OUTCOMES, 3).await;
    let decided: BTreeSet<_> = decided.iter().map(|it| it.0.id).collect();
    let ended: BTreeSet<_> = ended.iter().map(|it| it.0.id).collect();
    assert_eq!(decided, ended);
}
