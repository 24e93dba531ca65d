//! The router's settings.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;
use std::time::Duration;

use affinity::{Mode, Modes, Owner, Patience, SourceKind};
use domain::{ModelName, TenantId};
use placement::Policy;
use routing::RankSources;
use serde::de::{self, Deserializer};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};

use crate::admission::AdmissionConfig;
use crate::tenant::{InvalidTenants, SaltSecret, TenantConfig, check};

/// The router's settings.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Where the OpenAI API is served.
    pub listen: SocketAddr,
    /// How targets are chosen for requests that are not bound to one.
    #[serde(deserialize_with = "policy", serialize_with = "policy_name")]
    pub policy: Policy,
    /// How much bindings mean: under `default` for every model, under a model's name for that one; or one word for
    /// all. Baseline policies run as if it were off.
    #[serde(deserialize_with = "affinity_modes", serialize_with = "affinity_names")]
    pub affinity: Modes,
    /// How many milliseconds sooner a turn must have its first token elsewhere, though its prefix is computed again
    /// there, for it to leave a `hard` bound target once. The binding stays.
    pub move_after_ms: u64,
    /// Who decides the rank of a conversation, of every model: `engine` or `router` (`dynamo` means `router`). Where
    /// nothing is set, an engine that keeps conversations on ranks by itself and takes none, else the router.
    #[serde(deserialize_with = "rank_source", serialize_with = "rank_source_name")]
    pub rank_source: Option<Owner>,
    /// The same by model, over `rank_source`.
    #[serde(
        deserialize_with = "rank_sources",
        serialize_with = "rank_source_names"
    )]
    pub rank_sources: BTreeMap<ModelName, Owner>,
    /// Where conversations are looked for, the first place that tells one first.
    #[serde(deserialize_with = "sources", serialize_with = "source_names")]
    pub conversation_order: Vec<SourceKind>,
    /// The longest request body, in bytes.
    pub max_body: usize,
    /// Whose requests they are where no tenants are set.
    #[serde(deserialize_with = "tenant", serialize_with = "tenant_name")]
    pub default_tenant: TenantId,
    /// Whose requests they are by their API keys. Where there are any, nobody is served without a key.
    pub tenants: Vec<TenantConfig>,
    /// What the `cache_salt`s of tenants are made under, equal for all routers.
    pub salt_secret: Option<SaltSecret>,
    /// Whether streamed answers are asked for their usage, which the client then does not see.
    pub usage_injection: bool,
    /// Whether answers carry `x-rankway-*` headers.
    pub expose_decision: bool,
    /// Whether a client may choose its target.
    pub allow_client_target: bool,
    /// Whether decisions and outcomes are recorded on the bus.
    pub records: bool,
    /// Of how many decisions one is recorded whole; of the others, the place and the cheapest candidates.
    pub records_whole_one_in: NonZeroU32,
    /// A second policy, asked about every live decision: what it would have done is counted and has no effect.
    #[serde(
        deserialize_with = "shadow",
        serialize_with = "shadow_name",
        skip_serializing_if = "Option::is_none"
    )]
    pub shadow: Option<Policy>,
    /// When requests wait in the router, how many of them, and for how long.
    pub admission: AdmissionConfig,
    /// How long streams may take to end once the router is told to, in seconds.
    pub drain_seconds: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)),
            policy: Policy::default(),
            affinity: Modes::default(),
            move_after_ms: 2_000,
            rank_source: None,
            rank_sources: BTreeMap::new(),
            conversation_order: SourceKind::DEFAULT_ORDER.to_vec(),
            max_body: 32 << 20,
            default_tenant: TenantId::new("default").expect("a printable word is an id"),
            tenants: Vec::new(),
            salt_secret: None,
            usage_injection: true,
            expose_decision: true,
            allow_client_target: false,
            records: true,
            records_whole_one_in: NonZeroU32::new(100).expect("not zero"),
            shadow: None,
            admission: AdmissionConfig::default(),
            drain_seconds: 8,
        }
    }
}

impl Config {
    /// Refuses tenants that cannot be told apart or be kept apart.
    pub fn check(&self) -> Result<(), InvalidTenants> {
        check(&self.tenants, self.salt_secret.as_ref())
    }

