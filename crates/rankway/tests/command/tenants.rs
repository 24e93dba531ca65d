//! Tenants before a real engine that keeps its caches apart by their salts.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use crate::fleet::{Engine, Up};
use crate::http_client::{Answer, Client};
use crate::process::{PATIENCE, POLL, run};

const A: (&str, &str) = ("authorization", "Bearer key-of-tenant-a");
const B: (&str, &str) = ("x-api-key", "key-of-tenant-b");
/// The SHA-256 of B's key.
const B_HASHED: &str = "fd34992a065c3c4fbfe4efa4eef516913023f3474bdf38b0be4d3ec6a0dcaad1";

fn settings(engine: &Engine) -> String {
    let url = &engine.url;
    format!(
        "worker_urls = [\"{url}\"]\n\
         [[router.tenants]]\nname = \"a\"\nkeys = [\"key-of-tenant-a\"]\n\
         [[router.tenants]]\nname = \"b\"\nkeys = [\"sha256:{B_HASHED}\"]\n"
    )
}

async fn ask(up: &Up, key: (&str, &str), salt: Value) -> Answer {
    let prompt: Vec<u32> = (1_000..1_200).collect();
    let body =
        json!({"model": "fake-model", "prompt": prompt, "max_tokens": 2, "cache_salt": salt});
    let url = format!("{}/v1/completions", up.api);
    let answer = Client::new().post(&url, &[key], &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer
}

/// What the engine took from its cache, and what Rankway knew of before it asked.
fn credit(answer: &Answer) -> (u64, u64) {
    let cached = &answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"];
    let overlap = answer.header("x-rankway-overlap-tokens").unwrap();
    (cached.as_u64().unwrap(), overlap.parse().unwrap())
}

/// Asks until the index knows what the engine holds.
async fn until_credited(up: &Up, key: (&str, &str), salt: &Value) {
    let deadline = Instant::now() + PATIENCE;
    while credit(&ask(up, key, salt.clone()).await) != (192, 192) {
        assert!(Instant::now() < deadline, "{}", up.log());
        sleep(POLL).await;
    }
}

fn holds(folder: &Path, text: &str) -> bool {
    fs::read_dir(folder).unwrap().any(|entry| {
        let entry = entry.unwrap();
        match entry.file_type().unwrap().is_dir() {
            true => holds(&entry.path(), text),
            false => {
                let bytes = fs::read(entry.path()).unwrap_or_default();
                bytes.windows(text.len()).any(|it| it == text.as_bytes())
            }
        }
    })
}

/// <https://github.com/vllm-project/vllm/pull/53347> (BC-59)
#[tokio::test]
async fn a_tenant_that_gives_the_salt_of_another_gets_no_credit_for_it() {
    let (told, data) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let engine = Engine::start().await;
    let file = told.path().join("rankway.toml");
    fs::write(&file, settings(&engine)).unwrap();
    let config = file.to_str().unwrap();
    let up = Up::start_from(data.path(), config, 1).await;
    let (shared, own) = (json!("salt-of-a"), json!(null));
    for salt in [&shared, &own] {
        assert_eq!(credit(&ask(&up, A, salt.clone()).await), (0, 0));
        until_credited(&up, A, salt).await;
        assert_eq!(credit(&ask(&up, B, salt.clone()).await), (0, 0), "{salt}");
        until_credited(&up, B, salt).await;
    }
    let metrics = Client::new()
        .get(&format!("{}/metrics", up.api))
        .await
        .text();
    assert!(
        metrics.contains(r#"rankway_client_salts_total{kind="foreign",tenant="b"}"#),
        "{metrics}"
    );
    let log = up.log();
    assert!(log.contains("cache_salt of another tenant"), "{log}");
    assert!(
        !log.contains("key-of-tenant") && !log.contains("salt-of-a"),
        "{log}"
    );
    let config = Client::new()
        .get(&format!("{}/api/v1/config", up.admin))
        .await;
    assert!(
        !config.text().contains("key-of-tenant"),
        "{}",
        config.text()
    );

    // The secret of the salts is kept with the data.
    let up = up
        .kill()
        .await
        .start_from(data.path(), file.to_str().unwrap(), 1)
        .await;
    until_credited(&up, A, &shared).await;
    assert_eq!(up.interrupt().await.0, Some(0));
    for text in ["key-of-tenant", "salt-of-a"] {
        assert!(!holds(data.path(), text), "{text}");
    }
}

#[tokio::test]
async fn settings_of_tenants_show_no_secrets_and_are_checked() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("rankway.toml");
    let tenants = "worker_urls = [\"http://127.0.0.1:1\"]\n[[router.tenants]]\nname = \"a\"\nkeys = [\"key-of-tenant-a\"]\n";
    fs::write(&file, tenants).unwrap();
    let at = file.to_str().unwrap();
    let show = ["config", "show", "--config", at];
    let variables = [("RANKWAY_ROUTER__SALT_SECRET", "00000000000000000000")];
    let shown = run(&show, &variables).await;
    assert_eq!(shown.code, Some(0), "{}", shown.stderr);
    assert!(shown.stdout.contains("***"), "{}", shown.stdout);
    assert!(!shown.stdout.contains("key-of") && !shown.stdout.contains("00000000"));
    let by_variable = [(
        "RANKWAY_ROUTER__TENANTS",
        r#"[{name="b",keys=["key-of-tenant-b"],fail_closed=true}]"#,
    )];
    let shown = run(&["config", "show"], &by_variable).await;
    assert!(
        shown.stdout.contains(r#"name = "b""#),
        "{} {}",
        shown.stdout,
        shown.stderr
    );
    assert!(shown.stdout.contains("fail_closed = true") && !shown.stdout.contains("key-of"));

    let check = async |text: &str, part: &str| {
        fs::write(&file, text).unwrap();
        let ended = run(&["config", "check", "--config", at], &[]).await;
        assert_eq!(ended.code, Some(2), "{text}");
        assert!(
            ended.stderr.contains(part),
            "{part:?} not in {}",
            ended.stderr
        );
        assert!(!ended.stderr.contains("key-of"), "{}", ended.stderr);
    };
    let two = |second: &str| format!("{tenants}[[router.tenants]]\n{second}\n");
    check(
        &two("name = \"a\"\nkeys = [\"key-of-a\"]"),
        "a is there twice",
    )
    .await;
    check(
        &two("name = \"b\"\nkeys = [\"key-of-tenant-a\"]"),
        "a and b have a key in common",
    )
    .await;
    check(&two("name = \"b\"\nkeys = []"), "b has no keys").await;
    check(&two("name = \"b\"\nkeys = [\"key-of two\"]"), "one word").await;
    check(
        &two("name = \"b\"\nkeys = [\"sha256:key-of\"]"),
        "64 hexadecimal digits",
    )
    .await;
    check(
        &two("name = \"b\"\nkey = [\"key-of\"]"),
        "unknown field key",
    )
    .await;
    check("[router]\nsalt_secret = \"short\"\n", "router.salt_secret").await;
    let alone = ["router", "--config", at, "--bus-url", "nats://127.0.0.1:1"];
    fs::write(&file, tenants).unwrap();
    let ended = run(&alone, &[]).await;
    assert_eq!(ended.code, Some(2));
    assert!(
        ended.stderr.contains("router.salt_secret"),
        "{}",
        ended.stderr
    );
}
