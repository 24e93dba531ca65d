//! The table of how ranks are asked for, against what is known of each engine.

use domain::{Endpoint, EngineKind, HeaderSpace, RankControl};
use engine_wire::{
    CLIENT_RANK_FIELDS, CLIENT_RANK_HEADERS, Carrier, Numbering, RANKS, Report, Row, Version,
    capability, check_version, rank_refusal, sglang, vllm,
};
use proptest::prelude::*;
use serde_json::json;

use Endpoint::{Chat, Completions, Embeddings, Messages, Responses};
use EngineKind::{LlamaCpp, Sglang, TensorRtLlm, Vllm};

const ENGINES: [EngineKind; 4] = [Vllm, Sglang, TensorRtLlm, LlamaCpp];
const HEADER: Carrier = Carrier::Header(sglang::RANK_HEADER);

fn rows(engine: EngineKind, endpoint: Endpoint) -> impl Iterator<Item = &'static Row> {
    RANKS
        .iter()
        .filter(move |row| row.engine == engine && row.endpoints.contains(&endpoint))
}

fn check_all(version: Version) {
    for engine in ENGINES {
        for endpoint in Endpoint::ALL {
            let covering = rows(engine, endpoint).filter(|row| row.covers(version));
            assert_eq!(covering.count(), 1, "{engine:?} {version} {endpoint}");
        }
    }
}

proptest! {
    #[test]
    fn every_version_of_every_engine_is_in_one_row_of_each_endpoint(
        major in prop_oneof![0_u32..2, any::<u32>()], minor in 0_u32..40, patch in 0_u32..40,
    ) {
        check_all(Version::new(major, minor, patch));
    }
}

#[test]
fn ranges_meet_where_they_begin_and_end() {
    check_all(Version::ZERO);
    for row in RANKS {
        check_all(row.since);
        row.until.into_iter().for_each(check_all);
        assert!(row.until.is_none_or(|until| row.since < until));
    }
}

fn carrier(engine: EngineKind, version: &str, endpoint: Endpoint) -> Carrier {
    Row::of(engine, version, endpoint).carrier
}

#[test]
fn vllm_takes_the_header_where_it_generates_since_0_11_2() {
    for endpoint in [Chat, Completions, Responses, Messages] {
        assert_eq!(carrier(Vllm, "0.11.0", endpoint), Carrier::Nothing);
        for version in ["0.11.2", "0.32.0+cpu", "0.33.0", "", "0.1.dev1+gabcdef0"] {
            assert_eq!(carrier(Vllm, version, endpoint), HEADER, "{version}");
        }
        let row = Row::of(Vllm, "0.33.0", endpoint);
        assert_eq!(
            (row.numbering, row.report),
            (Numbering::ByFrontEnd, Report::Never)
        );
    }
    assert_eq!(carrier(Vllm, "0.33.0", Embeddings), Carrier::Nothing);
}

#[test]
fn sglang_takes_what_its_version_knows_and_nothing_elsewhere() {
    let alias = Carrier::Field("data_parallel_rank");
    for endpoint in [Chat, Completions] {
        assert_eq!(carrier(Sglang, "0.5.5", endpoint), Carrier::Nothing);
        assert_eq!(carrier(Sglang, "0.5.6", endpoint), alias);
        assert_eq!(carrier(Sglang, "0.5.9", endpoint), alias);
        assert_eq!(carrier(Sglang, "0.5.10", endpoint), HEADER);
        assert_eq!(carrier(Sglang, "0.5.23", endpoint), HEADER);
    }
    assert_eq!(carrier(Sglang, "0.5.9", Messages), Carrier::Nothing);
    assert_eq!(carrier(Sglang, "0.5.19", Messages), HEADER);
    assert_eq!(carrier(Sglang, "0.5.19", Responses), Carrier::Nothing);
    assert_eq!(carrier(Sglang, "0.5.20.post1", Responses), HEADER);
    assert_eq!(carrier(Sglang, "", Embeddings), Carrier::Nothing);
    let asked = Report::Asked("return_meta_info");
    let report = |version, endpoint| Row::of(Sglang, version, endpoint).report;
    assert_eq!(report("0.5.12", Chat), Report::Never);
    assert_eq!(report("0.5.13", Chat), asked);
    assert_eq!(report("0.5.23", Completions), Report::Never);
}

