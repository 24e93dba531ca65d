//! The ingest against a server that gives the events of all its ranks to whoever asks.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use domain::{EngineHash, EngineKind, Epoch, KvEndpoints, KvOp, ResetReason, Tier, Worker};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::engine::BLOCK;
use crate::epoch_1;
use crate::fixture::{
    Ingest, Switched, batches, eventually, incarnation, numbers, register_worker, worker,
};

/// What the server holds until it is asked; none while it refuses.
type Buffer = Arc<Mutex<Option<VecDeque<Value>>>>;

/// A server; it stops when dropped.
struct Server {
    url: String,
    buffer: Buffer,
    _serving: JoinSet<()>,
}

async fn drain(State(buffer): State<Buffer>) -> Result<String, StatusCode> {
    let mut buffer = buffer.lock().unwrap();
    let events = buffer.as_mut().ok_or(StatusCode::SERVICE_UNAVAILABLE)?;
    Ok(Value::from_iter(events.drain(..)).to_string())
}

impl Server {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/kv_cache_events", listener.local_addr().unwrap());
        let buffer = Buffer::new(Mutex::new(Some(VecDeque::new())));
        let routes = Router::new().route("/kv_cache_events", post(drain));
        let routes = routes.with_state(buffer.clone());
        let mut serving = JoinSet::new();
        serving.spawn(async move { axum::serve(listener, routes).await.unwrap() });
        Self {
            url,
            buffer,
            _serving: serving,
        }
    }

    fn say(&self, events: impl IntoIterator<Item = Value>) {
        let mut buffer = self.buffer.lock().unwrap();
        buffer.as_mut().unwrap().extend(events);
    }

    /// A worker of two ranks whose events are drained here.
    fn worker(&self) -> Worker {
        Worker {
            engine: EngineKind::TensorRtLlm,
            kv_endpoints: KvEndpoints::Drained(self.url.clone()),
            ..worker(2, Vec::new())
        }
    }
}

fn item(rank: u32, event_id: u64, data: Value) -> Value {
    json!({"event_id": event_id, "data": data, "window_size": 4096, "attention_dp_rank": rank})
}

fn created(rank: u32) -> Value {
    let data = json!({"type": "created", "num_blocks_per_cache_level": [128, 32]});
    item(rank, 0, data)
}

fn stored(rank: u32, event_id: u64) -> Value {
    let token =
        |at| json!({"type": "unique_token", "token_id": event_id * 100 + at, "token_extra_id": 0});
    let tokens: Vec<Value> = (0..u64::from(BLOCK)).map(token).collect();
    let block = json!({"type": "stored_block", "block_hash": event_id, "tokens": tokens, "cache_level": 0,
        "priority": 35, "mm_keys": [], "cache_salt": null});
    let data = json!({"type": "stored", "parent_hash": null, "blocks": [block]});
    item(rank, event_id, data)
}

fn removed(rank: u32, event_id: u64, hash: u64) -> Value {
    item(
        rank,
        event_id,
        json!({"type": "removed", "block_hashes": [hash]}),
    )
}

fn first(rank: u32, events: std::ops::Range<u64>) -> Vec<Value> {
    std::iter::once(created(rank))
        .chain(events.map(|id| stored(rank, id)))
        .collect()
}

async fn started(server: &Server, bus: &Switched, data: &std::path::Path) -> Ingest {
    register_worker(bus, server.worker()).await;
    let ingest = Ingest::start(bus, data);
    ingest.ready().await;
    ingest
}

