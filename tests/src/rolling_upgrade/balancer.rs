//! A balancer before routers, as deployments have one: it asks each whether it is ready, sends new requests only to those
//! that are, and leaves alone what is under way. It never sends a request twice.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use service_kit::CancellationToken;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::apart::{Apart, Kind};
use crate::client::{Ask, Client, Failure, Http};
use crate::steady::Turn;

/// How often routers are asked: slower than the second for which they still take requests when they are to end.
const PROBE_EVERY: Duration = Duration::from_millis(100);

pub(super) struct Balancer {
    routers: Vec<Router>,
    next: AtomicUsize,
    http: Http,
}

struct Router {
    api: SocketAddr,
    /// Where it says whether it is ready.
    admin: SocketAddr,
    is_ready: AtomicBool,
    client: Client,
    /// Guards nothing else.
    last_sent: Mutex<Option<Instant>>,
}

impl Balancer {
    /// One before all routers of a world, which are ready.
    pub(super) fn before(apart: &Apart) -> Self {
        let routers = apart.of(Kind::Router).filter_map(|it| {
            let api = it.api?;
            Some(Router {
                api,
                admin: it.admin,
                is_ready: AtomicBool::new(true),
                client: Client::of(vec![api]),
                last_sent: Mutex::default(),
            })
        });
        Self {
            routers: routers.collect(),
            next: AtomicUsize::new(0),
            http: Http::default(),
        }
    }

    /// Asks all routers how they are, until `end`.
    pub(super) async fn follow(self: Arc<Self>, end: CancellationToken) {
        let mut ticks = interval(PROBE_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = end.cancelled() => return,
                _ = ticks.tick() => {}
            }
            let probes = self.routers.iter().map(|it| async {
                let url = format!("http://{}/readyz", it.admin);
                let ready = self.http.get_text(&url).await.is_ok();
                it.is_ready.store(ready, Relaxed);
            });
            futures::future::join_all(probes).await;
        }
    }

    /// What asks through it.
    pub(super) fn asks(
        self: &Arc<Self>,
    ) -> impl Fn(Turn) -> BoxFuture<'static, Result<(), Failure>> + Clone + Send + Sync + 'static + use<>
    {
        let balancer = self.clone();
        move |turn| {
            let balancer = balancer.clone();
            Box::pin(async move { balancer.ask(turn).await })
        }
    }

    /// When a router was sent its last request.
    pub(super) fn last_sent(&self, api: SocketAddr) -> Option<Instant> {
        let router = self.routers.iter().find(|it| it.api == api)?;
        let sent = router.last_sent.lock();
        *sent.unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) async fn ask(&self, turn: Turn) -> Result<(), Failure> {
        let ready: Vec<&Router> = self
            .routers
            .iter()
            .filter(|it| it.is_ready.load(Relaxed))
            .collect();
        // With nobody ready it is as good as any.
        let all = self.routers.iter().collect();
        let ready = if ready.is_empty() { all } else { ready };
        let router = ready[self.next.fetch_add(1, Relaxed) % ready.len()];
        router.is_sent_one();
        let ask = Ask {
            path: "/v1/completions",
            conversation: Some(&turn.conversation),
            request_id: &turn.request_id,
            body: turn.body,
        };
        router.client.ask(ask).await.map(drop)
    }
}

impl Router {
    fn is_sent_one(&self) {
        let mut last = self
            .last_sent
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *last = Some(Instant::now());
    }
}
