//! `GET /server_info` (before 0.5.6 `/get_server_info`): what a server is, and where its ranks publish.

use std::collections::BTreeMap;

use domain::ModelName;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::gauges::MAX_RANKS;
use crate::keys::has_any;

/// What a server says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerInfo {
    /// Its version, such as `0.5.23`.
    pub version: String,
    /// The name by which clients ask for its model.
    pub model: ModelName,
    /// How many attention-DP ranks it has, over all its nodes.
    pub dp_size: u32,
    /// Whether its ranks are those of one attention-DP group, and not independent replicas.
    pub attention_dp: bool,
    /// On how many nodes it runs.
    pub nodes: u32,
    /// Tokens per page of its cache.
    pub page_size: Option<u32>,
    /// Tokens that one rank's cache can hold.
    pub max_tokens: Option<u64>,
    /// Its KV events; none where it publishes none over TCP.
    pub kv_events: Option<KvEvents>,
}

/// Where a server's ranks publish their KV events: rank r on the base port plus r.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvEvents {
    /// The host, which may be a wildcard for the server's own.
    pub host: String,
    /// Rank 0's port for events.
    pub publish: u16,
    /// Rank 0's port for replay.
    pub replay: Option<u16>,
    /// What events are published under.
    pub topic: String,
    /// Tokens per page as the events count them, where the server says; larger than its page size under
    /// decode-context parallelism.
    pub page_size: Option<u32>,
}

/// Why an answer is not SGLang's.
#[derive(Debug, thiserror::Error)]
pub enum ServerInfoError {
    /// It is no JSON object.
    #[error("read what the server says of itself")]
    Json(#[from] serde_json::Error),
    /// It has something in another shape.
    #[error("read its {field}")]
    Field {
        /// What.
        field: &'static str,
        /// How it differs.
        #[source]
        source: serde_json::Error,
    },
    /// Its model's name is none.
    #[error("read its model's name")]
    Name(#[from] domain::InvalidId),
    /// It has no ranks, or more than any server has.
    #[error("{ranks} ranks are none or more than {MAX_RANKS}")]
    Ranks {
        /// How many.
        ranks: u32,
    },
    /// It says two numbers of ranks.
    #[error(
        "kv_events.dp_size is {events}, dp_size {dp_size} and attn_dp_size {attn_dp_size}: it has one number of ranks"
    )]
    Contradiction {
        /// How many publish events.
        events: u32,
        /// How many replicas it has; of attention's ranks too, up to some version.
        dp_size: u32,
        /// How many ranks of attention each has.
        attn_dp_size: u32,
    },
}

/// The fields that matter of the server's settings and state, which are some hundreds.
#[derive(Serialize)]
struct Wire {
    version: String,
    model_path: String,
    served_model_name: Option<String>,
    dp_size: Option<u32>,
    attn_dp_size: Option<u32>,
    enable_dp_attention: bool,
    nnodes: Option<u32>,
    page_size: Option<u32>,
    max_total_num_tokens: Option<u64>,
    kv_events: Option<Descriptor>,
    /// The setting as it was given, a JSON text.
    kv_events_config: Option<String>,
}

impl Wire {
    fn read(body: &[u8]) -> Result<Self, ServerInfoError> {
        let said = Said(serde_json::from_slice(body)?);
        Ok(Self {
            version: said.required("version")?,
            model_path: said.required("model_path")?,
            served_model_name: said.optional("served_model_name")?,
            dp_size: said.optional("dp_size")?,
            attn_dp_size: said.optional("attn_dp_size")?,
            enable_dp_attention: said.optional("enable_dp_attention")?.unwrap_or_default(),
            nnodes: said.optional("nnodes")?,
            page_size: said.optional("page_size")?,
            max_total_num_tokens: said.optional("max_total_num_tokens")?,
            kv_events: said.optional("kv_events")?,
            kv_events_config: said.optional("kv_events_config")?,
        })
    }
}

/// What a server says, each read by itself so that an error names it.
struct Said<'a>(BTreeMap<String, &'a RawValue>);

impl Said<'_> {
    fn required<T: DeserializeOwned>(&self, field: &'static str) -> Result<T, ServerInfoError> {
        let text = self.0.get(field).map_or("null", |it| it.get());
        serde_json::from_str(text).map_err(|source| ServerInfoError::Field { field, source })
    }

    fn optional<T: DeserializeOwned>(
        &self,
        field: &'static str,
    ) -> Result<Option<T>, ServerInfoError> {
        self.required(field)
    }
}

/// Since 0.5.13.
#[derive(Deserialize, Serialize)]
struct Descriptor {
    publisher: String,
    endpoint_host: String,
    endpoint_port_base: u16,
    #[serde(default)]
    topic: String,
    block_size: Option<u32>,
    dp_size: Option<u32>,
    /// Since 0.5.22.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    replay_endpoint_port_base: Option<u16>,
}

/// `--kv-events-config`, with SGLang's defaults.
#[derive(Deserialize, Serialize)]
#[serde(default)]
struct Setting {
    publisher: String,
    endpoint: String,
    replay_endpoint: Option<String>,
    topic: String,
}

impl Default for Setting {
    fn default() -> Self {
        Self {
            publisher: OFF.to_owned(),
            endpoint: "tcp://*:5557".to_owned(),
            replay_endpoint: None,
            topic: String::new(),
        }
    }
}