#[test]
fn tensorrt_llm_takes_the_header_of_its_worker_and_llama_cpp_a_slot() {
    for endpoint in Endpoint::ALL {
        let expected = match endpoint {
            Chat | Completions => HEADER,
            Responses | Messages | Embeddings => Carrier::Nothing,
        };
        assert_eq!(carrier(TensorRtLlm, "1.3.0rc27", endpoint), expected);
    }
    let slot = Carrier::Field("id_slot");
    for version in ["b0-unknown", "b11549-0fd7ca7"] {
        for endpoint in [Chat, Completions, Responses] {
            assert_eq!(carrier(LlamaCpp, version, endpoint), slot);
        }
        // Ignored in silence.
        assert_eq!(carrier(LlamaCpp, version, Messages), Carrier::Nothing);
        assert_eq!(carrier(LlamaCpp, version, Embeddings), Carrier::Nothing);
    }
    assert_eq!(
        carrier(LlamaCpp, "b4567-0fd7ca7", Responses),
        Carrier::Nothing
    );
}

#[test]
fn whatever_carries_a_rank_is_taken_from_clients() {
    for row in RANKS {
        match row.carrier {
            Carrier::Header(name) => {
                let name = name.to_ascii_lowercase();
                assert!(CLIENT_RANK_HEADERS.contains(&name.as_str()));
                assert_eq!(name, vllm::RANK_HEADER.to_ascii_lowercase());
            }
            Carrier::Field(name) => assert!(CLIENT_RANK_FIELDS.contains(&name)),
            Carrier::Nothing => {}
        }
    }
}

#[test]
fn versions_whose_events_cannot_be_used_are_refused() {
    for (engine, version) in [
        (Vllm, "0.9.1"),
        (Vllm, ""),
        (Sglang, "0.5.9"),
        (Sglang, "0.5.9.post2"),
        (LlamaCpp, "b0-unknown"),
        (TensorRtLlm, "0.21.0"),
    ] {
        assert_eq!(check_version(engine, version), Ok(()), "{version}");
    }
    let told = |engine, version| check_version(engine, version).unwrap_err().to_string();
    assert_eq!(
        told(Sglang, "0.5.8.post1"),
        "version 0.5.8, whose KV events cannot be used: run 0.5.9 or newer"
    );
    assert_eq!(
        told(Vllm, "0.9.0"),
        "version 0.9.0, whose KV events cannot be used: run 0.9.1 or newer"
    );
}

#[test]
fn a_capability_says_of_each_endpoint_whether_a_rank_may_be_asked_for() {
    let control = |engine, version, ranks, space, endpoint| {
        *capability(engine, version, ranks, space)
            .rank_control
            .get(endpoint)
    };
    let global = HeaderSpace::Global;
    assert_eq!(
        control(Vllm, "0.33.0", 2, global, Chat),
        RankControl::Strict
    );
    assert_eq!(
        control(Vllm, "0.33.0", 2, global, Embeddings),
        RankControl::None
    );
    assert_eq!(control(Vllm, "0.11.0", 2, global, Chat), RankControl::None);
    // Its front end was said to take none.
    let none = HeaderSpace::None;
    assert_eq!(control(Vllm, "0.33.0", 2, none, Chat), RankControl::None);
    // The only rank is the one that runs.
    for endpoint in Endpoint::ALL {
        assert_eq!(
            control(TensorRtLlm, "", 1, none, endpoint),
            RankControl::Strict
        );
    }
    let reports = capability(Sglang, "0.5.23", 2, global).rank_report;
    assert!(*reports.get(Chat) && !reports.get(Completions));
}

