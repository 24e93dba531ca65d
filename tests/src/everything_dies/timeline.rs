//! What happened when: who died and came back, who was ready, what routers had to do without, second by second.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::apart::{Apart, Kind};
use crate::client::Http;

/// How often all are asked how they are.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// What counts decisions that had to do without something.
const DEGRADED: &str = "rankway_degraded_decisions_total{missing=\"";
/// How much of a failure is told.
const TOLD: usize = 160;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Killed(String),
    Frozen(String),
    /// It was started or may go on.
    Back(String),
    /// It says that it is ready, after it was not.
    Ready(String),
    /// It does not say so any more.
    Unready(String),
    Answered,
    /// A stream that had begun.
    BrokenOff,
    /// A request before its first byte, and why.
    Failed(String),
    /// Decisions without something.
    Degraded(String, u64),
}

/// All that happened, in its order.
pub(super) type Observed = Vec<(Instant, Event)>;

/// Who looks on.
pub(super) struct Observer {
    events: mpsc::UnboundedReceiver<(Instant, Event)>,
    watched: Vec<Watched>,
    http: Http,
}

/// A process that is looked at.
struct Watched {
    name: String,
    ready_url: String,
    metrics_url: Option<String>,
    is_ready: bool,
    /// By what was missing, what the process that runs now has counted.
    counted: BTreeMap<String, u64>,
}

/// An observer of all processes, and where others tell it what they do. Bounded by what happens in a run.
pub(super) fn observer(apart: &Apart) -> (Observer, mpsc::UnboundedSender<(Instant, Event)>) {
    let (sender, events) = mpsc::unbounded_channel();
    let watched = apart.services.iter().map(|it| Watched {
        name: it.name().to_owned(),
        ready_url: it.ready_url(),
        metrics_url: (it.kind == Kind::Router).then(|| format!("http://{}/metrics", it.admin)),
        is_ready: true,
        counted: BTreeMap::new(),
    });
    let observer = Observer {
        events,
        watched: watched.collect(),
        http: Http::default(),
    };
    (observer, sender)
}

impl Observer {
    /// Looks on while something is done; what that gave, and what happened.
    pub(super) async fn during<T>(
        mut self,
        done: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<(T, Observed)> {
        let mut observed = Observed::new();
        let value = tokio::select! {
            value = done => value?,
            never = self.look_again_and_again(&mut observed) => match never {},
        };
        self.look(&mut observed).await;
        while let Ok(event) = self.events.try_recv() {
            observed.push(event);
        }
        observed.sort_by_key(|it| it.0);
        Ok((value, observed))
    }

    async fn look_again_and_again(&mut self, observed: &mut Observed) -> Infallible {
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            self.look(observed).await;
        }
    }

    async fn look(&mut self, observed: &mut Observed) {
        for it in &mut self.watched {
            let is_ready = self.http.get_soon(&it.ready_url).await.is_ok();
            let now = Instant::now();
            if is_ready != it.is_ready {
                it.is_ready = is_ready;
                let event = match is_ready {
                    true => Event::Ready(it.name.clone()),
                    false => Event::Unready(it.name.clone()),
                };
                observed.push((now, event));
            }
            let Some(url) = &it.metrics_url else { continue };
            let Ok(metrics) = self.http.get_soon(url).await else {
                continue;
            };
            for (missing, count) in degraded(&metrics) {
                let before = it.counted.insert(missing.clone(), count).unwrap_or(0);
                // A process that was started anew counts from 0.
                let more = count.checked_sub(before).unwrap_or(count);
                if 0 < more {
                    observed.push((now, Event::Degraded(missing, more)));
                }
            }
        }
    }
}

/// By what was missing, how many decisions had to do without it, of a router's metrics.
fn degraded(metrics: &str) -> Vec<(String, u64)> {
    let counts = metrics.lines().filter_map(|line| {
        let (missing, count) = line.strip_prefix(DEGRADED)?.split_once("\"} ")?;
        Some((missing.to_owned(), count.parse().ok()?))
    });
    counts.collect()
}

/// The seconds in which anything but answers happened.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Timeline(Vec<Second>);

