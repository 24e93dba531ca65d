//! Who asks: the tenant that a request's API key names, found before its body is read. Where keys are set they end
//! here: no handler and no engine sees them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, header};
use tokio::time::Instant;
use tracing::warn;

use crate::error::ApiError;
use crate::outcome::Committed;
use crate::replica::Replica;
use crate::tenant::{SaltAudit, Tenant};

/// Where clients of Anthropic's API put their keys.
const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// Where clients put keys, of whichever API and gateway: what is meant for this router, or for what stands before it,
/// would let an engine, or who reads its logs, ask in its client's name.
const SECRETS: [HeaderName; 7] = [
    header::AUTHORIZATION,
    X_API_KEY,
    // Of Azure's API.
    HeaderName::from_static("api-key"),
    // Of Google's.
    HeaderName::from_static("x-goog-api-key"),
    HeaderName::from_static("anthropic-api-key"),
    // Of gateways and their sign-ons.
    header::PROXY_AUTHORIZATION,
    header::COOKIE,
];
/// How clients of OpenAI's API begin theirs, in any case.
const BEARER: &[u8] = b"bearer ";
/// Keys of one request that are looked at: one in each of the two headers, and then some.
const MAX_SHOWN: usize = 4;
/// Between two lines about salts of other tenants.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// Whose request it is.
pub(crate) struct Caller(pub(crate) Arc<Tenant>);

impl FromRequestParts<Arc<Replica>> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(
        parts: &mut Parts,
        replica: &Arc<Replica>,
    ) -> Result<Self, ApiError> {
        replica.caller(&mut parts.headers)
    }
}

impl FromRequestParts<Arc<Committed>> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(
        parts: &mut Parts,
        committed: &Arc<Committed>,
    ) -> Result<Self, ApiError> {
        committed.replica.caller(&mut parts.headers)
    }
}

fn keys(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    let bearers = headers.get_all(header::AUTHORIZATION).iter();
    let bearers = bearers.filter_map(|value| {
        let (scheme, key) = value.as_bytes().split_at_checked(BEARER.len())?;
        scheme
            .eq_ignore_ascii_case(BEARER)
            .then(|| key.trim_ascii())
    });
    let others = headers.get_all(X_API_KEY).iter();
    bearers.chain(others.map(|value| value.as_bytes().trim_ascii()))
}

/// Notices clients that give the salts of other tenants.
#[derive(Debug, Default)]
pub(crate) struct Audit {
    /// Guards both; held for one look.
    seen: Mutex<(SaltAudit, Option<Instant>)>,
}

impl Replica {
    fn caller(&self, headers: &mut HeaderMap) -> Result<Caller, ApiError> {
        let found = self.tenants.of(keys(headers).take(MAX_SHOWN));
        if self.tenants.need_keys() {
            for name in SECRETS {
                headers.remove(name);
            }
        }
        found.map(Caller).ok_or_else(|| {
            self.count(None, ApiError::InvalidKey.status());
            ApiError::InvalidKey
        })
    }

    /// The salt of a request whose client gave `given`. One that is another tenant's does nothing, and is counted.
    pub(crate) fn salt(&self, tenant: &Tenant, given: Option<&str>) -> Option<String> {
        let made = self.tenants.salt(tenant, given);
        if let (true, Some(given), Some(made)) = (tenant.is_named(), given, &made) {
            self.audit(tenant, given, made);
        }
        made
    }

    fn audit(&self, tenant: &Tenant, given: &str, made: &str) {
        let mut seen = self
            .audit
            .seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let (salts, told) = &mut *seen;
        let owner = salts.see(&tenant.id, given, made);
        let kind = match owner {
            Some(_) => "foreign",
            None => "own",
        };
        let labels = [tenant.id.as_str(), kind];
        self.metrics.client_salts.with_label_values(&labels).inc();
        if let Some(owner) = owner
            && told.is_none_or(|it| LOG_EVERY <= it.elapsed())
        {
            *told = Some(Instant::now());
            warn!(tenant = %tenant.id, %owner, "a client gives the cache_salt of another tenant, which does nothing; for \
                a minute these are only counted");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_where_clients_put_them() {
        let check = |headers: &[(&'static str, &'static str)], expected: &[&str]| {
            let mut map = HeaderMap::new();
            for (name, value) in headers {
                map.append(*name, value.parse().unwrap());
            }
            let found: Vec<_> = keys(&map)
                .map(|it| std::str::from_utf8(it).unwrap())
                .collect();
            assert_eq!(found, expected, "of {headers:?}");
        };
        check(&[], &[]);
        check(&[("authorization", "Bearer k")], &["k"]);
        check(&[("authorization", "bearer   k ")], &["k"]);
        check(
            &[("authorization", "Basic azo="), ("x-api-key", "k")],
            &["k"],
        );
        check(
            &[("x-api-key", "x"), ("authorization", "Bearer b")],
            &["b", "x"],
        );
        check(&[("authorization", "Bearer")], &[]);
    }
}
