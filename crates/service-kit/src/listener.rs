//! HTTP/1.1 connections of clients and operators, each for as long as who opened it goes on with what it began.

use std::pin::pin;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tracing::warn;

use crate::CancellationToken;

/// How long the head of a request may take to come, and a connection may be idle between two: longer than proxies keep
/// idle ones, 60 s, so that none sends a request over a connection that is being closed.
const HEAD_PATIENCE: Duration = Duration::from_secs(75);
/// Between attempts to accept where the system has no room for more.
const ACCEPT_AGAIN: Duration = Duration::from_secs(1);

/// Serves `routes` until `shutdown`, and then until the last answer has ended.
pub async fn serve(listener: TcpListener, routes: axum::Router, shutdown: CancellationToken) {
    serve_within(listener, routes, HEAD_PATIENCE, shutdown).await;
}

async fn serve_within(
    listener: TcpListener,
    routes: axum::Router,
    patience: Duration,
    shutdown: CancellationToken,
) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            // What became of a connection is nobody's concern but its client's.
            Some(_ended) = connections.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((connection, _)) => {
                let carried = carry(connection, routes.clone(), patience, shutdown.clone());
                connections.spawn(carried);
            }
            Err(error) => {
                warn!(%error, "accept a connection");
                sleep(ACCEPT_AGAIN).await;
            }
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn carry(
    connection: TcpStream,
    routes: axum::Router,
    patience: Duration,
    shutdown: CancellationToken,
) {
    // A connection that cannot be told is merely slower.
    let _slower = connection.set_nodelay(true);
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(patience)
        .serve_connection(TokioIo::new(connection), TowerToHyperService::new(routes));
    let mut serving = pin!(serving);
    tokio::select! {
        biased;
        () = shutdown.cancelled() => serving.as_mut().graceful_shutdown(),
        _ended = serving.as_mut() => return,
    }
    let _ended = serving.await;
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::time::timeout;

    use super::*;

    const PATIENCE: Duration = Duration::from_millis(200);
    /// Nothing here takes this long unless it never happens.
    const DEADLINE: Duration = Duration::from_secs(20);

    /// Sends `said` and reads until the connection ends.
    async fn ask(said: &str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let slow = get(|| async {
            sleep(3 * PATIENCE).await;
            "slow"
        });
        let routes = axum::Router::new().route("/slow", slow);
        let mut server = JoinSet::new();
        let served = serve_within(listener, routes, PATIENCE, CancellationToken::new());
        server.spawn(served);
        let mut connection = TcpStream::connect(address).await.unwrap();
        connection.write_all(said.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let ended = timeout(DEADLINE, connection.read_to_end(&mut answer)).await;
        // However it ends, it ends.
        let _how = ended.unwrap();
        String::from_utf8(answer).unwrap()
    }

    #[tokio::test]
    async fn a_head_that_does_not_come_ends_its_connection() {
        for said in ["", "GET /slow HTTP/1.1\r\nhost: a\r\n"] {
            let answer = ask(said).await;
            assert!(!answer.contains("200 OK"), "{answer}");
        }
    }

    #[tokio::test]
    async fn an_answer_may_take_longer_than_a_head_and_an_idle_connection_ends() {
        let answer = ask("GET /slow HTTP/1.1\r\nhost: a\r\n\r\n").await;
        assert!(
            answer.contains("200 OK") && answer.ends_with("slow"),
            "{answer}"
        );
    }
}
