//! What is recorded of requests on the bus, and exported.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use bus::{
    Bus, BusError, Changes, Entry, Expect, Key, MemoryBus, Offset, Partition, Record, Records,
    Revision, Start, Table, Tail,
};
use bytes::Bytes;
use contracts::{DecisionRecord, Encoding, OutcomeRecord, RecordedChoice, topics};
use futures::StreamExt;
use placement::choose;
use router_api::Config;
use serde_json::{Value, json};

use crate::engine::Engine;
use crate::world::{World, config, workers};

/// A prompt of 64 blocks of four tokens.
pub(crate) const TOKENS: usize = 256;

impl World {
    pub(crate) async fn route(&self, more: Value) -> Value {
        let mut body = json!({"model": "m", "token_ids": vec![7_777; TOKENS]});
        let Value::Object(more) = more else {
            panic!("an object")
        };
        body.as_object_mut().unwrap().extend(more);
        let answer = self.client.post("/v1/route", &[], &body.to_string()).await;
        assert_eq!(answer.status, 200, "{}", answer.json());
        answer.json()
    }

    pub(crate) async fn told(&self, routed: &Value, more: Value) {
        let mut body = json!({"decision": routed["id"]});
        let Value::Object(more) = more else {
            panic!("an object")
        };
        body.as_object_mut().unwrap().extend(more);
        let answer = self
            .client
            .post("/v1/outcome", &[], &body.to_string())
            .await;
        assert_eq!(answer.status, 200, "{}", answer.json());
    }

    /// All records of a topic, once there are at least `count`.
    pub(crate) async fn recorded<T: Encoding>(
        &self,
        topic: &bus::TopicSpec,
        count: usize,
    ) -> Vec<(T, Bytes)> {
        self.until(async || count <= self.records(topic).await.len())
            .await;
        let records = self.records(topic).await.into_iter();
        records
            .map(|it| (T::from_bytes(&it).unwrap(), it))
            .collect()
    }

    async fn records(&self, topic: &bus::TopicSpec) -> Vec<Bytes> {
        let mut records = Vec::new();
        for partition in topic.all_partitions() {
            let Some(last) = self.bus.tail(&partition).await.unwrap().last else {
                continue;
            };
            let mut stream = self.bus.read(&partition, Start::Earliest).await.unwrap();
            loop {
                let delivered = stream.next().await.unwrap().unwrap();
                records.push(delivered.record.0);
                if delivered.offset == last {
                    break;
                }
            }
        }
        records
    }
}

