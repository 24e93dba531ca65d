//! What prompts say stays with engines and clients: no store, bus or log has it.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use bus::{Partition, Start};
use contracts::topics;
use futures::StreamExt as _;
use serde_json::{Value, json};
use service_kit::{BusSettings, OpenBus};
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::alone::Deployment;
use crate::fleet::{Engine, Up};
use crate::http_client::{Answer, Client};
use crate::process::{PATIENCE, POLL};

/// A text that nothing but a prompt has.
const TEXT: &str = "quokkas whisper about zymurgy";
/// Which is no secret, and has to be found where bindings are kept.
const CONVERSATION: &str = "conversation-that-is-kept";
/// A prompt whose body is longer than the longest message of NATS.
const LONG: u32 = 200_000;
const MAX_MESSAGE: usize = 1 << 20;

/// Token ids that are nothing else by chance.
fn tokens(count: u32) -> Vec<u32> {
    (0..count).map(|at| 0x00a1_b2c3 + 257 * at).collect()
}

/// Two neighbouring token ids as they might be written, and the text.
fn needles() -> Vec<(String, Vec<u8>)> {
    let tokens = tokens(LONG);
    let mut needles = vec![
        ("the text".to_owned(), TEXT.into()),
        ("a part of the text".to_owned(), "zymurgy".into()),
        (
            "the text in hexadecimal".to_owned(),
            hexadecimal(TEXT.as_bytes()).into(),
        ),
    ];
    for at in [0, 100, tokens.len() - 2] {
        let pair = [tokens[at], tokens[at + 1]];
        let [one, other] = pair;
        let all = |write: fn(u32) -> Vec<u8>| pair.map(write).concat();
        let forms = [
            ("u32, little endian", all(|it| it.to_le_bytes().into())),
            ("u32, big endian", all(|it| it.to_be_bytes().into())),
            (
                "u64, little endian",
                all(|it| u64::from(it).to_le_bytes().into()),
            ),
            (
                "u64, big endian",
                all(|it| u64::from(it).to_be_bytes().into()),
            ),
            ("varints", all(varint)),
            (
                "msgpack",
                all(|it| [&[0xce][..], &it.to_be_bytes()].concat()),
            ),
            ("JSON", format!("{one},{other}").into()),
            ("text", format!("{one}, {other}").into()),
        ];
        let forms = forms.into_iter();
        needles.extend(forms.map(|(form, bytes)| (format!("tokens {pair:?} as {form}"), bytes)));
    }
    needles
}

fn varint(mut value: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    while 0x80 <= value {
        bytes.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    bytes.push(value.to_le_bytes()[0]);
    bytes
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|it| format!("{it:02x}")).collect()
}

/// Every file under `folder`, with its bytes.
fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => found.push((path.display().to_string(), fs::read(&path).unwrap())),
        }
    }
    found
}

fn holds(bytes: &[u8], needle: &[u8]) -> bool {
    let first = needle[0];
    let begins = bytes.iter().enumerate().filter(|it| *it.1 == first);
    begins
        .into_iter()
        .any(|(at, _)| bytes[at..].starts_with(needle))
}

fn assert_without_content(places: &[(String, Vec<u8>)]) {
    for (form, needle) in needles() {
        for (place, bytes) in places {
            assert!(!holds(bytes, &needle), "{place} has {form}");
        }
    }
}

async fn post(api: &str, path: &str, body: &Value) -> Answer {
    let headers = [("x-rankway-conversation", CONVERSATION)];
    let answer = Client::new()
        .post(&format!("{api}{path}"), &headers, body)
        .await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer
}

fn cached(answer: &Answer) -> u64 {
    let usage = &answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"];
    usage.as_u64().unwrap()
}

/// Turns by token ids, by text and with tools, until the index knows them.
async fn converse(api: &str) {
    let by_ids = json!({"model": "fake-model", "prompt": tokens(400), "max_tokens": 2});
    let chat = json!({
        "model": "fake-model",
        "messages": [
            {"role": "system", "content": format!("{TEXT} ").repeat(20)},
            {"role": "user", "content": TEXT},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "description": TEXT, "parameters": {}}}],
        "max_tokens": 2,
        "metadata": {"note": TEXT},
    });
    for (path, body) in [
        ("/v1/completions", &by_ids),
        ("/v1/chat/completions", &chat),
    ] {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let answer = post(api, path, body).await;
            let known = answer.header("x-rankway-overlap-tokens") != Some("0");
            if known && 0 < cached(&answer) {
                break;
            }
            assert!(Instant::now() < deadline, "{path}: {}", answer.text());
            sleep(POLL).await;
        }
    }
    let response = json!({"model": "fake-model", "input": TEXT, "max_output_tokens": 2});
    post(api, "/v1/responses", &response).await;
    let message = json!({
        "model": "fake-model",
        "messages": [{"role": "user", "content": TEXT}],
        "max_tokens": 2,
    });
    post(api, "/v1/messages", &message).await;
}

