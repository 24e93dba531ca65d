//! SGLang's dialect, in both directions.

use std::collections::BTreeMap;

use domain::{DpRank, RankLoad, Timestamp};
use engine_wire::sglang::{
    BatchEncoder, KvEvents, MetaInfo, ServerInfo, encode_meta_info, encode_metrics,
    encode_server_info, is_server_info, parse_loads, parse_meta_info, parse_metrics,
    parse_server_info,
};
use engine_wire::{
    Event, EventBatch, Gauges, decode_batch, decode_frames, parse_usage, rank_refusal,
};
use serde_json::{Value, json};

use crate::corpus::{self, captured};

fn encode(batch: &EventBatch) -> Vec<u8> {
    let mut encoder = BatchEncoder::new();
    for event in &batch.events {
        match event {
            Event::Stored(stored) => encoder.stored(stored),
            Event::Removed(removed) => encoder.removed(removed),
            Event::Cleared => encoder.cleared(),
            other => panic!("SGLang does not announce {other:?}"),
        }
    }
    encoder.finish(batch.ts, batch.dp_rank.unwrap())
}

#[test]
fn what_sglang_0_5_23_sent_is_encoded_byte_for_byte() {
    /// Where the events begin: behind the array's head and the time, which a real server says finer than a
    /// microsecond.
    const BEHIND_TIME: usize = 10;
    let mut equal = 0;
    for message in captured() {
        let ours = ["sglang/0.5.23/", "sglang-real/"];
        let pairs = message.name.contains("eagle_bigram");
        if !ours.iter().any(|it| message.name.starts_with(it)) || pairs {
            continue;
        }
        let read = decode_frames(&message.frames).unwrap();
        let batch = decode_batch(read.payload).unwrap();
        assert_eq!(
            encode(&batch)[BEHIND_TIME..],
            read.payload[BEHIND_TIME..],
            "{}",
            message.name
        );
        equal += 1;
    }
    assert_eq!(equal, 12 + 17);
}

fn server() -> Value {
    json!({
        "version": "0.5.23", "model_path": "/models/tiny", "served_model_name": "tiny",
        "dp_size": 1, "attn_dp_size": 4, "enable_dp_attention": true, "nnodes": 1, "page_size": 16,
        "max_total_num_tokens": 8192, "internal_states": [{}],
        "kv_events_config":
            "{\"publisher\":\"zmq\",\"endpoint\":\"tcp://*:5597\",\"replay_endpoint\":\"tcp://*:5697\",\"topic\":\"kv\"}",
        "kv_events": {"publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": 5597, "topic": "kv",
            "block_size": 16, "dp_size": 4, "replay_endpoint_port_base": 5697},
    })
}

fn info() -> ServerInfo {
    ServerInfo {
        version: "0.5.23".to_owned(),
        model: "tiny".parse().unwrap(),
        dp_size: 4,
        attention_dp: true,
        nodes: 1,
        page_size: Some(16),
        max_tokens: Some(8192),
        kv_events: Some(KvEvents {
            host: "*".to_owned(),
            publish: 5597,
            replay: Some(5697),
            topic: "kv".to_owned(),
            page_size: Some(16),
        }),
    }
}

fn read(body: &Value) -> ServerInfo {
    parse_server_info(&serde_json::to_vec(body).unwrap()).unwrap()
}

#[test]
fn a_server_says_what_it_is_and_is_read_back() {
    assert_eq!(read(&server()), info());
    let written = encode_server_info(&info());
    assert_eq!(parse_server_info(written.as_bytes()).unwrap(), info());
    let replicas = ServerInfo {
        attention_dp: false,
        kv_events: None,
        ..info()
    };
    let written = encode_server_info(&replicas);
    assert_eq!(parse_server_info(written.as_bytes()).unwrap(), replicas);
}

#[test]
fn what_older_versions_do_not_say_is_taken_from_their_settings() {
    let without = |keys: &[&str]| {
        let mut body = server();
        for key in keys {
            body.as_object_mut().unwrap().remove(*key);
        }
        body
    };
    // 0.5.13 to 0.5.21: no port for replay in the descriptor.
    let mut body = server();
    let described = body["kv_events"].as_object_mut().unwrap();
    described.remove("replay_endpoint_port_base");
    assert_eq!(read(&body), info());
    // 0.5.9 to 0.5.12: no descriptor.
    let mut expected = info();
    expected.kv_events.as_mut().unwrap().page_size = None;
    assert_eq!(read(&without(&["kv_events"])), expected);
    // The old spelling: `dp_size` counts the ranks of attention.
    let mut body = without(&["kv_events", "attn_dp_size", "nnodes"]);
    body["dp_size"] = json!(4);
    assert_eq!(read(&body), expected);
    // No events, or none over TCP.
    for setting in [json!(null), json!("{}"), json!("{\"publisher\":\"null\"}")] {
        let mut body = without(&["kv_events"]);
        body["kv_events_config"] = setting;
        assert_eq!(read(&body).kv_events, None);
    }
    let mut body = without(&["kv_events"]);
    body["kv_events_config"] = json!("{\"publisher\":\"zmq\",\"endpoint\":\"ipc:///tmp/kv\"}");
    assert_eq!(read(&body).kv_events, None);
}

