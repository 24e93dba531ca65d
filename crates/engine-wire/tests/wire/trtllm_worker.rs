//! What TensorRT-LLM's servers say of themselves, and how they are told conversations.

use domain::{
    BlockSize, DpRank, Endpoint, EngineHash, EngineKind, FirstRank, HeaderSpace, RankControl, Tier,
};
use engine_wire::trtllm::{
    Conversations, Item, WorkerInfo, conversation_params, decode_body, encode_item, encode_metrics,
    lists_models, parse_metrics, parse_worker_info,
};
use engine_wire::{Event, Gauges, Medium, Moved, Stored, capability};
use proptest::prelude::*;
use serde_json::{Value, json};

fn info() -> Value {
    json!({"engine": "tensorrt-llm", "version": "1.3.0rc27", "dp_size": 4, "tokens_per_block": 32,
        "kv_blocks": 100, "kv_events": true, "metrics": true, "conversation_affinity": true,
        "rank_source": "router", "first_rank_recorded": true})
}

fn parse(info: &Value) -> Result<WorkerInfo, String> {
    parse_worker_info(info.to_string().as_bytes()).map_err(|error| error.to_string())
}

#[test]
fn a_worker_says_what_it_is() {
    let expected = WorkerInfo {
        version: "1.3.0rc27".to_owned(),
        dp_size: 4,
        tokens_per_block: 32,
        kv_blocks: Some(100),
        kv_events: true,
        conversations: Conversations::SenderOnce(FirstRank::SaidKept),
    };
    assert_eq!(parse(&info()), Ok(expected));
}

#[test]
fn who_places_conversations_is_said_with_whether_first_ranks_are_kept() {
    let check = |affinity: bool, source: &str, recorded: Value, expected: Conversations| {
        let mut info = info();
        info["conversation_affinity"] = affinity.into();
        info["rank_source"] = source.into();
        info["first_rank_recorded"] = recorded;
        assert_eq!(parse(&info).unwrap().conversations, expected, "{info}");
    };
    let once = Conversations::SenderOnce;
    check(true, "router", json!(true), once(FirstRank::SaidKept));
    check(true, "router", json!(false), once(FirstRank::SaidLost));
    check(true, "router", Value::Null, once(FirstRank::Unproven));
    check(true, "engine", json!(true), Conversations::Engine);
    check(false, "router", json!(true), Conversations::Sender);
    check(false, "engine", Value::Null, Conversations::Sender);
}

#[test]
fn whoever_places_conversations_limits_what_may_be_asked() {
    let limited = |conversations: Conversations, ranks| {
        let all = capability(EngineKind::TensorRtLlm, "", ranks, HeaderSpace::Global);
        let limited = conversations.limit(ranks, all);
        let control = |endpoint| *limited.rank_control.get(endpoint);
        let controls = (control(Endpoint::Chat), control(Endpoint::Responses));
        (controls, limited.owns_bindings, limited.first_rank)
    };
    let none = RankControl::None;
    let check = |conversations, chat, owns, first_rank| {
        assert_eq!(limited(conversations, 4), ((chat, none), owns, first_rank));
        let strict = RankControl::Strict;
        let only = ((strict, strict), owns, FirstRank::Unasked);
        assert_eq!(limited(conversations, 1), only);
    };
    let unasked = FirstRank::Unasked;
    check(Conversations::Sender, RankControl::Strict, false, unasked);
    check(Conversations::Engine, none, true, unasked);
    let kept = [FirstRank::SaidKept, FirstRank::ProvedKept];
    let not_kept = [
        FirstRank::Unproven,
        FirstRank::SaidLost,
        FirstRank::ProvedLost,
        FirstRank::NoAnswer,
        FirstRank::NoCachedTokens,
        FirstRank::SharedCache,
    ];
    for it in kept {
        let once = Conversations::SenderOnce(it);
        check(once, RankControl::FirstTurn, true, it);
    }
    for it in not_kept {
        check(Conversations::SenderOnce(it), none, true, it);
    }
}

#[test]
fn what_is_no_worker_is_an_error() {
    for (field, value, expected) in [
        ("engine", json!("vllm"), "it runs \"vllm\""),
        ("dp_size", json!(0), "0 ranks are none or more than 4096"),
        (
            "dp_size",
            json!(5000),
            "5000 ranks are none or more than 4096",
        ),
        (
            "rank_source",
            json!("client"),
            "read what the worker says of itself",
        ),
        ("dp_size", json!(-1), "read what the worker says of itself"),
    ] {
        let mut info = info();
        info[field] = value;
        assert_eq!(parse(&info), Err(expected.to_owned()));
    }
}

