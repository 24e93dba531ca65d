//! What tells a request's conversation, on every path.

use router_api::Config;
use serde_json::{Value, json};

use crate::client::{Answer, Client};
use crate::engine::Engine;
use crate::world::{World, config};

const PATHS: [&str; 4] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
];

/// A request that the engine answers with this body: its answer, and the rank that was asked for.
async fn post(
    client: &Client,
    engine: &mut Engine,
    (path, headers, body): (&str, &[(&str, &str)], &Value),
    reply: &str,
) -> (Answer, String) {
    let body = body.to_string();
    let engine_side = async {
        let arrival = engine.next().await;
        let rank = arrival.rank().unwrap().to_owned();
        arrival.answer(200, reply);
        rank
    };
    tokio::join!(client.post(path, headers, &body), engine_side)
}

/// What the decision about an answered request says.
async fn explained(world: &World, answer: &Answer) -> Value {
    let id = answer.header("x-rankway-decision").unwrap();
    world.admin(&format!("decisions/{id}")).await
}

async fn route(client: &Client, headers: &[(&str, &str)], body: &Value) -> Value {
    let routed = client.post("/v1/route", headers, &body.to_string()).await;
    assert_eq!(routed.status.as_u16(), 200, "{body}");
    routed.json()
}

fn tokens(range: std::ops::Range<u32>) -> Value {
    json!({"model": "m", "prompt": range.collect::<Vec<_>>()})
}

/// A request that every path takes, with more fields.
fn with(fields: &Value) -> Value {
    let mut body = json!({
        "model": "m", "prompt": [1, 2], "messages": [{"role": "user", "content": "x"}], "input": "x",
        "max_tokens": 1,
    });
    let fields = fields.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(fields);
    body
}

async fn counted(world: &World, source: &str) -> f64 {
    let line = format!("rankway_conversation_source_total{{source=\"{source}\"}}");
    world.metric(&line).await.unwrap_or(0.0)
}

/// Headers, further fields of the body, the conversation that they name, and what told it.
const SOURCES: &str = r#"
x-rankway-conversation: c | {"session_id": "no"} | c | explicit
 | {"conversation_params": {"conversation_id": "c"}} | c | body
thread-id: no | {"session_id": "c"} | c | body
 | {"nvext": {"agent_context": {"session_id": "c"}}} | c | body
 | {"nvext": {"session_control": {"session_id": "c"}}} | c | body
 | {"session_params": {"id": "c"}} | c | body
 | {"session_params": {"session_id": "c"}} | c | body
x-dynamo-session-id: c | {} | c | agent
x-claude-code-session-id: no, x-claude-code-agent-id: c | {} | c | agent
x-claude-code-session-id: c | {} | c | agent
thread-id: c, session-id: no | {} | c | agent
session-id: c | {} | c | agent
x-opencode-session: c | {} | c | agent
x-session-id: c | {"conversation": "no"} | c | session
x-session-affinity: c | {} | c | session
x-multi-turn-session-id: c | {} | c | session
x-smg-routing-key: c | {} | c | session
x-litellm-session-id: c | {} | c | session
 | {"conversation": "c"} | c | responses
 | {"conversation": {"id": "c"}} | c | responses
x-correlation-id: no | {"previous_response_id": "c", "prompt_cache_key": "no"} | c | responses
 | {"prompt_cache_key": "b"} | | prompt_cache_key
x-correlation-id: r | {} | | none
x-request-id: r, x-client-request-id: r | {"user": "u"} | | none
session-id: , x-session-id: | {"session_id": 7, "conversation": {"id": ["no"]}} | | none
"#;

#[tokio::test(flavor = "multi_thread")]
async fn every_source_is_read_on_every_path() {
    let mut engine = Engine::start().await;
    let world = World::before(&[&engine]).await;
    let long = "l".repeat(300);
    // Computed with the xxhash package of Python: xxh3_128_hexdigest(b"l" * 300).
    let long = format!("x-session-id: {long} | {{}} | 50ee039ca314cec16fdd410e64fbe167 | session");
    for row in SOURCES.trim_matches('\n').lines().chain([long.as_str()]) {
        let [headers, fields, conversation, source] = row
            .split('|')
            .map(str::trim)
            .collect::<Vec<_>>()
            .try_into()
            .unwrap();
        let headers = headers.split(',').filter_map(|it| it.split_once(':'));
        let headers: Vec<_> = headers.map(|(name, id)| (name.trim(), id.trim())).collect();
        let body = with(&serde_json::from_str(fields).unwrap());
        let conversation = match conversation {
            "" => Value::Null,
            id => json!(id),
        };
        let before = counted(&world, source).await;
        for path in PATHS {
            let request = (path, &headers[..], &body);
            let (answer, _) = post(&world.client, &mut engine, request, "{}").await;
            let decision = explained(&world, &answer).await;
            assert_eq!(decision["conversation"], conversation, "{path} {row}");
        }
        let routed = route(&world.client, &headers, &body).await;
        assert_eq!(routed["conversation"], conversation, "/v1/route {row}");
        assert_eq!(counted(&world, source).await - before, 4.0, "{row}");
    }
    // Of the row of empty ones: two headers, on five paths.
    world
        .until_metric("rankway_conversation_ids_skipped_total", 10.0)
        .await;
}

