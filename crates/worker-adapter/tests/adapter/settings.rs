//! What of the settings cannot be, whatever the engines say.

use worker_adapter::Config;

/// Why the settings of a worker are refused.
fn refusal(settings: &str) -> Option<String> {
    let text = format!(r#"{{"workers":[{{"url":"http://a:1","id":"w",{settings}}}]}}"#);
    let config: Config = serde_json::from_str(&text).unwrap();
    config.named().err().map(|error| error.to_string())
}

#[test]
fn what_no_engine_could_have_is_refused_before_one_is_asked() {
    let check = |settings: &str, expected: &str| {
        assert_eq!(refusal(settings).as_deref(), Some(expected), "{settings}");
    };
    check(
        r#""kv_replay":"tcp://*:1""#,
        "worker w has kv_replay and no kv_events: set both, or leave them out to ask the engine",
    );
    for key in ["kv_events", "kv_replay"] {
        let other = match key {
            "kv_events" => r#""kv_replay":"tcp://*:1000""#,
            _ => r#""kv_events":"tcp://*:1000""#,
        };
        check(
            &format!(r#"{other},"{key}":"tcp://*:65530","start_rank":4,"dp_size":3"#),
            &format!("worker w has {key} at port 65530: that of rank 6 would be beyond 65535"),
        );
    }
    check(
        r#""kv_events":"tcp://*:65535","start_rank":1"#,
        "worker w has kv_events at port 65535: that of rank 1 would be beyond 65535",
    );
    check(
        r#""dp_size":4097"#,
        "worker w has dp_size = 4097: no engine has more than 4096 ranks",
    );
    check(
        r#""block_size":65537"#,
        "worker w has block_size = 65537: a block has 1 to 65536 tokens",
    );
    check(
        r#""start_rank":4294967295,"dp_size":2"#,
        "worker w has 2 ranks from 4294967295 on: correct `start_rank` or `dp_size`",
    );
    check(
        r#""start_rank":4294967295"#,
        "worker w has 1 ranks from 4294967295 on: correct `start_rank` or `dp_size`",
    );
    for (engine, name, key, value) in [
        ("sglang", "SGLang", "start_rank", "1"),
        ("llama-cpp", "llama.cpp", "start_rank", "1"),
        ("llama-cpp", "llama.cpp", "kv_events", r#""tcp://*:1""#),
        ("llama-cpp", "llama.cpp", "header_space", r#""global""#),
        ("vllm", "vLLM", "owns_bindings", "true"),
        ("sglang", "SGLang", "owns_bindings", "false"),
        ("llama-cpp", "llama.cpp", "owns_bindings", "false"),
    ] {
        check(
            &format!(r#""engine":"{engine}","{key}":{value}"#),
            &format!("worker w has {key}, which {name} does not: leave it out"),
        );
    }
}

#[test]
fn what_an_engine_could_have_passes() {
    for settings in [
        r#""kv_events":"tcp://*:65529","kv_replay":"tcp://*:1000","start_rank":4,"dp_size":3"#,
        r#""kv_events":"tcp://*:65535""#,
        r#""dp_size":4096"#,
        r#""block_size":65536"#,
        r#""start_rank":4294967294"#,
        r#""engine":"sglang","start_rank":0"#,
        r#""engine":"vllm","start_rank":4,"header_space":"local""#,
        r#""engine":"sglang","header_space":"none","kv_events":"tcp://*:1""#,
        r#""engine":"tensorrt-llm","start_rank":4,"owns_bindings":true"#,
        r#""start_rank":4,"kv_events":"http://a:2""#,
    ] {
        assert_eq!(refusal(settings), None, "{settings}");
    }
}
