//! The policies, their names and their numbers.
//!
//! Written `name`, or `name:key=value,key=value` where a number differs from its default.

mod parameters;

use std::fmt;
use std::str::FromStr;

use crate::kv::Weights;
use crate::policies::{
    Aibrix, BoundedHash, Dynamo, LlmdAffinity, LlmdBlend, LoadAware, MooncakeConductor, PrebleE2,
    SglCacheAware, SglNearMin, Smetric, TrtConvAdp, TrtKvAdp, VerlMargin,
};
pub(crate) use parameters::{Parameter, parameters};

/// Declares the policies: a name and, for some, numbers.
macro_rules! policies {
    ( $( $(#[$doc:meta])* $variant:ident $(($numbers:ident))? = $name:literal; )* ) => {
        /// How a target is chosen for a request that is not bound to one.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub enum Policy {
            $( $(#[$doc])* $variant $(($numbers))?, )*
        }

        impl Policy {
            /// Every policy, with its default numbers.
            pub const ALL: &'static [Self] = &[
                $( Self::$variant $(($numbers::DEFAULT))?, )*
            ];

            /// Its name, without its numbers.
            pub const fn name(self) -> &'static str {
                match self {
                    $( Self::$variant { .. } => $name, )*
                }
            }

            fn parameters(&mut self) -> Vec<Parameter<'_>> {
                match self {
                    $( $( Self::$variant(numbers) => $numbers::parameters(numbers), )? )*
                    _ => Vec::new(),
                }
            }
        }
    };
}

policies! {
    /// Each worker in turn; the engine chooses the rank.
    RoundRobin = "round_robin";
    /// Any worker; the engine chooses the rank.
    Random = "random";
    /// Each rank of each worker in turn.
    TargetRoundRobin = "target_round_robin";
    /// The less busy of two ranks drawn at random.
    PowerOfTwo = "power_of_two";
    /// The rank with the least prefill pending.
    LeastLoad = "least_load";
    /// The rank that holds most.
    MaxOverlap = "max_overlap";
    /// SGLang's: the rank that holds most, the least busy one when loads are apart.
    SglCacheAware(SglCacheAware) = "sgl_cache_aware";
    /// The same, but when loads are apart the rank that holds most of those that are nearly the least busy.
    SglNearMin(SglNearMin) = "sgl_near_min";
    /// Consistent hashing of conversations with bounded loads.
    BoundedHash(BoundedHash) = "bounded_hash";
    /// Where this router keeps the conversation, a new one where fewest are.
    StickyLeast = "sticky_least";
    /// Where this router keeps the conversation, unless that is busier than the least busy by a margin.
    VerlMargin(VerlMargin) = "verl_margin";
    /// NVIDIA Dynamo's cost: prefill and decode blocks less what is held.
    Dynamo(Dynamo) = "dynamo";
    /// TensorRT-LLM's: tokens to compute and the share of load, under a fair limit.
    TrtKvAdp(TrtKvAdp) = "trt_kv_adp";
    /// TensorRT-LLM's: conversations kept, new ones in turn under a fair limit.
    TrtConvAdp(TrtConvAdp) = "trt_conv_adp";
    /// llm-d's: who holds most of the request unless it is waited too long there.
    LlmdAffinity(LlmdAffinity) = "llmd_affinity";
    /// llm-d's weighed scorers: prefix, queue, KV blocks and cold requests.
    LlmdBlend(LlmdBlend) = "llmd_blend";
    /// What is missing times the requests there.
    Lmetric = "lmetric";
    /// The least prefill work left with the request's.
    Lpwl = "lpwl";
    /// Later turns follow their prefix within a bound on waiting, others the least work.
    Smetric(Smetric) = "smetric";
    /// The least work left, of equals the fewest requests: ranks wait for the slowest.
    MinMax = "minmax";
    /// What is held less how far the load is above the mean.
    LoadAware(LoadAware) = "loadaware";
    /// vLLM's own: waiting requests count four times, running ones once.
    VllmDplb = "vllm_dplb";
    /// Preble's: exploit a prefix that is more than half, else explore.
    PrebleE2(PrebleE2) = "preble_e2";
    /// Mooncake's: the least time to fetch, queue and compute.
    MooncakeConductor(MooncakeConductor) = "mooncake_conductor";
    /// AIBrix': the highest match among those not much busier than the mean.
    Aibrix(Aibrix) = "aibrix";
    /// Ours: the rank where the request costs the fleet the fewest seconds.
    Kv(Weights) = "kv";
}

/// What a router has to count by itself for a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeps {
    /// Nothing.
    Nothing,
    /// Where conversations are stuck.
    Conversations,
    /// The blocks of the requests that each target serves.
    ActiveBlocks,
    /// The prefill assigned to each target of late.
    Assigned,
    /// When each target was last sent a request of which nobody held anything.
    Cold,
}