/// Of those who dispatch themselves, whose bodies are no engine's.
#[tokio::test(flavor = "multi_thread")]
async fn every_source_is_read_beside_tokens_and_hashes_too() {
    let engine = Engine::start().await;
    let world = World::before(&[&engine]).await;
    for prompt in [
        json!({"token_ids": [1, 2, 3, 4, 5]}),
        json!({"block_hashes": [7]}),
    ] {
        for row in SOURCES.trim_matches('\n').lines() {
            let [headers, fields, conversation, _] = row
                .split('|')
                .map(str::trim)
                .collect::<Vec<_>>()
                .try_into()
                .unwrap();
            let headers = headers.split(',').filter_map(|it| it.split_once(':'));
            let headers: Vec<_> = headers.map(|(name, id)| (name.trim(), id.trim())).collect();
            let mut body = json!({"model": "m"});
            let more: Value = serde_json::from_str(fields).unwrap();
            for part in [&prompt, &more] {
                let fields = part.as_object().unwrap().clone();
                body.as_object_mut().unwrap().extend(fields);
            }
            let routed = route(&world.client, &headers, &body).await;
            let expected = match conversation {
                "" => Value::Null,
                id => json!(id),
            };
            assert_eq!(routed["conversation"], expected, "{body} {row}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_explicit_id_is_refused_on_every_path() {
    let engine = Engine::start().await;
    let world = World::before(&[&engine]).await;
    let bad = [("x-rankway-conversation", "")];
    let body = with(&json!({"session_id": "c"})).to_string();
    for path in PATHS.into_iter().chain(["/v1/route"]) {
        let refused = world.client.post(path, &bad, &body).await;
        assert_eq!(refused.status.as_u16(), 400, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_order_can_be_configured() {
    let engine = Engine::start().await;
    let order = ["session", "body"].map(|it| it.parse().unwrap());
    let config = Config {
        conversation_order: order.into(),
        ..config()
    };
    let world = World::with(config, &[&engine]).await;
    let headers = [("x-rankway-conversation", ""), ("x-session-id", "header")];
    let body = with(&json!({"session_id": "body"}));
    let routed = route(&world.client, &headers, &body).await;
    assert_eq!(routed["conversation"], "header");
    let routed = route(&world.client, &headers[..1], &body).await;
    assert_eq!(routed["conversation"], "body");
    let shown = world.admin("config").await;
    assert_eq!(shown["conversation_order"], json!(["session", "body"]));
    let wrong: Result<Config, _> =
        serde_json::from_value(json!({"conversation_order": ["sesion"]}));
    let error = wrong.unwrap_err().to_string();
    assert!(error.contains("\"sesion\""), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_of_responses_stays_on_its_rank_at_every_router() {
    let mut engine = Engine::start().await;
    let mut world = World::before(&[&engine]).await;
    let (other, _) = world.another("router-2").await;
    let clients = [world.client.clone(), other];
    for chain in 0..6 {
        let mut ranks = Vec::new();
        for turn in 0..4 {
            let mut body = json!({"model": "m", "input": "x", "stream": turn % 2 == 1});
            if turn > 0 {
                body["previous_response_id"] = json!(format!("resp_{chain}_{}", turn - 1));
            }
            let object = json!({"id": format!("resp_{chain}_{turn}"), "object": "response"});
            let reply = match turn % 2 {
                1 => {
                    let event = json!({"type": "response.created", "response": object});
                    format!("event: response.created\ndata: {event}\n\ndata: [DONE]\n\n")
                }
                _ => object.to_string(),
            };
            let client = &clients[turn % 2];
            let request = ("/v1/responses", &[][..], &body);
            let (_, rank) = post(client, &mut engine, request, &reply).await;
            ranks.push(rank);
        }
        assert!(ranks.iter().all(|it| *it == ranks[0]), "{ranks:?}");
    }
    // A branch goes on where its stem ran; a failed answer is none.
    let stem = json!({"model": "m", "input": "x", "previous_response_id": "resp_0_1"});
    let (answer, _) = post(
        &world.client,
        &mut engine,
        ("/v1/responses", &[], &stem),
        "{}",
    )
    .await;
    assert_eq!(explained(&world, &answer).await["reason"], "bound");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_correlation_id_counts_once_a_prompt_extends_the_one_before() {
    let mut engine = Engine::start().await;
    let world = World::before(&[&engine]).await;
    let path = "/v1/completions";
    let headers = [("x-correlation-id", "r")];
    let mut seen = Vec::new();
    for length in [24, 24, 32, 40, 8] {
        let request = (path, &headers[..], &tokens(0..length));
        let (answer, _) = post(&world.client, &mut engine, request, "{}").await;
        seen.push(explained(&world, &answer).await["conversation"].clone());
    }
    assert_eq!(
        seen,
        [json!(null), json!(null), json!("r"), json!("r"), json!("r")]
    );
    for request in 0..4 {
        let id = format!("own-{request}");
        let headers = [("x-correlation-id", id.as_str())];
        let request = (path, &headers[..], &tokens(100..124));
        let (answer, _) = post(&world.client, &mut engine, request, "{}").await;
        assert_eq!(
            explained(&world, &answer).await["conversation"],
            json!(null)
        );
    }
    assert_eq!(counted(&world, "correlation_id").await, 3.0);
    assert_eq!(counted(&world, "none").await, 6.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cache_key_leans_and_never_binds() {
    let mut engine = Engine::start().await;
    let world = World::before(&[&engine]).await;
    for bucket in 0..6 {
        let mut ranks = Vec::new();
        for request in 0..3 {
            let from = 1_000 * (3 * bucket + request);
            let mut body = tokens(from..from + 24);
            body["prompt_cache_key"] = json!(format!("bucket-{bucket}"));
            let request = ("/v1/completions", &[][..], &body);
            let (answer, rank) = post(&world.client, &mut engine, request, "{}").await;
            let decision = explained(&world, &answer).await;
            assert_eq!(decision["reason"], "hinted_of_2");
            assert_eq!(decision["binding"], "none");
            ranks.push(rank);
            world.until_nothing_is_left().await;
        }
        assert!(ranks.iter().all(|it| *it == ranks[0]), "{ranks:?}");
    }
    assert!(world.affinity.list(10).await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn without_any_id_turns_are_found_by_their_prompts_at_every_router() {
    let mut engine = Engine::start().await;
    let mut world = World::before(&[&engine]).await;
    let (other, _) = world.another("router-2").await;
    let path = "/v1/completions";
    let first = tokens(0..24);
    let (answer, _) = post(&world.client, &mut engine, (path, &[], &first), "{}").await;
    assert_eq!(
        explained(&world, &answer).await["conversation"],
        json!(null)
    );
    // The other router has heard of the first turn, and names the conversation.
    let second = tokens(0..48);
    world
        .until(async || route(&other, &[], &second).await["conversation"] != json!(null))
        .await;
    let (_, rank) = post(&other, &mut engine, (path, &[], &second), "{}").await;
    let bound = world.affinity.list(10).await.unwrap();
    let name = bound[0].binding.key.conversation.to_string();
    assert!(name.starts_with("lineage-"), "{name}");
    let third = tokens(0..72);
    world
        .until(async || route(&world.client, &[], &third).await["conversation"] == json!(name))
        .await;
    for length in [72, 96, 120] {
        for client in [&world.client, &other] {
            let request = (path, &[][..], &tokens(0..length));
            let (_, same) = post(client, &mut engine, request, "{}").await;
            assert_eq!(same, rank);
        }
    }
    let bound = world.affinity.list(10).await.unwrap();
    assert_eq!(bound.len(), 1, "{bound:?}");
    assert_eq!(counted(&world, "lineage").await, 3.0);
    let another = tokens(500..572);
    let (answer, _) = post(&world.client, &mut engine, (path, &[], &another), "{}").await;
    assert_eq!(
        explained(&world, &answer).await["conversation"],
        json!(null)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sub_agent_starts_near_its_parent_and_is_bound_on_its_own() {
    let mut engine = Engine::start().await;
    let world = World::before(&[&engine]).await;
    let path = "/v1/completions";
    for (number, (own, of_parent)) in [
        ("x-dynamo-session-id", "x-dynamo-parent-session-id"),
        ("x-claude-code-agent-id", "x-claude-code-parent-agent-id"),
        ("x-claude-code-agent-id", "x-claude-code-session-id"),
        ("x-session-id", "x-parent-session-id"),
    ]
    .into_iter()
    .enumerate()
    {
        let parent = format!("parent-{number}");
        let headers = [("x-session-id", parent.as_str())];
        let request = (path, &headers[..], &tokens(0..9));
        let (_, at) = post(&world.client, &mut engine, request, "{}").await;
        world.until_nothing_is_left().await;
        for child in 0..4 {
            let id = format!("child-{number}-{child}");
            let headers = [(own, id.as_str()), (of_parent, parent.as_str())];
            let request = (path, &headers[..], &tokens(50..59));
            let (answer, rank) = post(&world.client, &mut engine, request, "{}").await;
            let decision = explained(&world, &answer).await;
            assert_eq!(decision["reason"], "hinted_of_2", "{own} {of_parent}");
            assert_eq!(decision["conversation"], json!(id));
            assert_eq!(decision["binding"], "create");
            assert_eq!(rank, at);
            world.until_nothing_is_left().await;
        }
    }
    assert_eq!(world.affinity.list(100).await.unwrap().len(), 20);
}
