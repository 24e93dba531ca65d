//! What one tenant can do to another's conversations, places and keys: nothing.

use http::StatusCode;
use router_api::{Config, SaltSecret, TenantConfig};
use serde_json::{Value, json};

use crate::client::Answer;
use crate::engine::Engine;
use crate::world::{World, config};

type Header = (&'static str, &'static str);

const A: Header = ("authorization", "Bearer key-of-a");
const B: Header = ("x-api-key", "key-of-b");

fn two_tenants() -> Config {
    let tenant = |name: &str| TenantConfig {
        keys: vec![format!("key-of-{name}").parse().unwrap()],
        ..TenantConfig::new(name.parse().unwrap())
    };
    Config {
        tenants: vec![tenant("a"), tenant("b")],
        salt_secret: Some(SaltSecret::new("a secret of the tests")),
        ..config()
    }
}

fn after(previous: &Value) -> String {
    json!({"model": "m", "input": "x", "previous_response_id": previous}).to_string()
}

/// A turn that reaches the engine, which gives its answer `id`.
async fn responds(world: &World, engine: &mut Engine, headers: &[Header], body: &str, id: &str) {
    let reply = json!({"id": id, "object": "response"}).to_string();
    let engine_side = async { engine.next().await.answer(200, &reply) };
    let asked = world.client.post("/v1/responses", headers, body);
    let (answer, ()) = tokio::join!(asked, engine_side);
    assert_eq!(answer.status, StatusCode::OK);
}

/// A turn that no engine is asked for.
async fn refused(world: &World, headers: &[Header], previous: &Value) -> Answer {
    let body = after(previous);
    world.client.post("/v1/responses", headers, &body).await
}

async fn commit(world: &World, key: Header, path: &str, more: Value) -> Value {
    let mut body = json!({"model": "m", "prompt": [1, 2, 3, 4, 5], "commit": true});
    let Value::Object(more) = more else {
        panic!("{more}")
    };
    body.as_object_mut().unwrap().extend(more);
    let answer = world.client.post(path, &[key], &body.to_string()).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.json());
    answer.json()
}

async fn tell(world: &World, key: Header, routed: &Value, mut report: Value) -> Answer {
    report["decision"] = routed["id"].clone();
    let report = report.to_string();
    world.client.post("/v1/outcome", &[key], &report).await
}

