//! What an engine says of where its ranks publish.

use domain::RankEndpoint;
use engine_wire::sglang::{KvEvents, ServerInfo, encode_server_info};
use engine_wire::vllm::encode_kv_event_sources;

use crate::Config;
use crate::config::Checked;
use crate::dialect::Dialect;

/// The body of `/kv_event_sources`, of SGLang that of `/server_info`; none of a TensorRT-LLM, whose events are drained.
pub(crate) fn body(config: &Config, checked: &Checked, endpoints: &[RankEndpoint]) -> String {
    match config.engine {
        Dialect::Vllm => encode_kv_event_sources(endpoints, u64::from(config.buffer_steps)),
        Dialect::TensorRtLlm => String::new(),
        Dialect::Sglang => encode_server_info(&ServerInfo {
            version: checked.release.name.clone(),
            model: checked.model.clone(),
            dp_size: config.dp_size,
            attention_dp: config.dp_size > 1,
            nodes: 1,
            page_size: Some(config.block_size),
            max_tokens: Some(u64::from(config.kv_blocks) * u64::from(config.block_size)),
            kv_events: endpoints.first().and_then(|first| base_of(config, first)),
        }),
    }
}

/// The base that the ranks of an SGLang count their ports from: those of its first rank.
fn base_of(config: &Config, first: &RankEndpoint) -> Option<KvEvents> {
    let (host, publish) = host_and_port(&first.publish)?;
    let replay = first.replay.as_deref().and_then(host_and_port);
    Some(KvEvents {
        host: host.to_owned(),
        publish,
        replay: replay.map(|(_, port)| port),
        topic: first.topic.clone(),
        page_size: Some(config.block_size),
    })
}

fn host_and_port(endpoint: &str) -> Option<(&str, u16)> {
    let (host, port) = endpoint.strip_prefix("tcp://")?.rsplit_once(':')?;
    Some((host, port.parse().ok()?))
}
