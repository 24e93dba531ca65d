//! Every mistake is answered by one line that says what to do: exit code 2 where the command has to change,
//! 1 where something else has to.

use std::fs;
use std::net::TcpListener;

use tempfile::TempDir;

use crate::fleet::{Engine, Up};
use crate::process::{Ended, free_ports, run};

const WRONG_USE: i32 = 2;
const FAILED: i32 = 1;
/// Whatever is logged besides errors is not the answer.
const QUIET: (&str, &str) = ("RANKWAY_LOG", "error");
const POLICIES: &[&str] = &[
    "round_robin",
    "random",
    "target_round_robin",
    "power_of_two",
    "kv",
];

/// One mistake. Words are split at spaces.
struct Mistake<'a> {
    command: &'a str,
    code: i32,
    says: &'a [&'a str],
}

const fn wrong<'a>(command: &'a str, says: &'a [&'a str]) -> Mistake<'a> {
    Mistake {
        command,
        code: WRONG_USE,
        says,
    }
}

const fn fails<'a>(command: &'a str, says: &'a [&'a str]) -> Mistake<'a> {
    Mistake {
        command,
        code: FAILED,
        says,
    }
}

impl Mistake<'_> {
    async fn check(&self, variables: &[(&str, &str)]) {
        let args: Vec<&str> = self.command.split_whitespace().collect();
        let ended = run(&args, &[variables, &[QUIET]].concat()).await;
        self.check_answer(&ended, variables);
    }

    fn check_answer(&self, ended: &Ended, variables: &[(&str, &str)]) {
        let what = format!("{variables:?} {}:\n{}", self.command, ended.stderr);
        assert_eq!(ended.code, Some(self.code), "{what}");
        let lines: Vec<&str> = ended.stderr.lines().collect();
        // The parser of flags adds its usage below.
        let parser = ended.stderr.starts_with("error: ");
        assert!(parser || lines.len() == 1, "more than a line: {what}");
        assert!(parser || lines[0].starts_with("rankway: "), "{what}");
        for part in self.says {
            assert!(lines[0].contains(part), "no {part:?}: {what}");
        }
        assert!(!lines[0].contains(".rs:"), "a place in the code: {what}");
    }
}

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
        wrong("up --listen nowhere", &["'nowhere'", "--listen"]),
        wrong(
            "up --admin-listen nowhere",
            &["'nowhere'", "--admin-listen"],
        ),
        wrong(
            "up --engine-wait-seconds 0",
            &["--engine-wait-seconds", "1..="],
        ),
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
            &["two workers are named a:1", "id"],
        ),
        wrong(
            "up --worker-urls http://a:1 --admin-listen 0.0.0.0:0",
            &["loopback", "admin.token", "RANKWAY_ADMIN_TOKEN"],
        ),
        wrong("up --admin-token=", &["--admin-token"]),
        wrong("demo --conversations 0", &["--conversations", "1..=512"]),
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
    ];
    for mistake in table {
        mistake.check(&[]).await;
    }
}

#[tokio::test]
async fn engines_that_cannot_be() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap();
    let base = free_ports(8);
    let overlap = format!("--kv-events-port {base} --replay-port {}", base + 2);
    let _held = TcpListener::bind(taken);
    let engine = |flags: &str| format!("fake-engine --listen 127.0.0.1:0 {flags}");
    let table = [
        (WRONG_USE, engine("--dp 0"), &["--dp", "1..=256"][..]),
        (WRONG_USE, engine("--dp 4294967295"), &["--dp", "1..=256"]),
        (
            WRONG_USE,
            engine("--block-size 0"),
            &["--block-size", "1..="],
        ),
        (WRONG_USE, engine("--kv-blocks 0"), &["--kv-blocks", "1..="]),
        (
            WRONG_USE,
            engine("--kv-blocks 4294967295"),
            &["--kv-blocks", "1..="],
        ),
        (
            WRONG_USE,
            engine("--dp 256 --kv-blocks 1000000"),
            &["lower --kv-blocks"],
        ),
        (
            WRONG_USE,
            engine(&overlap),
            &["replay_port", "further apart"],
        ),
        (
            WRONG_USE,
            engine("--kv-events-port 65534"),
            &["kv_events_port", "lower"],
        ),
        (
            WRONG_USE,
            engine("--kv-events-port 70000"),
            &["--kv-events-port", "65535"],
        ),
        (WRONG_USE, engine("--speed-up 0"), &["speed_up", "between"]),
        (
            WRONG_USE,
            engine("--speed-up nan"),
            &["speed_up", "between"],
        ),
        (
            WRONG_USE,
            engine("--prefill-rate 0"),
            &["--prefill-rate", "1..="],
        ),
        (
            FAILED,
            engine(&format!("--kv-events-port {}", taken.port())),
            &["another kv_events_port"],
        ),
        (
            FAILED,
            format!("fake-engine --listen {taken}"),
            &["another listen address", "in use"],
        ),
    ];
    for (code, command, says) in &table {
        let mistake = Mistake {
            command,
            code: *code,
            says,
        };
        mistake.check(&[]).await;
    }
}