#[test]
fn what_is_not_sglang_is_refused() {
    for wrong in [
        // vLLM in its development mode answers there too.
        "{\"vllm_config\":\"...\"}",
        "{\"version\":\"0.5.23\"}",
        "{\"version\":\"0.5.23\",\"model_path\":\"\"}",
        "{\"version\":\"0.5.23\",\"model_path\":\"m\",\"dp_size\":0,\"attn_dp_size\":0}",
        "{\"version\":\"0.5.23\",\"model_path\":\"m\",\"dp_size\":4097}",
        "[]",
        "",
    ] {
        assert!(parse_server_info(wrong.as_bytes()).is_err(), "{wrong}");
    }
}

#[test]
fn a_server_is_known_though_not_all_that_it_says_can_be_read() {
    let wrong = |key: &str, value: Value| {
        let mut body = server();
        body[key] = value;
        let body = serde_json::to_vec(&body).unwrap();
        assert!(is_server_info(&body), "{key}");
        parse_server_info(&body).unwrap_err().to_string()
    };
    for (key, value) in [
        ("version", json!(null)),
        ("model_path", json!(1)),
        ("dp_size", json!(-1)),
        ("attn_dp_size", json!("4")),
        ("enable_dp_attention", json!("yes")),
        ("nnodes", json!("x")),
        ("page_size", json!(1e12)),
        ("max_total_num_tokens", json!(-5)),
        ("kv_events", json!(7)),
        (
            "kv_events",
            json!({"publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": 70_000}),
        ),
        ("kv_events_config", json!("{")),
    ] {
        assert_eq!(wrong(key, value), format!("read its {key}"));
    }
    assert!(!is_server_info(br#"{"vllm_config":{"model_path":"m"}}"#));
    assert!(!is_server_info(br#"["model_path"]"#));
}

#[test]
fn its_events_are_those_of_all_its_ranks() {
    let with = |events: u32, dp_size: Option<u32>, attn_dp_size: Option<u32>| {
        let mut body = server();
        body["kv_events"]["dp_size"] = json!(events);
        body["dp_size"] = json!(dp_size);
        body["attn_dp_size"] = json!(attn_dp_size);
        let read = parse_server_info(&serde_json::to_vec(&body).unwrap());
        read.map(|it| it.dp_size).map_err(|error| error.to_string())
    };
    for (events, dp_size, attn_dp_size) in [
        (4, Some(4), None),
        (4, Some(1), Some(4)),
        (4, Some(4), Some(4)),
        (8, Some(2), Some(4)),
        (3, None, None),
    ] {
        assert_eq!(with(events, dp_size, attn_dp_size), Ok(events));
    }
    for (events, dp_size, attn_dp_size) in [
        (4, Some(2), Some(1)),
        (0, Some(2), Some(1)),
        (2, Some(u32::MAX), Some(2)),
    ] {
        let said = with(events, dp_size, attn_dp_size).unwrap_err();
        let (dp_size, attn_dp_size) = (dp_size.unwrap(), attn_dp_size.unwrap());
        let expected = format!(
            "kv_events.dp_size is {events}, dp_size {dp_size} and attn_dp_size {attn_dp_size}: it has one number of ranks"
        );
        assert_eq!(said, expected);
    }
}

#[test]
fn gauges_are_read_by_rank() {
    let text = r#"
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{dp_rank="0",engine_type="unified",model_name="tiny",moe_ep_rank="0",pp_rank="0",tp_rank="0"} 3.0
sglang:num_running_reqs{dp_rank="1",engine_type="unified",model_name="tiny",moe_ep_rank="0",pp_rank="0",tp_rank="1"} 1.0
sglang:num_running_reqs{dp_rank="1",engine_type="unified",model_name="tiny",moe_ep_rank="0",pp_rank="0",tp_rank="2"} 0.0
sglang:num_queue_reqs{dp_rank="0",priority="",tp_rank="0"} 2.0
sglang:num_queue_reqs{dp_rank="0",priority="7",tp_rank="0"} 9.0
sglang:num_queue_reqs{dp_rank="1"} 0.0
sglang:token_usage{dp_rank="0"} 0.25
sglang:token_usage{dp_rank="1"} NaN
sglang:token_usage{dp_rank="one"} 0.5
sglang:num_used_tokens{dp_rank="0"} 2048.0
"#;
    let scrape = parse_metrics(text);
    let expected = RankLoad {
        dp_rank: DpRank::new(0),
        running: 3,
        waiting: 2,
        kv_used: 0.25,
        at: Timestamp::ZERO,
    };
    let rank = |rank: u32| &scrape.ranks[&DpRank::new(rank)];
    assert_eq!(
        rank(0).load(DpRank::new(0), Timestamp::ZERO),
        Some(expected)
    );
    assert_eq!((rank(1).running, rank(1).kv_used), (Some(1), None));
    assert_eq!((scrape.ranks.len(), scrape.unreadable), (2, 2));
    let alone = parse_metrics("sglang:token_usage{model_name=\"tiny\"} 0.5\n");
    assert_eq!(alone.ranks[&DpRank::new(0)].kv_used, Some(0.5));
}

#[test]
fn encoded_metrics_are_read_back() {
    let gauges = |running| Gauges {
        running: Some(running),
        waiting: Some(2),
        kv_used: Some(0.625),
        ..Gauges::default()
    };
    for ranks in [1, 2] {
        let ranks: BTreeMap<_, _> = (0..ranks).map(|it| (DpRank::new(it), gauges(it))).collect();
        let scrape = parse_metrics(&encode_metrics("a \"model\"", &ranks));
        assert_eq!((scrape.ranks, scrape.unreadable), (ranks, 0));
    }
}

#[test]
fn an_answer_says_its_rank_and_is_as_if_it_had_not_been_asked() {
    let own = encode_meta_info(&MetaInfo::new(DpRank::new(1), 112));
    let check = |answer: String, expected: &str| {
        let (info, cuts) = parse_meta_info(answer.as_bytes()).unwrap();
        assert_eq!(info, MetaInfo::new(DpRank::new(1), 112));
        assert_eq!(info.dp_rank(), Some(DpRank::new(1)));
        let mut left = answer.clone();
        for cut in cuts.into_iter().rev() {
            left.replace_range(cut, "");
        }
        assert_eq!(left, expected);
    };
    // Last of its choice, as SGLang writes it.
    check(
        format!(r#"{{"id":"a","choices":[{{"index":0,"meta_info":{own}}}],"usage":null}}"#),
        r#"{"id":"a","choices":[{"index":0}],"usage":null}"#,
    );
    // First, between, alone; with room; in each of several choices.
    check(
        format!(
            r#"{{"choices": [{{ "meta_info" : {own} , "index": 0}}, {{"index":1, "meta_info": {{"x":["}}"]}} ,"a":1}}, {{"meta_info":{own}}}]}}"#
        ),
        r#"{"choices": [{ "index": 0}, {"index":1 ,"a":1}, {}]}"#,
    );
    for without in [
        r#"{"choices":[{"index":0}]}"#,
        r#"{"choices":[{"meta_info":null}]}"#,
        r#"{"choices":[{"meta_info":7}]}"#,
        r#"{"meta_info":{"dp_rank":1}}"#,
        "[]",
        "",
    ] {
        assert_eq!(parse_meta_info(without.as_bytes()), None, "{without}");
    }
}

fn real(name: &str) -> String {
    corpus::read(&format!("sglang-real/{name}"))
}

#[test]
fn a_real_server_is_understood() {
    let told = parse_server_info(real("server_info-dp2.json").as_bytes()).unwrap();
    let expected = ServerInfo {
        dp_size: 2,
        attention_dp: false,
        max_tokens: Some(32_768),
        kv_events: Some(KvEvents {
            publish: 14_311,
            replay: Some(14_321),
            topic: "kv@tiny".to_owned(),
            ..info().kv_events.unwrap()
        }),
        ..info()
    };
    assert_eq!(told, expected);
}

#[test]
fn both_ways_to_ask_a_real_server_for_its_load_agree() {
    let idle = Gauges {
        running: Some(0),
        waiting: Some(0),
        kv_used: Some(0.0),
        ..Gauges::default()
    };
    let ranks = BTreeMap::from([0, 1].map(|rank| (DpRank::new(rank), idle)));
    let loads = parse_loads(real("v1_loads-dp2.json").as_bytes()).unwrap();
    let metrics = parse_metrics(&real("metrics-dp2.prom.txt"));
    for scrape in [loads, metrics] {
        assert_eq!((&scrape.ranks, scrape.unreadable), (&ranks, 0));
    }
    assert!(parse_loads(b"{\"detail\":\"Not Found\"}").is_err());
}

#[test]
fn the_answers_of_a_real_server_say_what_they_cost_and_where_they_ran() {
    let chat = real("chat-meta_info.json");
    let (info, cuts) = parse_meta_info(chat.as_bytes()).unwrap();
    assert_eq!(info, MetaInfo::new(DpRank::new(1), 96));
    let mut without = chat.clone();
    without.replace_range(cuts[0].clone(), "");
    let mut expected: Value = serde_json::from_str(&chat).unwrap();
    let choice = expected["choices"][0].as_object_mut().unwrap();
    choice.remove("meta_info").unwrap();
    assert_eq!(serde_json::from_str::<Value>(&without).unwrap(), expected);
    for (answer, completion) in [
        (chat, 40),
        (real("responses.json"), 6),
        (real("messages.json"), 8),
    ] {
        let usage = parse_usage(answer.as_bytes()).unwrap();
        assert_eq!(usage.prompt.get(), 105);
        assert_eq!(usage.completion.get(), completion);
        assert_eq!(usage.cached.unwrap().get(), 96);
    }
    let refusal = rank_refusal(real("refused-rank.json").as_bytes(), 7);
    assert_eq!(
        refusal.as_deref(),
        Some("routed_dp_rank=7 out of range [0, 2)")
    );
}
