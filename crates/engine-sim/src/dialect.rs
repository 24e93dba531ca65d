//! Which engine a fake is.

use std::str::FromStr;

use engine_model::Cache;
use serde::{Deserialize, Serialize};

/// The engine whose HTTP API and events are spoken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Dialect {
    /// vLLM.
    #[default]
    Vllm,
    /// SGLang.
    Sglang,
    /// TensorRT-LLM behind the worker of `deploy/trtllm`.
    #[serde(rename = "tensorrt-llm")]
    TensorRtLlm,
}

impl Dialect {
    /// Every dialect.
    pub const ALL: [Self; 3] = [Self::Vllm, Self::Sglang, Self::TensorRtLlm];

    /// Its name in settings.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
            Self::TensorRtLlm => "tensorrt-llm",
        }
    }

    /// The release that is spoken unless another is set: the newest that was read.
    pub(crate) const fn newest(self) -> &'static str {
        match self {
            Self::Vllm => "0.33.0",
            Self::Sglang => "0.5.23",
            Self::TensorRtLlm => "1.3.0rc27",
        }
    }

    /// How it calls itself where it lists its models.
    pub(crate) const fn owner(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
            Self::TensorRtLlm => "tensorrt_llm",
        }
    }

    /// How its caches keep and announce blocks.
    pub(crate) const fn cache(self) -> Cache {
        match self {
            Self::Vllm => Cache::Blocks,
            Self::Sglang | Self::TensorRtLlm => Cache::Radix,
        }
    }
}

/// A name of no dialect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write vllm, sglang or tensorrt-llm")]
pub struct UnknownDialect;

impl FromStr for Dialect {
    type Err = UnknownDialect;

    fn from_str(text: &str) -> Result<Self, UnknownDialect> {
        let found = Self::ALL.into_iter().find(|it| it.name() == text);
        found.ok_or(UnknownDialect)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dialect_is_read_by_its_name() {
        for dialect in Dialect::ALL {
            assert_eq!(dialect.name().parse(), Ok(dialect));
            assert!(engine_wire::Version::parse(dialect.newest()).is_some());
        }
        assert_eq!("trtllm".parse::<Dialect>(), Err(UnknownDialect));
    }
}
