//! What a running router says of its decisions, and what becomes of them when they are made again.

use std::fs;

use serde_json::Value;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use crate::conversation::Conversation;
use crate::fleet::{Engine, Up};
use crate::process::{Ended, PATIENCE, POLL, run};

fn last_line(ended: &Ended) -> Value {
    serde_json::from_str(ended.stdout.lines().last().unwrap()).unwrap()
}

#[tokio::test]
async fn decisions_are_exported_made_again_to_the_bit_and_held_against_other_policies() {
    let data = TempDir::new().unwrap();
    let engines = [Engine::start().await, Engine::start().await];
    let settings = format!(
        "worker_urls = [\"{}\", \"{}\"]\n[router]\nshadow = \"target_round_robin\"\n",
        engines[0].url, engines[1].url
    );
    let up = Up::start_told(data.path(), 2, &settings).await;
    let mut conversations: Vec<_> = (1..=6).map(Conversation::new).collect();
    for _ in 0..3 {
        for conversation in &mut conversations {
            conversation.turn(&up.api).await;
        }
    }

    let exported = up.ask(&["decisions", "export", "--whole"]).await;
    assert_eq!(exported.code, Some(0), "{}", exported.stderr);
    let lines: Vec<&str> = exported.stdout.lines().collect();
    assert_eq!(lines.len(), 18);
    let file = data.path().join("decisions.jsonl");
    fs::write(&file, &exported.stdout).unwrap();
    let file = file.to_str().unwrap();
    let policies = ["--policy", "kv,target_round_robin"];
    let replay =
        async |more: &[&str]| run(&[&["replay", file], &policies[..], more].concat(), &[]).await;
    let replayed = replay(&["--json"]).await;
    assert_eq!(replayed.code, Some(0), "{}", replayed.stderr);
    let summary = last_line(&replayed);
    assert_eq!(
        (&summary["decisions"], &summary["mismatches"]),
        (&18.into(), &0.into())
    );
    let [kv, in_turn] = [&summary["policies"][0], &summary["policies"][1]];
    // Made again with the same seed nothing is otherwise; what was bound is bound for kv, and for nobody else.
    assert_eq!((&kv["asked"], &kv["flips"]), (&6.into(), &0.into()));
    assert_eq!(in_turn["asked"], 18);
    assert!(0 < in_turn["flips"].as_u64().unwrap(), "{summary}");
    assert!(in_turn["gain_seconds"].as_f64().unwrap() < 0.0, "{summary}");
    let in_words = replay(&[]).await.stdout;
    assert!(in_words.contains("18 decisions made again"), "{in_words}");

    // The policy in the shadow has found the same of the same decisions.
    let deadline = Instant::now() + PATIENCE;
    let shadow = loop {
        let shadow = last_line(&up.ask(&["shadow", "--json"]).await);
        if shadow["decisions"] == 18 {
            break shadow;
        }
        assert!(Instant::now() < deadline, "{shadow}");
        sleep(POLL).await;
    };
    for found in ["asked", "flips", "unpriced", "lost_tokens"] {
        assert_eq!(shadow[found], in_turn[found], "{found}");
    }
    let shadow = up.ask(&["shadow"]).await.stdout;
    assert!(
        shadow.starts_with("target_round_robin in the shadow of kv"),
        "{shadow}"
    );

    broken_files_are_found(file, &exported.stdout).await;
    let partial = up
        .ask(&["decisions", "export", "--limit", "5", "--since", "1h"])
        .await;
    assert_eq!(partial.stdout.lines().count(), 5);
    fs::write(file, &partial.stdout).unwrap();
    let replayed = run(&["replay", file], &[]).await;
    assert_eq!(replayed.code, Some(2));
    assert!(replayed.stderr.contains("--whole"), "{}", replayed.stderr);
}

async fn broken_files_are_found(file: &str, exported: &str) {
    let first = exported.lines().next().unwrap();
    let cost = first.find("\"cost\":").unwrap() + "\"cost\":".len();
    fs::write(file, format!("{}1{}", &exported[..cost], &exported[cost..])).unwrap();
    let replayed = run(&["replay", file, "--json"], &[]).await;
    assert_eq!(replayed.code, Some(1));
    assert_eq!(last_line(&replayed)["mismatches"], 1);
    let id = serde_json::from_str::<Value>(first).unwrap()["id"].clone();
    assert!(
        replayed.stderr.contains(id.as_str().unwrap()),
        "{}",
        replayed.stderr
    );
    fs::write(file, format!("{first}\n{{}}\n")).unwrap();
    let replayed = run(&["replay", file], &[]).await;
    assert_eq!(replayed.code, Some(2));
    assert!(replayed.stderr.contains("line 2 of"), "{}", replayed.stderr);
    let damaged = first.replace("\"policy\":\"", "\"policy\":\"un");
    fs::write(file, damaged).unwrap();
    let replayed = run(&["replay", file], &[]).await;
    assert_eq!(replayed.code, Some(2));
    let says = "is no recorded decision";
    assert!(replayed.stderr.contains(says), "{}", replayed.stderr);
}

#[tokio::test]
async fn where_tokens_went_is_said_in_words_and_as_the_api_says_it() {
    let data = TempDir::new().unwrap();
    let engine = Engine::start().await;
    let up = Up::start(data.path(), &[&engine]).await;
    let none = up.ask(&["waterfall"]).await;
    assert!(
        none.stdout.contains("No request has been served"),
        "{}",
        none.stdout
    );
    let mut conversation = Conversation::new(1);
    for _ in 0..3 {
        conversation.turn(&up.api).await;
    }

    let words = up.ask(&["waterfall", "--since", "10m"]).await.stdout;
    assert!(
        words.starts_with("in the last 10 min: 3 requests"),
        "{words}"
    );
    for part in [
        "memory",
        "router",
        "index",
        "unavailable",
        "in_flight",
        "reason",
    ] {
        assert!(words.contains(part), "{words}");
    }
    let json = last_line(&up.ask(&["waterfall", "--json"]).await);
    assert_eq!(json["measured"]["requests"], 3);
    let url = format!("{}/api/v1/waterfall", up.admin);
    let api = crate::http_client::Client::new().get(&url).await;
    assert_eq!(serde_json::from_str::<Value>(&api.text()).unwrap(), json);
    let too_long = up.ask(&["waterfall", "--since", "2h"]).await;
    assert_eq!(too_long.code, Some(1));
    assert!(too_long.stderr.contains("3600"), "{}", too_long.stderr);

    let place = format!("{}/3", engine.name());
    let why_not = up.ask(&["explain", "last", "--why-not", &place]).await;
    let expected = format!("why not {}#", engine.name());
    assert!(why_not.stdout.contains(&expected), "{}", why_not.stdout);
    assert!(
        why_not.stdout.contains("the conversation is bound to"),
        "{}",
        why_not.stdout
    );
    let shadow = up.ask(&["shadow"]).await;
    assert_eq!(shadow.code, Some(1));
    assert!(shadow.stderr.contains("router.shadow"), "{}", shadow.stderr);
}
