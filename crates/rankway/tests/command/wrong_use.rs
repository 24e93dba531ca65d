//! Commands that cannot be carried out.

use std::fs;
use std::net::TcpListener;

use tempfile::TempDir;

use crate::fleet::{Engine, Up};
use crate::mistake::{FAILED, POLICIES, fails, wrong};
use crate::process::{free_ports, run};

#[tokio::test]
async fn wrong_flags_and_words() {
    let table = [
        wrong("bogus", &["unrecognized subcommand 'bogus'"]),
        wrong("up --bogus", &["unexpected argument '--bogus'"]),
        wrong("up", &["--worker-urls", "[[workers]]"]),
        wrong("up --policy best", POLICIES),
        wrong("demo --policy best", POLICIES),
        wrong("demo --policy=", POLICIES),
        wrong("replay sample --policy kv,best", POLICIES),
        wrong(
            "up --worker-urls https://a:1",
            &["--worker-urls", "TLS", "http://host:port"],
        ),
        wrong("up --worker-urls a", &["--worker-urls", "http://host:port"]),
        wrong(
            "up --worker-urls http://a:99999",
            &["--worker-urls", "http://host:port"],
        ),
        wrong(
            "up --worker-urls http://a:1/v1",
            &["--worker-urls", "http://a:1"],
        ),
        wrong(
            "up --worker-urls http://a:1,ftp://b:1",
            &["ftp://b:1", "http://host:port"],
        ),
        wrong(
            "up --worker-urls http://a:1,http://a:1",
            &["http://a:1 is given twice", "--worker-urls"],
        ),
        wrong(
            "up --worker-urls http://a:1 --admin-listen 0.0.0.0:0",
            &["loopback", "admin.token", "RANKWAY_ADMIN_TOKEN"],
        ),
        wrong("up --admin-token=", &["--admin-token"]),
        wrong(
            "router --bus-url nats://127.0.0.1:1 --grpc-listen 127.0.0.1:0",
            &["--grpc-listen", "--listen"],
        ),
        wrong("explain a", &["last", "32 hexadecimal digits"]),
        wrong(
            "explain last --admin-url https://a:1",
            &["--admin-url", "http://host:port"],
        ),
        wrong(
            "explain last --admin-url nonsense",
            &["--admin-url", "http://host:port"],
        ),
        wrong("index verify --admin-url=", &["--admin-url"]),
        wrong("drain w1/x", &["WORKER/RANK", "w1/0"]),
        wrong("drain", &["required arguments"]),
        wrong("drain w1 --move --undo", &["--move", "--undo"]),
        wrong("move c", &["required arguments"]),
        wrong(
            "move c --to w1",
            &["--to", "write WORKER/RANK, such as w1/0"],
        ),
        wrong("move c --to w1/x", &["write WORKER/RANK, such as w1/0"]),
        wrong("bindings ls --state open", &["--state", "'open'"]),
        wrong("bindings ls --limit 0", &["--limit", "1 or more"]),
    ];
    for mistake in table {
        mistake.check(&[]).await;
    }
}

#[tokio::test]
async fn wrong_numbers_and_addresses() {
    let table = [
        wrong(
            "up --listen nowhere",
            &["'nowhere'", "--listen", "write IP:port"],
        ),
        wrong(
            "fake-engine --listen 8080",
            &["--listen", "write IP:port, such as 127.0.0.1:8080"],
        ),
        wrong(
            "up --admin-listen nowhere",
            &["'nowhere'", "--admin-listen"],
        ),
        wrong(
            "up --engine-wait-seconds 0",
            &["--engine-wait-seconds", "between 1 and"],
        ),
        wrong(
            "demo --conversations 0",
            &["--conversations", "between 1 and 512"],
        ),
        wrong(
            "demo --conversations -1",
            &["--conversations", "between 1 and 512"],
        ),
        wrong(
            "demo --seed x",
            &["--seed", "write a whole number, 0 or more"],
        ),
    ];
    for mistake in table {
        mistake.check(&[]).await;
    }
}

/// Flags of a fake engine, and what is said of them.
const IMPOSSIBLE_ENGINES: &[(&str, &[&str])] = &[
    ("--dp 0", &["--dp", "between 1 and 256"]),
    ("--dp 4294967295", &["--dp", "between 1 and 256"]),
    ("--block-size 0", &["--block-size", "between 1 and"]),
    ("--kv-blocks 0", &["--kv-blocks", "between 1 and"]),
    ("--kv-blocks 4294967295", &["--kv-blocks", "between 1 and"]),
    ("--dp 256 --kv-blocks 1000000", &["lower --kv-blocks"]),
    (
        "--kv-events-port 6000 --replay-port 6002",
        &["replay_port", "further apart"],
    ),
    ("--kv-events-port 65534", &["kv_events_port", "lower"]),
    ("--kv-events-port 70000", &["--kv-events-port", "65535"]),
    ("--speed-up 0", &["--speed-up", "write a number between"]),
    ("--speed-up nan", &["--speed-up", "write a number between"]),
    ("--prefill-rate 0", &["--prefill-rate", "between 1 and"]),
    ("--model=", &["model", "empty"]),
    (
        "--engine trtllm",
        &["--engine", "write vllm, sglang or tensorrt-llm"],
    ),
    ("--engine-version latest", &["engine_version", "latest"]),
    (
        "--engine sglang --start-rank 4",
        &["start_rank 4 is for vllm"],
    ),
    ("--start-rank 4096", &["--start-rank", "between 0 and 4095"]),
    ("--misbehave rudely", &["--misbehave", "ignore-rank"]),
    (
        "--misbehave ignore-rank=tokenize",
        &["--misbehave", "no endpoint \"tokenize\"", "completions"],
    ),
    (
        "--misbehave restart-after=0",
        &["--misbehave", "restart-after needs a whole number"],
    ),
    (
        "--misbehave local-ranks",
        &["local-ranks needs a start_rank"],
    ),
];

