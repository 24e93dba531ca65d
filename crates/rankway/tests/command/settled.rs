//! What holds once everything that was published has been read.

use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::fleet::{RANKS, Up};
use crate::http_client::Client;
use crate::process::{PATIENCE, POLL};

/// Waits until `rankway index verify` finds the index equal to what all `engines` engines hold.
pub(crate) async fn index_equals(up: &Up, engines: usize) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let verified = up.ask(&["index", "verify", "--json"]).await;
        if verified.code == Some(0) {
            let last = verified.stdout.lines().last().unwrap();
            let summary: Value = serde_json::from_str(last).unwrap();
            assert_eq!(summary["ok"], true);
            assert_eq!(summary["ranks"], engines * usize::from(RANKS));
            return;
        }
        assert!(
            Instant::now() < deadline,
            "{}{}\n{}",
            verified.stdout,
            verified.stderr,
            up.log()
        );
        sleep(POLL).await;
    }
}

/// What became of the messages of engines that an `up` has read since its start.
#[derive(Debug)]
pub(crate) struct Read {
    /// Those that went into the log.
    pub(crate) published: u64,
    /// Those that did not, as when they had been read before.
    pub(crate) others: u64,
}

impl Read {
    pub(crate) async fn by(up: &Up) -> Self {
        let metrics = Client::new().get(&format!("{}/metrics", up.admin)).await;
        let metrics = metrics.text();
        let lines = metrics
            .lines()
            .filter(|it| it.starts_with("rankway_events_total{"));
        let (published, others): (Vec<&str>, Vec<&str>) =
            lines.partition(|it| it.contains("result=\"published\""));
        Self {
            published: sum(&published),
            others: sum(&others),
        }
    }
}

fn sum(samples: &[&str]) -> u64 {
    let value = |it: &&str| it.rsplit(' ').next().unwrap().parse::<u64>().unwrap();
    samples.iter().map(value).sum()
}
