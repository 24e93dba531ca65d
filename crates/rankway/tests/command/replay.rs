//! `rankway replay`.

use serde_json::Value;

use crate::process::run;

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
