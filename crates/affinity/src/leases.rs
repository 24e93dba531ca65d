//! Who has requests of one conversation in flight.

use domain::{InstanceId, Timestamp};

/// The requests of one conversation in flight, by the router that holds them. A router that falls silent
/// loses its own at the end of their lease; nobody else's are touched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Leases(Vec<Lease>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Lease {
    holder: Holder,
    requests: u32,
    until: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Holder {
    Router(InstanceId),
    /// Whoever held one before this process began: it will renew or fall silent.
    Unknown,
}

impl Leases {
    /// Something may be in flight that is not known of here.
    pub(crate) fn unknown(until: Timestamp) -> Self {
        Self(vec![Lease {
            holder: Holder::Unknown,
            requests: 1,
            until,
        }])
    }

    /// One more request of `router`; its others live as long.
    pub(crate) fn take(&mut self, router: &InstanceId, until: Timestamp) {
        match self.of(router) {
            Some(lease) => {
                lease.requests = lease.requests.saturating_add(1);
                lease.until = lease.until.max(until);
            }
            None => self.push(router, until),
        }
    }

    /// `router` still has requests in flight; one, if none was known.
    pub(crate) fn renew(&mut self, router: &InstanceId, until: Timestamp) {
        match self.of(router) {
            Some(lease) => lease.until = lease.until.max(until),
            None => self.push(router, until),
        }
    }

    /// One request of `router` has ended. Without a lease, as after its end, nothing happens.
    pub(crate) fn give_back(&mut self, router: &InstanceId) {
        if let Some(lease) = self.of(router) {
            lease.requests -= 1;
        }
        self.retain(|lease| lease.requests > 0);
    }

    /// Drops the leases that have ended, and says when the last of them did.
    pub(crate) fn lapse(&mut self, now: Timestamp) -> Option<Timestamp> {
        let ended = self.0.iter().map(|it| it.until).filter(|it| *it <= now);
        let last = ended.max();
        self.retain(|lease| lease.until > now);
        last
    }

    /// When the last of them ends unless renewed.
    pub(crate) fn until(&self) -> Option<Timestamp> {
        self.0.iter().map(|lease| lease.until).max()
    }

    /// Whether nothing is in flight.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Most conversations are at rest at any time: their leases take no memory.
    fn retain(&mut self, keep: impl FnMut(&Lease) -> bool) {
        self.0.retain(keep);
        if self.0.is_empty() {
            self.0 = Vec::new();
        }
    }

    fn of(&mut self, router: &InstanceId) -> Option<&mut Lease> {
        let held_by =
            |lease: &&mut Lease| matches!(&lease.holder, Holder::Router(it) if it == router);
        self.0.iter_mut().find(held_by)
    }

    fn push(&mut self, router: &InstanceId, until: Timestamp) {
        self.0.push(Lease {
            holder: Holder::Router(router.clone()),
            requests: 1,
            until,
        });
    }
}
