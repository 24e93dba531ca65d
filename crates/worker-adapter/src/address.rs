//! Addresses of engines as operators write them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Where an engine's HTTP API is: `http://host:port` and nothing more.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct EngineUrl(HostPort);

/// Where rank 0 publishes or replays KV events: `tcp://host:port`. A host of `*` is the engine's own.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct ZmqBase(HostPort);

/// Where an engine's KV events come from: `tcp://host:port` where rank 0 publishes, or `http://host:port` of a server
/// that gives those of all ranks to whoever asks.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub enum EventsAt {
    /// Published.
    Published(ZmqBase),
    /// Asked for.
    Drained(EngineUrl),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct HostPort {
    /// With brackets where it is an IPv6 address.
    host: String,
    port: u16,
}

/// A text that is no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidAddress {
    /// TLS is not spoken.
    #[error("{text:?} asks for TLS, which is not spoken to engines: write http://host:port")]
    Tls {
        /// What was written.
        text: String,
    },
    /// It has another form.
    #[error("{text:?} is not an address: write {form}")]
    Form {
        /// What was written.
        text: String,
        /// What should have been.
        form: String,
    },
}

impl EngineUrl {
    /// Its host, with brackets where it is an IPv6 address.
    pub fn host(&self) -> &str {
        &self.0.host
    }

    /// `host:port`, without the brackets of an IPv6 address: the default name of the worker.
    pub(crate) fn authority(&self) -> String {
        let host = self.0.host.trim_start_matches('[').trim_end_matches(']');
        format!("{host}:{}", self.0.port)
    }
}

impl ZmqBase {
    /// Its host, or the engine's where it is a wildcard.
    pub(crate) fn host<'a>(&'a self, engine: &'a EngineUrl) -> &'a str {
        match self.0.host.as_str() {
            "*" | "0.0.0.0" | "[::]" => engine.host(),
            host => host,
        }
    }

    /// Rank 0's port.
    pub(crate) const fn port(&self) -> u16 {
        self.0.port
    }
}

impl HostPort {
    fn parse(text: &str, scheme: &str) -> Option<Self> {
        let rest = text.strip_prefix(scheme)?;
        let (host, port) = rest.rsplit_once(':')?;
        let bracketed = host.starts_with('[') && host.ends_with(']');
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        let inner = |byte: u8| byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.');
        let valid = match bracketed {
            true => host[1..host.len() - 1].bytes().all(inner),
            false => host == "*" || (!host.is_empty() && host.bytes().all(plain)),
        };
        if !valid || !port.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let port = port.parse().ok().filter(|port| *port != 0)?;
        let host = host.to_owned();
        Some(Self { host, port })
    }
}

impl FromStr for EngineUrl {
    type Err = InvalidAddress;

    fn from_str(text: &str) -> Result<Self, InvalidAddress> {
        if text.starts_with("https://") {
            let text = text.to_owned();
            return Err(InvalidAddress::Tls { text });
        }
        let trimmed = text.strip_suffix('/').unwrap_or(text);
        let parsed = HostPort::parse(trimmed, "http://").filter(|it| it.host != "*");
        parsed.map(Self).ok_or_else(|| {
            let form = match HostPort::parse(&format!("http://{trimmed}"), "http://") {
                Some(HostPort { host, port }) if host != "*" => format!("http://{host}:{port}"),
                _ => "http://host:port, such as http://127.0.0.1:8000".to_owned(),
            };
            let text = text.to_owned();
            InvalidAddress::Form { text, form }
        })
    }
}

impl FromStr for ZmqBase {
    type Err = InvalidAddress;

    fn from_str(text: &str) -> Result<Self, InvalidAddress> {
        HostPort::parse(text, "tcp://")
            .map(Self)
            .ok_or_else(|| InvalidAddress::Form {
                text: text.to_owned(),
                form: "tcp://host:port, such as tcp://127.0.0.1:5557".to_owned(),
            })
    }
}

impl FromStr for EventsAt {
    type Err = InvalidAddress;

    fn from_str(text: &str) -> Result<Self, InvalidAddress> {
        if text.starts_with("http") {
            return text.parse().map(Self::Drained);
        }
        text.parse().map(Self::Published)
    }
}

impl TryFrom<String> for EventsAt {
    type Error = InvalidAddress;

    fn try_from(text: String) -> Result<Self, InvalidAddress> {
        text.parse()
    }
}

impl fmt::Display for EventsAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Published(base) => base.fmt(f),
            Self::Drained(url) => url.fmt(f),
        }
    }
}

impl From<EventsAt> for String {
    fn from(at: EventsAt) -> Self {
        at.to_string()
    }
}

impl TryFrom<String> for EngineUrl {
    type Error = InvalidAddress;

    fn try_from(text: String) -> Result<Self, InvalidAddress> {
        text.parse()
    }
}

impl TryFrom<String> for ZmqBase {
    type Error = InvalidAddress;

    fn try_from(text: String) -> Result<Self, InvalidAddress> {
        text.parse()
    }
}

impl fmt::Display for EngineUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}:{}", self.0.host, self.0.port)
    }
}

impl fmt::Display for ZmqBase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tcp://{}:{}", self.0.host, self.0.port)
    }
}

impl From<EngineUrl> for String {
    fn from(url: EngineUrl) -> Self {
        url.to_string()
    }
}

impl From<ZmqBase> for String {
    fn from(base: ZmqBase) -> Self {
        base.to_string()
    }
}