    /// What the router's mind is set to.
    pub(crate) fn mind(&self) -> routing::Config {
        routing::Config {
            policy: self.policy,
            affinity: self.affinity.clone(),
            patience: Patience {
                wait: Duration::from_millis(self.move_after_ms).as_secs_f64(),
                ..Patience::default()
            },
            ..routing::Config::default()
        }
    }
}

impl Config {
    /// Who decides the ranks of which models.
    pub(crate) fn sources(&self) -> RankSources {
        RankSources {
            default: self.rank_source,
            by_model: self.rank_sources.clone(),
        }
    }
}

fn rank_source<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Owner>, D::Error> {
    let name = Option::<String>::deserialize(deserializer)?;
    let source = name.map(|it| it.parse()).transpose();
    source.map_err(de::Error::custom)
}

fn rank_sources<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<ModelName, Owner>, D::Error> {
    let names = BTreeMap::<String, String>::deserialize(deserializer)?;
    let sources = names.iter().map(|(model, source)| {
        let model = model.parse().map_err(de::Error::custom)?;
        Ok((model, source.parse().map_err(de::Error::custom)?))
    });
    sources.collect()
}

fn rank_source_name<S: Serializer>(
    source: &Option<Owner>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    source.map(Owner::name).serialize(serializer)
}

fn rank_source_names<S: Serializer>(
    sources: &BTreeMap<ModelName, Owner>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let names = sources.iter();
    serializer.collect_map(names.map(|(model, source)| (model.as_str(), source.name())))
}

fn policy<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Policy, D::Error> {
    let name = String::deserialize(deserializer)?;
    name.parse().map_err(de::Error::custom)
}

fn shadow<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Policy>, D::Error> {
    policy(deserializer).map(Some)
}

fn shadow_name<S: Serializer>(policy: &Option<Policy>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&policy.unwrap_or_default())
}

fn sources<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<SourceKind>, D::Error> {
    let names = Vec::<String>::deserialize(deserializer)?;
    let mut kinds = Vec::new();
    for name in &names {
        let kind: SourceKind = name.parse().map_err(de::Error::custom)?;
        if kinds.contains(&kind) {
            let why = format!("{name:?} is there twice: name each place once");
            return Err(de::Error::custom(why));
        }
        kinds.push(kind);
    }
    match kinds.is_empty() {
        // Off is said by the affinity.
        true => Err(de::Error::custom(
            "it is empty: name a place, or leave it out",
        )),
        false => Ok(kinds),
    }
}

fn source_names<S: Serializer>(order: &[SourceKind], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(order.iter().map(|it| it.name()))
}

pub(crate) fn tenant<'de, D: Deserializer<'de>>(deserializer: D) -> Result<TenantId, D::Error> {
    let text = String::deserialize(deserializer)?;
    TenantId::new(&text).map_err(de::Error::custom)
}

fn policy_name<S: Serializer>(policy: &Policy, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(policy)
}

pub(crate) fn tenant_name<S: Serializer>(
    tenant: &TenantId,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(tenant.as_str())
}

/// The key of what counts for models that are not named.
const DEFAULT: &str = "default";

fn affinity_names<S: Serializer>(modes: &Modes, serializer: S) -> Result<S::Ok, S::Error> {
    let models = modes.by_model.iter();
    let models = models.map(|(model, mode)| (model.as_str(), mode.name()));
    serializer.collect_map([(DEFAULT, modes.default.name())].into_iter().chain(models))
}

fn affinity_modes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Modes, D::Error> {
    deserializer.deserialize_any(ModesVisitor)
}

struct ModesVisitor;

impl<'de> de::Visitor<'de> for ModesVisitor {
    type Value = Modes;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("hard, soft or off, or a table with one of them for each model")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Modes, E> {
        let mode: Mode = text.parse().map_err(E::custom)?;
        Ok(mode.into())
    }

    fn visit_map<A: de::MapAccess<'de>>(self, mut table: A) -> Result<Modes, A::Error> {
        let mut modes = Modes::default();
        while let Some((name, mode)) = table.next_entry::<String, String>()? {
            let mode = mode.parse().map_err(de::Error::custom)?;
            match name.as_str() {
                DEFAULT => modes.default = mode,
                model => {
                    let model = model.parse().map_err(de::Error::custom)?;
                    modes.by_model.insert(model, mode);
                }
            }
        }
        Ok(modes)
    }
}
