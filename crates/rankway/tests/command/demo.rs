//! `rankway demo`.

use serde_json::Value;

use crate::process::{Running, run};

/// The parts that a policy lost sum to what it did not realise.
fn assert_adds_up(policy: &Value) {
    let tokens = |key: &str| policy["tokens"][key].as_i64().unwrap();
    let lost = policy["lost"].as_object().unwrap().values();
    let lost: i64 = lost.map(|it| it.as_i64().unwrap()).sum();
    assert_eq!(tokens("isl") - tokens("realised"), lost, "{policy}");
}

#[tokio::test]
async fn it_shows_what_it_claims() {
    let ended = run(&["demo", "--json", "--conversations", "4"], &[]).await;

    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
    let lines: Vec<Value> = ended
        .stdout
        .lines()
        .map(|it| serde_json::from_str(it).unwrap())
        .collect();
    let summary = lines.last().unwrap();
    assert_eq!(summary["ok"], true);
    let checks = summary["checks"].as_object().unwrap();
    assert!(checks.len() >= 5 && checks.values().all(|it| it == true));
    let policies = summary["policies"].as_array().unwrap();
    let names: Vec<&str> = policies
        .iter()
        .map(|it| it["policy"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["round_robin", "kv"]);
    for policy in policies {
        assert_eq!(policy["errors"], 0);
        assert!(policy["requests"].as_u64().unwrap() > 4);
        assert_adds_up(policy);
    }
    let reached = |it: &Value| it["realised_over_ceiling"].as_f64().unwrap();
    assert!(reached(&policies[1]) >= 0.95 && reached(&policies[1]) > reached(&policies[0]));
}

#[tokio::test]
async fn an_interrupt_ends_it_soon() {
    let mut running = Running::start(&["demo", "--json"]);
    running.logs("round_robin").await;

    let (code, took) = running.interrupt().await;

    assert_eq!(code, Some(130));
    assert!(took.as_secs() < 5, "{took:?}");
}
