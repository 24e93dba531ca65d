//! `deploy/rankway.example.toml` says every setting with its default, and nothing that is none.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::Command;

fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/rankway.example.toml")
}

/// The settings as `config show --json` prints them.
fn shown(arguments: &[&str]) -> serde_json::Value {
    let output = Command::new(env!("CARGO_BIN_EXE_rankway"))
        .args([
            "config",
            "show",
            "--json",
            "--worker-urls",
            "http://engine:1",
        ])
        .args(arguments)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn the_example_holds_every_default() {
    let path = example();

    assert_eq!(shown(&["--config", path.to_str().unwrap()]), shown(&[]));

    let text = std::fs::read_to_string(&path).unwrap();
    for (table, value) in shown(&[]).as_object().unwrap() {
        assert!(text.contains(table), "{table} is not in the example");
        for key in value.as_object().into_iter().flatten().map(|it| it.0) {
            assert!(text.contains(key), "{table}.{key} is not in the example");
        }
    }
}

#[test]
fn what_the_example_comments_out_can_be_used() {
    let text = std::fs::read_to_string(example()).unwrap();
    // Settings are commented out as `# key = value` and `# [[table]]`.
    let uncommented: Vec<&str> = text
        .lines()
        .map(|line| match line.strip_prefix("# ") {
            Some(rest) if rest.contains(" = ") || rest.starts_with('[') => rest,
            _ => line,
        })
        .collect();
    let file = tempfile::NamedTempFile::new().unwrap();
    // The list of workers comes before the tables, as TOML wants it.
    std::fs::write(file.path(), uncommented.join("\n")).unwrap();

    let settings = shown(&["--config", file.path().to_str().unwrap()]);

    assert_eq!(settings["workers"][0]["id"], "w1");
    assert_eq!(settings["admin"]["token"], "***");
}
