//! Compiles `proto/` in pure Rust, so that no `protoc` is needed on the machine.

use std::error::Error;
use std::path::Path;

use prost::Message as _;

const PROTO: &str = "../../proto";
/// Messages that have a form in JSON too.
const IN_JSON: [&str; 16] = [
    "Decision",
    "Levels",
    "Digest",
    "Place",
    "Asked",
    "Hint",
    "Stuck",
    "Snapshot",
    "Candidate",
    "Gauge",
    "Tally",
    "Choice",
    "Score",
    "Term",
    "Target",
    "Hint.hint",
];
/// Fields of these that JSON has in another way: enums by their names, and a number that may be none.
const OTHERWISE_IN_JSON: [(&str, &str); 4] = [
    ("Decision.endpoint", "endpoint"),
    ("Candidate.state", "target_state"),
    ("Candidate.barred", "barred"),
    ("Score.weighed", "any_number"),
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={PROTO}");
    let files = [
        "rankway/v1/kv.proto",
        "rankway/v1/fleet.proto",
        "rankway/v1/affinity.proto",
        "rankway/v1/index.proto",
        "rankway/v1/feed.proto",
        "rankway/v1/dispatch.proto",
        "rankway/v1/status.proto",
        "rankway/v1/records.proto",
        "rankway/store/v1/index.proto",
    ];
    let descriptors = protox::compile(files, [PROTO])?;
    let out = std::env::var_os("OUT_DIR").ok_or("cargo names no folder for what is generated")?;
    std::fs::write(
        Path::new(&out).join("descriptors.bin"),
        descriptors.encode_to_vec(),
    )?;
    let mut builder = tonic_prost_build::configure().bytes(".");
    for message in IN_JSON {
        let path = format!("rankway.v1.{message}");
        let is_oneof = message.contains('.');
        let attribute = match is_oneof {
            true => "#[serde(rename_all = \"snake_case\")]",
            false => "#[serde(default)]",
        };
        builder = builder
            .type_attribute(&path, "#[derive(serde::Serialize, serde::Deserialize)]")
            .type_attribute(&path, attribute);
    }
    for (field, name) in OTHERWISE_IN_JSON {
        let attribute = format!("#[serde(with = \"crate::convert::json::{name}\")]");
        builder = builder.field_attribute(format!("rankway.v1.{field}"), attribute);
    }
    builder.compile_fds(descriptors)?;
    Ok(())
}
