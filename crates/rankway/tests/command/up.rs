//! `rankway up` before two engines, over a restart.

use std::ops::Range;

use serde_json::Value;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use crate::conversation::Conversation;
use crate::fleet::{Engine, RANKS, Up};
use crate::process::{PATIENCE, POLL, Running, run};
use crate::settled::{Read, index_equals};

#[tokio::test]
async fn a_conversation_stays_with_its_cache_over_a_kill() {
    let data = TempDir::new().unwrap();
    let engines = [Engine::start().await, Engine::start().await];
    let both = [&engines[0], &engines[1]];
    let up = Up::start(data.path(), &both).await;
    let mut conversation = Conversation::new(1);

    let first = conversation.turn(&up.api).await;
    index_equals(&up, 2).await;
    let second = conversation.turn(&up.api).await;

    assert_eq!(second.target, first.target);
    assert!(second.overlap > 0 && second.cached > 0, "{second:?}");

    let killed = up.kill().await;
    engines[0].answer(1, 500_000).await;
    let its_own = engines
        .iter()
        .find(|it| first.target.starts_with(it.name()));
    its_own.unwrap().answer(2, 600_000).await;
    let up = killed.start(data.path(), &both).await;
    let third = conversation.turn(&up.api).await;

    assert_eq!(third.target, first.target);
    assert!(third.overlap > 0 && third.cached > 0, "{third:?}");
    index_equals(&up, 2).await;
}

#[tokio::test]
async fn after_a_kill_engines_are_asked_only_for_what_is_new() {
    let data = TempDir::new().unwrap();
    let engines = [Engine::start().await, Engine::start().await];
    let both = [&engines[0], &engines[1]];
    let up = Up::start(data.path(), &both).await;
    all_ranks_answer(&both, 0..8).await;
    index_equals(&up, 2).await;
    let long_ago = Read::by(&up).await.published;
    assert_eq!(up.interrupt().await.0, Some(0));
    let up = Up::start(data.path(), &both).await;
    engines[0].answer(0, 900_000).await;
    index_equals(&up, 2).await;
    // How far it read in its last moment may not have been kept.
    let just_before = Read::by(&up).await.published;
    let ranks = 2 * u64::from(RANKS);
    assert!(just_before < ranks, "read again: {just_before}");

    let killed = up.kill().await;
    all_ranks_answer(&both, 8..9).await;
    let up = killed.start(data.path(), &both).await;
    index_equals(&up, 2).await;

    let read = Read::by(&up).await;
    // One that begins with nothing reads all that was ever published.
    let elsewhere = TempDir::new().unwrap();
    let fresh = Up::start(elsewhere.path(), &both).await;
    index_equals(&fresh, 2).await;
    let all = Read::by(&fresh).await.published;
    let meanwhile = all - long_ago - just_before;
    assert!(long_ago >= 8 * ranks && meanwhile >= ranks);
    let new = meanwhile..=meanwhile + just_before;
    assert!(new.contains(&read.published), "{read:?}, not {new:?}");
    assert!(read.others <= ranks, "asked for what was known: {read:?}");
}

/// Every rank of `engines` answers once for each of `times`, whatever it was asked before.
async fn all_ranks_answer(engines: &[&Engine], times: Range<u32>) {
    for time in times {
        for engine in engines {
            for rank in 0..RANKS {
                let first_token = 10_000 * time + 1_000 * u32::from(rank);
                engine.answer(rank, first_token).await;
            }
        }
    }
}

#[tokio::test]
async fn an_interrupt_ends_it_soon_and_loses_nothing() {
    let data = TempDir::new().unwrap();
    let engine = Engine::start().await;
    let up = Up::start(data.path(), &[&engine]).await;
    let mut conversation = Conversation::new(1);
    let first = conversation.turn(&up.api).await;
    index_equals(&up, 1).await;

    let (code, took) = up.interrupt().await;

    assert_eq!(code, Some(0));
    assert!(took.as_secs() < 5, "{took:?}");
    let up = Up::start(data.path(), &[&engine]).await;
    let second = conversation.turn(&up.api).await;
    assert_eq!(second.target, first.target);
    assert!(second.overlap > 0 && second.cached > 0, "{second:?}");
}

