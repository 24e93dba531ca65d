//! Settings that cannot be used, from files and from the environment.

use std::fs;

use tempfile::TempDir;

use crate::mistake::{POLICIES, wrong};
use crate::process::run;

/// Settings that any engine goes with, and what is said of them.
const WITH_AN_ENGINE: &[(&str, &[&str])] = &[
    (
        "[router]\npolcy = \"kv\"",
        &["router.polcy", "unknown field", "policy"],
    ),
    ("[router]\npolicy = \"best\"", POLICIES),
    (
        "[router]\naffinity = \"firm\"",
        &["router.affinity", "choose hard, soft or off"],
    ),
    (
        "[router.affinity]\nm = \"firm\"",
        &["router.affinity", "choose hard, soft or off"],
    ),
    (
        "[router]\nconversation_order = []",
        &["router.conversation_order", "it is empty", "leave it out"],
    ),
    (
        "[router]\nconversation_order = [\"body\", \"agent\", \"body\"]",
        &["router.conversation_order", "\"body\" is there twice"],
    ),
    (
        "[router]\nrank_source = \"x\"",
        &["router.rank_source", "choose engine or router"],
    ),
    (
        "[router.rank_sources]\nm = \"x\"",
        &["router.rank_sources", "choose engine or router"],
    ),
    (
        "[router]\nlisten = \"x\"",
        &["router.listen", "write IP:port"],
    ),
    (
        "[router]\nmax_body = \"x\"",
        &["router.max_body", "found text, expected a whole number"],
    ),
    ("[affinity]\nsecret = \"\"", &["affinity.secret is empty"]),
    ("[admin]\ntoken = \"\"", &["admin.token is empty"]),
    (
        "[admin]\nlisten = \"0.0.0.0:1\"",
        &["admin.listen", "admin.token"],
    ),
    (
        "[router]\nlisten = \"127.0.0.1:1\"\n[admin]\nlisten = \"127.0.0.1:1\"",
        &["router.listen", "admin.listen", "127.0.0.1:1", "change one"],
    ),
    (
        "[[workers]]\nurl = \"http://b:1\"\ndp_size = 0",
        &["worker b:1", "dp_size = 0", "leave it out"],
    ),
    (
        "[[workers]]\nurl = \"http://b:1\"\ndp_size = 4\nkv_events = \"tcp://b:5\"\nkv_replay = \"tcp://*:8\"",
        &["kv_events", "kv_replay", "worker b:1", "overlap"],
    ),
    (
        "[[workers]]\nurl = \"a\"",
        &["workers.0.url", "http://host:port"],
    ),
    (
        "[[workers]]\nurl = \"http://a:1\"",
        &["two workers are named a:1", "`id`"],
    ),
];

/// Settings as they are, and what is said of them.
const WHOLE: &[(&str, &[&str])] = &[
    ("", &["--worker-urls", "[[workers]]"]),
    ("worker_urls = [", &["no TOML at line 1, column 16"]),
    (
        "worker_url = []",
        &["worker_url", "unknown field", "worker_urls"],
    ),
    (
        "worker_urls = [\"https://a:1\"]",
        &["worker_urls", "TLS", "http://host:port"],
    ),
    (
        "worker_urls = [\"http://a:1\"]\nengine_wait_seconds = 0",
        &["engine_wait_seconds", "between 1 and"],
    ),
    (
        "worker_urls = [\"http://a:1\"]\ndata_dir = \"\"",
        &["data_dir", "--data-dir"],
    ),
    (
        "worker_urls = [\"http://a:1\"]\n[router]\nmax_body = 0",
        &["router.max_body", "bytes"],
    ),
    (
        "worker_urls = [\"http://a:1\"]\n[router]\ndrain_seconds = 100000000",
        &["router.drain_seconds", "86400"],
    ),
    (
        "[[workers]]\nid = \"x\"",
        &["workers.0", "missing field `url`"],
    ),
    (
        "[[workers]]\nurl = \"http://a:1\"\nrank = 3",
        &["workers.0.rank", "start_rank"],
    ),
    (
        "[[workers]]\nurl = \"http://a:1\"\nengine = \"x\"",
        &["workers.0.engine", "vllm", "sglang", "llama-cpp"],
    ),
];

#[tokio::test]
async fn settings_files_that_cannot_be_used() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("rankway.toml");
    let path_text = path.to_str().unwrap();
    let command = format!("config check --config {path_text}");
    for (text, says) in WHOLE {
        fs::write(&path, text).unwrap();
        wrong(&command, says).check(&[]).await;
    }
    for (text, says) in WITH_AN_ENGINE {
        fs::write(&path, format!("worker_urls = [\"http://a:1\"]\n{text}")).unwrap();
        wrong(&command, says).check(&[]).await;
    }
    fs::remove_file(&path).unwrap();
    let up = format!("up --config {path_text}");
    wrong(&up, &[path_text, "does not exist", "--config"])
        .check(&[])
        .await;
}

