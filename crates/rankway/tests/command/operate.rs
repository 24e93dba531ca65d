//! What an operator asks of a running `up`, and tells it.

use std::fs;

use serde_json::Value;
use tempfile::TempDir;

use crate::conversation::Conversation;
use crate::fleet::{Engine, Up};
use crate::process::{POLL, run};

/// Runs a command of the operator; the lines of its answer.
async fn ask(up: &Up, command: &[&str]) -> Vec<String> {
    let ended = run(&[command, &["--admin-url", &up.admin]].concat(), &[]).await;
    assert_eq!(ended.code, Some(0), "{command:?}: {}", ended.stderr);
    ended.stdout.lines().map(str::to_owned).collect()
}

async fn ask_json(up: &Up, command: &[&str]) -> Vec<Value> {
    let lines = ask(up, &[command, &["--json"]].concat()).await;
    let read = |it: &String| serde_json::from_str(it).unwrap();
    lines.iter().map(read).collect()
}

#[tokio::test]
async fn conversations_are_listed_moved_exported_and_imported_and_drains_survive_a_kill() {
    let data = TempDir::new().unwrap();
    let engines = [Engine::start().await, Engine::start().await];
    let both = [&engines[0], &engines[1]];
    let up = Up::start(data.path(), &both).await;
    let [first, second] = both.map(Engine::name);
    let mut conversations: Vec<_> = (1..=6).map(Conversation::new).collect();
    for conversation in &mut conversations {
        conversation.turn(&up.api).await;
    }

    // The last words of a turn reach the store after its answer.
    let confirmed = ["bindings", "ls", "--state", "confirmed"];
    while ask_json(&up, &confirmed).await.len() < 7 {
        tokio::time::sleep(POLL).await;
    }
    let one = ask_json(&up, &["bindings", "ls", "--conversation", "tion-3"]).await;
    assert_eq!(one[0]["conversation"], "conversation-3");
    assert_eq!(one[1], serde_json::json!({"listed": 1, "more": false}));
    let some = ask(&up, &["bindings", "ls", "--limit", "2"]).await;
    assert!(some[2].contains("there are more"), "{some:?}");
    let workers = ask_json(&up, &["workers", "ls"]).await;
    assert_eq!((workers.len(), &workers[0]["state"]), (3, &"ready".into()));
    assert_eq!(ask(&up, &["targets", "ls"]).await.len(), 9);

    let to = format!("{second}/3");
    ask(&up, &["move", "conversation-3", "--to", &to]).await;
    assert_eq!(conversations[2].turn(&up.api).await.target, to);

    let told = ask(&up, &["drain", first, "--move"]).await;
    assert!(
        told[0].ends_with("go elsewhere at their next turn"),
        "{told:?}"
    );
    let killed = up.kill().await;
    let up = killed.start(data.path(), &both).await;
    for conversation in &mut conversations {
        let turn = conversation.turn(&up.api).await;
        assert!(turn.target.starts_with(second), "{turn:?}");
    }
    let workers = ask_json(&up, &["workers", "ls"]).await;
    let of_first = workers.iter().find(|it| it["id"] == first).unwrap();
    assert_eq!(of_first["state"], "leaving");
    let shown = ask(&up, &["workers", "ls"]).await;
    let of_first = shown.iter().find(|it| it.starts_with(first)).unwrap();
    assert!(of_first.contains(" why=drained since 2"), "{of_first}");
    assert!(of_first.contains("Z by operator, "), "{of_first}");
    let bound = ask(&up, &["bindings", "ls", "--limit", "1"]).await;
    assert!(bound[0].contains(" since=2"), "{bound:?}");
    ask(&up, &["drain", first, "--undo"]).await;
    let workers = ask_json(&up, &["workers", "ls"]).await;
    assert!(workers[..2].iter().all(|it| it["state"] == "ready"));

    let exported = ask(&up, &["bindings", "export"]).await;
    assert_eq!(exported.len(), 6);
    let file = data.path().join("bindings.jsonl");
    fs::write(&file, exported.join("\n")).unwrap();
    let empty = TempDir::new().unwrap();
    up.kill().await;
    let up = Up::start(empty.path(), &both).await;
    let imported = ask_json(&up, &["bindings", "import", file.to_str().unwrap()]).await;
    assert_eq!(imported[0]["imported"], 6, "{imported:?}");
    assert_eq!(conversations[2].turn(&up.api).await.target, to);

    let refused = ["move", "nobody", "--to", &to, "--admin-url", &up.admin];
    let refused = run(&refused, &[]).await;
    assert_eq!(refused.code, Some(1));
    assert!(
        refused
            .stderr
            .contains("there is no binding of conversation"),
        "{}",
        refused.stderr
    );
}
