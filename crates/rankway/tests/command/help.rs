//! What the command says of itself.

use crate::mistake::POLICIES;
use crate::process::run;

const COMMANDS: &[&[&str]] = &[
    &["demo"],
    &["up"],
    &["ingest"],
    &["indexer"],
    &["affinity"],
    &["router"],
    &["adapter"],
    &["setup"],
    &["fake-engine"],
    &["replay"],
    &["sim"],
    &["explain"],
    &["waterfall"],
    &["shadow"],
    &["decisions", "export"],
    &["index", "verify"],
    &["bindings", "ls"],
    &["bindings", "export"],
    &["bindings", "import"],
    &["workers", "ls"],
    &["targets", "ls"],
    &["move"],
    &["drain"],
    &["config", "check"],
    &["config", "show"],
];
/// Values that have no default.
const OPEN: &[&str] = &[
    "--config",
    "--worker-urls",
    "--admin-token",
    "--limit",
    "--worker",
    "--rank",
    "--conversation",
    "--state",
    "--to",
    "--tenant",
    "--model",
    "--since",
    "--why-not",
];

/// Each option with its text in one line.
fn options(help: &str) -> Vec<String> {
    let (_, options) = help.split_once("Options:\n").unwrap();
    let mut entries: Vec<String> = Vec::new();
    for line in options.lines().take_while(|it| !it.is_empty()) {
        let text = line.trim();
        match entries.last_mut() {
            Some(entry) if !text.starts_with('-') => {
                entry.push(' ');
                entry.push_str(text);
            }
            _ => entries.push(text.to_owned()),
        }
    }
    entries
}

#[tokio::test]
async fn every_command_shows_variables_and_defaults() {
    for command in COMMANDS {
        let ended = run(&[command, &["--help"][..]].concat(), &[]).await;

        assert_eq!(ended.code, Some(0), "{command:?}");
        let with_values = options(&ended.stdout);
        for option in with_values.iter().filter(|it| it.contains('<')) {
            assert!(option.contains("[env: RANKWAY_"), "{command:?}: {option}");
            let open = OPEN.iter().any(|it| option.starts_with(it));
            assert!(
                open || option.contains("[default: "),
                "{command:?}: {option}"
            );
        }
    }
}

#[tokio::test]
async fn help_and_version_are_answers() {
    for args in [&["--help"][..], &["help"], &["--version"], &["help", "up"]] {
        let ended = run(args, &[]).await;
        assert_eq!(ended.code, Some(0), "{args:?}");
        assert!(ended.stdout.contains("rankway"), "{}", ended.stdout);
    }
}

#[tokio::test]
async fn policies_are_named_where_one_is_chosen() {
    for command in [
        &["demo"][..],
        &["up"],
        &["replay"],
        &["sim"],
        &["config", "check"],
    ] {
        let ended = run(&[command, &["--help"]].concat(), &[]).await;

        let options = options(&ended.stdout);
        let option = options.iter().find(|it| it.starts_with("--policy"));
        let option = option.unwrap();
        for policy in POLICIES {
            assert!(option.contains(policy), "{command:?}: {option}");
        }
    }
}