#[tokio::test]
async fn settings_files_that_cannot_be_used() {
    let folder = TempDir::new().unwrap();
    let url = "worker_urls = [\"http://a:1\"]\n";
    let worker = "[[workers]]\nurl = \"http://a:1\"\n";
    let table: [(&str, &[&str]); 14] = [
        ("worker_urls = [", &["TOML parse error at line 1"]),
        (
            "worker_url = []",
            &["worker_url", "unknown field", "worker_urls"],
        ),
        (
            &format!("{url}[router]\npolcy = \"kv\""),
            &["router.polcy", "unknown field", "policy"],
        ),
        (
            &format!("{url}[router]\npolicy = \"best\""),
            &[&["router.policy"], POLICIES].concat(),
        ),
        (
            &format!("{url}[router]\naffinity = \"soft\""),
            &["router.affinity", "choose hard or off"],
        ),
        (
            &format!("{url}[router]\nlisten = \"x\""),
            &["router.listen"],
        ),
        (
            &format!("{url}[router]\nmax_body = \"x\""),
            &["router.max_body", "invalid type"],
        ),
        (
            &format!("engine_wait_seconds = 0\n{url}"),
            &["engine_wait_seconds", "between 1 and"],
        ),
        (&format!("{url}[admin]\ntoken = \"\""), &["admin.token"]),
        (
            &format!("{url}[admin]\nlisten = \"0.0.0.0:1\""),
            &["admin.listen", "admin.token"],
        ),
        (
            "worker_urls = [\"https://a:1\"]",
            &["worker_urls", "http://host:port"],
        ),
        (
            &format!("{worker}rank = 3"),
            &["workers.0.rank", "unknown field", "start_rank"],
        ),
        (
            &format!("{worker}id = \"x\"\n{worker}id = \"x\""),
            &["two workers are named x", "`id`"],
        ),
        (
            "[[workers]]\nid = \"x\"",
            &["workers.0", "missing field `url`"],
        ),
    ];
    let path = folder.path().join("rankway.toml");
    let path_text = path.to_str().unwrap();
    let command = format!("config check --config {path_text}");
    for (text, says) in table {
        fs::write(&path, text).unwrap();
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
    let table: [(&str, &str, &[&str]); 8] = [
        ("RANKWAY_POLICY", "best", POLICIES),
        ("RANKWAY_ROUTER__POLICY", "best", POLICIES),
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
        ("RANKWAY_LISTEN", "x", &["--listen"]),
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
async fn traces_that_cannot_be_replayed() {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| format!("{}/{name}", folder.path().to_str().unwrap());
    let file = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).unwrap();
    file("garbage", b"garbage\n");
    file("binary", b"\xff\xfe\x00\n");
    file("empty", b"");
    let table: [(String, &[&str]); 10] = [
        (path("missing"), &["missing", "No such file", "`sample`"]),
        (path("garbage"), &["garbage", "line 1", "replay --help"]),
        (path("binary"), &["binary", "line 1"]),
        (path("empty"), &["empty", "no requests"]),
        (path(""), &["Is a directory"]),
        ("sample --kv-blocks 0".into(), &["--kv-blocks", "1..="]),
        ("sample --block-size 0".into(), &["--block-size", "1..="]),
        (
            "sample --prefill-rate 0".into(),
            &["--prefill-rate", "between"],
        ),
        ("sample --limit 0".into(), &["--limit"]),
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
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let table = [
        (format!("explain last --admin-url {nowhere}"), &advice[..]),
        (format!("index verify --admin-url {nowhere}"), &advice),
        (
            format!("{up} --worker-urls {nowhere} --data-dir {data}/a"),
            &["no engine answered within 1s", nowhere.as_str(), "start it"],
        ),
        (
            format!("{up} --worker-urls {nowhere} --data-dir {data}/file"),
            &["--data-dir", "Not a directory"],
        ),
        (
            format!("{up} --worker-urls {nowhere} --data-dir /proc/rankway"),
            &["--data-dir", "/proc/rankway"],
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
    ];
    for (command, says) in &table {
        fails(command, says).check(&[]).await;
    }
}