#[tokio::test]
async fn a_decision_is_explained_and_an_unknown_one_is_not() {
    let data = TempDir::new().unwrap();
    let engine = Engine::start().await;
    let up = Up::start(data.path(), &[&engine]).await;
    let turn = Conversation::new(1).turn(&up.api).await;

    let explained = up.ask(&["explain", "last"]).await;
    let as_json = up.ask(&["explain", "last", "--json"]).await;
    let unknown = up.ask(&["explain", &"0".repeat(32)]).await;

    assert_eq!(explained.code, Some(0));
    assert!(
        explained.stdout.contains(engine.name()),
        "{}",
        explained.stdout
    );
    let (worker, _) = turn.target.split_once('/').unwrap();
    assert!(as_json.stdout.contains(worker), "{}", as_json.stdout);
    assert_eq!(unknown.code, Some(1));
    assert_eq!(unknown.stderr.lines().count(), 1);
    assert!(
        unknown.stderr.contains("there is no decision"),
        "{}",
        unknown.stderr
    );
}

#[tokio::test]
async fn the_admin_api_asks_for_its_token() {
    let data = TempDir::new().unwrap();
    let engine = Engine::start().await;
    let mut guarded = Running::start(&[
        "up",
        "--worker-urls",
        &engine.url,
        "--listen",
        "127.0.0.1:0",
        "--admin-listen",
        "127.0.0.1:0",
        "--admin-token",
        "secret",
        "--data-dir",
        data.path().to_str().unwrap(),
    ]);
    let line = guarded.logs("serving").await;
    let (_, admin) = line.split_once("admin=").unwrap();
    let admin = admin.split_whitespace().next().unwrap();
    let args = ["index", "verify", "--admin-url", admin];

    let without = run(&args, &[]).await;

    assert_eq!(without.code, Some(1));
    assert!(
        without.stderr.contains("--admin-token"),
        "{}",
        without.stderr
    );
    let other = run(&args, &[("RANKWAY_ADMIN_TOKEN", "guess")]).await;
    assert_eq!(other.code, Some(1));
    let says = "not the one that is set";
    assert!(other.stderr.contains(says), "{}", other.stderr);
    let deadline = Instant::now() + PATIENCE;
    while run(&args, &[("RANKWAY_ADMIN_TOKEN", "secret")]).await.code != Some(0) {
        assert!(Instant::now() < deadline, "{}", guarded.output());
        sleep(POLL).await;
    }
}

#[tokio::test]
async fn an_address_of_somebody_else_is_doubted() {
    let data = TempDir::new().unwrap();
    let engine = Engine::start().await;
    let up = Up::start(data.path(), &[&engine]).await;
    for url in [&up.api, &engine.url] {
        for command in [&["explain", "last"][..], &["index", "verify"]] {
            let ended = run(&[command, &["--admin-url", url]].concat(), &[]).await;

            assert_eq!(ended.code, Some(1));
            let doubts = ended
                .stderr
                .contains("is this the admin API of a router, or of `rankway up`?");
            assert!(doubts, "{}", ended.stderr);
        }
    }
}

#[tokio::test]
async fn a_dead_engine_does_not_hide_what_is_known_of_the_others() {
    let data = TempDir::new().unwrap();
    let engines = [Engine::start().await, Engine::start().await];
    let up = Up::start(data.path(), &[&engines[0], &engines[1]]).await;
    let [dead, healthy] = engines;
    let (dead_name, healthy_name) = (dead.name().to_owned(), healthy.name().to_owned());
    dead.kill().await;

    let ended = up.ask(&["index", "verify"]).await;
    let as_json = up.ask(&["index", "verify", "--json"]).await;

    assert_eq!(ended.code, Some(1));
    let line = |part: &str| ended.stdout.lines().find(|it| it.starts_with(part));
    let silent = line(&dead_name).unwrap_or_else(|| panic!("{}", ended.stdout));
    assert!(silent.contains("not reachable: "), "{silent}");
    let compared = line(&healthy_name).unwrap_or_else(|| panic!("{}", ended.stdout));
    assert!(compared.contains("(no events yet), equal"), "{compared}");
    let summary: Value = serde_json::from_str(as_json.stdout.lines().last().unwrap()).unwrap();
    assert_eq!(
        (&summary["ok"], &summary["different"]),
        (&false.into(), &1.into())
    );
    assert_eq!(summary["ranks"], RANKS);
}