#[tokio::test]
async fn engines_that_cannot_be() {
    for (flags, says) in IMPOSSIBLE_ENGINES {
        let command = format!("fake-engine --listen 127.0.0.1:0 {flags}");
        wrong(&command, says).check(&[]).await;
    }
}

#[tokio::test]
async fn traces_that_cannot_be_replayed() {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| format!("{}/{name}", folder.path().to_str().unwrap());
    let file = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).unwrap();
    file("garbage", b"garbage\n");
    file("binary", b"\xff\xfe\x00\n");
    file("empty", b"");
    file("tree", br#"{"block_size":64,"requests":[{"type":"z"}]}"#);
    let table: [(String, &[&str]); 11] = [
        (path("missing"), &["missing", "No such file", "`sample`"]),
        (path("garbage"), &["garbage", "line 1", "replay --help"]),
        (path("binary"), &["binary", "line 1"]),
        (path("empty"), &["empty", "no requests"]),
        (path("tree"), &["tree", "line 1", "`z`"]),
        (path(""), &["Is a directory"]),
        (
            "sample --kv-blocks 0".into(),
            &["--kv-blocks", "between 1 and"],
        ),
        (
            "sample --block-size 0".into(),
            &["--block-size", "between 1 and"],
        ),
        (
            "sample --prefill-rate 0".into(),
            &["--prefill-rate", "between"],
        ),
        ("sample --limit 0".into(), &["--limit", "1 or more"]),
        (
            "sample --workers 256 --ranks 64 --kv-blocks 1000000".into(),
            &["lower --kv-blocks"],
        ),
    ];
    for (args, says) in table {
        wrong(&format!("replay {args}"), says).check(&[]).await;
    }
    let small = run(
        &["replay", "sample", "--limit", "5", "--kv-blocks", "1"],
        &[],
    )
    .await;
    assert_eq!(small.code, Some(FAILED));
    let last = small.stderr.lines().last().unwrap();
    assert!(last.contains("raise --kv-blocks"), "{last}");
}

#[tokio::test]
async fn nothing_there() {
    let folder = TempDir::new().unwrap();
    let data = folder.path().to_str().unwrap();
    let nowhere = format!("http://127.0.0.1:{}", free_ports(1));
    let advice = ["start `rankway up`", "--admin-url", nowhere.as_str()];
    let up = "up --listen 127.0.0.1:0 --admin-listen 127.0.0.1:0 --engine-wait-seconds 1";
    let table = [
        (format!("explain last --admin-url {nowhere}"), &advice[..]),
        (format!("index verify --admin-url {nowhere}"), &advice),
        (
            format!("{up} --worker-urls {nowhere} --data-dir {data}/a"),
            &["no engine answered within 1s", nowhere.as_str(), "start it"],
        ),
    ];
    for (command, says) in table {
        fails(&command, says).check(&[]).await;
    }
}

#[tokio::test]
async fn what_is_in_use() {
    let engine = Engine::start().await;
    let folder = TempDir::new().unwrap();
    let up = Up::start(folder.path(), &[&engine]).await;
    let elsewhere = TempDir::new().unwrap();
    let address = |url: &str| url.strip_prefix("http://").unwrap().to_owned();
    let another = |api: &str, admin: &str, data: &TempDir| {
        let data = data.path().to_str().unwrap();
        let url = &engine.url;
        format!("up --worker-urls {url} --listen {api} --admin-listen {admin} --data-dir {data}")
    };
    let free = "127.0.0.1:0";
    let taken = TcpListener::bind(free).unwrap();
    let taken = taken.local_addr().unwrap();
    let table = [
        (
            another(&address(&up.api), free, &elsewhere),
            ["router.listen", "in use"],
        ),
        (
            another(free, &address(&up.admin), &elsewhere),
            ["admin.listen", "in use"],
        ),
        (
            another(free, free, &folder),
            ["--data-dir", "in use by another process"],
        ),
        (
            format!("fake-engine --listen {taken}"),
            ["another listen address", "in use"],
        ),
        (
            format!(
                "fake-engine --listen {free} --kv-events-port {}",
                taken.port()
            ),
            ["another kv_events_port", "in use"],
        ),
    ];
    for (command, says) in &table {
        fails(command, says).check(&[]).await;
    }
}