#[tokio::test(flavor = "multi_thread")]
async fn events_of_all_ranks_are_in_the_log_each_under_its_own_numbers() {
    let (bus, data) = (Switched::new(), tempfile::tempdir().unwrap());
    let server = Server::start().await;
    server.say(first(0, 1..3));
    server.say(first(1, 1..4));
    let ingest = started(&server, &bus, data.path()).await;
    server.say([
        item(0, 3, json!({"type": "updated", "block_hash": 1,
            "cache_level": {"type": "event_diff", "new_value": 1, "old_value": 0}, "priority": null})),
        removed(0, 4, 1),
        json!({}),
        removed(1, 4, 3),
    ]);

    let log = batches(&bus, 0, 5).await;
    assert_eq!(numbers(&log), epoch_1(0..5));
    assert_eq!(log[0].ops, [KvOp::Cleared]);
    assert!(
        matches!(&log[1].ops[..], [KvOp::Stored(it)] if it.tier == Tier::Gpu && it.blocks.len() == 1)
    );
    let engine_hashes = vec![EngineHash::Int(1)];
    let retiered = KvOp::Retiered {
        group: 0,
        engine_hashes: engine_hashes.clone(),
        from: Tier::Gpu,
        to: Tier::Host,
    };
    assert_eq!(log[3].ops, [retiered]);
    let left = KvOp::Removed {
        group: 0,
        engine_hashes,
        tier: Tier::Host,
    };
    assert_eq!(log[4].ops, [left]);
    assert_eq!(numbers(&batches(&bus, 1, 5).await), epoch_1(0..5));
    assert_eq!(incarnation(&bus).await.epoch, Epoch::FIRST);
    assert_eq!(ingest.health.findings().len(), 0);
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hole_in_the_numbers_of_a_rank_resets_that_rank_alone() {
    let (bus, data) = (Switched::new(), tempfile::tempdir().unwrap());
    let server = Server::start().await;
    server.say(first(0, 1..3));
    server.say(first(1, 1..3));
    let ingest = started(&server, &bus, data.path()).await;
    batches(&bus, 0, 3).await;
    // Somebody else has asked in between.
    server.say([stored(0, 3), stored(1, 5)]);

    let log = batches(&bus, 1, 5).await;
    assert_eq!(numbers(&log), [epoch_1(0..3), epoch_1(4..6)].concat());
    let reason = ResetReason::NoReplay;
    assert_eq!(log[3].ops, [KvOp::Reset { reason }]);
    let log = batches(&bus, 0, 4).await;
    assert_eq!(numbers(&log), epoch_1(0..4));
    let gaps = |rank| ingest.count("rankway_event_gaps_total", &[("dp_rank", rank)]);
    assert_eq!((gaps("0"), gaps("1")), (0, 1));
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_count_that_begins_anew_is_a_restart() {
    let (bus, data) = (Switched::new(), tempfile::tempdir().unwrap());
    let server = Server::start().await;
    server.say(first(0, 1..4));
    let ingest = started(&server, &bus, data.path()).await;
    batches(&bus, 0, 4).await;
    server.say(first(0, 1..6));

    let log = batches(&bus, 0, 10).await;
    let again: Vec<_> = (0..6).map(|seq| (2, seq)).collect();
    assert_eq!(numbers(&log), [epoch_1(0..4), again].concat());
    assert_eq!(log[4].ops, [KvOp::Cleared]);
    assert_eq!(incarnation(&bus).await.epoch, Epoch::new(2));
    ingest.stop().await;
}

/// Stops an ingest, whose last question the server then has behind it: what it answered to that would be lost.
async fn stopped(ingest: Ingest) {
    ingest.stop().await;
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ingest_that_restarts_goes_on_where_it_was_and_sees_an_engine_that_did_too() {
    let (bus, data) = (Switched::new(), tempfile::tempdir().unwrap());
    let server = Server::start().await;
    server.say(first(0, 1..4));
    let ingest = started(&server, &bus, data.path()).await;
    batches(&bus, 0, 4).await;
    stopped(ingest).await;
    server.say([stored(0, 4), stored(0, 5)]);
    let ingest = Ingest::start(&bus, data.path());
    assert_eq!(numbers(&batches(&bus, 0, 6).await), epoch_1(0..6));
    stopped(ingest).await;
    server.say(first(0, 1..3));
    let ingest = Ingest::start(&bus, data.path());
    let log = batches(&bus, 0, 9).await;
    assert_eq!(numbers(&log[6..]), [(2, 0), (2, 1), (2, 2)]);
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_was_there_before_resets_first() {
    let (bus, data) = (Switched::new(), tempfile::tempdir().unwrap());
    let server = Server::start().await;
    server.say([stored(0, 7), stored(0, 8)]);
    let ingest = started(&server, &bus, data.path()).await;
    let log = batches(&bus, 0, 3).await;
    assert_eq!(numbers(&log), epoch_1(6..9));
    let reason = ResetReason::AttachedLate;
    assert_eq!(log[0].ops, [KvOp::Reset { reason }]);
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_used_is_counted_and_shows_as_a_hole() {
    let (bus, data) = (Switched::new(), tempfile::tempdir().unwrap());
    let server = Server::start().await;
    server.say(first(0, 1..3));
    let ingest = started(&server, &bus, data.path()).await;
    batches(&bus, 0, 3).await;
    server.say([
        stored(9, 0),
        json!({"data": {"type": "removed"}}),
        json!("no event"),
        stored(0, 5),
    ]);

    let log = batches(&bus, 0, 5).await;
    assert_eq!(numbers(&log), [epoch_1(0..3), epoch_1(4..6)].concat());
    assert_eq!(ingest.events("rank_out_of_range"), 1);
    assert_eq!(ingest.events("no_event_id"), 2);
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_answer_is_named_until_it_does() {
    let (bus, data) = (Switched::new(), tempfile::tempdir().unwrap());
    let server = Server::start().await;
    *server.buffer.lock().unwrap() = None;
    register_worker(&bus, server.worker()).await;
    let ingest = Ingest::start(&bus, data.path());
    // Readiness does not wait for it.
    ingest.ready().await;
    let found = || ingest.health.findings().into_values().flatten().count();
    eventually(|| found() == 2).await;
    *server.buffer.lock().unwrap() = Some(first(0, 1..2).into());
    assert_eq!(numbers(&batches(&bus, 0, 2).await), epoch_1(0..2));
    eventually(|| found() == 0).await;
    ingest.stop().await;
}
