//! `rankway index verify` names the ranks of which the index is wrong, and no others.

use serde_json::Value;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use crate::fleet::{Engine, RANKS, Up};
use crate::process::{Ended, PATIENCE, POLL};

/// The lines of `--json` but for the last, and the last.
fn read(ended: &Ended) -> (Vec<Value>, Value) {
    let lines = ended.stdout.lines();
    let mut lines: Vec<Value> = lines.map(|it| serde_json::from_str(it).unwrap()).collect();
    let summary = lines.pop().unwrap();
    (lines, summary)
}

#[tokio::test]
async fn a_rank_of_which_the_index_is_wrong_is_named_and_no_other() {
    let data = TempDir::new().unwrap();
    let honest = Engine::start().await;
    let silent = Engine::start_as(&["--misbehave", "only-rank-0-publishes"]).await;
    let up = Up::start(data.path(), &[&honest, &silent]).await;
    for (engine, rank) in [(&honest, 1), (&silent, 0), (&silent, 2)] {
        engine.answer(rank, 1_000 * u32::from(rank)).await;
    }

    let deadline = Instant::now() + PATIENCE;
    let ended = loop {
        let ended = up.ask(&["index", "verify", "--json"]).await;
        // What has been announced is read by and by.
        if read(&ended).1["different"] == 1 {
            break ended;
        }
        assert!(Instant::now() < deadline, "{}", ended.stdout);
        sleep(POLL).await;
    };

    assert_eq!(ended.code, Some(1));
    let (ranks, summary) = read(&ended);
    assert_eq!(
        (&summary["ok"], &summary["ranks"]),
        (&false.into(), &(2 * RANKS).into())
    );
    let different: Vec<&Value> = ranks.iter().filter(|it| it["equal"] == false).collect();
    let [different] = different[..] else {
        panic!("{different:?}");
    };
    assert_eq!(different["worker"], silent.name());
    assert_eq!(different["dp_rank"], 2);
    assert_eq!(different["index_blocks"], 0);
    assert_ne!(different["engine_blocks"], 0);
    let says = "1 of 8 ranks hold blocks and have announced none";
    assert!(ended.stderr.contains(says), "{}", ended.stderr);
    let in_words = up.ask(&["index", "verify"]).await;
    let line = in_words.stdout.lines().find(|it| it.contains("DIFFERENT"));
    let rank = format!("{}/2: ", silent.name());
    assert!(line.unwrap().starts_with(&rank), "{}", in_words.stdout);
}