/// One of them.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Second {
    second: u64,
    killed: Vec<String>,
    frozen: Vec<String>,
    back: Vec<String>,
    /// Those that are not ready at its end.
    not_ready: BTreeSet<String>,
    answered: u64,
    broken_off: u64,
    failed: Vec<String>,
    /// What decisions had to do without, and how many.
    degraded: BTreeMap<String, u64>,
}

impl Timeline {
    pub(super) fn new(began: Instant, observed: Observed) -> Self {
        let mut seconds: Vec<Second> = Vec::new();
        let mut not_ready = BTreeSet::new();
        for (at, event) in observed {
            let number = at.duration_since(began).as_secs();
            while seconds.last().is_none_or(|it| it.second < number) {
                let second = seconds.last().map_or(0, |it| it.second + 1);
                seconds.push(Second {
                    second,
                    not_ready: not_ready.clone(),
                    ..Second::default()
                });
            }
            let last = seconds.last_mut().expect("it was pushed above");
            match &event {
                Event::Ready(name) => not_ready.remove(name),
                Event::Unready(name) | Event::Killed(name) | Event::Frozen(name) => {
                    not_ready.insert(name.clone())
                }
                _ => false,
            };
            last.not_ready = not_ready.clone();
            last.take(event);
        }
        seconds.retain(Second::is_told);
        Self(seconds)
    }

    pub(super) fn rows(self) -> Vec<Second> {
        self.0
    }
}

impl Second {
    fn take(&mut self, event: Event) {
        match event {
            Event::Killed(name) => self.killed.push(name),
            Event::Frozen(name) => self.frozen.push(name),
            Event::Back(name) => self.back.push(name),
            Event::Ready(_) | Event::Unready(_) => {}
            Event::Answered => self.answered += 1,
            Event::BrokenOff => self.broken_off += 1,
            Event::Failed(why) => self.failed.push(why.chars().take(TOLD).collect()),
            Event::Degraded(missing, count) => *self.degraded.entry(missing).or_default() += count,
        }
    }

    fn is_told(&self) -> bool {
        let quiet = self.killed.is_empty()
            && self.frozen.is_empty()
            && self.back.is_empty()
            && self.not_ready.is_empty()
            && self.broken_off == 0
            && self.failed.is_empty()
            && self.degraded.is_empty();
        !quiet
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_missing_is_read_of_metrics() {
        let metrics = "# TYPE rankway_degraded_decisions_total counter\n\
                       rankway_degraded_decisions_total{missing=\"no_index\"} 7\n\
                       rankway_degraded_decisions_total{missing=\"no_affinity\"} 2\nother{missing=\"a\"} 3\n";

        let expected = [("no_index".to_owned(), 7), ("no_affinity".to_owned(), 2)];
        assert_eq!(degraded(metrics), expected);
    }

    #[test]
    fn a_second_tells_what_happened_in_it_and_who_is_not_ready() {
        let began = Instant::now();
        let at = |ms, event| (began + Duration::from_millis(ms), event);
        let name = || "nats".to_owned();
        let timeline = Timeline::new(
            began,
            vec![
                at(100, Event::Answered),
                at(1_100, Event::Killed(name())),
                at(1_200, Event::Answered),
                at(1_300, Event::Degraded("no_index".to_owned(), 2)),
                at(1_900, Event::Degraded("no_index".to_owned(), 1)),
                at(3_100, Event::Back(name())),
                at(3_400, Event::Ready(name())),
                at(4_400, Event::Answered),
            ],
        );

        let told: Vec<String> = timeline
            .rows()
            .iter()
            .map(|it| serde_json::to_string(it).unwrap())
            .collect();
        let expected = [
            r#"{"second":1,"killed":["nats"],"frozen":[],"back":[],"not_ready":["nats"],"answered":1,"broken_off":0,"failed":[],"degraded":{"no_index":3}}"#,
            r#"{"second":2,"killed":[],"frozen":[],"back":[],"not_ready":["nats"],"answered":0,"broken_off":0,"failed":[],"degraded":{}}"#,
            r#"{"second":3,"killed":[],"frozen":[],"back":["nats"],"not_ready":[],"answered":0,"broken_off":0,"failed":[],"degraded":{}}"#,
        ];
        assert_eq!(told, expected);
    }
}
