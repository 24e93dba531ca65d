//! Engines that do not do what they are asked for are found out within two turns, and named with their rank.

use serde_json::json;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use crate::conversation::{Conversation, Turn};
use crate::fleet::{Engine, Up};
use crate::http_client::Client;
use crate::process::{PATIENCE, POLL};

const FAULTS: &str = "rankway_rank_faults_total";
const UNTRUSTED: &str = "rankway_rank_untrusted";
const RESTARTS: &str = "rankway_worker_restarts_total";

/// An engine that misbehaves, and Rankway before it, where clients may choose a rank.
struct Suspect {
    engine: Engine,
    up: Up,
    _data: TempDir,
}

impl Suspect {
    async fn start(flags: &[&str]) -> Self {
        Self::start_told(flags, "").await
    }

    /// `settings` are those of the engine.
    async fn start_told(flags: &[&str], settings: &str) -> Self {
        let data = TempDir::new().unwrap();
        let engine = Engine::start_as(flags).await;
        let url = &engine.url;
        let settings = format!(
            "[router]\nallow_client_target = true\n[[workers]]\nurl = \"{url}\"\n{settings}"
        );
        let up = Up::start_told(data.path(), 1, &settings).await;
        Self {
            engine,
            up,
            _data: data,
        }
    }

    async fn turns(&self, mut conversation: Conversation, turns: usize) -> Vec<Turn> {
        let mut taken = Vec::new();
        for _ in 0..turns {
            taken.push(conversation.turn(&self.up.api).await);
        }
        taken
    }

    /// Turns of a chat, whose answers name the ranks of an engine that tells them.
    async fn chat(&self, rank: Option<u32>, turns: u32) {
        let rank = rank.map(|it| it.to_string());
        let mut messages = Vec::new();
        for turn in 1..=turns {
            let content = format!("{turn} of the numbers ").repeat(40);
            messages.push(json!({"role": "user", "content": content}));
            let body = json!({"model": "fake-model", "messages": messages, "max_tokens": 2});
            let mut headers = vec![("x-rankway-conversation", "named")];
            headers.extend(rank.as_deref().map(|it| ("x-rankway-dp-rank", it)));
            let url = format!("{}/v1/chat/completions", self.up.api);
            let answer = Client::new().post(&url, &headers, &body).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
            // What was asked for on Rankway's behalf is not the client's.
            assert!(!answer.text().contains("meta_info"), "{}", answer.text());
        }
    }

    /// The samples of a metric that are not zero and of this engine.
    async fn samples(&self, metric: &str) -> Vec<String> {
        let metrics = Client::new()
            .get(&format!("{}/metrics", self.up.admin))
            .await;
        let own = format!("worker=\"{}\"", self.engine.name());
        let text = metrics.text();
        let samples = text.lines().filter(|it| {
            it.starts_with(&format!("{metric}{{")) && it.contains(&own) && !it.ends_with(" 0")
        });
        samples.map(str::to_owned).collect()
    }

    /// Waits until a counter of ranks names one of `ranks` with this cause; the rank.
    async fn counts(&self, metric: &str, cause: &str, ranks: &[u32]) -> u32 {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let samples = self.samples(metric).await;
            let found = ranks.iter().find(|rank| {
                let [cause, rank] = [format!("cause=\"{cause}\""), format!("dp_rank=\"{rank}\"")];
                let of_rank = |it: &String| it.contains(&cause) && it.contains(&rank);
                samples.iter().any(of_rank)
            });
            if let Some(rank) = found {
                return *rank;
            }
            let log = self.up.log();
            assert!(Instant::now() < deadline, "{cause}: {samples:?}\n{log}");
            sleep(POLL).await;
        }
    }

    /// Waits until a fault of one of `ranks` is counted and told by `/readyz`, which stays ready.
    async fn is_found(&self, cause: &str, ranks: &[u32]) {
        let rank = self.counts(FAULTS, cause, ranks).await;
        let named = format!("worker {}, rank {rank}: {cause}", self.engine.name());
        let deadline = Instant::now() + PATIENCE;
        loop {
            let ready = Client::new()
                .get(&format!("{}/readyz", self.up.admin))
                .await;
            assert_eq!(ready.status, 200, "{}", ready.text());
            if ready.text().contains(&named) {
                return;
            }
            let (told, log) = (ready.text(), self.up.log());
            assert!(Instant::now() < deadline, "no {named} in {told}\n{log}");
            sleep(POLL).await;
        }
    }
}

#[tokio::test]
async fn an_engine_that_ignores_ranks_is_found_and_after_two_turns_in_a_row_not_believed() {
    let suspect = Suspect::start(&["--misbehave", "ignore-rank"]).await;
    // Its own balancing takes ranks in turn: not twice the same.
    suspect.turns(Conversation::new(1), 2).await;
    suspect.is_found("ignored", &[0, 1, 2, 3]).await;

    let mut conversation = Conversation::new(2);
    let deadline = Instant::now() + PATIENCE;
    while suspect.samples(UNTRUSTED).await.is_empty() {
        assert!(Instant::now() < deadline, "{}", suspect.up.log());
        conversation.turn(&suspect.up.api).await;
    }
    let untrusted = suspect.samples(UNTRUSTED).await;
    assert_eq!(untrusted.len(), 1, "{untrusted:?}");
    assert!(untrusted[0].contains("endpoint=\"completions\""));
    let answer = conversation.attempt(&suspect.up.api).await.unwrap();
    let degraded = answer.header("x-rankway-degraded").unwrap_or_default();
    assert!(degraded.contains("rank_untrusted"), "{degraded}");
}

