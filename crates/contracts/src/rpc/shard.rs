//! One indexer of several: each follows its share of the partitions of `kv-events`, and says what it does not
//! know of.

use std::collections::BTreeSet;
use std::fmt::{self, Display};
use std::num::NonZeroU32;
use std::str::FromStr;

use domain::{Share, Target};

use crate::topics::{self, KV_EVENTS};

/// Which share of the partitions an indexer follows: those whose number leaves the remainder `index` when
/// divided by `of`. Its text form is `index/of`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shard {
    index: u32,
    of: NonZeroU32,
}

/// What is no shard.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidShard {
    /// It is not two numbers.
    #[error("`{0}` is not of the form INDEX/COUNT, such as 0/2")]
    Form(String),
    /// There is no such shard.
    #[error("shard {index} of {of} does not exist: they are numbered from 0")]
    Index {
        /// Its number.
        index: u32,
        /// How many there are.
        of: u32,
    },
    /// Some would have nothing to follow.
    #[error("{of} shards are more than the {} partitions of the log", KV_EVENTS.partitions)]
    TooMany {
        /// How many there are.
        of: u32,
    },
}

/// The partitions of `kv-events` of whose targets nothing is known; none by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unknown(BTreeSet<u32>);

impl Shard {
    /// The only one: it follows everything.
    pub const WHOLE: Self = Self {
        index: 0,
        of: NonZeroU32::MIN,
    };

    /// The shard numbered `index`, from 0, of `of`.
    pub fn new(index: u32, of: u32) -> Result<Self, InvalidShard> {
        if KV_EVENTS.partitions < of {
            return Err(InvalidShard::TooMany { of });
        }
        match NonZeroU32::new(of) {
            Some(count) if index < of => Ok(Self { index, of: count }),
            _ => Err(InvalidShard::Index { index, of }),
        }
    }

    /// Its number, from 0.
    pub fn index(self) -> u32 {
        self.index
    }

    /// How many there are.
    pub fn of(self) -> u32 {
        self.of.get()
    }

    /// Whether it follows `partition`.
    pub fn follows(self, partition: u32) -> bool {
        partition % self.of == self.index
    }

    /// What an indexer that says so in `fleet` follows; none where that is no share of an index.
    pub fn of_share(share: &Share) -> Option<Self> {
        match share {
            Share::Whole => Some(Self::WHOLE),
            Share::Shard { index, of } => Self::new(*index, *of).ok(),
            Share::Workers(_) => None,
        }
    }

    /// What an indexer says of it in `fleet`.
    pub fn share(self) -> Share {
        match self {
            Self::WHOLE => Share::Whole,
            Self { index, of } => Share::Shard {
                index,
                of: of.get(),
            },
        }
    }

    /// What it knows nothing of.
    pub fn unknown(self) -> Unknown {
        let all = 0..KV_EVENTS.partitions;
        Unknown(all.filter(|it| !self.follows(*it)).collect())
    }
}

impl FromStr for Shard {
    type Err = InvalidShard;

    fn from_str(text: &str) -> Result<Self, InvalidShard> {
        let form = || InvalidShard::Form(text.to_owned());
        let (index, of) = text.split_once('/').ok_or_else(form)?;
        let number = |text: &str| text.parse().map_err(|_| form());
        Self::new(number(index)?, number(of)?)
    }
}

impl Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.of)
    }
}

impl Unknown {
    /// These partitions; the first that `kv-events` does not have where there is one.
    pub(crate) fn of(partitions: impl IntoIterator<Item = u32>) -> Result<Self, u32> {
        let known = |it: u32| {
            if it < KV_EVENTS.partitions {
                Ok(it)
            } else {
                Err(it)
            }
        };
        partitions
            .into_iter()
            .map(known)
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// Whether everything is known.
    pub fn is_nothing(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether nothing is known of `target`.
    pub fn contains(&self, target: &Target) -> bool {
        !self.is_nothing() && {
            let partition = topics::kv_events_of(&target.worker, target.dp_rank);
            self.0.contains(&partition.index)
        }
    }

    /// The partitions, in ascending order.
    pub fn partitions(&self) -> impl Iterator<Item = u32> {
        self.0.iter().copied()
    }

    /// What neither knows of.
    pub fn and(&self, other: &Self) -> Self {
        Self(self.0.intersection(&other.0).copied().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_partition_is_followed_by_one_shard() {
        for of in 1..=KV_EVENTS.partitions {
            let shards: Vec<Shard> = (0..of).map(|it| Shard::new(it, of).unwrap()).collect();
            for partition in 0..KV_EVENTS.partitions {
                let following = shards.iter().filter(|it| it.follows(partition)).count();
                assert_eq!(following, 1, "{partition} of {of}");
            }
            let unknown = shards.iter().map(|it| it.unknown());
            let none = unknown.reduce(|all, it| all.and(&it)).unwrap();
            assert!(none.is_nothing());
            for shard in shards {
                assert_eq!(Shard::of_share(&shard.share()), Some(shard));
            }
        }
        assert_eq!(Shard::WHOLE.share(), Share::Whole);
        assert_eq!(Shard::of_share(&Share::Shard { index: 2, of: 2 }), None);
    }

    #[test]
    fn a_shard_is_read_and_a_wrong_one_says_why() {
        let check = |text: &str, expected: &str| {
            let read = text.parse::<Shard>();
            let said = read.map_or_else(|why| why.to_string(), |it| it.to_string());
            assert_eq!(said, expected);
        };
        check("0/1", "0/1");
        check("1/2", "1/2");
        check(
            "2/2",
            "shard 2 of 2 does not exist: they are numbered from 0",
        );
        check(
            "0/0",
            "shard 0 of 0 does not exist: they are numbered from 0",
        );
        check(
            "0/17",
            "17 shards are more than the 16 partitions of the log",
        );
        check("half", "`half` is not of the form INDEX/COUNT, such as 0/2");
        check("-1/2", "`-1/2` is not of the form INDEX/COUNT, such as 0/2");
    }

    #[test]
    fn a_target_is_unknown_to_all_shards_but_its_own() {
        let target: Target = "w#1/3".parse().unwrap();
        let partition = topics::kv_events_of(&target.worker, target.dp_rank).index;
        for index in 0..4 {
            let shard = Shard::new(index, 4).unwrap();
            assert_eq!(shard.unknown().contains(&target), partition % 4 != index);
        }
        assert!(!Unknown::default().contains(&target));
    }
}
