//! vLLM's HTTP dialect, in both directions.

use std::collections::BTreeMap;

use domain::{BlockSize, DpRank, RankEndpoint, Timestamp, Tokens, Usage};
use engine_wire::CLIENT_RANK_HEADERS;
use engine_wire::vllm::{
    BasePorts, Gauges, Model, PortsError, RANK_HEADER, Tokenized, computed_endpoints,
    encode_kv_event_sources, encode_metrics, encode_models, encode_tokenized,
    parse_kv_event_sources, parse_metrics, parse_models, parse_tokenized, parse_usage,
    tokenize_request,
};
use serde_json::{Value, json};

use crate::corpus;

fn endpoint(rank: u32, publish: &str, replay: Option<&str>, topic: &str) -> RankEndpoint {
    RankEndpoint {
        dp_rank: DpRank::new(rank),
        publish: publish.to_owned(),
        replay: replay.map(ToOwned::to_owned),
        topic: topic.to_owned(),
    }
}

fn sources(body: &Value, host: &str) -> Vec<RankEndpoint> {
    parse_kv_event_sources(&serde_json::to_vec(body).unwrap(), host).unwrap()
}

#[test]
fn the_header_that_pins_is_among_those_a_client_may_not_send() {
    assert!(CLIENT_RANK_HEADERS.contains(&RANK_HEADER.to_ascii_lowercase().as_str()));
    assert!(
        CLIENT_RANK_HEADERS
            .iter()
            .all(|name| *name == name.to_ascii_lowercase())
    );
}

#[test]
fn captured_sources_become_endpoints_of_the_workers_host() {
    let body = corpus::read("vllm-real/kv_event_sources-dp2.json");

    let endpoints = parse_kv_event_sources(body.as_bytes(), "10.0.0.7").unwrap();

    assert_eq!(
        endpoints,
        [
            endpoint(
                0,
                "tcp://10.0.0.7:5557",
                Some("tcp://10.0.0.7:5657"),
                "kv@tiny"
            ),
            endpoint(
                1,
                "tcp://10.0.0.7:5558",
                Some("tcp://10.0.0.7:5658"),
                "kv@tiny"
            ),
        ]
    );
}

#[test]
fn only_wildcard_hosts_are_replaced() {
    let publish = |endpoint: &str, host: &str| {
        sources(&json!({"0": {"endpoint": endpoint}}), host)
            .remove(0)
            .publish
    };
    for wildcard in ["tcp://*:1", "tcp://:::1", "tcp://[::]:1", "tcp://0.0.0.0:1"] {
        assert_eq!(publish(wildcard, "h"), "tcp://h:1");
    }
    assert_eq!(publish("tcp://*:1", "fd00::7"), "tcp://[fd00::7]:1");
    assert_eq!(publish("tcp://*:1", "[fd00::7]"), "tcp://[fd00::7]:1");
    for own in ["tcp://10.0.0.8:1", "ipc:///tmp/kv", "inproc://kv_dp1"] {
        assert_eq!(publish(own, "h"), own);
    }
}

#[test]
fn sources_are_sorted_by_number_and_may_lack_what_is_optional() {
    let listed = sources(
        &json!({
            "10": {"endpoint": "tcp://*:5567", "replay_endpoint": null, "topic": null},
            "2": {"endpoint": "tcp://*:5559", "later": [1]},
            "3": {"endpoint": "tcp://*:5560", "enable_kv_cache_events": false},
            "4": {"endpoint": "tcp://*:5561", "publisher": "null"},
            "5": {},
        }),
        "h",
    );
    let expected = [
        endpoint(2, "tcp://h:5559", None, ""),
        endpoint(10, "tcp://h:5567", None, ""),
    ];
    assert_eq!(listed, expected);
    for wrong in [
        "[]",
        "{\"x\": {}}",
        "{\"-1\": {}}",
        "{\"0\": 1}",
        "",
        "{\"0\": {\"endpoint\": 1}}",
    ] {
        assert!(
            parse_kv_event_sources(wrong.as_bytes(), "h").is_err(),
            "{wrong}"
        );
    }
}

#[test]
fn encoded_sources_are_read_back() {
    let endpoints = [
        endpoint(
            4,
            "tcp://127.0.0.1:7001",
            Some("tcp://127.0.0.1:7101"),
            "kv",
        ),
        endpoint(5, "tcp://127.0.0.1:7002", None, ""),
    ];
    let body = encode_kv_event_sources(&endpoints, 10_000);
    assert_eq!(
        parse_kv_event_sources(body.as_bytes(), "h").unwrap(),
        endpoints
    );
}