#[tokio::test]
async fn an_answer_that_names_another_rank_is_evidence_of_its_own() {
    let flags = ["--engine", "sglang", "--misbehave", "ignore-rank"];
    let suspect = Suspect::start(&flags).await;
    suspect.chat(None, 2).await;
    suspect.is_found("ignored", &[0, 1, 2, 3]).await;
}

#[tokio::test]
async fn only_the_endpoint_that_ignores_ranks_is_blamed() {
    let suspect = Suspect::start(&["--misbehave", "ignore-rank=chat"]).await;
    let turns = suspect.turns(Conversation::new(1).at(3), 3).await;
    let target = format!("{}/3", suspect.engine.name());
    assert!(turns.iter().all(|it| it.target == target), "{turns:?}");
    assert!(turns[1].cached > 0 && turns[2].cached > 0, "{turns:?}");
    assert_eq!(suspect.samples(FAULTS).await, [""; 0]);
}

#[tokio::test]
async fn ranks_that_a_node_counts_from_0_are_told_from_ranks_ignored() {
    let flags = ["--start-rank", "2", "--misbehave", "local-ranks"];
    let suspect = Suspect::start_told(&flags, "header_space = \"global\"\n").await;
    // 2 is a rank of its own, and on its node the name of 4.
    suspect.turns(Conversation::new(1).at(2), 2).await;
    suspect.is_found("numbering", &[2]).await;
}

#[tokio::test]
async fn a_rank_that_its_node_refuses_is_found() {
    let flags = ["--start-rank", "2", "--misbehave", "local-ranks"];
    let suspect = Suspect::start_told(&flags, "header_space = \"global\"\n").await;
    // On its node there is no 5.
    let answer = Conversation::new(1).at(5).attempt(&suspect.up.api).await;
    assert_ne!(answer.unwrap().status, 200);
    suspect.is_found("refused", &[5]).await;
}

#[tokio::test]
async fn a_node_said_to_count_from_0_does_as_it_is_asked() {
    let flags = ["--start-rank", "2", "--misbehave", "local-ranks"];
    let suspect = Suspect::start_told(&flags, "header_space = \"local\"\n").await;
    for rank in [2, 5] {
        let turns = suspect.turns(Conversation::new(rank).at(rank), 2).await;
        let target = format!("{}/{rank}", suspect.engine.name());
        assert!(turns.iter().all(|it| it.target == target), "{turns:?}");
        assert!(turns[1].cached > 0, "{turns:?}");
    }
    assert_eq!(suspect.samples(FAULTS).await, [""; 0]);
}

#[tokio::test]
async fn a_rank_that_caches_and_says_nothing_is_found() {
    let suspect = Suspect::start(&["--misbehave", "only-rank-0-publishes"]).await;
    let turns = suspect.turns(Conversation::new(1).at(2), 2).await;
    assert!(turns[1].cached > 0, "it caches all the same: {turns:?}");
    suspect.is_found("silent", &[2]).await;
    suspect.turns(Conversation::new(2).at(0), 2).await;
    let faults = suspect.samples(FAULTS).await;
    assert!(
        !faults.iter().any(|it| it.contains("dp_rank=\"0\"")),
        "{faults:?}"
    );
}

#[tokio::test]
async fn an_engine_that_begins_anew_without_a_word_is_found_and_then_believed_again() {
    let suspect = Suspect::start(&["--misbehave", "restart-after=1"]).await;
    let mut conversation = Conversation::new(1).at(1);
    conversation.turn(&suspect.up.api).await;
    let second = conversation.turn(&suspect.up.api).await;
    assert_eq!(second.cached, 0, "it has forgotten: {second:?}");
    let deadline = Instant::now() + PATIENCE;
    let mut restarts = suspect.samples(RESTARTS).await;
    while restarts.is_empty() {
        assert!(Instant::now() < deadline, "{}", suspect.up.log());
        sleep(POLL).await;
        restarts = suspect.samples(RESTARTS).await;
    }
    assert!(restarts[0].contains("dp_rank=\"1\""), "{restarts:?}");
    let third = conversation.turn(&suspect.up.api).await;
    assert!(third.cached > 0, "{third:?}");
}

#[tokio::test]
async fn a_rank_that_announces_late_is_found() {
    let suspect = Suspect::start(&["--misbehave", "publish-late=2000"]).await;
    suspect.turns(Conversation::new(1).at(1), 2).await;
    suspect.is_found("late", &[1]).await;
}

#[tokio::test]
async fn an_answer_that_names_its_rank_does_not_hide_that_it_announces_late() {
    let flags = ["--engine", "sglang", "--misbehave", "publish-late=2000"];
    let suspect = Suspect::start(&flags).await;
    suspect.chat(Some(1), 1).await;
    suspect.is_found("late", &[1]).await;
}

#[tokio::test]
async fn an_answer_that_names_its_rank_does_not_hide_that_it_announces_nothing() {
    let flags = ["--engine", "sglang", "--misbehave", "only-rank-0-publishes"];
    let suspect = Suspect::start(&flags).await;
    suspect.chat(Some(2), 2).await;
    suspect.is_found("silent", &[2]).await;
}

#[tokio::test]
async fn a_request_goes_from_the_ranks_that_its_node_refuses_to_those_it_takes() {
    let flags = ["--start-rank", "2", "--misbehave", "local-ranks"];
    let suspect = Suspect::start_told(&flags, "header_space = \"global\"\n").await;
    // On its node there are no 4 and 5.
    for number in 0..8 {
        let turns = suspect.turns(Conversation::new(number), 2).await;
        let taken = [2, 3].map(|rank| format!("{}/{rank}", suspect.engine.name()));
        let all_taken = turns.iter().all(|it| taken.contains(&it.target));
        assert!(all_taken, "{turns:?}");
    }
    suspect.is_found("refused", &[4, 5]).await;
}
