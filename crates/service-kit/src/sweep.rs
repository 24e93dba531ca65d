//! Entries of the fleet that nobody renews any more. Processes that are killed leave theirs behind, mostly under ids
//! that no other will have: without a sweep the table would grow with each.

use std::time::Duration;

use bus::{Bus, BusError, Change, Expect, Key};
use contracts::{Encoding, FleetEntry, topics};
use domain::Timestamp;
use futures::TryStreamExt;
use tracing::info;

/// How long an entry stays after its lease: whoever was frozen or cut off for less finds it as it was.
const KEPT: Duration = Duration::from_secs(600);

/// Takes away what is dead at `now`, and says how much that was. Of a bus that was away it may be asked only once
/// everybody has had the time to renew.
pub(crate) async fn sweep(bus: &dyn Bus, now: Timestamp) -> Result<usize, BusError> {
    let table = &topics::FLEET.table;
    let mut dead = Vec::new();
    let mut changes = bus.watch(table).await?;
    while let Some(change) = changes.try_next().await? {
        match change {
            Change::Put(key, entry) if is_dead(&entry.value, now) => dead.push(key),
            Change::Put(..) | Change::Deleted(_) => {}
            Change::CaughtUp => break,
        }
    }
    for key in &dead {
        let Key(name) = key;
        info!(entry = %String::from_utf8_lossy(name), "nobody renews it: taken out of the fleet");
        bus.put(table, key.clone(), None, Expect::Any).await?;
    }
    Ok(dead.len())
}

/// What cannot be read may be of a later release, and is left to it.
fn is_dead(entry: &[u8], now: Timestamp) -> bool {
    let lease_until = match FleetEntry::from_bytes(entry) {
        Ok(FleetEntry::Service(service)) => service.lease_until,
        Ok(FleetEntry::Worker(worker)) => worker.lease_until,
        Err(_) => return false,
    };
    lease_until + KEPT < now
}
