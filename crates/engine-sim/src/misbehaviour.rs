//! How a fake engine breaks its promises, for those who must notice.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use domain::Endpoint;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The most requests after which an engine can restart: more than any test sends.
const MAX_REQUESTS: u64 = 1_000_000_000;
/// The longest that events can be held back: an hour.
const MAX_LATE_MS: u64 = 3_600_000;

/// What a fake engine does wrong; by default nothing. Text form: kinds with commas between them, such as
/// `ignore-rank=completions,messages,publish-late=2000`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Misbehaviour {
    /// Where it takes a rank, says nothing, and balances by itself.
    pub ignore_rank: BTreeSet<Endpoint>,
    /// It reads the rank it is asked for as counted from 0 on its node, though its events and metrics count
    /// over the whole deployment.
    pub local_ranks: bool,
    /// Of its ranks only the first publishes events.
    pub only_rank_0_publishes: bool,
    /// After that many requests it forgets its caches and starts to count its events anew, as soon as no
    /// request runs; its sockets stay open. Once.
    pub restart_after: Option<u64>,
    /// How long after they happened its events are published.
    pub publish_late: Duration,
    /// Of its messages one in a hundred is lost on the way, and others are overtaken by up to 16, or come twice.
    pub lossy_events: bool,
    /// Of the requests for a replay one in twenty is lost.
    pub lossy_replays: bool,
}

/// A text that is no list of misbehaviours.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidMisbehaviour {
    /// There is no such kind.
    #[error(
        "there is no {kind:?}: write ignore-rank, ignore-rank=ENDPOINT,..., local-ranks, \
         only-rank-0-publishes, restart-after=REQUESTS, publish-late=MILLISECONDS, lossy-events or \
         lossy-replays"
    )]
    Kind {
        /// What was written.
        kind: String,
    },
    /// An endpoint by no known name.
    #[error("there is no endpoint {name:?}: write {}", names())]
    Endpoint {
        /// What was written.
        name: String,
    },
    /// A number that is none, or out of range.
    #[error("{kind} needs a whole number between 1 and {most}, not {value:?}")]
    Number {
        /// Of which kind.
        kind: &'static str,
        /// What was written.
        value: String,
        /// The largest allowed.
        most: u64,
    },
}

impl Misbehaviour {
    /// What of it is about events that are published.
    pub(crate) fn needs_publishers(&self) -> Option<&'static str> {
        let kinds = [
            ("publish-late", !self.publish_late.is_zero()),
            ("lossy-events", self.lossy_events),
            ("lossy-replays", self.lossy_replays),
        ];
        let mut set = kinds.into_iter().filter(|it| it.1);
        set.next().map(|it| it.0)
    }
}

fn names() -> String {
    Endpoint::ALL.map(Endpoint::name).join(", ")
}

impl FromStr for Misbehaviour {
    type Err = InvalidMisbehaviour;

    fn from_str(text: &str) -> Result<Self, InvalidMisbehaviour> {
        let mut misbehaviour = Self::default();
        // Bare names after ignore-rank= are more of its endpoints.
        let mut in_endpoints = false;
        for item in text.split(',').map(str::trim) {
            let (kind, value) = match item.split_once('=') {
                Some((kind, value)) => (kind, Some(value)),
                None => (item, None),
            };
            let of_list = std::mem::take(&mut in_endpoints);
            match (kind, value) {
                ("ignore-rank", None) => misbehaviour.ignore_rank.extend(Endpoint::ALL),
                ("ignore-rank", Some(name)) => {
                    misbehaviour.ignore_rank.insert(endpoint(name)?);
                    in_endpoints = true;
                }
                ("local-ranks", None) => misbehaviour.local_ranks = true,
                ("only-rank-0-publishes", None) => misbehaviour.only_rank_0_publishes = true,
                ("lossy-events", None) => misbehaviour.lossy_events = true,
                ("lossy-replays", None) => misbehaviour.lossy_replays = true,
                ("restart-after", value) => {
                    let requests = number("restart-after", value, MAX_REQUESTS)?;
                    misbehaviour.restart_after = Some(requests);
                }
                ("publish-late", value) => {
                    let millis = number("publish-late", value, MAX_LATE_MS)?;
                    misbehaviour.publish_late = Duration::from_millis(millis);
                }
                (name, None) if of_list && endpoint(name).is_ok() => {
                    misbehaviour.ignore_rank.insert(endpoint(name)?);
                    in_endpoints = true;
                }
                _ => {
                    let kind = item.to_owned();
                    return Err(InvalidMisbehaviour::Kind { kind });
                }
            }
        }
        Ok(misbehaviour)
    }
}

