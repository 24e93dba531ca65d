//! The index over HTTP, in the shape of other indexers: real sockets, real bytes.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod world;

use std::net::SocketAddr;

use bytes::Bytes;
use contracts::rpc::Shard;
use domain::{BlockSize, EngineHash, HashSeed, KvOp, StoredBlock, Tier, Worker, block_hashes};
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use indexer::Config;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use world::{Running, World, batch, namespace, start_with, target, until, worker};

/// An indexer's routes on a socket.
struct Served {
    address: SocketAddr,
    _server: JoinSet<()>,
}

impl Served {
    async fn of(running: &Running) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let routes = running.routes.clone();
        let mut server = JoinSet::new();
        server.spawn(async move { axum::serve(listener, routes).await.unwrap() });
        Self {
            address,
            _server: server,
        }
    }

    async fn ask(&self, method: &str, path: &str, body: Vec<u8>) -> (StatusCode, Value) {
        let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
        let request = Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", self.address))
            .body(Full::new(Bytes::from(body)))
            .unwrap();
        let answer = client.request(request).await.unwrap();
        let status = answer.status();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
    }

    async fn post(&self, path: &str, body: Value) -> (StatusCode, Value) {
        self.ask("POST", path, body.to_string().into()).await
    }

    /// The answer to a query that has one.
    async fn query(&self, body: Value) -> Value {
        let (status, answer) = self.post("/query", body).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        answer
    }
}

/// So many tokens, all different.
fn tokens(count: u32) -> Vec<u32> {
    (1..=count).collect()
}

/// The first `blocks` blocks of [`tokens`] are stored, in blocks of `size`, in a tier.
fn stores(size: u32, blocks: usize, tier: Tier, lora: Option<&str>, salt: Option<&str>) -> KvOp {
    let size = BlockSize::new(size).unwrap();
    let hashes = block_hashes(&tokens(1_000), size, HashSeed::of(lora, salt));
    let block = |hash: &domain::BlockHash| StoredBlock {
        engine_hash: EngineHash::Int(hash.get()),
        block_hash: *hash,
    };
    KvOp::Stored(domain::StoredBlocks {
        group: 0,
        parent: None,
        blocks: hashes.iter().take(blocks).map(block).collect(),
        tier,
        namespace: domain::Namespace {
            lora: lora.map(Into::into),
            salt: salt.map(Into::into),
            block_size: size,
            ..namespace()
        },
        session: None,
    })
}

fn ranks(id: &str, dp_size: u32, block_size: u32) -> Worker {
    Worker {
        dp_size,
        block_size: BlockSize::new(block_size).unwrap(),
        ..worker(id, None)
    }
}

#[tokio::test]
async fn tokens_are_scored_by_worker_and_rank_and_tiers_are_cumulative() {
    let (world, _bus) = World::new();
    world.register(ranks("w1", 2, 16)).await;
    world.register(ranks("w2", 1, 64)).await;
    let first = target("w1#1/0");
    world
        .append(batch(&first, 0, vec![stores(16, 2, Tier::Gpu, None, None)]))
        .await;
    world
        .append(batch(
            &first,
            1,
            vec![stores(16, 5, Tier::Host, None, None)],
        ))
        .await;
    let second = target("w1#1/1");
    world
        .append(batch(
            &second,
            0,
            vec![stores(16, 3, Tier::Disk, None, None)],
        ))
        .await;
    let other = target("w2#1/0");
    world
        .append(batch(&other, 0, vec![stores(64, 1, Tier::Gpu, None, None)]))
        .await;
    let running = world.start().await;
    let served = Served::of(&running).await;

    let mut answer = served
        .query(json!({"model_name": "m", "token_ids": tokens(200), "tenant_id": "ignored"}))
        .await;

    let age = answer["coverage"]["index_age_seconds"].take();
    assert!(age.as_f64().unwrap() < 60.0, "{age}");
    let expected = json!({
        "scores": {"w1": {"0": 32}, "w2": {"0": 64}},
        "frequencies": [],
        "instances": {
            "w1": {"longest_matched": 80, "gpu": 32, "dp": {"0": 32, "1": 0}, "cpu": 80, "disk": 80},
            "w2": {"longest_matched": 64, "gpu": 64, "dp": {"0": 64}, "cpu": 64, "disk": 64},
        },
        "coverage": {"shard": "0/1", "index_age_seconds": null, "unknown": {}, "not_ready": {}},
    });
    assert_eq!(answer, expected);
}

