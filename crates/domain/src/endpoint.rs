//! Kinds of requests, by what engines' front ends do with them.

use std::fmt;

/// An endpoint of the OpenAI-compatible API. Engines treat the rank of a request differently at each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Endpoint {
    /// `POST /v1/chat/completions`.
    Chat,
    /// `POST /v1/completions`.
    Completions,
    /// `POST /v1/responses`.
    Responses,
    /// `POST /v1/messages`.
    Messages,
    /// `POST /v1/embeddings`.
    Embeddings,
}

impl Endpoint {
    /// Every endpoint.
    pub const ALL: [Self; 5] = [
        Self::Chat,
        Self::Completions,
        Self::Responses,
        Self::Messages,
        Self::Embeddings,
    ];

    /// Its path.
    pub const fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Completions => "/v1/completions",
            Self::Responses => "/v1/responses",
            Self::Messages => "/v1/messages",
            Self::Embeddings => "/v1/embeddings",
        }
    }

    /// Its name in metrics, JSON and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Completions => "completions",
            Self::Responses => "responses",
            Self::Messages => "messages",
            Self::Embeddings => "embeddings",
        }
    }

    /// The endpoint of a path, with or without a query; none for any other path.
    pub fn of_path(path: &str) -> Option<Self> {
        let path = path.split_once('?').map_or(path, |(path, _query)| path);
        Self::ALL.into_iter().find(|it| it.path() == path)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One value for each endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ByEndpoint<T>([T; Endpoint::ALL.len()]);

impl<T> ByEndpoint<T> {
    /// What `value` gives for each endpoint.
    pub fn of(value: impl FnMut(Endpoint) -> T) -> Self {
        Self(Endpoint::ALL.map(value))
    }

    /// The value of `endpoint`.
    pub fn get(&self, endpoint: Endpoint) -> &T {
        // `ALL` lists the endpoints in the order of their declaration.
        &self.0[endpoint as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_endpoint_has_its_own_value_and_path() {
        let names = ByEndpoint::of(Endpoint::name);
        for endpoint in Endpoint::ALL {
            assert_eq!(*names.get(endpoint), endpoint.name());
            let with_query = format!("{}?a=b", endpoint.path());
            assert_eq!(Endpoint::of_path(endpoint.path()), Some(endpoint));
            assert_eq!(Endpoint::of_path(&with_query), Some(endpoint));
        }
        assert_eq!(Endpoint::of_path("/v1/models"), None);
    }
}