/// A text that is no policy's.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum InvalidPolicy {
    /// There is none of this name.
    #[error("{name:?} is not a policy: choose one of {}", Policy::names())]
    Name {
        /// What was written.
        name: String,
    },
    /// The policy has no such number.
    #[error("{policy} has no {key:?}: {has}")]
    Key {
        /// The policy's name.
        policy: &'static str,
        /// What was written.
        key: String,
        /// What it has, in words.
        has: String,
    },
    /// The number is none, or too small or too large.
    #[error("{policy}: {key} is {value:?}: write a number from {least} to {most}")]
    Value {
        /// The policy's name.
        policy: &'static str,
        /// The number's name.
        key: &'static str,
        /// What was written.
        value: String,
        /// The smallest it may be.
        least: f64,
        /// The largest it may be.
        most: f64,
    },
    /// A number was given twice.
    #[error("{policy}: {key} is there twice")]
    Twice {
        /// The policy's name.
        policy: &'static str,
        /// The number's name.
        key: &'static str,
    },
    /// What follows the name is no list of numbers.
    #[error("{text:?} is no number of {policy}: write key=value")]
    NoNumber {
        /// The policy's name.
        policy: &'static str,
        /// What was written.
        text: String,
    },
}

impl Policy {
    /// Ours, with its default weights.
    pub const KV: Self = Self::Kv(Weights::DEFAULT);

    /// Whether it is a baseline: one that follows no binding, so that it is measured alone. All but ours are.
    pub const fn is_baseline(self) -> bool {
        !matches!(self, Self::Kv(_))
    }

    /// What a router has to count for it.
    pub const fn keeps(self) -> Keeps {
        match self {
            Self::StickyLeast | Self::VerlMargin(_) | Self::TrtConvAdp(_) | Self::Smetric(_) => {
                Keeps::Conversations
            }
            Self::Dynamo(_) => Keeps::ActiveBlocks,
            Self::PrebleE2(_) => Keeps::Assigned,
            Self::LlmdBlend(_) => Keeps::Cold,
            _ => Keeps::Nothing,
        }
    }

    /// The names of all, for people to choose from.
    pub fn names() -> String {
        let names: Vec<&str> = Self::ALL.iter().map(|it| it.name()).collect();
        names.join(", ")
    }

    /// The policy of this name, with its default numbers.
    fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|it| it.name() == name)
    }

    fn set(&mut self, key: &str, text: &str) -> Result<&'static str, InvalidPolicy> {
        let policy = *self;
        let mut parameters = self.parameters();
        let parameter = parameters.iter_mut().find(|it| it.key == key);
        let parameter = parameter.ok_or_else(|| InvalidPolicy::Key {
            policy: policy.name(),
            key: key.to_owned(),
            has: has(policy),
        })?;
        let value = text.parse().ok();
        let value = value.filter(|it| parameter.range.contains(it));
        *parameter.value = value.ok_or_else(|| InvalidPolicy::Value {
            policy: policy.name(),
            key: parameter.key,
            value: text.to_owned(),
            least: *parameter.range.start(),
            most: *parameter.range.end(),
        })?;
        Ok(parameter.key)
    }
}

fn has(mut policy: Policy) -> String {
    let keys: Vec<&str> = policy.parameters().iter().map(|it| it.key).collect();
    match keys.is_empty() {
        true => "it takes no numbers".to_owned(),
        false => format!("it has {}", keys.join(", ")),
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self::KV
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        let (mut own, mut usual) = (*self, Self::named(self.name()).unwrap_or(*self));
        let mut separator = ':';
        for (own, usual) in own.parameters().iter().zip(usual.parameters()) {
            if *own.value != *usual.value {
                write!(f, "{separator}{}={}", own.key, own.value)?;
                separator = ',';
            }
        }
        Ok(())
    }
}

impl FromStr for Policy {
    type Err = InvalidPolicy;

    fn from_str(text: &str) -> Result<Self, InvalidPolicy> {
        let (name, numbers) = match text.split_once(':') {
            Some((name, numbers)) => (name, Some(numbers)),
            None => (text, None),
        };
        let mut policy = Self::named(name).ok_or_else(|| InvalidPolicy::Name {
            name: name.to_owned(),
        })?;
        let mut given = Vec::new();
        for number in numbers.into_iter().flat_map(|it| it.split(',')) {
            let (key, value) = number
                .split_once('=')
                .ok_or_else(|| InvalidPolicy::NoNumber {
                    policy: policy.name(),
                    text: number.to_owned(),
                })?;
            let key = policy.set(key, value)?;
            if given.contains(&key) {
                return Err(InvalidPolicy::Twice {
                    policy: policy.name(),
                    key,
                });
            }
            given.push(key);
        }
        Ok(policy)
    }
}

/// Several policies with commas between them: what has a `=` and no `:` is a further number of the one before.
#[derive(Clone, Debug, PartialEq)]
pub struct Policies(pub Vec<Policy>);

impl FromStr for Policies {
    type Err = InvalidPolicy;

    fn from_str(text: &str) -> Result<Self, InvalidPolicy> {
        let mut texts: Vec<String> = Vec::new();
        for part in text.split(',') {
            match texts.last_mut() {
                Some(before) if part.contains('=') && !part.contains(':') => {
                    before.push(if before.contains(':') { ',' } else { ':' });
                    before.push_str(part);
                }
                _ => texts.push(part.to_owned()),
            }
        }
        let policies = texts.iter().map(|it| it.parse());
        policies.collect::<Result<_, _>>().map(Self)
    }
}