#[tokio::test]
async fn hashes_of_either_kind_and_either_sign_ask_the_same() {
    let (world, _bus) = World::new();
    world.register(ranks("w1", 1, 16)).await;
    let at = target("w1#1/0");
    world
        .append(batch(&at, 0, vec![stores(16, 4, Tier::Gpu, None, None)]))
        .await;
    let running = world.start().await;
    let served = Served::of(&running).await;
    let blocks = block_hashes(
        &tokens(96),
        BlockSize::new(16).unwrap(),
        HashSeed::of(None, None),
    );
    let sequence = domain::sequence_hashes(&blocks);
    let unsigned: Vec<u64> = blocks.iter().map(|it| it.get()).collect();
    let signed: Vec<i64> = unsigned.iter().map(|it| it.cast_signed()).collect();
    let sequence: Vec<u64> = sequence.iter().map(|it| it.get()).collect();

    for mut asked in [
        json!({"block_hashes": unsigned}),
        json!({"block_hashes": signed}),
        json!({"sequence_hashes": sequence}),
        json!({"block_hashes": unsigned, "block_size": 16, "routing_group": "default"}),
    ] {
        asked["model_name"] = "m".into();
        let (status, answer) = served.post("/query_by_hash", asked).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        assert_eq!(answer["scores"], json!({"w1": {"0": 64}}));
    }
}

#[tokio::test]
async fn lora_and_salt_name_an_index_of_their_own() {
    let (world, _bus) = World::new();
    world.register(ranks("w1", 1, 16)).await;
    let at = target("w1#1/0");
    let of = |lora, salt| stores(16, 3, Tier::Gpu, lora, salt);
    world
        .append(batch(&at, 0, vec![of(Some("l"), Some("s"))]))
        .await;
    let running = world.start().await;
    let served = Served::of(&running).await;
    let ask = async |more: Value| {
        let mut asked = json!({"model_name": "m", "token_ids": tokens(64)});
        let asked_fields = asked.as_object_mut().unwrap();
        asked_fields.extend(more.as_object().unwrap().clone());
        served.query(asked).await["scores"].clone()
    };

    assert_eq!(
        ask(json!({"lora_name": "l", "cache_salt": "s"})).await,
        json!({"w1": {"0": 48}})
    );
    assert_eq!(ask(json!({"lora_name": "l"})).await, json!({}));
    assert_eq!(
        ask(json!({"lora_name": "", "cache_salt": null})).await,
        json!({})
    );
}

#[tokio::test]
async fn a_shard_says_which_ranks_it_knows_nothing_of() {
    let (world, _bus) = World::new();
    world.register(ranks("w1", 8, 16)).await;
    for rank in 0..8 {
        let at = target(&format!("w1#1/{rank}"));
        world
            .append(batch(&at, 0, vec![stores(16, 1, Tier::Gpu, None, None)]))
            .await;
    }
    let mut covered = Vec::new();
    for index in 0..2 {
        let config = Config {
            data_dir: world.folder.path().join(format!("shard-{index}")),
            shard: Shard::new(index, 2).unwrap(),
            ..Config::default()
        };
        let running = start_with(config, world.bus.clone(), world.feed.clone(), Vec::new());
        running.ready().await;
        let served = Served::of(&running).await;
        let answer = served
            .query(json!({"model_name": "m", "token_ids": tokens(16)}))
            .await;
        assert_eq!(answer["coverage"]["shard"], format!("{index}/2"));
        let scored = answer["scores"]["w1"].as_object().unwrap();
        let unknown = answer["coverage"]["unknown"]["w1"].as_array().unwrap();
        assert_eq!(scored.len() + unknown.len(), 8);
        assert!(
            unknown
                .iter()
                .all(|it| !scored.contains_key(&it.to_string()))
        );
        covered.extend(scored.keys().cloned());
        running.stop().await;
    }
    covered.sort();
    assert_eq!(covered, ["0", "1", "2", "3", "4", "5", "6", "7"]);
}

#[tokio::test]
async fn a_worker_whose_lease_has_ended_is_not_named() {
    let (world, _bus) = World::new();
    world.register(ranks("w1", 1, 16)).await;
    let gone = Worker {
        lease_until: domain::Timestamp::from_micros(1),
        ..ranks("w2", 1, 16)
    };
    world.register(gone).await;
    for at in ["w1#1/0", "w2#1/0"] {
        let at = target(at);
        world
            .append(batch(&at, 0, vec![stores(16, 1, Tier::Gpu, None, None)]))
            .await;
    }
    let running = world.start().await;
    let served = Served::of(&running).await;
    let query = json!({"model_name": "m", "token_ids": tokens(16)});

    assert_eq!(
        served.query(query.clone()).await["scores"],
        json!({"w1": {"0": 16}})
    );
    let (_, workers) = served.ask("GET", "/workers", Vec::new()).await;
    assert_eq!(workers.as_array().unwrap().len(), 1);
    assert_eq!(workers[0]["instance_id"], "w1");
    assert_eq!(workers[0]["block_size"], 16);
    assert_eq!(workers[0]["dp_ranks"], json!([0]));

    world.deregister("w1").await;
    until!(
        "the model is gone with its last worker",
        served.post("/query", query.clone()).await.0 == StatusCode::NOT_FOUND
    );
}

