//! What the settings must say for a process to start, by what it serves; and what they may say and hardly can mean.

use domain::ServiceKind;
use router_api::InvalidTenants;
use serde::Deserialize;
use tracing::warn;

use super::Settings;
use crate::failure::Failure;

/// How many hexadecimal digits a SHA-256 has.
const SHA256_DIGITS: usize = 64;

/// As much of the settings as has the keys of tenants the way they are written.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Written {
    router: WrittenRouter,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WrittenRouter {
    tenants: Vec<WrittenTenant>,
}

#[derive(Deserialize)]
struct WrittenTenant {
    name: String,
    keys: Vec<String>,
}

impl Written {
    /// What is good, and most likely not what was meant.
    pub(super) fn doubts(&self) -> Vec<String> {
        let tenants = self.router.tenants.iter();
        let doubtful = tenants.filter(|it| it.keys.iter().any(|key| is_bare_hash(key)));
        let doubt = |tenant: &WrittenTenant| {
            format!(
                "router.tenants: a key of {} has {SHA256_DIGITS} hexadecimal digits and is taken for the key itself: if \
                 it is the SHA-256 of one, write sha256: before it",
                tenant.name
            )
        };
        doubtful.map(doubt).collect()
    }
}

fn is_bare_hash(key: &str) -> bool {
    key.len() == SHA256_DIGITS && key.bytes().all(|it| it.is_ascii_hexdigit())
}

impl Settings {
    /// Refuses settings with which `rankway up` would not start.
    pub(crate) fn starts_up(&self) -> Result<(), Failure> {
        if !self.bus.is_local() {
            let why = "`rankway up` has a bus of its own: leave bus.url (--bus-url) out, or run each service by its \
                       name over that one: rankway ingest, indexer, affinity, adapter and router, each with the same \
                       --bus-url";
            return Err(Failure::wrong_use(why));
        }
        self.names_engines()
    }

    /// Refuses settings with which a service in a process of its own would not start.
    pub(crate) fn starts_alone(&self, kind: ServiceKind) -> Result<(), Failure> {
        if self.bus.is_local() {
            let why = "a service of its own needs a bus that others reach: give --bus-url nats://host:port (bus.url), \
                       or serve all in one process with `rankway up`";
            return Err(Failure::wrong_use(why));
        }
        match kind {
            ServiceKind::WorkerAdapter => self.names_engines(),
            ServiceKind::AffinityStore if self.affinity.secret.is_none() => {
                let why = "set affinity.secret (RANKWAY_AFFINITY__SECRET), equal for all affinity stores: it names \
                           the bindings";
                Err(Failure::wrong_use(why))
            }
            ServiceKind::Router
                if !self.router.tenants.is_empty() && self.router.salt_secret.is_none() =>
            {
                Err(Failure::wrong_use(InvalidTenants::NoSecret))
            }
            _ => Ok(()),
        }
    }

    /// Logs what is most likely not what was meant.
    pub(crate) fn warn(&self) {
        for doubt in &self.doubts {
            warn!("{doubt}");
        }
    }

    /// Refuses settings that name no engine.
    fn names_engines(&self) -> Result<(), Failure> {
        if self.workers.is_empty() && self.worker_urls.is_empty() {
            let why = "no engine to route to: give --worker-urls http://host:port, or [[workers]] in the settings file";
            return Err(Failure::wrong_use(why));
        }
        Ok(())
    }
}
