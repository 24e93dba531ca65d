//! The admin API that every process has: health, readiness, metrics.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus::{Encoder as _, TextEncoder};
use tokio::net::TcpListener;
use tokio::time::Instant;

use crate::Context;

/// An address that cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("listen on {address} (set {key} to another address)")]
pub struct ListenError {
    address: SocketAddr,
    key: &'static str,
    #[source]
    source: std::io::Error,
}

/// How long an address may stay taken, as by a killed process that has not quite gone.
const LISTEN_PATIENCE: Duration = Duration::from_secs(1);
/// How often it is tried meanwhile.
const LISTEN_RETRY: Duration = Duration::from_millis(50);

/// Listens on `address`, which the setting `key` names.
pub async fn listen(address: SocketAddr, key: &'static str) -> Result<TcpListener, ListenError> {
    let deadline = Instant::now() + LISTEN_PATIENCE;
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => return Ok(listener),
            Err(error) if error.kind() == ErrorKind::AddrInUse && Instant::now() < deadline => {
                tokio::time::sleep(LISTEN_RETRY).await;
            }
            Err(source) => {
                return Err(ListenError {
                    address,
                    key,
                    source,
                });
            }
        }
    }
}

/// `/healthz`, `/readyz` (503 and what is missing until ready; what is found amiss either way) and `/metrics` (Prometheus text).
pub fn admin_routes(context: Context) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(context)
}

/// Asks for `token` as a bearer token on every path but `/healthz` and `/readyz`, which probes ask.
pub fn protect(routes: Router, token: Option<String>) -> Router {
    let Some(token) = token else {
        return routes;
    };
    let expected: Arc<str> = format!("Bearer {token}").into();
    routes.layer(middleware::from_fn(move |request: Request, next: Next| {
        let expected = expected.clone();
        async move {
            let open = matches!(request.uri().path(), "/healthz" | "/readyz");
            let given = request.headers().get(header::AUTHORIZATION);
            let right = given.is_some_and(|it| same(it.as_bytes(), expected.as_bytes()));
            if open || right {
                return next.run(request).await;
            }
            let why = "send the admin token as `Authorization: Bearer TOKEN`\n";
            (StatusCode::UNAUTHORIZED, why).into_response()
        }
    }))
}

/// Compares in a time that does not depend on where two texts of one length differ.
fn same(left: &[u8], right: &[u8]) -> bool {
    left.len() == right.len() && left.iter().zip(right).fold(0, |all, (l, r)| all | (l ^ r)) == 0
}

async fn readyz(State(context): State<Context>) -> Response {
    let missing = context.health.missing();
    let findings = context.health.findings();
    let found = findings
        .iter()
        .flat_map(|(component, found)| found.iter().map(move |it| format!("{component}: {it}\n")));
    let found: String = found.collect();
    if missing.is_empty() {
        return format!("ready\n{found}").into_response();
    }
    let lines: String = missing
        .iter()
        .map(|(component, why)| format!("{component}: {why}\n"))
        .collect();
    (StatusCode::SERVICE_UNAVAILABLE, lines + &found).into_response()
}

async fn metrics(State(context): State<Context>) -> Response {
    let mut text = Vec::new();
    let encoder = TextEncoder::new();
    let content_type = encoder.format_type().to_owned();
    match encoder.encode(&context.registry.gather(), &mut text) {
        Ok(()) => ([(header::CONTENT_TYPE, content_type)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
