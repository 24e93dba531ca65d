//! A service in `fleet`: an entry under a lease, renewed while the process lives.

use std::sync::Arc;
use std::time::Duration;

use bus::{Bus, BusError, Expect, Key, Revision};
use bytes::Bytes;
use contracts::{Encoding, FleetEntry, topics};
use domain::{Distrust, InstanceId, ServiceInstance, ServiceKind, Share, Timestamp};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tracing::warn;

use crate::error_chain::error_chain;
use crate::sweep::sweep;
use crate::{CancellationToken, Context, SameSecret};

/// How soon a change is told.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How often the entry is renewed although nothing has changed.
const RENEW_EVERY: Duration = Duration::from_secs(5);
/// How long the entry holds: two renewals may be lost.
pub(crate) const LEASE: Duration = Duration::from_secs(15);
/// How long the bus may take to forget a service that ends; its lease does it otherwise.
const WITHDRAW_WITHIN: Duration = Duration::from_secs(2);

/// How often entries are looked for that nobody renews any more, and how long all have to renew theirs after the bus
/// was away.
const SWEEP_EVERY: Duration = Duration::from_secs(60);

/// How long a sweep may take: less than the entry has left when it is not renewed meanwhile.
const SWEEP_WITHIN: Duration = Duration::from_secs(2);

/// What a service says of itself, besides whether it is ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Presence {
    /// Its id. No two processes that live at once have the same.
    pub id: InstanceId,
    /// What it does.
    pub kind: ServiceKind,
    /// Where it answers calls, as `host:port`; empty where it does not.
    pub address: String,
    /// What of its kind's work it does.
    pub share: Share,
    /// What all of its kind must have the same, where there is such a secret: it enters only where nobody was before
    /// by another.
    pub secret: Option<SameSecret>,
}

impl Presence {
    /// Keeps the entry until `end`, and then takes it away. The service is ready when the process is; `distrust` is
    /// asked for what a router has found.
    pub async fn keep(
        self,
        bus: Arc<dyn Bus>,
        context: Context,
        distrust: impl Fn() -> Vec<Distrust> + Send,
        end: CancellationToken,
    ) {
        let mut ticks = interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut told: Option<(ServiceInstance, Instant)> = None;
        let mut failing = false;
        let mut swept = Instant::now();
        tokio::select! {
            biased;
            () = end.cancelled() => {}
            () = self.enter(bus.as_ref(), &context) => {}
        }
        loop {
            tokio::select! {
                biased;
                () = end.cancelled() => break,
                _ = ticks.tick() => {}
            }
            let now = self.entry(context.health.missing().is_empty(), distrust());
            let holds =
                |told: &(ServiceInstance, Instant)| told.0 == now && told.1.elapsed() < RENEW_EVERY;
            if told.as_ref().is_some_and(holds) {
                if SWEEP_EVERY <= swept.elapsed() {
                    swept = Instant::now();
                    sweep_now(bus.as_ref(), &context).await;
                }
                continue;
            }
            let leased = ServiceInstance {
                lease_until: context.clock.now() + LEASE,
                ..now.clone()
            };
            let entry = FleetEntry::Service(leased).to_bytes();
            match self.write(bus.as_ref(), Some(entry)).await {
                Ok(_) => {
                    told = Some((now, Instant::now()));
                    if std::mem::replace(&mut failing, false) {
                        context.health.bus_takes_nothing(None);
                    }
                }
                Err(error) => {
                    swept = Instant::now();
                    if !std::mem::replace(&mut failing, true) {
                        let why = error_chain(&error);
                        let why = format!("it does not take what is written: {why}");
                        context.health.bus_takes_nothing(Some(why));
                        warn!(instance = %self.id, %error, "the fleet is not told of this service");
                    }
                }
            }
        }
        let withdrawn = timeout(WITHDRAW_WITHIN, self.write(bus.as_ref(), None)).await;
        if !matches!(withdrawn, Ok(Ok(_))) {
            warn!(instance = %self.id, "left in the fleet until its lease ends");
        }
    }

    /// An entry that holds its place until `lease_until`, and by which nobody calls it.
    pub(crate) fn candidate(&self, lease_until: Timestamp) -> Bytes {
        let entry = ServiceInstance {
            address: String::new(),
            lease_until,
            ..self.entry(false, Vec::new())
        };
        FleetEntry::Service(entry).to_bytes()
    }

    fn entry(&self, ready: bool, distrust: Vec<Distrust>) -> ServiceInstance {
        ServiceInstance {
            id: self.id.clone(),
            kind: self.kind,
            address: self.address.clone(),
            share: self.share.clone(),
            ready,
            distrust,
            secret: self.secret.map(|it| it.fingerprint),
            lease_until: Timestamp::ZERO,
        }
    }

    pub(crate) async fn write(
        &self,
        bus: &dyn Bus,
        entry: Option<Bytes>,
    ) -> Result<Revision, BusError> {
        let key = Key(Bytes::copy_from_slice(self.id.as_str().as_bytes()));
        let table = &topics::FLEET.table;
        bus.put(table, key, entry, Expect::Any).await
    }
}

async fn sweep_now(bus: &dyn Bus, context: &Context) {
    let swept = timeout(SWEEP_WITHIN, sweep(bus, context.clock.now())).await;
    // What was left is dead at the next time too.
    if let Ok(Err(error)) = swept {
        warn!(%error, "the fleet is not swept");
    }
}