#[tokio::test]
async fn an_incarnation_that_has_ended_holds_nothing() {
    let (world, _bus) = World::new();
    let again = Worker {
        epoch: domain::Epoch::new(2),
        ..ranks("w1", 1, 16)
    };
    world.register(again).await;
    let old = target("w1#1/0");
    world
        .append(batch(&old, 0, vec![stores(16, 2, Tier::Gpu, None, None)]))
        .await;
    let running = world.start().await;
    let served = Served::of(&running).await;
    let query = json!({"model_name": "m", "token_ids": tokens(32)});

    assert_eq!(served.query(query.clone()).await["scores"], json!({}));
    let new = target("w1#2/0");
    world
        .append(batch(&new, 0, vec![stores(16, 1, Tier::Gpu, None, None)]))
        .await;
    until!(
        "the new incarnation is scored",
        served.query(query.clone()).await["scores"] == json!({"w1": {"0": 16}})
    );
}

#[tokio::test]
async fn a_query_that_makes_no_sense_is_refused_with_a_reason() {
    let (world, _bus) = World::new();
    world.register(ranks("w1", 1, 16)).await;
    world.register(ranks("w2", 1, 64)).await;
    let running = world.start().await;
    let served = Served::of(&running).await;
    let check = async |path: &str, body: &str, status: u16, says: &str| {
        let (found, answer) = served.ask("POST", path, body.into()).await;
        assert_eq!(found.as_u16(), status, "{path} {body}: {answer}");
        let error = answer["error"].as_str().unwrap();
        assert!(error.contains(says), "{path} {body}: {error:?}");
    };
    check("/query", "", 400, "EOF").await;
    check("/query", r#"{"model_name":"m"}"#, 400, "token_ids").await;
    check("/query", r#"{"token_ids":[1]}"#, 400, "model_name").await;
    check(
        "/query",
        r#"{"model_name":"m","token_ids":[-1]}"#,
        400,
        "-1",
    )
    .await;
    let unknown = r#"{"model_name":"n","token_ids":[1]}"#;
    check("/query", unknown, 404, r#"model "n"; there is m"#).await;
    let group = r#"{"model_name":"m","token_ids":[1],"routing_group":"g"}"#;
    check("/query", group, 404, r#"routing group "g""#).await;
    let hashes = r#"{"model_name":"m","block_hashes":[1]}"#;
    check("/query_by_hash", hashes, 400, "16, 64: say block_size").await;
    let size = r#"{"model_name":"m","block_hashes":[1],"block_size":32}"#;
    check("/query_by_hash", size, 400, "blocks of 32, but 16, 64").await;
    check("/query_by_hash", r#"{"model_name":"m"}"#, 400, "either").await;
    let text = r#"{"model_name":"m","block_hashes":["x"]}"#;
    check("/query_by_hash", text, 400, "a hash of 64 bits").await;
    let long = format!(
        "{{\"model_name\":\"m\",\"token_ids\":[{}1]}}",
        "1,".repeat(9 << 20)
    );
    check("/query", &long, 413, "at most 16777216 bytes").await;
    let (status, _) = served.ask("GET", "/health", Vec::new()).await;
    assert_eq!(status, StatusCode::OK);
}

#[tokio::test]
async fn nothing_is_said_before_the_log_is_read() {
    let (world, _bus) = World::new();
    let config = Config {
        data_dir: world.store(),
        ..Config::default()
    };
    let feed = world.feed.clone();
    let indexer = indexer::Indexer::new(config, world.bus.clone(), feed, world::context());
    let routes = indexer.unwrap().routes();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let served = Served {
        address: listener.local_addr().unwrap(),
        _server: {
            let mut server = JoinSet::new();
            server.spawn(async move { axum::serve(listener, routes).await.unwrap() });
            server
        },
    };

    let query = json!({"model_name": "m", "token_ids": [1]});
    let (status, answer) = served.post("/query", query).await;

    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    let error = answer["error"].as_str().unwrap();
    assert!(error.contains("the log is still being read"), "{error}");
}
