//! Conversations that go on whatever happens, at all routers in turn, as behind a balancer: what breaks off at one
//! before its first byte is sent to the next.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::http_client::{Answer, Client};
use crate::process::{PATIENCE, POLL};

/// Conversations side by side.
const CONVERSATIONS: u32 = 12;
/// Between a turn and the next of its conversation.
const PAUSE: Duration = Duration::from_millis(40);
/// Tokens that each turn adds.
const TURN_TOKENS: u32 = 64;
/// Turns after which a prompt begins anew.
const MAX_TURNS: u32 = 20;
/// Routers asked for one turn.
const ATTEMPTS: u32 = 6;

/// What has been seen since the last look.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) served: u32,
    pub(crate) failures: Vec<String>,
    pub(crate) degraded: BTreeMap<String, u32>,
    /// Where the turns of each conversation ran.
    pub(crate) targets: BTreeMap<u32, BTreeSet<String>>,
    /// Where those were last served of which somebody wrote down that they are bound there.
    pub(crate) bound: BTreeMap<u32, String>,
    pub(crate) longest: Duration,
    /// Turns that another router was asked for.
    pub(crate) sent_again: u32,
}

pub(crate) struct Load {
    seen: Arc<Mutex<Seen>>,
    apis: Vec<String>,
    tasks: JoinSet<()>,
}

impl Load {
    pub(crate) fn start(apis: &[String]) -> Self {
        let mut load = Self {
            seen: Arc::default(),
            apis: apis.to_vec(),
            tasks: JoinSet::new(),
        };
        (0..CONVERSATIONS).for_each(|it| load.converse(it));
        load
    }

    /// One more conversation.
    pub(crate) fn converse(&mut self, number: u32) {
        let (apis, seen) = (self.apis.clone(), self.seen.clone());
        self.tasks.spawn(async move {
            let client = Client::new();
            for turn in 0.. {
                let began = Instant::now();
                let (answer, asked) = take_turn(&client, &apis, number, turn).await;
                {
                    let mut seen = seen.lock().unwrap();
                    seen.sent_again += asked - 1;
                    seen.longest = seen.longest.max(began.elapsed());
                    seen.note(number, answer);
                }
                sleep(PAUSE).await;
            }
        });
    }

    /// What has been seen since it was last taken.
    pub(crate) fn take(&self) -> Seen {
        std::mem::take(&mut self.seen.lock().unwrap())
    }

    pub(crate) fn look(&self) -> Seen {
        self.seen.lock().unwrap().clone()
    }

    /// Waits until something has been seen.
    pub(crate) async fn until(&self, so: impl Fn(&Seen) -> bool) -> Result<(), Seen> {
        let seen = async {
            while !so(&self.look()) {
                sleep(POLL).await;
            }
        };
        let seen = timeout(PATIENCE, seen).await;
        seen.map_err(|_| self.look())
    }

    /// Every conversation is bound, however late a busy machine is.
    pub(crate) async fn bound(&self) -> Result<(), Seen> {
        let conversations = self.tasks.len();
        self.until(|it| it.bound.len() == conversations).await
    }

    /// Every conversation has had so many turns.
    pub(crate) async fn turns(&self, turns: u32) -> Result<(), Seen> {
        let conversations = u32::try_from(self.tasks.len()).unwrap();
        self.until(|it| turns * conversations <= it.served).await
    }
}

async fn take_turn(
    client: &Client,
    apis: &[String],
    number: u32,
    turn: u32,
) -> (Option<Answer>, u32) {
    let first = 100_000 + 10_000 * number;
    let prompt: Vec<u32> = (first..first + (turn % MAX_TURNS + 1) * TURN_TOKENS).collect();
    let body = json!({"model": "fake-model", "prompt": prompt, "max_tokens": 4});
    let conversation = format!("conversation-{number}");
    let headers = [("x-rankway-conversation", conversation.as_str())];
    for attempt in 1..=ATTEMPTS {
        let api = &apis[((number + turn + attempt) % 2) as usize];
        let url = format!("{api}/v1/completions");
        if let Some(answer) = client.try_post(&url, &headers, &body).await {
            return (Some(answer), attempt);
        }
        sleep(POLL).await;
    }
    (None, ATTEMPTS)
}

impl Seen {
    /// Whether nobody is missing: a busy machine is late with an answer now and then.
    pub(crate) fn is_whole(&self) -> bool {
        self.degraded.values().all(|it| 2 * it < self.served)
    }

    fn note(&mut self, number: u32, answer: Option<Answer>) {
        let Some(answer) = answer.filter(|it| {
            it.status == 200 || {
                self.failures.push(format!("{}: {}", it.status, it.text()));
                false
            }
        }) else {
            self.failures.push(format!("conversation {number}"));
            return;
        };
        self.served += 1;
        let missing = answer.header("x-rankway-degraded").unwrap_or_default();
        for missing in missing.split(", ").filter(|it| !it.is_empty()) {
            *self.degraded.entry(missing.to_owned()).or_default() += 1;
        }
        let header = |name| answer.header(name).unwrap_or("?").to_owned();
        let target = format!(
            "{}/{}",
            header("x-rankway-worker"),
            header("x-rankway-dp-rank")
        );
        if !missing.contains("no_affinity") {
            self.bound.insert(number, target.clone());
        }
        self.targets.entry(number).or_default().insert(target);
    }
}
