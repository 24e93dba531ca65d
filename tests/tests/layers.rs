//! Crates depend only downward. The table is the architecture; change it on purpose.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::Value;

/// Each crate and its layer: it may depend on crates of lower layers only.
const LAYERS: &[(u8, &[&str])] = &[
    (0, &["domain", "bus"]),
    (
        1,
        &[
            // Decisions: no async, no I/O, no clock, no serde.
            "event-feed",
            "prefix-index",
            "placement",
            "affinity",
            "accounting",
            "engine-model",
            // Formats.
            "engine-wire",
            "bus-local",
            "bus-nats",
            "bus-kafka",
            "bus-conformance",
        ],
    ),
    (2, &["routing", "contracts"]),
    (3, &["service-kit"]),
    (
        4,
        &[
            "event-ingest",
            "indexer",
            "affinity-store",
            "router-api",
            "worker-adapter",
            "engine-sim",
            "fleet-sim",
            "console",
        ],
    ),
    (5, &["rankway"]),
    (6, &["scenarios"]),
];

/// Crates that decide: they may not even reach a runtime, a clock or a serialiser through a dependency.
const PURE: &[&str] = &[
    "domain",
    "event-feed",
    "prefix-index",
    "placement",
    "affinity",
    "accounting",
    "engine-model",
    "routing",
];
/// What a pure crate may depend on besides pure crates.
const PURE_MAY_USE: &[&str] = &["thiserror", "xxhash-rust"];

fn metadata() -> Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version=1", "--offline"])
        .output()
        .expect("cargo runs");
    serde_json::from_slice(&output.stdout).expect("cargo prints json")
}

/// Each crate of the workspace and what it depends on outside its tests.
fn dependencies() -> BTreeMap<String, Vec<String>> {
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let metadata = metadata();
    let packages = metadata["packages"].as_array().expect("packages");
    let of = |package: &Value| {
        let all = package["dependencies"].as_array().expect("dependencies");
        let kept = all.iter().filter(|it| it["kind"].is_null());
        (
            text(&package["name"]),
            kept.map(|it| text(&it["name"])).collect(),
        )
    };
    packages.iter().map(of).collect()
}

fn layer(name: &str) -> Option<u8> {
    let of = LAYERS.iter().find(|(_, crates)| crates.contains(&name));
    of.map(|(layer, _)| *layer)
}

#[test]
fn every_dependency_points_down() {
    let mut upward = Vec::new();
    for (name, dependencies) in dependencies() {
        let own = layer(&name).unwrap_or_else(|| panic!("{name} is not in LAYERS"));
        for on in dependencies {
            if layer(&on).is_some_and(|layer| own <= layer) {
                upward.push(format!("{name} -> {on}"));
            }
        }
    }

    assert_eq!(upward, Vec::<String>::new());
}

#[test]
fn what_decides_depends_on_nothing_that_acts() {
    let mut impure = Vec::new();
    for (name, dependencies) in dependencies() {
        if !PURE.contains(&name.as_str()) {
            continue;
        }
        for on in dependencies {
            if !PURE.contains(&on.as_str()) && !PURE_MAY_USE.contains(&on.as_str()) {
                impure.push(format!("{name} -> {on}"));
            }
        }
    }

    assert_eq!(impure, Vec::<String>::new());
}

#[test]
fn every_manifest_inherits_the_workspaces_lints() {
    let metadata = metadata();
    for package in metadata["packages"].as_array().expect("packages") {
        let path = package["manifest_path"].as_str().expect("a path");
        let manifest = std::fs::read_to_string(path).expect("a manifest");

        assert!(manifest.contains("[lints]\nworkspace = true"), "{path}");
    }
}