#[test]
fn computed_endpoints_count_from_the_base_by_global_rank() {
    let base = BasePorts {
        host: "h",
        publish: 5557,
        replay: Some(5657),
        topic: "kv",
    };
    let ranks = || [4, 5].map(DpRank::new);

    assert_eq!(
        computed_endpoints(base, ranks()),
        Ok(vec![
            endpoint(4, "tcp://h:5561", Some("tcp://h:5661"), "kv"),
            endpoint(5, "tcp://h:5562", Some("tcp://h:5662"), "kv"),
        ])
    );
    let overlapping = BasePorts {
        replay: Some(5558),
        ..base
    };
    assert_eq!(
        computed_endpoints(overlapping, ranks()),
        Err(PortsError::Overlap { port: 5562 })
    );
    let last = BasePorts {
        publish: u16::MAX - 4,
        replay: None,
        ..base
    };
    let beyond = PortsError::BeyondLast {
        base: u16::MAX - 4,
        rank: DpRank::new(5),
    };
    assert_eq!(computed_endpoints(last, ranks()), Err(beyond));
    assert!(computed_endpoints(base, [DpRank::new(70_000)]).is_err());
}

fn gauges(queries: u64, hits: u64) -> Gauges {
    Gauges {
        running: Some(0),
        waiting: Some(0),
        kv_used: Some(0.0),
        prefix_queries: Some(Tokens::new(queries)),
        prefix_hits: Some(Tokens::new(hits)),
        block_size: BlockSize::new(32).ok(),
        kv_blocks: Some(159),
    }
}

#[test]
fn captured_metrics_become_gauges_of_each_rank() {
    let scrape = parse_metrics(&corpus::read("vllm-real/metrics-dp2.prom.txt"));

    let expected = [
        (DpRank::new(0), gauges(11_816, 1120)),
        (DpRank::new(1), gauges(236, 96)),
    ];
    assert_eq!(scrape.ranks, BTreeMap::from(expected));
    assert_eq!(scrape.unreadable, 0);
}

#[test]
fn encoded_metrics_are_read_back() {
    let busy = Gauges {
        running: Some(3),
        waiting: Some(2),
        kv_used: Some(0.625),
        ..gauges(7, 1)
    };
    let ranks = BTreeMap::from([(DpRank::new(4), busy), (DpRank::new(5), gauges(9, 4))]);

    let scrape = parse_metrics(&encode_metrics("a \"model\" {with} \\ and\nlines", &ranks));

    assert_eq!(scrape.ranks, ranks);
    assert_eq!(scrape.unreadable, 0);
    let load = busy.load(DpRank::new(4), Timestamp::ZERO).unwrap();
    assert_eq!((load.running, load.waiting, load.kv_used), (3, 2, 0.625));
    assert_eq!(
        Gauges::default().load(DpRank::new(4), Timestamp::ZERO),
        None
    );
}

