//! The command itself: its cheapest scenario from end to end, and how it refuses wrong use.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::{Command, Output};

use serde_json::Value;

fn scenarios(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_scenarios"));
    command.args(arguments).output().unwrap()
}

fn lines(output: &Output) -> Vec<Value> {
    let text = std::str::from_utf8(&output.stdout).unwrap();
    let lines = text.lines().map(|it| serde_json::from_str(it).unwrap());
    lines.collect()
}

/// On a busy machine a deadline may be missed and a turn go elsewhere, so what is asserted is that the figures are
/// those of the whole script and that `ok` and the exit code follow from them.
#[test]
fn the_agents_script_runs_to_its_end_and_says_what_held() {
    let output = scenarios(&["agent-script", "--seeds", "1", "--json"]);

    let lines = lines(&output);
    let (summary, rows) = lines.split_last().unwrap();
    let engines: Vec<&Value> = rows.iter().map(|it| &it["engine"]).collect();
    assert_eq!(engines, ["vllm", "sglang"]);
    for row in rows {
        let requests = row["requests"].as_array().unwrap();
        let all: u64 = requests.iter().map(|it| it.as_u64().unwrap()).sum();
        assert_eq!((requests.len(), all), (4, 256), "{row}");
        assert_eq!(row["errors"], 0, "{row}");
    }
    let holds = |row: &Value| row["kept"] == 192 && row["max_over_mean"].as_f64() <= Some(1.1);
    assert_eq!(summary["scenario"], "agent-script");
    assert_eq!(summary["ok"], rows.iter().all(holds));
    assert_eq!(output.status.success(), summary["ok"] == true);
}

/// What a busy machine cannot change: nothing is lost, and everything has died. The rest is held by the run of a
/// minute in a release build.
#[test]
fn everything_dies_once_and_no_binding_or_block_is_lost() {
    let output = scenarios(&[
        "everything-dies",
        "--bus",
        "nats",
        "--seconds",
        "25",
        "--conversations",
        "20",
        "--json",
    ]);

    let lines = lines(&output);
    let said = String::from_utf8_lossy(&output.stderr);
    let (summary, seconds) = lines.split_last().unwrap_or_else(|| panic!("{said}"));
    assert_eq!(summary["processes_killed"], 10, "{summary}");
    for (figure, expected) in [
        ("bindings_confirmed", 20),
        ("bindings_lost", 0),
        ("double_bindings", 0),
        ("last_turns_kept", 20),
    ] {
        assert_eq!(summary[figure], expected, "{summary}\n{said}");
    }
    assert!(
        summary["index_true_after_seconds"].is_number(),
        "{summary}\n{said}"
    );
    let of = |event: &str| {
        let all = seconds.iter().filter_map(|it| it[event].as_array());
        all.map(Vec::len).sum::<usize>()
    };
    assert_eq!((of("killed"), of("back")), (10, 10), "{seconds:?}");
    assert_eq!(output.status.success(), summary["ok"] == true);
}

#[test]
fn wrong_use_is_told_by_exit_code_two() {
    for arguments in [
        &[][..],
        &["no-such"],
        &["agent-script", "--seeds", "0"],
        &["everything-dies"],
        &["million-bindings", "--bus", "nats"],
    ] {
        let output = scenarios(arguments);

        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
}

#[test]
fn help_lists_each_scenario_in_one_line() {
    let output = scenarios(&["--help"]);

    let text = String::from_utf8(output.stdout).unwrap();
    for name in ["agent-script", "replicas"] {
        let line = text.lines().find(|it| it.trim_start().starts_with(name));
        assert!(line.is_some_and(|it| it.len() > name.len() + 10), "{text}");
    }
}