#[test]
fn a_refused_rank_is_told_from_other_mistakes() {
    for (body, said) in [
        (
            r#"{"error":{"message":"data_parallel_rank 7 is out of range [0, 2).","type":"BadRequestError","code":400}}"#,
            "data_parallel_rank 7 is out of range [0, 2).",
        ),
        (
            r#"{"object":"error","message":"routed_dp_rank=7 out of range [0, 2)","type":"BadRequestError","code":400}"#,
            "routed_dp_rank=7 out of range [0, 2)",
        ),
        (
            r#"{"error":{"message":"data_parallel_rank 7 is out of range [0, 4)","code":400}}"#,
            "data_parallel_rank 7 is out of range [0, 4)",
        ),
    ] {
        assert_eq!(rank_refusal(body.as_bytes(), 7).as_deref(), Some(said));
        // A number that nobody sent is not the router's mistake.
        for other in [0, 1, 6, 8, 70, 77] {
            assert_eq!(rank_refusal(body.as_bytes(), other), None, "{other}");
        }
    }
    for other in [
        r#"{"error":{"message":"temperature 7 is out of range","code":400}}"#,
        r#"{"error":{"message":"unknown field data_parallel_rank"}}"#,
        r#"{"error":"data_parallel_rank out of range"}"#,
        r#"{"message":null}"#,
        "[]",
        "bad request",
    ] {
        assert_eq!(rank_refusal(other.as_bytes(), 7), None, "{other}");
    }
}

/// Engines quote what is wrong with a request, so that its sender writes a part of their message.
#[test]
fn a_refusal_that_a_request_had_quoted_is_none() {
    let said = [
        "data_parallel_rank 7 is out of range [0, 2).",
        "data_parallel_rank 7 is out of range [0, 2)",
        "routed_dp_rank=7 out of range [0, 2)",
    ];
    let quoting = |said: &str| {
        [
            format!("{said} is no integer"),
            format!("invalid literal: {said}"),
            format!("1 validation error: max_tokens: '{said}'"),
            format!(" {said}"),
            format!("{said} "),
            format!("\n{said}"),
            format!("{said}\n"),
            format!("\"{said}\""),
            format!("{said}."),
            format!("{said}{said}"),
            said.replace("[0, 2)", "[0, 2) [0, 2)"),
            said.replace("[0, 2)", "[0, 8)"),
            said.replace("[0, 2)", "[0, x)"),
            said.replace("[0, 2)", "[0, 2]"),
            said.replace("[0, 2)", "[, )"),
            said.replace('7', "7 or 8"),
            said.replace('7', "07"),
            said.replace(" out of range", ""),
            said.to_uppercase(),
        ]
    };
    for said in said {
        for message in quoting(said) {
            if message == "data_parallel_rank 7 is out of range [0, 2)." {
                continue;
            }
            let forms = [
                json!({"error": {"message": message, "type": "BadRequestError", "code": 400}}),
                json!({"object": "error", "message": message, "type": "BadRequestError"}),
            ];
            for body in forms {
                assert_eq!(rank_refusal(body.to_string().as_bytes(), 7), None, "{body}");
            }
        }
        // In every other place of an answer.
        for body in [
            json!({"error": {"message": "bad", "type": said, "param": said, "code": said}}),
            json!({"error": {"message": {"message": said}}}),
            json!({"error": {"message": [said]}, "message": said}),
            json!({"error": said, "message": said}),
            json!({"error": null, "message": said}),
            json!({"detail": [{"loc": ["body"], "msg": said, "input": said}]}),
            json!({"object": "error", "message": "bad", "param": said}),
            json!([{"message": said}]),
            json!(said),
        ] {
            assert_eq!(rank_refusal(body.to_string().as_bytes(), 7), None, "{body}");
        }
        assert_eq!(rank_refusal(said.as_bytes(), 7), None);
    }
}
