//! Requests on their way, while a test holds the engine.

use std::num::NonZeroU32;

use router_api::{AdmissionConfig, Config};
use serde_json::{Value, json};
use tokio::task::{AbortHandle, JoinSet};

use crate::client::Answer;
use crate::engine::{Arrival, Engine};
use crate::world::{World, config};

pub(crate) const SERVED: &str = r#"{"usage":{"prompt_tokens":9,"completion_tokens":4}}"#;

/// One request at a time on each rank.
pub(crate) fn one_each() -> AdmissionConfig {
    AdmissionConfig {
        limit_ms: 0,
        limit_requests: NonZeroU32::new(1),
        ..AdmissionConfig::default()
    }
}

pub(crate) fn admitting(admission: AdmissionConfig) -> Config {
    Config {
        admission,
        ..config()
    }
}

/// A prompt of its own for each number.
pub(crate) fn prompt(number: u32, tokens: u32) -> Value {
    let first = number * 1_000_000;
    json!({"model": "m", "prompt": (first..first + tokens).collect::<Vec<u32>>()})
}

/// The number of the prompt that has arrived.
pub(crate) fn number(arrival: &Arrival) -> u64 {
    let body: Value = serde_json::from_slice(&arrival.body).unwrap();
    body["prompt"][0].as_u64().unwrap() / 1_000_000
}

/// Requests on their way, and what was answered.
pub(crate) struct Asked<'a> {
    world: &'a World,
    pub(crate) answers: JoinSet<Answer>,
}

impl<'a> Asked<'a> {
    pub(crate) fn of(world: &'a World) -> Self {
        Self {
            world,
            answers: JoinSet::new(),
        }
    }

    pub(crate) fn send(&mut self, body: &Value, headers: &[(&str, &str)]) -> AbortHandle {
        let client = self.world.client.clone();
        let body = body.to_string();
        let owned = headers
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let owned: Vec<(String, String)> = owned.collect();
        self.answers.spawn(async move {
            let headers = owned.iter().map(|it| (it.0.as_str(), it.1.as_str()));
            let headers: Vec<(&str, &str)> = headers.collect();
            client.post("/v1/completions", &headers, &body).await
        })
    }

    /// Sends one that will wait, once it does.
    pub(crate) async fn queue(&mut self, body: &Value, headers: &[(&str, &str)]) -> AbortHandle {
        let before = self.world.gauge("rankway_queue_waiting");
        let sent = self.send(body, headers);
        self.until_waiting(before + 1.0).await;
        sent
    }

    pub(crate) async fn until_waiting(&self, count: f64) {
        let waiting = async || self.world.gauge("rankway_queue_waiting") == count;
        self.world.until(waiting).await;
    }

    /// Whatever is answered next.
    pub(crate) async fn answer(&mut self) -> Answer {
        crate::soon(self.answers.join_next())
            .await
            .unwrap()
            .unwrap()
    }
}

/// Both ranks of the engine have a request.
pub(crate) async fn occupy(
    asked: &mut Asked<'_>,
    engine: &mut Engine,
    tokens: u32,
) -> [Arrival; 2] {
    asked.send(&prompt(1, tokens), &[]);
    let first = engine.next().await;
    asked.send(&prompt(2, tokens), &[]);
    let second = engine.next().await;
    assert_ne!(first.rank(), second.rank());
    [first, second]
}