fn is_unknown(answer: &Answer, id: &str) {
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    let error = json!({
        "message": format!("Previous response with id '{id}' not found."),
        "type": "invalid_request_error",
        "param": "previous_response_id",
        "code": "previous_response_not_found",
    });
    assert_eq!(answer.json()["error"], error);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_is_gone_on_with_by_its_tenant_alone() {
    let mut engine = Engine::start().await;
    let world = World::with(two_tenants(), &[&engine]).await;
    let first = after(&Value::Null);
    responds(&world, &mut engine, &[A], &first, "resp_a").await;
    is_unknown(&refused(&world, &[B], &json!("resp_a")).await, "resp_a");
    is_unknown(&refused(&world, &[B], &json!("resp_c")).await, "resp_c");
    let wrong = refused(&world, &[B], &json!(["resp_a"])).await;
    assert_eq!(wrong.status, StatusCode::BAD_REQUEST);

    // What a client says of itself proves nothing.
    let named = [B, ("x-rankway-conversation", "resp_a")];
    responds(&world, &mut engine, &named, &first, "resp_b").await;
    let routed = commit(&world, B, "/v1/route?path=/v1/responses", json!({})).await;
    let told = json!({"response_id": "resp_a"});
    let told = tell(&world, B, &routed, told).await;
    assert_eq!(told.status, StatusCode::OK);
    is_unknown(&refused(&world, &[B], &json!("resp_a")).await, "resp_a");
    is_unknown(&refused(&world, &named, &json!("resp_a")).await, "resp_a");

    for (key, previous, id) in [
        (A, "resp_a", "resp_a2"),
        (A, "resp_a2", "resp_a3"),
        (B, "resp_b", "resp_b2"),
    ] {
        let body = after(&json!(previous));
        responds(&world, &mut engine, &[key], &body, id).await;
    }

    world.silence_affinity().await;
    let silent = refused(&world, &[A], &json!("resp_a3")).await;
    assert_eq!(silent.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(silent.header("retry-after").is_some());
    responds(&world, &mut engine, &[A], &first, "resp_a4").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_are_known_without_affinity_too() {
    let mut engine = Engine::start().await;
    let config = Config {
        policy: "round_robin".parse().unwrap(),
        ..two_tenants()
    };
    let world = World::with(config, &[&engine]).await;
    responds(&world, &mut engine, &[A], &after(&Value::Null), "resp_a").await;
    is_unknown(&refused(&world, &[B], &json!("resp_a")).await, "resp_a");
    let next = after(&json!("resp_a"));
    responds(&world, &mut engine, &[A], &next, "resp_a2").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_tenant_tells_moves_its_conversation_and_judges_no_rank() {
    let engine = Engine::start().await;
    let world = World::with(two_tenants(), &[&engine]).await;
    for number in 0..4 {
        let conversation = format!("c{number}");
        let named = json!({"conversation": conversation});
        let routed = commit(&world, B, "/v1/route", named).await;
        assert_eq!(routed["degraded"], json!([]));
        let other = 1 - routed["dp_rank"].as_u64().unwrap();
        let answer = tell(&world, B, &routed, json!({"dp_rank": other})).await;
        assert_eq!(answer.status, StatusCode::OK);
        let path = format!("bindings/{conversation}");
        world
            .until(async || world.admin(&path).await["dp_rank"] == other)
            .await;
        let decision = world.admin("decisions/last").await;
        assert_eq!(decision["ran"]["fault"], Value::Null);
    }
    assert_eq!(world.gauge("rankway_rank_faults_total"), 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_that_a_tenant_tells_of_keep_nobody_from_a_worker() {
    let (one, other) = (Engine::start().await, Engine::start().await);
    let world = World::with(two_tenants(), &[&one, &other]).await;
    let mut worker = Value::Null;
    for status in ["failed", "rank_refused", "refused", "unreachable"] {
        let routed = commit(&world, B, "/v1/route", json!({})).await;
        let answer = tell(&world, B, &routed, json!({"status": status})).await;
        assert_eq!(answer.json()["outcome"]["status"], status);
        worker = routed["worker"].clone();
    }
    let mut chosen = Vec::new();
    for number in 0..8 {
        let long = json!({"prompt": vec![number; 8_000]});
        let routed = commit(&world, A, "/v1/route", long).await;
        chosen.push(routed["worker"].clone());
    }
    assert!(chosen.contains(&worker), "{worker} is not among {chosen:?}");
    assert_eq!(world.gauge("rankway_rank_faults_total"), 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn more_tokens_than_were_decided_for_are_refused() {
    let engine = Engine::start().await;
    let world = World::with(two_tenants(), &[&engine]).await;
    let routed = commit(&world, B, "/v1/route", json!({})).await;
    for tokens in [json!(5 + (1 << 14) + 1), json!(1_u64 << 40)] {
        let answer = tell(&world, B, &routed, json!({"prompt_tokens": tokens})).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{tokens}");
        assert!(
            answer.error().contains("prompt_tokens"),
            "{}",
            answer.error()
        );
    }
    let right = json!({"prompt_tokens": 7, "cached_tokens": 4});
    assert_eq!(tell(&world, B, &routed, right).await.status, StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_key_reaches_an_engine_wherever_it_is_written() {
    const SECRET: &str = "sk-secret";
    let mut engine = Engine::start().await;
    let world = World::with(two_tenants(), &[&engine]).await;
    let headers = [
        A,
        ("api-key", SECRET),
        ("x-goog-api-key", SECRET),
        ("anthropic-api-key", SECRET),
        ("proxy-authorization", "Bearer sk-secret"),
        ("cookie", "session=sk-secret"),
        ("x-request-id", "r1"),
    ];
    let body = json!({"model": "m", "prompt": [1, 2, 3]}).to_string();
    let path = "/v1/completions?api%5Fkey=sk-secret";
    let engine_side = async {
        let arrival = engine.next().await;
        let seen = (arrival.path.clone(), arrival.headers.clone());
        arrival.answer(200, "{}");
        seen
    };
    let asked = world.client.post(path, &headers, &body);
    let (answer, (path, seen)) = tokio::join!(asked, engine_side);
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(path, "/v1/completions");
    assert_eq!(seen.get("x-request-id").unwrap(), "r1");
    for (name, value) in &seen {
        assert!(!value.to_str().unwrap().contains("key-of-a"), "{name}");
        assert!(!value.to_str().unwrap().contains(SECRET), "{name}");
    }
}
