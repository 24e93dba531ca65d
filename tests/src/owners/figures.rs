//! What a case showed: by the requests that the engines received, and by the changes of the bindings.

use std::collections::BTreeMap;
use std::time::Duration;

use affinity::BindingState;
use engine_sim::{Dialect, Misbehaviour};
use serde::Serialize;

use super::drive::Sent;
use crate::bindings::{History, Step};
use crate::world::Served;

/// Within so long of the first token a binding stands where the engine ran it.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(1);
/// The share of later turns that run on the rank of the first.
const KEPT: f64 = 0.999;
/// How often a conversation may change its target where its rank is ignored.
const CHANGES: u64 = 1;
/// Between the turns of a conversation whose rank is ignored: as long as a client takes for the next one. What shows
/// that a rank was ignored, the announcement of a block, is waited for meanwhile.
const PAUSE: Duration = Duration::from_secs(1);

/// Who owns the rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owned {
    ByEngine,
    ByRouter,
    /// By the router, and the engine ignores what it is asked for.
    InVain,
}

impl Owned {
    /// Between an answer and the next turn.
    pub(super) const fn pause(self) -> Duration {
        match self {
            Self::ByEngine | Self::ByRouter => Duration::ZERO,
            Self::InVain => PAUSE,
        }
    }
}

/// What routers say to have done out of the ordinary.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Said {
    /// Conversations bound elsewhere.
    pub(super) moved: f64,
    /// Turns sent elsewhere for once, or because the store of bindings was late.
    pub(super) excursions: f64,
}

/// One engine and what it does with ranks.
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) engine: Dialect,
    pub(super) owned: Owned,
    pub(super) misbehave: Misbehaviour,
}

impl Case {
    pub(super) const fn new(
        name: &'static str,
        engine: Dialect,
        owned: Owned,
        misbehave: Misbehaviour,
    ) -> Self {
        Self {
            name,
            engine,
            owned,
            misbehave,
        }
    }
}

/// What a case showed.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) case: &'static str,
    pub(super) engine: &'static str,
    #[serde(skip)]
    pub(super) owned: Owned,
    /// Requests that the engines have served.
    pub(super) requests: u64,
    pub(super) errors: u64,
    /// Of them, those that a rank was asked for, and those asked for the rank that their conversation was bound to.
    pub(super) asked: u64,
    pub(super) asked_bound: u64,
    /// From the first token until the binding stood at the rank that ran; none of those that never did.
    pub(super) confirmed_ms_p50: f64,
    pub(super) confirmed_ms_p99: f64,
    pub(super) confirmed_ms_max: f64,
    pub(super) never_confirmed: u64,
    /// The share of later turns that ran on the rank of the first.
    pub(super) kept_share: f64,
    /// The most targets that a conversation's binding had after its first.
    pub(super) most_changes: u64,
    #[serde(flatten)]
    pub(super) said: Said,
}

/// A turn, by what the engine that ran it says.
struct Turn {
    number: u32,
    place: String,
    asked: Option<String>,
}

impl Row {
    pub(super) fn new(
        case: &Case,
        sent: &[Sent],
        history: &History,
        served: &[Vec<Served>],
        said: Said,
    ) -> Self {
        let turns = turns(served);
        let histories = history.by_conversation();
        let steps = |it: &str| histories.get(it).copied().unwrap_or_default();
        let all = || turns.values().flatten();
        let bound = |it: &(&String, &Turn)| {
            let mut bound = steps(it.0).iter().filter_map(place);
            it.1.asked
                .as_ref()
                .is_some_and(|asked| bound.any(|it| it == *asked))
        };
        let named = turns
            .iter()
            .flat_map(|(name, turns)| turns.iter().map(move |it| (name, it)));
        let mut confirmed: Vec<f64> = Vec::new();
        for it in sent {
            let first = turns.get(&it.conversation).and_then(|it| it.first());
            confirmed.extend(confirmed_after(it, first, steps(&it.conversation)));
        }
        confirmed.sort_by(f64::total_cmp);
        let answered = sent.iter().filter(|it| it.answered > 0).count();
        Self {
            case: case.name,
            engine: case.engine.name(),
            owned: case.owned,
            requests: all().count() as u64,
            errors: sent.iter().filter(|it| it.failed).count() as u64,
            asked: all().filter(|it| it.asked.is_some()).count() as u64,
            asked_bound: named.filter(bound).count() as u64,
            confirmed_ms_p50: quantile(&confirmed, 0.5),
            confirmed_ms_p99: quantile(&confirmed, 0.99),
            confirmed_ms_max: quantile(&confirmed, 1.0),
            never_confirmed: (answered - confirmed.len()) as u64,
            kept_share: kept_share(&turns),
            said,
            most_changes: sent
                .iter()
                .map(|it| changes(steps(&it.conversation)))
                .max()
                .unwrap_or(0),
        }
    }

    /// Whether what was to hold held.
    pub(super) fn holds(&self) -> bool {
        let served = self.errors == 0 && self.requests > 0;
        served
            && match self.owned {
                Owned::ByEngine => {
                    self.asked == 0
                        && self.never_confirmed == 0
                        && self.confirmed_ms_max <= CONFIRMED_WITHIN.as_secs_f64() * 1e3
                        && self.kept_share >= KEPT
                }
                Owned::ByRouter => {
                    self.asked_bound == self.requests
                        && self.kept_share >= KEPT
                        && self.most_changes == 0
                }
                Owned::InVain => self.most_changes <= CHANGES,
            }
    }
}

