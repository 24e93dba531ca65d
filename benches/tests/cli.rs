//! The command line at small sizes: the figures mean nothing, their shape and who is wrong do.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::Command;

use serde_json::Value;

const STRUCTURES: [&str; 3] = ["crtc", "positional", "kv_index"];

/// The lines that the program prints with `--json`. It may end with 1: small sizes reach no goal.
fn lines(arguments: &str) -> Vec<Value> {
    let output = Command::new(env!("CARGO_BIN_EXE_benches"))
        .args(arguments.split_whitespace())
        .arg("--json")
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(matches!(output.status.code(), Some(0 | 1)), "{errors}");
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Value> = text
        .lines()
        .map(|it| serde_json::from_str(it).unwrap())
        .collect();
    assert!(1 < lines.len(), "{errors}");
    lines
}

fn figure(row: &Value, structure: &str) -> f64 {
    let figure = match structure {
        "ours" => &row["ours"],
        peer => &row["peers"][peer],
    };
    figure
        .as_f64()
        .unwrap_or_else(|| panic!("{structure} in {row}"))
}

fn row<'a>(rows: &'a [Value], case: &str) -> &'a Value {
    let found = rows.iter().find(|it| it["case"] == case);
    found.unwrap_or_else(|| panic!("no row {case}"))
}

#[test]
fn every_case_has_a_row_with_every_structure_and_a_summary_ends_it() {
    let rows = lines(
        "index --quick --memberships 40000 --targets 4 --depths 512 --rounds 1 \
         --only store,lookup,mixed,visible,traces,memory",
    );

    let (summary, rows) = rows.split_last().unwrap();
    for case in [
        "store",
        "remove",
        "store, foreign",
        "lookup",
        "lookup by sequence hashes, p50",
        "lookup, hash map",
        "mixed 1:1",
        "mixed 10:1, lookup p99",
        "update visible, p99",
        "memory, foreign",
        "trace mooncake first 1000",
    ] {
        let row = row(rows, case);
        assert!(row["unit"].is_string() && row["targets"].is_u64() && row["depth"].is_u64());
        for structure in STRUCTURES.into_iter().chain(["ours"]) {
            assert!(0.0 <= figure(row, structure), "{row}");
        }
    }
    for structure in STRUCTURES.into_iter().chain(["ours"]) {
        assert_eq!(
            figure(row(rows, "wrong answers, full index"), structure),
            0.0
        );
    }
    assert_eq!(summary["bench"], "index");
    assert!(summary["ok"].is_boolean());
    let ratios = summary["ratios"].as_array().unwrap();
    assert!(ratios.iter().any(|it| it["what"] == "store: crtc / ours"));
}

#[test]
fn ours_is_never_wrong_and_a_peer_that_is_shows_it() {
    let rows = lines("index --quick --only verify --depths 32 --targets 2 --memberships 1000");

    let wrong = |evicted, naming| {
        let case = format!("{evicted}, {naming} engine hashes: answers wrong");
        row(&rows, &case).clone()
    };
    for naming in ["canonical", "foreign", "per-target"] {
        assert_eq!(figure(&wrong("anything evicted", naming), "ours"), 0.0);
    }
    assert!(0.0 < figure(&wrong("anything evicted", "canonical"), "crtc"));
    assert_eq!(figure(&wrong("leaves evicted", "canonical"), "crtc"), 0.0);
}

#[test]
fn a_trace_that_is_not_there_is_skipped_and_said_to_be() {
    let output = Command::new(env!("CARGO_BIN_EXE_benches"))
        .args(["index", "--only", "traces", "--traces", "nowhere.jsonl"])
        .args(["--depths", "32", "--targets", "2"])
        .output()
        .unwrap();

    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("skipped the trace nowhere.jsonl"), "{said}");
}

#[test]
fn a_killed_indexer_comes_back_with_equal_digests() {
    let rows = lines("recovery --memberships 20000 --rounds 1");

    let summary = rows.last().unwrap();
    assert_eq!(summary["digests_equal"], true);
    assert!(0.0 < figure(row(&rows, "from start after kill -9 to ready"), "ours"));
    assert!(0.0 < figure(row(&rows, "all events again, from memory"), "kv_index"));
}

#[test]
fn decisions_are_those_that_the_index_was_filled_for_and_every_part_has_a_row() {
    let rows = lines("decide --quick --conversations 500 --requests 200 --rounds 1");

    let (summary, rows) = rows.split_last().unwrap();
    assert_eq!(summary["wrong"], 0);
    for case in [
        "decision, p50",
        "decision, CPU, p99",
        "hash, p50",
        "ceiling, p50",
        "overlap, p50",
        "decide, p50",
        "JSON of the body, no part of a decision, p50",
    ] {
        let row = row(rows, case);
        assert_eq!(row["targets"], 128);
        assert_eq!(row["depth"], 8_875);
        assert!(0.0 < figure(row, "ours"), "{row}");
    }
}
