//! `rankway replay`.

use std::fs;

use serde_json::Value;
use tempfile::TempDir;

use crate::process::{Running, run};

#[tokio::test]
async fn the_sample_gives_the_same_sane_numbers_each_time() {
    let args = ["replay", "sample", "--json"];

    let one = run(&args, &[]).await;
    let other = run(&args, &[]).await;

    assert_eq!(one.code, Some(0), "{}", one.stderr);
    let last = one.stdout.lines().last().unwrap();
    assert_eq!(other.stdout.lines().last().unwrap(), last);
    let summary: Value = serde_json::from_str(last).unwrap();
    let policies = summary["policies"].as_array().unwrap();
    assert_eq!(policies.len(), 3);
    let share = |policy: &Value, key: &str| policy[key].as_f64().unwrap();
    for policy in policies {
        assert_eq!(policy["requests"], 1000);
        assert_eq!(policy["errors"], 0);
        let reached = share(policy, "realised_over_ceiling");
        assert!(reached > 0.0 && reached <= 1.0, "{policy}");
        assert!(share(policy, "work_max_over_mean") >= 1.0, "{policy}");
        let ceiling = share(policy, "ceiling_of_hash_ids");
        assert!(ceiling > 0.0 && ceiling < 1.0, "{policy}");
        let ttft = &policy["ttft_ms"];
        assert!(share(ttft, "p50") <= share(ttft, "p99"), "{policy}");
    }
    let reached: Vec<f64> = policies
        .iter()
        .map(|it| share(it, "realised_over_ceiling"))
        .collect();
    assert!(
        reached[2] > reached[0] && reached[2] > reached[1],
        "{reached:?}"
    );
}

#[tokio::test]
async fn a_policy_named_twice_runs_once_and_tables_are_80_columns_wide() {
    let args = "replay sample --limit 50 --policy kv,random,kv";
    let args: Vec<&str> = args.split(' ').collect();

    let ended = run(&args, &[]).await;

    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let rows = |name: &str| {
        ended
            .stdout
            .lines()
            .filter(|it| it.starts_with(name))
            .count()
    };
    assert_eq!((rows("kv "), rows("random "), rows("kv: ")), (1, 1, 1));
    let (_, tables) = ended.stdout.split_once('\n').unwrap();
    let widest = tables.lines().map(|it| it.chars().count()).max();
    assert!(widest.unwrap() <= 80, "{tables}");
}

#[tokio::test]
async fn an_interrupt_ends_it_soon() {
    let folder = TempDir::new().unwrap();
    let trace = folder.path().join("long");
    let line = |number: u32| {
        format!(
            r#"{{"timestamp":{number},"input_length":5120,"output_length":64,"hash_ids":[{number},1,2,3,4,5,6,7,8,9]}}"#
        )
    };
    let lines: Vec<String> = (0..100_000).map(line).collect();
    fs::write(&trace, lines.join("\n")).unwrap();
    let mut running = Running::start(&["replay", trace.to_str().unwrap()]);
    running.logs("1/3 round_robin").await;

    let (code, took) = running.interrupt().await;

    assert_eq!(code, Some(130));
    assert!(took.as_secs() < 5, "{took:?}");
}

#[tokio::test]
async fn a_trace_of_agents_is_replayed_tree_by_tree() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("agents.jsonl");
    let tree = r#"{"id":"a","models":["m"],"block_size":64,"hash_id_scope":"local","requests":[{"t":0.0,"type":"n","in":6400,"out":64,"hash_ids":IDS,"api_time":2.0},{"t":3.0,"type":"subagent","agent_id":"x","requests":[{"t":0.0,"type":"s","in":640,"out":8,"hash_ids":[1,2,3,4,5,6,7,8,9,200]}]},{"t":9.0,"type":"s","in":6464,"out":8,"hash_ids":IDS}]}"#;
    let ids: Vec<u32> = (1..=100).collect();
    let tree = tree.replace("IDS", &format!("{ids:?}"));
    fs::write(&path, [tree.as_str(); 6].join("\n")).unwrap();
    let path = path.to_str().unwrap();

    let args = ["replay", path, "--live", "2", "--policy", "kv", "--json"];
    let ended = run(&args, &[]).await;

    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let last = ended.stdout.lines().last().unwrap();
    let summary: Value = serde_json::from_str(last).unwrap();
    let kv = &summary["policies"][0];
    assert_eq!(kv["requests"], 18);
    // Nothing is carried from one tree to the next.
    let ceiling = kv["tokens"]["ceiling"].as_u64().unwrap();
    assert_eq!(ceiling, 6 * (6400 + 9 * 64));
}