/// The publisher that publishes nothing.
const OFF: &str = "null";

/// Whether the answer to `GET /server_info` is SGLang's, readable or not. A vLLM in development mode answers there too,
/// with neither.
pub fn is_server_info(body: &[u8]) -> bool {
    has_any(body, &["model_path", "dp_size"])
}

/// Reads the answer to `GET /server_info` or `GET /get_server_info`. Anything that is not SGLang's is an error.
///
/// What the descriptor of KV events does not say yet is taken from the setting, so that 0.5.9 is understood like
/// 0.5.23. A server says one base port: where its ranks run on several nodes, only those on the host that it
/// names can be reached there.
pub fn parse_server_info(body: &[u8]) -> Result<ServerInfo, ServerInfoError> {
    let wire = Wire::read(body)?;
    let setting = wire.kv_events_config.as_deref().map(serde_json::from_str);
    let setting: Option<Setting> =
        setting
            .transpose()
            .map_err(|source| ServerInfoError::Field {
                field: "kv_events_config",
                source,
            })?;
    let attn_dp_size = wire.attn_dp_size.unwrap_or(1);
    let dp_size = ranks_of(&wire, attn_dp_size)?;
    if dp_size == 0 || MAX_RANKS < dp_size as usize {
        return Err(ServerInfoError::Ranks { ranks: dp_size });
    }
    Ok(ServerInfo {
        model: wire.served_model_name.unwrap_or(wire.model_path).parse()?,
        dp_size,
        attention_dp: wire.enable_dp_attention || 1 < attn_dp_size,
        nodes: wire.nnodes.unwrap_or(1),
        page_size: wire.page_size,
        max_tokens: wire.max_total_num_tokens,
        kv_events: events_of(wire.kv_events, setting),
        version: wire.version,
    })
}

fn ranks_of(wire: &Wire, attn_dp_size: u32) -> Result<u32, ServerInfoError> {
    let dp_size = wire.dp_size.unwrap_or(1);
    // Up to some version `dp_size` counts the ranks of attention too, and since then one of the two is mostly 1.
    let either = dp_size.max(attn_dp_size);
    let Some(events) = wire.kv_events.as_ref().and_then(|it| it.dp_size) else {
        return Ok(either);
    };
    let silent = wire.dp_size.is_none() && wire.attn_dp_size.is_none();
    let possible = [Some(either), dp_size.checked_mul(attn_dp_size)];
    if !silent && !possible.contains(&Some(events)) {
        return Err(ServerInfoError::Contradiction {
            events,
            dp_size,
            attn_dp_size,
        });
    }
    Ok(events)
}

fn events_of(described: Option<Descriptor>, setting: Option<Setting>) -> Option<KvEvents> {
    let replay = setting
        .as_ref()
        .and_then(|it| it.replay_endpoint.as_deref());
    let replay = replay.and_then(host_and_port).map(|(_, port)| port);
    if let Some(described) = described {
        return (described.publisher != OFF).then_some(KvEvents {
            host: described.endpoint_host,
            publish: described.endpoint_port_base,
            replay: described.replay_endpoint_port_base.or(replay),
            topic: described.topic,
            page_size: described.block_size,
        });
    }
    let setting = setting.filter(|it| it.publisher != OFF)?;
    let (host, publish) = host_and_port(&setting.endpoint)?;
    Some(KvEvents {
        host: host.to_owned(),
        publish,
        replay,
        topic: setting.topic,
        page_size: None,
    })
}

fn host_and_port(endpoint: &str) -> Option<(&str, u16)> {
    let (host, port) = endpoint.strip_prefix("tcp://")?.rsplit_once(':')?;
    Some((host, port.parse().ok().filter(|port| *port != 0)?))
}

/// The body that answers `GET /server_info`, as SGLang 0.5.23 does.
pub fn encode_server_info(info: &ServerInfo) -> String {
    let tcp = |host: &str, port: u16| format!("tcp://{host}:{port}");
    let setting = info.kv_events.as_ref().map(|events| Setting {
        publisher: "zmq".to_owned(),
        endpoint: tcp(&events.host, events.publish),
        replay_endpoint: events.replay.map(|port| tcp(&events.host, port)),
        topic: events.topic.clone(),
    });
    let described = info.kv_events.as_ref().map(|events| Descriptor {
        publisher: "zmq".to_owned(),
        endpoint_host: events.host.clone(),
        endpoint_port_base: events.publish,
        topic: events.topic.clone(),
        block_size: events.page_size.or(info.page_size),
        dp_size: Some(info.dp_size),
        replay_endpoint_port_base: events.replay,
    });
    let (dp_size, attn_dp_size) = match info.attention_dp {
        true => (1, info.dp_size),
        false => (info.dp_size, 1),
    };
    let wire = Wire {
        version: info.version.clone(),
        model_path: info.model.to_string(),
        served_model_name: Some(info.model.to_string()),
        dp_size: Some(dp_size),
        attn_dp_size: Some(attn_dp_size),
        enable_dp_attention: info.attention_dp,
        nnodes: Some(info.nodes),
        page_size: info.page_size,
        max_total_num_tokens: info.max_tokens,
        kv_events: described,
        kv_events_config: setting.map(|it| json(&it)),
    };
    json(&wire)
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("texts and numbers have a JSON form")
}
