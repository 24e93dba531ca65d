//! The files of `testdata/`, found by walking it, so that none is forgotten.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// Files that hold no KV events; those that hold wire data of another kind have tests of their own.
pub(crate) const WITHOUT_EVENTS: [&str; 23] = [
    "README.md",
    "llama-cpp-real/messages-stream.txt",
    "llama-cpp-real/metrics.prom.txt",
    "llama-cpp-real/models.json",
    "llama-cpp-real/props.json",
    "llama-cpp-real/responses-stream.txt",
    "llama-cpp-real/slots-busy.json",
    "llama-cpp-real/slots-idle.json",
    "sglang-real/chat-meta_info.json",
    "sglang-real/messages.json",
    "sglang-real/metrics-dp2.prom.txt",
    "sglang-real/refused-rank.json",
    "sglang-real/responses.json",
    "sglang-real/server_info-dp2.json",
    "sglang-real/v1_loads-dp2.json",
    "sglang/0.5.23/load_stat.json",
    "sglang/hash_vectors.json",
    "trtllm/http_request_examples.json",
    "trtllm/v1_block_key_hash_vectors.json",
    "vllm-real/aiperf-request-headers.jsonl",
    "vllm-real/kv_event_sources-dp2.json",
    "vllm-real/metrics-dp2.prom.txt",
    "vllm/hash_vectors.json",
];

/// One message as received, and what it means.
pub(crate) struct Captured {
    /// File and place in it.
    pub name: String,
    pub frames: Vec<Vec<u8>>,
    /// `{ts, events, data_parallel_rank | attn_dp_rank, topic?, seq?}`.
    pub decoded: Value,
}

/// A file's path below `testdata/` and its content, one JSON value a line for `.jsonl`.
pub(crate) struct File {
    pub path: String,
    pub documents: Vec<Value>,
}

pub(crate) fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

pub(crate) fn json(path: &str) -> Value {
    serde_json::from_str(&read(path)).unwrap()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata")
}

/// Every file that holds events, in order of path.
pub(crate) fn files() -> Vec<File> {
    let mut paths = Vec::new();
    let mut folders = vec![root()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let path = path.strip_prefix(root()).unwrap();
                paths.push(path.to_str().unwrap().to_owned());
            }
        }
    }
    paths.sort();
    paths
        .into_iter()
        .filter(|path| !WITHOUT_EVENTS.contains(&path.as_str()))
        .map(|path| {
            let text = read(&path);
            let documents = if path.ends_with(".jsonl") {
                text.lines()
                    .map(|line| serde_json::from_str(line).unwrap())
                    .collect()
            } else {
                vec![serde_json::from_str(&text).unwrap()]
            };
            File { path, documents }
        })
        .collect()
}

/// Every live message of every file that says what the message means.
pub(crate) fn captured() -> Vec<Captured> {
    let mut all = Vec::new();
    for file in files() {
        for (line, document) in file.documents.iter().enumerate() {
            let messages = match document.get("messages") {
                Some(messages) => messages.as_array().unwrap().clone(),
                None => vec![document.clone()],
            };
            for (index, message) in messages.into_iter().enumerate() {
                let (Some(frames), Some(decoded)) =
                    (message.get("frames_hex"), message.get("decoded"))
                else {
                    continue;
                };
                all.push(Captured {
                    name: format!("{}:{line}:{index}", file.path),
                    frames: unhex_all(frames),
                    decoded: decoded.clone(),
                });
            }
        }
    }
    all
}

/// Every batch payload of every file: live, replayed, and bare.
pub(crate) fn payloads() -> Vec<Vec<u8>> {
    let mut all: Vec<_> = captured()
        .into_iter()
        .map(|mut message| message.frames.pop().unwrap())
        .collect();
    for file in files() {
        for document in file.documents {
            if let Some(payload) = document.get("payload_hex") {
                all.push(unhex(payload));
            }
            for reply in replies(&document) {
                all.extend(reply.last().filter(|it| !it.is_empty()).cloned());
            }
        }
    }
    all.sort();
    all.dedup();
    all
}

/// The answers of a replay file; none in another file.
pub(crate) fn replies(document: &Value) -> Vec<Vec<Vec<u8>>> {
    let replies = document.get("replies_frames_hex").and_then(Value::as_array);
    replies.into_iter().flatten().map(unhex_all).collect()
}

pub(crate) fn unhex_all(texts: &Value) -> Vec<Vec<u8>> {
    texts.as_array().unwrap().iter().map(unhex).collect()
}

pub(crate) fn unhex(text: &Value) -> Vec<u8> {
    let digits = text.as_str().unwrap().as_bytes();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}
