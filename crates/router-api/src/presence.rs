//! This router in `fleet`, with what it has found of ranks; and its findings for whoever watches: gauges, and the
//! text of `/readyz`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use affinity::ConversationKey;
use bus::Bus;
use domain::{
    ConversationId, Distrust, Endpoint, ModelName, ServiceKind, Share, TenantId, WorkerId,
};
use routing::Finding;
use service_kit::{CancellationToken, Component, Presence, SameSecret};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tracing::warn;

use crate::config::Config;
use crate::replica::{Replica, within_deadline};

/// How soon what is found shows.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How often it is looked whether bindings can be had.
const STORE_EVERY: Duration = Duration::from_secs(1);
/// Findings named in `/readyz`; metrics have all of them.
const MAX_NAMED: usize = 100;

/// Keeps this router's entry until `end`, and then takes it away. It answers no calls of other services.
pub(crate) async fn announce(replica: Arc<Replica>, bus: Arc<dyn Bus>, end: CancellationToken) {
    let presence = Presence {
        id: replica.instance.clone(),
        kind: ServiceKind::Router,
        address: String::new(),
        share: Share::Whole,
        secret: salt_secret(&replica.config),
    };
    let distrust = || replica.mind.lock().truth().distrust();
    let context = replica.context.clone();
    presence.keep(bus, context, distrust, end).await;
}

/// By another one the caches of tenants would be others at each router.
fn salt_secret(config: &Config) -> Option<SameSecret> {
    let secret = config.salt_secret.as_ref();
    let secret = secret.filter(|_| !config.tenants.is_empty())?;
    Some(SameSecret::new("router.salt_secret", secret.reveal()))
}

/// Shows what is found, for ever.
pub(crate) async fn show(replica: Arc<Replica>, component: Component) {
    let mut ticks = interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut shown: BTreeSet<WorkerId> = BTreeSet::new();
    let mut named: Vec<String> = Vec::new();
    let mut store = StoreWatch::of(&replica);
    loop {
        ticks.tick().await;
        let silence = store.finding(&replica).await;
        let now = replica.clock.now();
        let router = replica.mind.lock();
        let untrusted = router.truth().untrusted(now);
        let workers: Vec<_> = router
            .workers()
            .map(|it| (it.id.clone(), router.epoch(&it.id).unwrap_or(it.epoch)))
            .collect();
        let mut findings = texts(&router.findings(now));
        let refused = router.workers().filter_map(|it| router.refusal(it));
        let refused: Vec<String> = refused.map(|it| it.to_string()).collect();
        drop(router);
        for why in refused.iter().filter(|it| !named.contains(it)) {
            warn!(why, "a worker is left out");
        }
        findings.extend(refused);
        findings.extend(silence);
        let gauge = &replica.metrics.ranks.untrusted;
        let mut gone = std::mem::take(&mut shown);
        for (worker, epoch) in workers {
            for endpoint in Endpoint::ALL {
                let key = Distrust {
                    worker: worker.clone(),
                    epoch,
                    endpoint,
                };
                let labels = [worker.as_str(), endpoint.name()];
                let value = i64::from(untrusted.contains(&key));
                gauge.with_label_values(&labels).set(value);
            }
            gone.remove(&worker);
            shown.insert(worker);
        }
        for worker in gone {
            for endpoint in Endpoint::ALL {
                // It was shown, so it is there.
                let _shown = gauge.remove_label_values(&[worker.as_str(), endpoint.name()]);
            }
        }
        if findings != named {
            component.finds(findings.clone());
            named = findings;
        }
    }
}

/// Looks whether bindings can be had, where tenants are refused without.
struct StoreWatch {
    /// Those tenants.
    closed: BTreeSet<TenantId>,
    looked: Option<Instant>,
    finding: Option<String>,
}

impl StoreWatch {
    fn of(replica: &Replica) -> Self {
        Self {
            closed: replica.tenants.fail_closed(),
            looked: None,
            finding: None,
        }
    }

    /// What its last look has found.
    async fn finding(&mut self, replica: &Replica) -> Option<String> {
        let tenant = self.closed.first()?;
        if self.looked.is_some_and(|it| it.elapsed() < STORE_EVERY) {
            return self.finding.clone();
        }
        self.looked = Some(Instant::now());
        // Nobody's conversation: only whether there is an answer matters.
        let key = ConversationKey {
            tenant: tenant.clone(),
            model: ModelName::new("readyz").expect("a printable word is a name"),
            conversation: ConversationId::new("readyz").expect("a printable word is an id"),
        };
        let silent = within_deadline(replica.affinity.get(&key)).await.err();
        self.finding = silent.map(|error| {
            let closed: Vec<&str> = self.closed.iter().map(TenantId::as_str).collect();
            let closed = closed.join(", ");
            format!(
                "affinity: {error}; tenants that fail closed get 503 for conversations: {closed}"
            )
        });
        self.finding.clone()
    }
}

fn texts(findings: &[Finding]) -> Vec<String> {
    let named = findings.iter().take(MAX_NAMED).map(|it| {
        let Finding {
            worker,
            endpoint,
            dp_rank,
            ..
        } = it;
        let fault = it.fault.name();
        format!("worker {worker}, rank {dp_rank}: {fault} ({endpoint})")
    });
    let more = findings.len().saturating_sub(MAX_NAMED);
    let more = (0 < more).then(|| format!("{more} more"));
    named.chain(more).collect()
}