/// Keeps all that comes by the topics that are not kept.
async fn listen(url: &str) -> (Arc<Mutex<Vec<u8>>>, JoinSet<()>) {
    let settings = BusSettings {
        url: url.to_owned(),
        topic_bytes: 20_000_000,
        ..BusSettings::default()
    };
    let folder = TempDir::new().unwrap();
    let opened = OpenBus::open(&settings, folder.path(), "listener").await;
    let bus = opened.unwrap().bus();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = JoinSet::new();
    for spec in [&topics::LOAD, &topics::RESERVATIONS] {
        for index in 0..spec.partitions {
            let at = Partition {
                topic: spec.name,
                index,
            };
            let mut records = bus.read(&at, Start::Earliest).await.unwrap();
            let (heard, bus) = (heard.clone(), bus.clone());
            tasks.spawn(async move {
                let _open = bus;
                while let Some(Ok(delivered)) = records.next().await {
                    heard.lock().unwrap().extend(delivered.record.0);
                }
            });
        }
    }
    (heard, tasks)
}

/// <https://github.com/ai-dynamo/dynamo/issues/9734> (BC-53): a request that no bus could carry is served, and nothing
/// of what it says is on the bus or anywhere else.
#[tokio::test]
async fn nothing_stored_sent_on_the_bus_or_logged_has_token_ids_or_text() {
    // Room for the long prompt in each rank.
    let flags = ["--kv-blocks", "20000", "--max-model-len", "300000"];
    let engines = [
        Engine::start_as(&flags).await,
        Engine::start_as(&flags).await,
    ];
    let mut world = Deployment::before(engines).await;
    let services = ["ingest", "indexer", "affinity", "adapter"];
    let mut running = Vec::new();
    for service in services {
        running.push(world.service(service, service, &[]).await);
    }
    for service in &running {
        service.ready().await;
    }
    let (router, api) = world.router("router").await;
    let (heard, listening) = listen(&world.bus).await;

    converse(&api).await;
    let long = json!({"model": "fake-model", "prompt": tokens(LONG), "max_tokens": 2});
    assert!(MAX_MESSAGE < long.to_string().len());
    post(&api, "/v1/completions", &long).await;
    // Its events alone are more than one message, too.
    let deadline = Instant::now() + PATIENCE;
    while cached(&post(&api, "/v1/completions", &long).await) < u64::from(LONG) - 100 {
        assert!(Instant::now() < deadline);
        sleep(POLL).await;
    }

    drop(listening);
    let mut places: Vec<_> = Vec::new();
    for service in running.into_iter().chain([router]) {
        places.push(("a log".to_owned(), service.running.output().into_bytes()));
        assert_eq!(service.running.interrupt().await.0, Some(0));
    }
    world.stop_bus().await;
    places.extend(files(world.folder.path()));
    let kept = |part: &str, bytes: &[u8]| {
        let at = places.iter().filter(|it| it.0.contains(part));
        at.into_iter().any(|it| holds(&it.1, bytes))
    };
    assert!(
        kept("rankway_bindings", CONVERSATION.as_bytes()),
        "the bus was not looked at"
    );
    assert!(
        kept("rankway_kv-events", b"fake-model"),
        "the bus was not looked at"
    );
    let heard = heard.lock().unwrap().clone();
    assert!(!heard.is_empty());
    places.push(("an ephemeral topic".to_owned(), heard));
    assert_without_content(&places);
}

#[tokio::test]
async fn nothing_in_the_folder_of_one_process_has_token_ids_or_text() {
    let data = TempDir::new().unwrap();
    let engine = Engine::start().await;
    let up = Up::start(data.path(), &[&engine]).await;
    converse(&up.api).await;
    let log = ("the log".to_owned(), up.log().into_bytes());
    assert_eq!(up.interrupt().await.0, Some(0));
    let mut places = files(data.path());
    assert!(
        places
            .iter()
            .any(|it| holds(&it.1, CONVERSATION.as_bytes()))
    );
    places.push(log);
    assert_without_content(&places);
}

#[test]
fn what_is_looked_for_is_found_where_it_is() {
    for (form, needle) in needles() {
        let around = [b"before".as_slice(), &needle, b"after"].concat();
        assert!(holds(&around, &needle), "{form}");
        assert!(
            !holds(&around[..around.len() - 6], &[&needle[..], b"x"].concat()),
            "{form}"
        );
    }
    assert_eq!(varint(300), [0xac, 0x02]);
}
