//! Which headers pass between a client and an engine.

use http::header::{
    CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue,
    PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};

/// Headers that describe one connection (RFC 9110, 7.6.1) or that the next hop makes anew.
const PER_HOP: [HeaderName; 11] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
    HOST,
    EXPECT,
];

/// The end-to-end headers among `headers`; the length is left to whoever sends the body on.
pub(crate) fn end_to_end(headers: &HeaderMap) -> Vec<(String, String)> {
    let named = named_by_connection(headers);
    headers
        .iter()
        .filter(|(name, _)| !PER_HOP.contains(name) && **name != CONTENT_LENGTH)
        .filter(|(name, _)| {
            !named
                .iter()
                .any(|it| it.eq_ignore_ascii_case(name.as_str()))
        })
        .map(|(name, value)| (name.as_str().to_owned(), text_of(value)))
        .collect()
}

/// The headers of a request to the engine, without those that concern one hop only or that `stripped`
/// names, and how many of the latter there were.
pub(crate) fn to_engine(headers: &[(String, String)], stripped: &[&str]) -> (HeaderMap, u64) {
    let mut all = HeaderMap::with_capacity(headers.len());
    for (name, value) in headers {
        let name = HeaderName::from_bytes(name.as_bytes());
        let value = HeaderValue::from_bytes(value.as_bytes());
        // What is no header by RFC 9110 cannot have come in as one.
        if let (Ok(name), Ok(value)) = (name, value) {
            all.append(name, value);
        }
    }
    for name in named_by_connection(&all) {
        all.remove(&name);
    }
    for name in PER_HOP.iter().chain([&CONTENT_LENGTH]) {
        all.remove(name);
    }
    let before = all.len();
    for name in stripped {
        all.remove(*name);
    }
    let removed = (before - all.len()) as u64;
    (all, removed)
}

fn named_by_connection(headers: &HeaderMap) -> Vec<String> {
    headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|name| name.trim().to_ascii_lowercase())
        .collect()
}

/// Header values are bytes; the contract carries text, so bytes outside UTF-8 are replaced.
fn text_of(value: &HeaderValue) -> String {
    String::from_utf8_lossy(value.as_bytes()).into_owned()
}
