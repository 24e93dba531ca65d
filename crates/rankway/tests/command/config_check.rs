//! `config check` says what the command that it is asked for would say at its start.

use std::fs;

use tempfile::TempDir;

use crate::process::run;

const ENGINE: &str = "worker_urls = [\"http://a:1\"]\n";
const BUS: &str = "[bus]\nurl = \"nats://127.0.0.1:1\"\n";
const TENANT: &str = "[[router.tenants]]\nname = \"acme\"\nkeys = [\"key\"]\n";

/// Checks `settings` for `command`: the exit code, and all that was said.
async fn check(settings: &str, command: &[&str]) -> (Option<i32>, String) {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("rankway.toml");
    fs::write(&file, settings).unwrap();
    let arguments = ["config", "check", "--config", file.to_str().unwrap()];
    let checked = run(&[&arguments, command].concat(), &[]).await;
    (checked.code, checked.stdout + &checked.stderr)
}

#[tokio::test]
async fn settings_are_judged_as_the_command_would_that_starts_with_them() {
    let secret = "[affinity]\nsecret = \"0123456789abcdef\"\n";
    let salted = "[router]\nsalt_secret = \"0123456789abcdef\"\n";
    // Settings, for which command, and what is said where they are not good.
    let table = [
        (String::new(), "up", Some("[[workers]]")),
        (ENGINE.to_owned(), "up", None),
        (format!("{ENGINE}{BUS}"), "up", Some("bus.url")),
        (ENGINE.to_owned(), "router", Some("bus.url")),
        (BUS.to_owned(), "router", None),
        (BUS.to_owned(), "ingest", None),
        (BUS.to_owned(), "indexer", None),
        (BUS.to_owned(), "adapter", Some("[[workers]]")),
        (format!("{ENGINE}{BUS}"), "adapter", None),
        (BUS.to_owned(), "affinity", Some("affinity.secret")),
        (format!("{secret}{BUS}"), "affinity", None),
        (
            format!("{TENANT}{BUS}"),
            "router",
            Some("router.salt_secret"),
        ),
        (format!("{TENANT}{BUS}"), "ingest", None),
        (format!("{salted}{TENANT}{BUS}"), "router", None),
    ];
    for (settings, command, says) in table {
        let (code, said) = check(&settings, &["--for", command]).await;
        let expected = if says.is_some() { 2 } else { 0 };
        assert_eq!(code, Some(expected), "{command}: {settings}\n{said}");
        assert!(said.contains(says.unwrap_or("good")), "{command}: {said}");
    }
    let (code, said) = check(ENGINE, &[]).await;
    assert_eq!(code, Some(0), "as up would: {said}");
}

#[tokio::test]
async fn a_key_that_looks_like_a_hash_is_pointed_out_and_not_shown() {
    let digits = "0123456789abcdef".repeat(4);
    let with = |key: &str| {
        format!(
            "{ENGINE}{}",
            TENANT.replace("\"key\"", &format!("\"{key}\""))
        )
    };

    let (code, bare) = check(&with(&digits), &[]).await;
    assert_eq!(code, Some(0), "{bare}");
    assert!(bare.contains("acme") && bare.contains("sha256:"), "{bare}");
    assert!(!bare.contains(&digits), "{bare}");

    for key in [format!("sha256:{digits}"), "key".to_owned()] {
        let (code, said) = check(&with(&key), &[]).await;
        assert_eq!(code, Some(0), "{said}");
        assert!(!said.contains("acme"), "{said}");
    }
}
