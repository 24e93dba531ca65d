//! A secret that all services of a kind must have the same. Whoever comes with another one stays out of the fleet for
//! as long as those are there that came before: two stores of bindings would bind each conversation twice.
//!
//! Who came before is what the bus says: a service writes an entry by which nobody calls it, and sees in the order of
//! the table's changes who was there already. Of two that come at once one sees the other, and withdraws.

use std::collections::BTreeMap;
use std::time::Duration;

use bus::{Bus, BusError, Change, Key, Revision};
use contracts::{FleetEntry, topics};
use domain::{Fingerprint, InstanceId, ServiceInstance, ServiceKind, Timestamp};
use futures::TryStreamExt;
use ring::digest;
use tokio::time::{Instant, sleep, timeout};
use tracing::warn;

use crate::presence::{LEASE, Presence};
use crate::{Component, Context, error_chain};

/// What the hash is made for, so that it equals none that is made of the secret elsewhere.
const PURPOSE: &[u8] = b"rankway secret fingerprint v1";
/// How often those are looked for that have gone without a word.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Between attempts at a bus that fails.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// How soon the own entry is seen, or it is tried again: well before others may take it for one left behind.
const SEEN_WITHIN: Duration = Duration::from_secs(5);

/// A secret that all services of a kind must have the same, as a fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SameSecret {
    setting: &'static str,
    pub(crate) fingerprint: Fingerprint,
}

impl SameSecret {
    /// Of the secret that `setting` has: the first 8 bytes, big-endian, of SHA-256 over a purpose, the setting's
    /// name with a zero byte, and the secret.
    pub fn new(setting: &'static str, secret: &str) -> Self {
        let mut hash = digest::Context::new(&digest::SHA256);
        for part in [PURPOSE, setting.as_bytes(), &[0], secret.as_bytes()] {
            hash.update(part);
        }
        let hash = hash.finish();
        let (first, _) = hash
            .as_ref()
            .split_first_chunk()
            .expect("a SHA-256 has 32 bytes");
        Self {
            setting,
            fingerprint: Fingerprint::new(u64::from_be_bytes(*first)),
        }
    }
}

impl Presence {
    /// Resolves once this service may be in the fleet; an entry of it that is not called stands there then.
    pub(crate) async fn enter(&self, bus: &dyn Bus, context: &Context) {
        let Some(secret) = self.secret else {
            return;
        };
        let component = context.health.component(secret.setting);
        component.waiting("the fleet has not been read yet");
        let mut entry = Entry {
            presence: self,
            secret,
            bus,
            context,
            component: &component,
            others: BTreeMap::new(),
            written: None,
        };
        loop {
            match entry.attempt().await {
                Ok(true) => break,
                Ok(false) => {}
                Err(error) => {
                    let error = error_chain(&error);
                    warn!(instance = %self.id, error, "the fleet cannot be entered; trying again");
                }
            }
            sleep(RETRY_AFTER).await;
        }
        component.ready();
    }
}

/// A service on its way into the fleet.
struct Entry<'a> {
    presence: &'a Presence,
    secret: SameSecret,
    bus: &'a dyn Bus,
    context: &'a Context,
    component: &'a Component,
    /// Those there by another secret, and when each was last heard of.
    others: BTreeMap<Key, (InstanceId, Instant)>,
    /// The own entry, from when it was written until it is withdrawn.
    written: Option<(Revision, Instant)>,
}

impl Entry<'_> {
    /// Whether the fleet was entered before the bus stopped telling of it.
    async fn attempt(&mut self) -> Result<bool, BusError> {
        if self.written.take().is_some() {
            self.presence.write(self.bus, None).await?;
        }
        self.others.clear();
        let mut changes = self.bus.watch(&topics::FLEET.table).await?;
        let mut is_read = false;
        loop {
            if is_read {
                self.say();
                if self.others.is_empty() && self.written.is_none() {
                    let now = self.context.clock.now();
                    let candidate = self.presence.candidate(now + LEASE);
                    let revision = self.presence.write(self.bus, Some(candidate)).await?;
                    self.written = Some((revision, Instant::now()));
                }
            }
            match timeout(LOOK_EVERY, changes.try_next()).await {
                Err(_nothing_new) => {}
                Ok(change) => match change? {
                    None => return Ok(false),
                    Some(Change::CaughtUp) => is_read = true,
                    Some(Change::Deleted(key)) => {
                        self.others.remove(&key);
                    }
                    Some(Change::Put(key, entry)) if self.is_own(entry.revision) => {
                        self.others.remove(&key);
                        if self.others.is_empty() {
                            return Ok(true);
                        }
                        self.presence.write(self.bus, None).await?;
                        self.written = None;
                    }
                    Some(Change::Put(key, entry)) => self.heard(key, &entry.value),
                },
            }
            self.others.retain(|_, (_, heard)| heard.elapsed() < LEASE);
            if self
                .written
                .is_some_and(|(_, at)| SEEN_WITHIN < at.elapsed())
            {
                return Ok(false);
            }
        }
    }

    fn is_own(&self, revision: Revision) -> bool {
        self.written.is_some_and(|(written, _)| written == revision)
    }

    /// Who renews its entry is there: no clock is asked, since a bus that was away has let leases end.
    fn heard(&mut self, key: Key, entry: &[u8]) {
        // What makes no sense is logged by those that follow the fleet.
        let entry = FleetEntry::heard(entry, &key.0, Timestamp::ZERO);
        if let Ok(FleetEntry::Service(service)) = entry
            && self.is_other(&service)
        {
            self.others.insert(key, (service.id, Instant::now()));
        } else {
            self.others.remove(&key);
        }
    }

    fn is_other(&self, service: &ServiceInstance) -> bool {
        let differs = |it: Fingerprint| it != self.secret.fingerprint;
        let Presence { id, kind, .. } = self.presence;
        service.id != *id && service.kind == *kind && service.secret.is_some_and(differs)
    }

    fn say(&self) {
        let Some((other, _)) = self.others.values().next() else {
            return;
        };
        let setting = self.secret.setting;
        let why = format!("differs from that of {other}: set the same for all");
        if self.component.waiting(why) {
            let instance = &self.presence.id;
            let what = match self.presence.kind {
                ServiceKind::AffinityStore => "not called",
                _ => "not ready",
            };
            warn!(%instance, "{what} until it is set right: {setting} differs from that of {other}: set the same for all");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_is_of_one_secret_in_one_setting() {
        let of = |setting, secret| SameSecret::new(setting, secret).fingerprint;
        let one = of("affinity.secret", "0123456789abcdef");
        assert_eq!(one, of("affinity.secret", "0123456789abcdef"));
        assert_ne!(one, of("affinity.secret", "0123456789abcdeF"));
        assert_ne!(one, of("router.salt_secret", "0123456789abcdef"));
    }
}
