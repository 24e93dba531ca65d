//! What a real llama.cpp said of itself.

use domain::{DpRank, Tokens, Usage};
use engine_wire::llama_cpp::{Props, parse_deferred, parse_props, parse_slots};
use engine_wire::{UsageReader, parse_models, parse_usage};

use crate::corpus;

fn captured(name: &str) -> String {
    corpus::read(&format!("llama-cpp-real/{name}"))
}

#[test]
fn a_server_says_what_it_is() {
    let props = parse_props(captured("props.json").as_bytes()).unwrap();
    assert_eq!(
        props,
        Props {
            version: "b0-unknown".to_owned(),
            slots: 2,
            context: 4096,
            model: Some("./gemma3-270m.gguf".parse().unwrap()),
        }
    );
    let models = parse_models(captured("models.json").as_bytes()).unwrap();
    assert_eq!(Some(&models[0].name), props.model.as_ref());
    for wrong in [
        "{}",
        "[]",
        "",
        "{\"total_slots\":2}",
        "{\"total_slots\":0,\"default_generation_settings\":{\"n_ctx\":1}}",
    ] {
        assert!(parse_props(wrong.as_bytes()).is_err(), "{wrong}");
    }
}

#[test]
fn a_slot_is_loaded_while_it_works_and_those_that_wait_are_shared_out() {
    let gauges = |name: &str, deferred| {
        let slots = parse_slots(captured(name).as_bytes(), deferred).unwrap();
        let slots = slots.into_iter();
        let load = |(rank, it): (DpRank, engine_wire::Gauges)| {
            let load = it.load(rank, domain::Timestamp::ZERO).unwrap();
            (rank.get(), load.running, load.waiting, load.kv_used)
        };
        slots.map(load).collect::<Vec<_>>()
    };
    assert_eq!(
        gauges("slots-busy.json", 3),
        [(0, 0, 2, 0.0), (1, 1, 1, 31.0 / 4096.0)]
    );
    assert_eq!(
        gauges("slots-idle.json", 0),
        [(0, 0, 0, 0.0), (1, 0, 0, 0.0)]
    );
    assert_eq!(parse_deferred(&captured("metrics.prom.txt")), Some(0));
    assert_eq!(parse_deferred("llamacpp:requests_deferred 7\n"), Some(7));
    assert_eq!(parse_deferred(""), None);
    assert!(parse_slots(b"{\"error\":{}}", 0).is_err());
}

/// Its prompt of 26 tokens was known but for 5.
const EXPECTED: Usage = Usage {
    prompt: Tokens::new(26),
    completion: Tokens::new(2),
    cached: Some(Tokens::new(21)),
};

#[test]
fn the_parts_of_a_streamed_answer_add_up_to_its_usage() {
    for name in ["messages-stream.txt", "responses-stream.txt"] {
        let mut reader = UsageReader::default();
        for line in captured(name).lines() {
            if let Some(data) = line.strip_prefix("data: ") {
                reader.read(data.as_bytes());
            }
        }
        assert_eq!(reader.usage(), Some(EXPECTED), "{name}");
    }
}

#[test]
fn usage_is_read_from_each_endpoints_answer() {
    for answer in [
        r#"{"usage":{"completion_tokens":2,"prompt_tokens":26,"prompt_tokens_details":{"cached_tokens":21}}}"#,
        r#"{"usage":{"completion_tokens":2,"prompt_tokens":26},"timings":{"cache_n":21,"prompt_n":5}}"#,
        r#"{"usage":{"cache_read_input_tokens":21,"input_tokens":5,"output_tokens":2}}"#,
        r#"{"usage":{"cache_read_input_tokens":21,"cache_creation_input_tokens":1,"input_tokens":4,"output_tokens":2}}"#,
        r#"{"usage":{"input_tokens":26,"output_tokens":2,"input_tokens_details":{"cached_tokens":21}}}"#,
    ] {
        assert_eq!(parse_usage(answer.as_bytes()), Some(EXPECTED), "{answer}");
    }
}