#[test]
fn older_names_are_known_and_unreadable_lines_are_counted() {
    let scrape = parse_metrics(
        r#"
vllm:gpu_cache_usage_perc{model_name="a,b}\"c\\",engine="7"} 0.5 1700000000
vllm:num_requests_running{engine="7"} 2
vllm:num_requests_running_total{engine="7"} 9
vllm:num_requests_waiting{engine="7"} NaN
vllm:num_requests_waiting{engine="7"} -1
vllm:num_requests_waiting{engine="seven"} 1
vllm:num_requests_waiting 1
vllm:num_requests_waiting{engine="7"
vllm:kv_cache_usage_perc{engine="7"} +Inf
vllm:cache_config_info{engine="7",block_size="None",num_gpu_blocks="None"} 1.0
"#,
    );
    let expected = Gauges {
        kv_used: Some(0.5),
        running: Some(2),
        ..Gauges::default()
    };
    assert_eq!(scrape.ranks, BTreeMap::from([(DpRank::new(7), expected)]));
    assert_eq!(scrape.unreadable, 6);
}

fn usage(prompt: u64, completion: u64, cached: Option<u64>) -> Option<Usage> {
    Some(Usage {
        prompt: Tokens::new(prompt),
        completion: Tokens::new(completion),
        cached: cached.map(Tokens::new),
    })
}

fn counts_of(tokens: u64) -> Value {
    json!({"prompt_tokens": tokens, "completion_tokens": tokens})
}

#[test]
fn usage_is_read_from_answers_and_stream_events() {
    let of = |value: Value| parse_usage(&serde_json::to_vec(&value).unwrap());
    let counts = json!({"prompt_tokens": 154, "completion_tokens": 16, "total_tokens": 170,
        "prompt_tokens_details": {"cached_tokens": 128, "multimodal_tokens": null}});
    assert_eq!(
        of(json!({"choices": [], "usage": counts})),
        usage(154, 16, Some(128))
    );
    for lie in ["prompt_tokens", "completion_tokens"] {
        let mut lying = counts_of(5);
        lying[lie] = json!(u64::MAX);
        assert_eq!(
            of(json!({"usage": lying})),
            None,
            "no engine counts that far"
        );
    }
    for details in [json!(null), json!({}), json!({"cached_tokens": null})] {
        let counts = json!({"prompt_tokens": 5, "prompt_tokens_details": details});
        assert_eq!(of(json!({"usage": counts})), usage(5, 0, None));
    }
    assert_eq!(
        of(json!({"usage": {"prompt_tokens": 5}})),
        usage(5, 0, None)
    );
    assert_eq!(
        of(json!({"usage": {"input_tokens": 5, "output_tokens": 2}})),
        usage(5, 2, None)
    );
    for without in [
        json!({"usage": null}),
        json!({"choices": ["\"usage\""]}),
        json!([]),
    ] {
        assert_eq!(of(without), None);
    }
    assert_eq!(parse_usage(b"[DONE]"), None);
    assert_eq!(parse_usage(b"{\"usage\":{\"prompt_tokens\":-1}}"), None);
}

#[test]
fn captured_usages_are_read() {
    let file = corpus::json("vllm-real/two-turn-dup-salt-clear.json");
    let cached: Vec<_> = file["requests"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|request| request["usage"].is_object())
        .map(|request| {
            let answer = json!({"usage": request["usage"]});
            let usage = parse_usage(&serde_json::to_vec(&answer).unwrap()).unwrap();
            usage.cached.unwrap().get()
        })
        .collect();
    assert_eq!(cached[..2], [0, 160]);
}

#[test]
fn a_tokenize_request_keeps_what_decides_the_tokens_and_drops_the_rest() {
    let of = |request: Value| -> Option<Value> {
        let body = tokenize_request(&serde_json::to_vec(&request).unwrap()).ok()?;
        Some(serde_json::from_slice(&body).unwrap())
    };
    let messages = json!([{"role": "user", "content": [{"type": "text", "text": "é\n"}]}]);
    let chat = json!({"model": "m", "messages": messages, "stream": true, "max_tokens": 4,
        "tools": [{"type": "function"}], "chat_template_kwargs": {"thinking": false}});
    let asked = json!({"model": "m", "messages": messages,
        "tools": [{"type": "function"}], "chat_template_kwargs": {"thinking": false}});
    assert_eq!(of(chat), Some(asked));
    let completion = json!({"model": "m", "prompt": "once", "n": 2, "add_special_tokens": false});
    let asked = json!({"model": "m", "prompt": "once", "add_special_tokens": false});
    assert_eq!(of(completion), Some(asked));
    for without in [
        json!({"prompt": [1, 2]}),
        json!({"prompt": ["a", "b"]}),
        json!({}),
        json!(1),
    ] {
        assert_eq!(of(without), None);
    }
}

#[test]
fn tokenized_answers_are_read_and_written() {
    let body = br#"{"count":3,"max_model_len":4096,"tokens":[1,85,746],"token_strs":null}"#;
    let answer = Tokenized {
        count: 3,
        max_model_len: Some(4096),
        tokens: vec![1, 85, 746],
    };
    assert_eq!(parse_tokenized(body).unwrap(), answer);
    assert_eq!(
        parse_tokenized(encode_tokenized(&answer).as_bytes()).unwrap(),
        answer
    );
    assert!(parse_tokenized(b"{\"tokens\":[-1],\"count\":1}").is_err());
}

#[test]
fn models_are_read_and_written() {
    let body = json!({"object": "list", "data": [
        {"id": "base", "object": "model", "created": 1, "owned_by": "vllm", "root": "/models/base",
            "parent": null, "max_model_len": 4096, "permission": []},
        {"id": "sql", "object": "model", "parent": "base"},
    ]});
    let model = |name: &str, max_model_len, parent: Option<&str>| Model {
        name: name.parse().unwrap(),
        max_model_len,
        parent: parent.map(|parent| parent.parse().unwrap()),
    };
    let models = [
        model("base", Some(4096), None),
        model("sql", None, Some("base")),
    ];
    assert_eq!(
        parse_models(&serde_json::to_vec(&body).unwrap()).unwrap(),
        models
    );
    assert_eq!(
        parse_models(encode_models(&models, "vllm", 1).as_bytes()).unwrap(),
        models
    );
    for wrong in [
        json!({}),
        json!({"data": [{}]}),
        json!({"data": [{"id": ""}]}),
    ] {
        assert!(parse_models(&serde_json::to_vec(&wrong).unwrap()).is_err());
    }
}
