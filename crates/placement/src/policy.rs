//! The policies and their names.

use std::fmt;
use std::str::FromStr;

/// How a target is chosen for a request that is not bound to one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Policy {
    /// Each worker in turn; the engine chooses the rank.
    RoundRobin,
    /// Any worker; the engine chooses the rank.
    Random,
    /// Each rank of each worker in turn.
    TargetRoundRobin,
    /// The less busy of two ranks drawn at random.
    PowerOfTwo,
    /// The rank where the request costs the fleet the fewest seconds.
    #[default]
    Kv,
}

/// A name that is no policy's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is not a policy: choose one of {}", Policy::names())]
pub struct UnknownPolicy {
    name: String,
}

impl Policy {
    /// Every policy.
    pub const ALL: [Self; 5] = [
        Self::RoundRobin,
        Self::Random,
        Self::TargetRoundRobin,
        Self::PowerOfTwo,
        Self::Kv,
    ];

    /// Its name in settings, flags and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RoundRobin => "round_robin",
            Self::Random => "random",
            Self::TargetRoundRobin => "target_round_robin",
            Self::PowerOfTwo => "power_of_two",
            Self::Kv => "kv",
        }
    }

    /// Whether it is a baseline: one that follows no conversation, so that it is measured alone.
    pub const fn is_baseline(self) -> bool {
        match self {
            Self::RoundRobin | Self::Random | Self::TargetRoundRobin | Self::PowerOfTwo => true,
            Self::Kv => false,
        }
    }

    fn names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        Self::ALL
            .into_iter()
            .find(|policy| policy.name() == name)
            .ok_or_else(|| UnknownPolicy {
                name: name.to_owned(),
            })
    }
}
