//! `rankway sim`.

use std::fs;

use serde_json::Value;
use tempfile::TempDir;

use crate::mistake::wrong;
use crate::process::{Running, run};

async fn sim(args: &str) -> (String, Vec<Value>) {
    let words: Vec<&str> = args.split_whitespace().collect();
    let ended = run(&[&["sim"][..], &words].concat(), &[]).await;
    assert_eq!(ended.code, Some(0), "{args}: {}", ended.stderr);
    let lines = ended.stdout.lines();
    let json = lines.filter_map(|it| serde_json::from_str(it).ok());
    (ended.stdout.clone(), json.collect())
}

#[tokio::test]
async fn the_same_runs_give_the_same_numbers_in_the_same_order() {
    let folder = TempDir::new().unwrap();
    let page = folder.path().join("sim.html");
    let html = page.to_str().unwrap();
    let args = "--workload W4,w5 --requests 200 --policy round_robin,kv --seeds 6-7 --json";

    let (one, lines) = sim(&format!("{args} --html {html}")).await;
    let (other, _) = sim(args).await;

    assert_eq!(one, other);
    let names: Vec<&str> = lines
        .iter()
        .filter_map(|it| it["workload"].as_str())
        .collect();
    assert_eq!(names, ["W4", "W5"]);
    let summary = lines.last().unwrap();
    assert_eq!(summary["complete"], true);
    assert_eq!(summary["workloads"].as_array().unwrap()[..], lines[..2]);
    assert_eq!(summary["cells"].as_array().unwrap().len(), 4);
    for policy in lines[0]["policies"].as_array().unwrap() {
        assert_eq!(policy["requests"], 400);
        assert_eq!(policy["errors"], 0);
        assert_eq!(policy["runs"], 2);
        let reached = policy["realised_over_ceiling"].as_f64().unwrap();
        assert!(0.0 < reached && reached <= 1.0, "{policy}");
        let part = |level: &str| policy["tokens"][level].as_i64().unwrap();
        let lost = policy["lost"].as_object().unwrap().values();
        let lost: i64 = lost.map(|it| it.as_i64().unwrap()).sum();
        assert_eq!(part("isl") - part("realised"), lost, "{policy}");
    }
    let conversations = lines[1]["policies"].as_array().unwrap();
    assert!(
        conversations
            .iter()
            .all(|it| it["queue_skew"].as_f64().is_some())
    );
    let page = fs::read_to_string(&page).unwrap();
    assert_eq!(page.matches("<svg").count(), 2);
    assert_eq!(page.matches("<circle").count(), 4);
    assert!(
        !page.contains("http") && !page.contains("<script"),
        "{page}"
    );
}

#[tokio::test]
async fn a_trace_comes_from_its_folder_and_tables_are_80_columns_wide() {
    let folder = TempDir::new().unwrap();
    let row = |number: u32| {
        format!(
            r#"{{"timestamp":{},"input_length":2048,"output_length":9,"hash_ids":[1,2,{},{number}]}}"#,
            number * 10,
            100_000 + number % 7
        )
    };
    let rows: Vec<String> = (3..203).map(row).collect();
    fs::write(
        folder.path().join("conversation_trace.jsonl"),
        rows.join("\n"),
    )
    .unwrap();
    let trace_dir = folder.path().to_str().unwrap();

    let (text, _) = sim(&format!(
        "--workload W3-conversation --trace-dir {trace_dir}"
    ))
    .await;

    assert!(text.contains("200 requests"), "{text}");
    let rows = text
        .lines()
        .filter(|it| it.starts_with("* ") || it.starts_with("  "));
    assert!(
        rows.clone().any(|it| it.contains("target_round_robin")),
        "{text}"
    );
    let widest = rows.map(|it| it.chars().count()).max();
    assert!(widest.unwrap() <= 80, "{text}");
    assert!(
        text.contains("W3-conversation: share of the ceiling"),
        "{text}"
    );
}

#[tokio::test]
async fn an_ablation_runs_ours_whole_and_without_each_term() {
    let (_, lines) = sim("--workload W4 --requests 50 --ablation --json").await;

    let policies = lines[0]["policies"].as_array().unwrap();
    let names: Vec<&str> = policies
        .iter()
        .map(|it| it["policy"].as_str().unwrap())
        .collect();
    assert_eq!(names[0], "kv");
    assert!(
        names[1..]
            .iter()
            .all(|it| it.starts_with("kv:") && it.ends_with("=0"))
    );
    let without = lines[0]["without"].as_array().unwrap();
    assert_eq!(without.len(), names.len() - 1);
    let worth = lines.last().unwrap()["ablation"].as_array().unwrap();
    assert_eq!(worth.len(), without.len());
    assert!(worth.iter().all(|it| it["workloads"] == 1), "{worth:?}");
}

#[tokio::test]
async fn an_interrupt_keeps_what_is_done() {
    let args = "sim --workload W5 --requests 400 --policy round_robin,kv --seeds 1-200";
    let args: Vec<&str> = args.split(' ').collect();
    let mut running = Running::start(&args);
    running.logs("runs: ").await;

    let ended = running.interrupt_and_read().await;

    assert_eq!(ended.code, Some(130), "{}", ended.stderr);
    assert!(
        ended.stdout.contains("of 400 runs are in the above"),
        "{}",
        ended.stdout
    );
    assert!(
        ended.stderr.ends_with("rankway: interrupted\n"),
        "{}",
        ended.stderr
    );
}

#[tokio::test]
async fn what_cannot_be_simulated() {
    let folder = TempDir::new().unwrap();
    let empty = folder.path().to_str().unwrap();
    let no_file = format!("sim --workload W3 --trace-dir {empty}");
    let no_page = format!("sim --html {empty}/none/sim.html");
    let table = [
        wrong("sim --workload W99", &["W99", "W3-conversation", "herding"]),
        wrong(
            "sim --all",
            &["W3-conversation", "--trace-dir", "--workload"],
        ),
        wrong(
            &no_file,
            &["mooncake_conversation_trace.jsonl", "README.md"],
        ),
        wrong("sim --policy best", &["best", "kv"]),
        wrong("sim --seeds 8-6", &["--seeds", "6-10"]),
        wrong("sim --routers 0", &["--routers", "between 1 and 64"]),
        wrong("sim --load-age 0", &["--load-age", "between"]),
        wrong("sim --requests 0", &["--requests", "between 1 and"]),
        wrong("sim --all --workload W1", &["cannot be used with"]),
        wrong(&no_page, &["--html", "No such file"]),
    ];
    for mistake in table {
        mistake.check(&[]).await;
    }
}