fn endpoint(name: &str) -> Result<Endpoint, InvalidMisbehaviour> {
    let found = Endpoint::ALL.into_iter().find(|it| it.name() == name);
    found.ok_or_else(|| InvalidMisbehaviour::Endpoint {
        name: name.to_owned(),
    })
}

fn number(kind: &'static str, value: Option<&str>, most: u64) -> Result<u64, InvalidMisbehaviour> {
    let value = value.unwrap_or_default();
    let number = value.parse().ok().filter(|it| (1..=most).contains(it));
    number.ok_or_else(|| InvalidMisbehaviour::Number {
        kind,
        value: value.to_owned(),
        most,
    })
}

impl fmt::Display for Misbehaviour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut kinds = Vec::new();
        if self.ignore_rank.len() == Endpoint::ALL.len() {
            kinds.push("ignore-rank".to_owned());
        } else {
            let named = |it: &Endpoint| format!("ignore-rank={it}");
            kinds.extend(self.ignore_rank.iter().map(named));
        }
        if self.local_ranks {
            kinds.push("local-ranks".to_owned());
        }
        if self.only_rank_0_publishes {
            kinds.push("only-rank-0-publishes".to_owned());
        }
        kinds.extend(self.restart_after.map(|it| format!("restart-after={it}")));
        if !self.publish_late.is_zero() {
            kinds.push(format!("publish-late={}", self.publish_late.as_millis()));
        }
        let ways = [
            ("lossy-events", self.lossy_events),
            ("lossy-replays", self.lossy_replays),
        ];
        let named = ways.into_iter().filter(|it| it.1);
        kinds.extend(named.map(|it| it.0.to_owned()));
        f.write_str(&kinds.join(","))
    }
}

impl<'de> Deserialize<'de> for Misbehaviour {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        match text.as_str() {
            "" => Ok(Self::default()),
            text => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

impl Serialize for Misbehaviour {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Misbehaviour {
        text.parse().unwrap()
    }

    #[test]
    fn a_list_is_read_and_written_back() {
        let all = "ignore-rank,local-ranks,only-rank-0-publishes,restart-after=3,publish-late=1500,\
                   lossy-events,lossy-replays";
        let misbehaviour = parsed(all);
        assert_eq!(misbehaviour.to_string(), all);
        assert_eq!(misbehaviour.restart_after, Some(3));
        assert_eq!(misbehaviour.publish_late, Duration::from_millis(1500));
        let some = parsed("ignore-rank=completions,messages,local-ranks");
        let expected = BTreeSet::from([Endpoint::Completions, Endpoint::Messages]);
        assert_eq!((&some.ignore_rank, some.local_ranks), (&expected, true));
        assert_eq!(parsed(&some.to_string()), some);
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        for (text, named) in [
            ("", "\"\""),
            ("ignore-ranks", "\"ignore-ranks\""),
            ("ignore-rank=chatter", "\"chatter\""),
            ("local-ranks,chat", "\"chat\""),
            ("local-ranks=1", "\"local-ranks=1\""),
            ("restart-after", "restart-after needs"),
            ("restart-after=0", "not \"0\""),
            ("publish-late=3600001", "between 1 and 3600000"),
        ] {
            let error = text.parse::<Misbehaviour>().unwrap_err().to_string();
            assert!(error.contains(named), "{text}: {error}");
        }
    }
}