#[tokio::test]
async fn variables_that_cannot_be_used() {
    let check = "config check --worker-urls http://a:1";
    let table: [(&str, &str, &[&str]); 12] = [
        ("RANKWAY_POLICY", "best", POLICIES),
        ("RANKWAY_ROUTER__POLICY", "best", POLICIES),
        ("RANKWAY_RANK_SOURCE", "x", &["--rank-source", "engine"]),
        (
            "DYN_ENGINE_CONV_AFFINITY_DP_RANK_SOURCE",
            "x",
            &["dp-rank-source", "engine"],
        ),
        (
            "RANKWAY_ROUTR__POLICY",
            "kv",
            &["routr", "unknown field", "router"],
        ),
        (
            "RANKWAY_ROUTER__MAX_BODY",
            "x",
            &["router.max_body", "RANKWAY_"],
        ),
        ("RANKWAY_LISTEN", "x", &["--listen", "write IP:port"]),
        (
            "RANKWAY_ROUTER__LISTEN",
            "localhost:8080",
            &["router.listen", "write IP:port", "RANKWAY_ROUTER__LISTEN"],
        ),
        (
            "RANKWAY_AFFINITY",
            "1",
            &["affinity", "found a number, expected a table"],
        ),
        (
            "RANKWAY_ENGINE_WAIT_SECONDS",
            "x",
            &["--engine-wait-seconds"],
        ),
        (
            "RANKWAY_CONFIG",
            "/nowhere.toml",
            &["/nowhere.toml", "does not exist"],
        ),
        ("RANKWAY_ADMIN_TOKEN", "", &["--admin-token"]),
    ];
    for (name, value, says) in table {
        wrong(check, says).check(&[(name, value)]).await;
    }
    let filter = ("RANKWAY_LOG", "a=b=c");
    let ended = run(&["up", "--worker-urls", "http://a:1"], &[filter]).await;
    wrong("up", &["log filter", "a=b=c", "info"]).check_answer(&ended, &[filter]);
}

#[tokio::test]
async fn a_data_folder_that_cannot_be_one() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let file = file.to_str().unwrap();
    let below = format!("{file}/data");
    let is_file = format!("{file} is a file");
    // Nobody can write there, root included.
    let nobodys = "/proc/rankway-data";
    for (data_dir, says) in [
        (file, is_file.as_str()),
        (&below, is_file.as_str()),
        (nobodys, "cannot be written"),
    ] {
        let command = format!("config check --worker-urls http://a:1 --data-dir {data_dir}");
        let says = [data_dir, says, "--data-dir"];
        wrong(&command, &says).check(&[]).await;
    }
}

#[tokio::test]
async fn models_have_affinity_modes_of_their_own() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("rankway.toml");
    let shows = async |settings: &str| {
        fs::write(&file, settings).unwrap();
        let path = file.to_str().unwrap();
        let shown = run(&["config", "show", "--json", "--config", path], &[]).await;
        assert_eq!(shown.code, Some(0), "{}", shown.stderr);
        let shown: serde_json::Value = serde_json::from_str(&shown.stdout).unwrap();
        shown["router"]["affinity"].clone()
    };
    let table = "[router.affinity]\ndefault = \"soft\"\n\"org/m-1.5\" = \"off\"\n";
    let both = serde_json::json!({"default": "soft", "org/m-1.5": "off"});
    assert_eq!(shows(table).await, both);
    let one = shows("[router.affinity]\nm = \"off\"\n").await;
    assert_eq!(one, serde_json::json!({"default": "hard", "m": "off"}));
    let word = shows("[router]\naffinity = \"soft\"\n").await;
    assert_eq!(word, serde_json::json!({"default": "soft"}));
    // What is shown can be used.
    let shown = run(&["config", "show", "--config", file.to_str().unwrap()], &[]).await;
    assert_eq!(shows(&shown.stdout).await, word);
}

#[tokio::test]
async fn two_variables_that_contradict_each_other() {
    let check = "config check --worker-urls http://a:1";
    let variables = |other| [("RANKWAY_POLICY", "kv"), ("RANKWAY_ROUTER__POLICY", other)];

    let says = &["RANKWAY_POLICY and RANKWAY_ROUTER__POLICY", "differ"];
    wrong(check, says).check(&variables("random")).await;
    let agreed = run(&["config", "show"], &variables("kv")).await;

    assert_eq!(agreed.code, Some(0), "{}", agreed.stderr);
}

#[tokio::test]
async fn a_secret_of_digits_is_text_and_is_not_shown() {
    let variables = [
        ("RANKWAY_AFFINITY__SECRET", "004711"),
        ("RANKWAY_ADMIN__TOKEN", "4711"),
    ];

    let ended = run(&["config", "show"], &variables).await;

    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(!ended.stdout.contains("4711"), "{}", ended.stdout);
    assert_eq!(ended.stdout.matches("***").count(), 2, "{}", ended.stdout);
}

#[tokio::test]
async fn variables_of_other_commands_are_no_mistake() {
    let variables = [
        ("RANKWAY_ADMIN_URL", "http://127.0.0.1:1"),
        ("RANKWAY_FAKE_DP", "8"),
        ("RANKWAY_DEMO_SEED", "7"),
        ("RANKWAY_WORKER_URLS", "http://a:1,http://b:1"),
        ("RANKWAY_LOG", "debug"),
    ];

    let ended = run(&["config", "show", "--json"], &variables).await;

    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stdout.contains("http://b:1"), "{}", ended.stdout);
}

#[tokio::test]
async fn the_rank_source_is_read_from_the_name_that_workers_know_too() {
    let show = ["config", "show", "--json", "--worker-urls", "http://a:1"];
    let read = async |variables: &[(&str, &str)]| {
        let shown = run(&show, variables).await;
        let shown: serde_json::Value = serde_json::from_str(&shown.stdout).unwrap();
        shown["router"]["rank_source"].clone()
    };
    let known = "DYN_ENGINE_CONV_AFFINITY_DP_RANK_SOURCE";
    assert_eq!(read(&[]).await, serde_json::Value::Null);
    assert_eq!(read(&[(known, "dynamo")]).await, "router");
    assert_eq!(read(&[(known, "engine")]).await, "engine");
    let both = [(known, "engine"), ("RANKWAY_RANK_SOURCE", "router")];
    assert_eq!(
        read(&both).await,
        "router",
        "its own name is the stronger one"
    );
}