fn recording(one_in: u32) -> Config {
    Config {
        records_whole_one_in: NonZeroU32::new(one_in).unwrap(),
        ..config()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_decision_and_its_outcome_are_recorded_and_dry_runs_are_not() {
    let engine = Engine::start().await;
    let world = World::with(recording(1), &[&engine]).await;
    world.index.hold("w1#1/1", 32);
    for _ in 0..3 {
        world.route(json!({"conversation": "dry-run"})).await;
    }
    let name = "a-conversation-that-nobody-may-read";
    let committed = json!({"conversation": name, "commit": true});
    let routed = world.route(committed).await;
    let told = json!({"prompt_tokens": TOKENS, "completion_tokens": 3, "cached_tokens": 128, "ttft_ms": 4.5});
    world.told(&routed, told).await;
    // Told again, it counts and is recorded once.
    world.told(&routed, json!({"cached_tokens": 9})).await;
    let second = world.route(json!({"commit": true})).await;
    world.told(&second, json!({"status": "cancelled"})).await;

    let decisions: Vec<(DecisionRecord, _)> = world.recorded(&topics::DECISIONS, 2).await;
    let outcomes: Vec<(OutcomeRecord, _)> = world.recorded(&topics::OUTCOMES, 2).await;
    let of = |id: &Value| {
        let id = id.as_str().unwrap().parse().unwrap();
        let decision = decisions.iter().find(|it| it.0.id == id).unwrap();
        let outcome = outcomes.iter().find(|it| it.0.id == id).unwrap();
        (&decision.0, &outcome.0)
    };
    let (decision, outcome) = of(&routed["id"]);
    assert!(decision.is_whole());
    assert_eq!(
        decision.place.target().unwrap().to_string(),
        routed["target"].as_str().unwrap()
    );
    assert_eq!(decision.reason, routed["reason"].as_str().unwrap());
    assert_eq!(decision.binding, "create");
    assert_eq!(decision.snapshot.candidates.len(), 2);
    let again = choose(
        &decision.asked,
        &decision.snapshot,
        decision.policy,
        decision.seed,
    );
    let again = RecordedChoice::of(&again.unwrap()).to_bytes();
    assert_eq!(again, decision.choice.as_ref().unwrap().to_bytes());
    assert_eq!(outcome.status, "served");
    assert_eq!(outcome.ttft.unwrap().as_micros(), 4_500);
    let waterfall = outcome.waterfall.unwrap();
    assert_eq!(waterfall.realised().unwrap().get(), 128);
    assert_eq!(of(&second["id"]).1.status, "cancelled");
    let secret = |bytes: &Bytes| bytes.windows(name.len()).any(|it| it == name.as_bytes());
    assert!(!decisions.iter().any(|it| secret(&it.1)));
    assert!(!outcomes.iter().any(|it| secret(&it.1)));

    exports(&world, decision).await;
}

/// What the router exports is what it has recorded, without the dry runs.
async fn exports(world: &World, decision: &DecisionRecord) {
    let lines = world.admin_get("decisions?whole=true").await;
    let lines = String::from_utf8(lines.body.to_vec()).unwrap();
    let exported: Vec<DecisionRecord> = lines
        .lines()
        .map(|it| DecisionRecord::from_json(it).unwrap())
        .collect();
    assert_eq!(exported.len(), 2);
    assert!(exported.iter().any(|it| it == decision));
    let page = format!("decisions?whole=false&limit=5&before={}", exported[0].id);
    let page = String::from_utf8(world.admin_get(&page).await.body.to_vec()).unwrap();
    let part = DecisionRecord::from_json(page.trim_end()).unwrap();
    assert_eq!((part.id, part.is_whole()), (exported[1].id, false));
    for wrong in [
        "limit=0",
        "limit=x",
        "whole=yes",
        "before=1",
        "since=-1",
        "page=2",
    ] {
        let refused = world.admin_get(&format!("decisions?{wrong}")).await;
        assert_eq!(refused.status, 400, "{wrong}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_large_fleet_most_decisions_are_recorded_in_part() {
    let engines = [Engine::start().await, Engine::start().await];
    let world = World::with(recording(u32::MAX), &engines.each_ref()).await;
    world.route(json!({"commit": true})).await;
    let decisions: Vec<(DecisionRecord, _)> = world.recorded(&topics::DECISIONS, 1).await;
    let digest = decisions[0].0.digest.unwrap();
    assert_eq!(digest.candidates, 4);
}

/// A bus that takes no decisions and no outcomes while it is away.
struct Away {
    bus: MemoryBus,
    is_away: AtomicBool,
}

#[async_trait]
impl Bus for Away {
    async fn append(&self, at: &Partition, batch: Vec<Record>) -> Result<Offset, BusError> {
        let is_record = [topics::DECISIONS.name, topics::OUTCOMES.name].contains(&at.topic);
        match is_record && self.is_away.load(Ordering::Relaxed) {
            true => Err(BusError::Unavailable("away".into())),
            false => self.bus.append(at, batch).await,
        }
    }

    async fn read(&self, at: &Partition, start: Start) -> Result<Records, BusError> {
        self.bus.read(at, start).await
    }

    async fn tail(&self, at: &Partition) -> Result<Tail, BusError> {
        self.bus.tail(at).await
    }

    async fn get(&self, table: &Table, key: &Key) -> Result<Option<Entry>, BusError> {
        self.bus.get(table, key).await
    }

    async fn put(
        &self,
        table: &Table,
        key: Key,
        value: Option<Bytes>,
        expect: Expect,
    ) -> Result<Revision, BusError> {
        self.bus.put(table, key, value, expect).await
    }

    async fn watch(&self, table: &Table) -> Result<Changes, BusError> {
        self.bus.watch(table).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_bus_does_not_take_is_dropped_and_counted_and_no_request_waits() {
    let engine = Engine::start().await;
    let bus = Arc::new(Away {
        bus: MemoryBus::new(&topics::LAYOUT),
        is_away: AtomicBool::new(true),
    });
    let urls = [engine.url.as_str()];
    let world = World::over(bus.clone(), config(), workers(&urls)).await;
    for _ in 0..5 {
        let routed = world.route(json!({"commit": true})).await;
        world.told(&routed, json!({})).await;
    }
    let dropped = "rankway_records_dropped_total";
    world.until(async || world.gauge(dropped) == 10.0).await;

    bus.is_away.store(false, Ordering::Relaxed);
    let routed = world.route(json!({"commit": true})).await;
    let decisions: Vec<(DecisionRecord, _)> = world.recorded(&topics::DECISIONS, 1).await;
    assert_eq!(
        decisions[0].0.id.to_string(),
        routed["id"].as_str().unwrap()
    );
    assert_eq!(world.gauge(dropped), 10.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_records_are_told_when_the_router_ends() {
    let engine = Engine::start().await;
    let mut world = World::with(recording(1), &[&engine]).await;
    for _ in 0..20 {
        world.route(json!({"commit": true})).await;
    }
    world.shutdown.cancel();
    let ended = crate::soon(world.tasks.join_next()).await;
    ended.unwrap().unwrap().unwrap();
    let decisions: Vec<(DecisionRecord, _)> = world.recorded(&topics::DECISIONS, 20).await;
    assert_eq!(decisions.len(), 20);
    let outcomes: Vec<(OutcomeRecord, _)> = world.recorded(&topics::OUTCOMES, 20).await;
    assert!(outcomes.iter().all(|it| it.0.status == "cancelled"));
}