#[test]
fn gauges_are_those_of_ranks_or_of_the_server() {
    let text = "# TYPE trtllm_num_requests_running gauge\n\
        trtllm_num_requests_running{dp_rank=\"1\"} 3\n\
        trtllm_kv_cache_used_blocks{dp_rank=\"1\"} 25\n\
        trtllm_kv_cache_max_blocks{dp_rank=\"1\"} 100\n\
        trtllm_num_requests_waiting{dp_rank=\"1\"} 2\n\
        trtllm_num_requests_waiting{dp_rank=\"x\"} 2\n\
        trtllm_kv_cache_tokens_per_block{dp_rank=\"1\"} 32\n\
        trtllm_num_requests_running{model_name=\"m\",engine_type=\"pytorch\"} 7\n";
    let scrape = parse_metrics(text);
    let rank = Gauges {
        running: Some(3),
        waiting: Some(2),
        kv_used: Some(0.25),
        block_size: BlockSize::new(32).ok(),
        kv_blocks: Some(100),
        ..Gauges::default()
    };
    let server = Gauges {
        running: Some(7),
        ..Gauges::default()
    };
    let expected = [(DpRank::new(0), server), (DpRank::new(1), rank)];
    assert_eq!(scrape.ranks.into_iter().collect::<Vec<_>>(), expected);
    assert_eq!(scrape.unreadable, 1);
}

#[test]
fn what_a_fake_engine_writes_is_read_back() {
    let stored = Stored {
        block_hashes: vec![EngineHash::Int(7), EngineHash::Int(u64::MAX)],
        parent: Some(EngineHash::Int(3)),
        token_ids: (0..8).collect(),
        opaque_tokens: 0,
        block_size: 4,
        medium: Medium::Tier(Tier::Host),
        group: None,
        spec_kind: None,
        lora: None,
        salt: Some("s".into()),
        session: None,
    };
    let moved = Moved {
        block_hash: EngineHash::Int(7),
        from: Medium::Tier(Tier::Host),
        to: Medium::Tier(Tier::Gpu),
    };
    let block_hashes = vec![EngineHash::Int(7)];
    let events = [
        Event::Created {
            blocks_per_level: vec![10, 2],
        },
        Event::Stored(stored),
        Event::Moved(moved),
        Event::Gone { block_hashes },
    ];
    let rank = DpRank::new(1);
    let items = (0..).zip(&events);
    let items = items.map(|(id, event)| encode_item(id, rank, 64, event).unwrap());
    let body = format!("[{}]", items.collect::<Vec<_>>().join(","));
    let read = decode_body(body.as_bytes()).unwrap();
    for ((id, event), item) in (0..).zip(events).zip(read) {
        let expected = Item {
            event_id: Some(id),
            dp_rank: Some(rank),
            window_size: Some(64),
            layer_group: None,
            events: vec![event],
        };
        assert_eq!(item, expected);
    }
    assert_eq!(encode_item(0, rank, 64, &Event::Cleared), None);

    let gauges = Gauges {
        running: Some(3),
        waiting: Some(2),
        kv_used: Some(0.25),
        block_size: BlockSize::new(32).ok(),
        kv_blocks: Some(100),
        ..Gauges::default()
    };
    let ranks = [(rank, gauges)].into();
    assert_eq!(parse_metrics(&encode_metrics(&ranks)).ranks, ranks);
}

#[test]
fn it_is_told_from_others_by_who_owns_its_models() {
    let owned = |owner: Value| {
        let models = json!({"object": "list", "data": [{"id": "m", "owned_by": owner}]});
        lists_models(models.to_string().as_bytes())
    };
    assert!(owned(json!("tensorrt_llm")));
    assert!(!owned(json!("vllm")));
    assert!(!owned(Value::Null));
    assert!(!lists_models(b"<html>"));
}

#[test]
fn a_conversation_of_any_text_is_named_in_json() {
    let id = "a\"b\\".parse().unwrap();
    let value: Value = serde_json::from_str(&conversation_params(&id)).unwrap();
    assert_eq!(value, json!({"conversation_id": "a\"b\\"}));
}

proptest! {
    #[test]
    fn no_text_makes_reading_panic(text in "(trtllm_[a-z_]{0,30}(\\{[a-z_=\"0-9,]{0,20}\\})? ?[-0-9.einfa]{0,9}\n?){0,5}|\\PC{0,80}") {
        let _ = parse_metrics(&text);
        let _ = parse_worker_info(text.as_bytes());
        let _ = lists_models(text.as_bytes());
    }
}