/// The turns of each conversation, in order.
fn turns(served: &[Vec<Served>]) -> BTreeMap<String, Vec<Turn>> {
    let mut turns: BTreeMap<String, Vec<Turn>> = BTreeMap::new();
    for (worker, requests) in (1..).zip(served) {
        for request in requests {
            let id = request.request_id.as_deref();
            let Some((conversation, number)) = id.and_then(|it| it.rsplit_once('.')) else {
                continue;
            };
            let Ok(number) = number.parse() else { continue };
            let at = |rank: u32| format!("w{worker}/{rank}");
            turns
                .entry(conversation.to_owned())
                .or_default()
                .push(Turn {
                    number,
                    place: at(request.dp_rank),
                    asked: request.asked_dp_rank.map(at),
                });
        }
    }
    for turns in turns.values_mut() {
        turns.sort_by_key(|it| it.number);
    }
    turns
}

/// Where a binding stands, if it is known.
fn place(step: &Step) -> Option<String> {
    let binding = step.binding.as_ref().filter(|it| it.knows_rank())?;
    Some(format!(
        "{}/{}",
        binding.target.worker, binding.target.dp_rank
    ))
}

/// From the first token of a conversation until it was confirmed where that ran, in milliseconds.
fn confirmed_after(sent: &Sent, first: Option<&Turn>, steps: &[Step]) -> Option<f64> {
    let (first_token, ran) = (sent.first_token?, &first?.place);
    let stands = |it: &&Step| {
        let confirmed = it.binding.as_ref().map(|it| it.state) == Some(BindingState::Confirmed);
        confirmed && place(it).as_ref() == Some(ran)
    };
    let step = steps.iter().find(stands)?;
    Some(step.at.saturating_duration_since(first_token).as_secs_f64() * 1e3)
}

/// How often a binding left a target that it was known to be at.
fn changes(steps: &[Step]) -> u64 {
    let mut places: Vec<String> = steps.iter().filter_map(place).collect();
    places.dedup();
    (places.len() as u64).saturating_sub(1)
}

fn kept_share(turns: &BTreeMap<String, Vec<Turn>>) -> f64 {
    let (mut kept, mut later) = (0_u64, 0_u64);
    for turns in turns.values() {
        let Some((first, rest)) = turns.split_first() else {
            continue;
        };
        later += rest.len() as u64;
        kept += rest.iter().filter(|it| it.place == first.place).count() as u64;
    }
    kept as f64 / later.max(1) as f64
}

/// Of sorted times; 0 of none.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    let at = (share * last as f64).round() as usize;
    sorted.get(at).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(owned: Owned) -> Row {
        Row {
            case: "a case",
            engine: "an engine",
            owned,
            requests: 100,
            errors: 0,
            asked: if owned == Owned::ByEngine { 0 } else { 100 },
            asked_bound: if owned == Owned::ByEngine { 0 } else { 100 },
            confirmed_ms_p50: 1.0,
            confirmed_ms_p99: 2.0,
            confirmed_ms_max: 3.0,
            never_confirmed: 0,
            kept_share: 1.0,
            most_changes: 0,
            said: Said::default(),
        }
    }

    #[test]
    fn each_case_is_held_to_its_own_promise() {
        let holds = |owned, change: fn(&mut Row)| {
            let mut row = row(owned);
            change(&mut row);
            row.holds()
        };
        for owned in [Owned::ByEngine, Owned::ByRouter, Owned::InVain] {
            assert!(holds(owned, |_| {}));
            assert!(!holds(owned, |it| it.errors = 1));
            assert!(!holds(owned, |it| it.requests = 0));
        }
        assert!(!holds(Owned::ByEngine, |it| it.asked = 1));
        assert!(!holds(Owned::ByEngine, |it| it.never_confirmed = 1));
        assert!(!holds(Owned::ByEngine, |it| it.confirmed_ms_max = 1_001.0));
        assert!(!holds(Owned::ByEngine, |it| it.kept_share = 0.998));
        assert!(!holds(Owned::ByRouter, |it| it.asked_bound = 99));
        assert!(!holds(Owned::ByRouter, |it| it.most_changes = 1));
        assert!(holds(Owned::InVain, |it| it.most_changes = 1));
        assert!(!holds(Owned::InVain, |it| it.most_changes = 2));
        assert!(holds(Owned::InVain, |it| it.kept_share = 0.2));
    }

    #[test]
    fn later_turns_are_kept_where_the_first_ran() {
        let turn = |number, place: &str| Turn {
            number,
            place: place.to_owned(),
            asked: None,
        };
        let turns = [
            ("a", vec![turn(0, "w1/0"), turn(1, "w1/0"), turn(2, "w1/1")]),
            ("b", vec![turn(0, "w2/0"), turn(1, "w2/0"), turn(2, "w2/0")]),
        ];
        let turns = turns
            .into_iter()
            .map(|(name, turns)| (name.to_owned(), turns));
        assert!((kept_share(&turns.collect()) - 0.75).abs() < 1e-9);
    }
}
