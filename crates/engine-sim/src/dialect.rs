//! Which engine a fake is, and of which release.

use std::fmt;
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
}

impl Dialect {
    /// Every dialect.
    pub const ALL: [Self; 2] = [Self::Vllm, Self::Sglang];

    /// Its name in settings.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
        }
    }

    /// The release that is spoken unless another is set: the newest that was read.
    pub(crate) const fn newest(self) -> &'static str {
        match self {
            Self::Vllm => "0.33.0",
            Self::Sglang => "0.5.23",
        }
    }

    /// How its caches keep and announce blocks.
    pub(crate) const fn cache(self) -> Cache {
        match self {
            Self::Vllm => Cache::Blocks,
            Self::Sglang => Cache::Radix,
        }
    }
}

/// A name of no dialect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write vllm or sglang")]
pub struct UnknownDialect;

impl FromStr for Dialect {
    type Err = UnknownDialect;

    fn from_str(text: &str) -> Result<Self, UnknownDialect> {
        let found = Self::ALL.into_iter().find(|it| it.name() == text);
        found.ok_or(UnknownDialect)
    }
}

/// A release, such as `0.5.23`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    text: String,
    numbers: [u32; 3],
}

impl Version {
    /// Reads three numbers with dots between them, whatever letters follow the last.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, '.');
        let mut numbers = [0; 3];
        for number in &mut numbers {
            let part = parts.next()?;
            let digits = part.find(|it: char| !it.is_ascii_digit());
            *number = part[..digits.unwrap_or(part.len())].parse().ok()?;
        }
        Some(Self {
            text: text.to_owned(),
            numbers,
        })
    }

    /// Whether it is `first` or came after it.
    pub(crate) fn since(&self, first: [u32; 3]) -> bool {
        self.numbers >= first
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_compare_by_number_and_not_by_text() {
        let version = |text: &str| Version::parse(text).unwrap();
        assert!(version("0.5.20").since([0, 5, 20]));
        assert!(version("0.32.0+cpu").since([0, 31, 0]));
        assert!(!version("0.5.9").since([0, 5, 20]));
        for text in ["", "1", "0.5", "a.b.c", "0.5.x"] {
            assert_eq!(Version::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_dialect_is_read_by_its_name() {
        for dialect in Dialect::ALL {
            assert_eq!(dialect.name().parse(), Ok(dialect));
            assert!(Version::parse(dialect.newest()).is_some());
        }
        assert_eq!("trtllm".parse::<Dialect>(), Err(UnknownDialect));
    }
}
