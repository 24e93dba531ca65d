//! What others write on the bus, taken into the router's mind; and its own reservations, told to its peers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bus::{Bus, BusError, Change, Delivered, Entry, Key, Record, Start, TableSpec, TopicSpec};
use contracts::{Encoding, FleetEntry, LoadReport, ReservationBatch, topics};
use domain::{Drain, Incarnation, ReservationChange, ServiceInstance, ServiceKind, WorkerId};
use futures::TryStreamExt;
use futures::stream::{BoxStream, SelectAll, select_all};
use service_kit::Component;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tracing::warn;

use crate::replica::Replica;

/// How often reservations are told to peers: they are to be at most 50 ms old when they arrive. Of two replicas that place
/// a request within this time both take the same idle rank, which short prefills are too short to make up for.
const PUBLISH_EVERY: Duration = Duration::from_millis(10);
/// Landmarks and changes in one record: 8 to 100 bytes each, so that a record stays below 256 KiB.
const BATCH_WEIGHT: usize = 2_048;
/// How often leases that have run out are ended, and readiness is looked at.
const EXPIRE_EVERY: Duration = Duration::from_millis(200);
/// Between attempts to read a bus that fails.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Follows the workers, for ever.
pub(crate) async fn follow_fleet(replica: Arc<Replica>, bus: Arc<dyn Bus>) {
    let apply = |change: Change| {
        replica.mind.lock().hear_fleet(replica.clock.now());
        match change {
            Change::Put(key, entry) => {
                match FleetEntry::heard(&entry.value, &key.0, replica.clock.now()) {
                    Ok(FleetEntry::Worker(worker)) => replica.mind.lock().set_worker(worker),
                    Ok(FleetEntry::Service(service)) => hear(&replica, &service),
                    Err(error) => unreadable(&replica, topics::FLEET.table.0, &error),
                }
            }
            Change::Deleted(key) => {
                let mut router = replica.mind.lock();
                if let Some(worker) = worker_of(&key) {
                    router.remove_worker(&worker);
                }
                if let Some(peer) = text_of(&key).and_then(|it| it.parse().ok()) {
                    router.truth_mut().forget_peer(&peer);
                }
            }
            Change::CaughtUp => {
                replica.fleet_read.send_replace(true);
            }
        }
    };
    follow_table(bus.as_ref(), &topics::FLEET, apply).await;
}

/// Follows the incarnations of workers, for ever.
pub(crate) async fn follow_incarnations(replica: Arc<Replica>, bus: Arc<dyn Bus>) {
    let apply = |change: Change| {
        if let Change::Put(key, entry) = change
            && let Some(worker) = worker_of(&key)
            && let Some(it) = read::<Incarnation>(&replica, &topics::INCARNATIONS, &entry)
        {
            replica.mind.lock().set_epoch(&worker, it.epoch);
        }
    };
    follow_table(bus.as_ref(), &topics::INCARNATIONS, apply).await;
}

/// A drain that is not obeyed.
#[derive(Debug, thiserror::Error)]
#[error("it drains {0}, and is under another key")]
struct Misplaced(String);

/// Follows what operators drain, for ever.
pub(crate) async fn follow_drains(
    replica: Arc<Replica>,
    bus: Arc<dyn Bus>,
    caught_up: watch::Sender<bool>,
) {
    let spec = &topics::DRAINS;
    loop {
        let followed = async {
            let mut changes = bus.watch(&spec.table).await?;
            // What is not there any more when a watch begins anew is not drained any more.
            let mut drained = BTreeMap::new();
            let mut is_whole = false;
            while let Some(change) = changes.try_next().await? {
                match change {
                    Change::Put(key, entry) => {
                        let Some(drain) = read::<Drain>(&replica, spec, &entry) else {
                            continue;
                        };
                        // Under another key it could not be undone.
                        if drain.place().as_bytes() != key.0 {
                            unreadable(&replica, spec.table.0, &Misplaced(drain.place()));
                            continue;
                        }
                        if is_whole && !drained.contains_key(&key.0) {
                            let followed = replica.clock.now().since(drain.since);
                            let seconds = &replica.metrics.drain_followed_seconds;
                            seconds.observe(followed.as_secs_f64());
                        }
                        drained.insert(key.0, drain);
                    }
                    Change::Deleted(key) => drop(drained.remove(&key.0)),
                    Change::CaughtUp => is_whole = true,
                }
                if is_whole {
                    replica.mind.lock().set_drains(drained.values().cloned());
                    caught_up.send_replace(true);
                }
            }
            Ok::<_, BusError>(())
        };
        let ended = followed.await;
        again(spec.table.0, ended).await;
    }
}

/// Follows the engines' gauges, for ever.
pub(crate) async fn follow_load(replica: Arc<Replica>, bus: Arc<dyn Bus>) {
    let apply = |record: &Record| {
        let report = LoadReport::from_bytes(&record.0)?;
        let mut router = replica.mind.lock();
        router.set_load(&report.worker, &report.ranks);
        Ok(())
    };
    follow_topic(&replica, bus.as_ref(), &topics::LOAD, apply).await;
}

/// Follows what peers have sent, for ever.
pub(crate) async fn follow_peers(replica: Arc<Replica>, bus: Arc<dyn Bus>) {
    let apply = |record: &Record| {
        let batch = ReservationBatch::from_bytes(&record.0)?;
        let now = replica.clock.now();
        let mut router = replica.mind.lock();
        for change in &batch.changes {
            router.apply_peer(&batch.router, change, now);
        }
        drop(router);
        replica.hear_ends(&batch);
        Ok(())
    };
    follow_topic(&replica, bus.as_ref(), &topics::RESERVATIONS, apply).await;
}

/// Tells peers what this router sends, for ever.
pub(crate) async fn publish(replica: Arc<Replica>, bus: Arc<dyn Bus>) {
    let mut ticks = interval(PUBLISH_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut failing = false;
    loop {
        ticks.tick().await;
        match publish_once(&replica, bus.as_ref()).await {
            Ok(()) => failing = false,
            Err(error) => {
                if !std::mem::replace(&mut failing, true) {
                    warn!(%error, "peers are not told of reservations");
                }
            }
        }
    }
}

/// Tells peers what has changed since the last time. What the bus does not take is counted and dropped: it
/// is worth nothing later.
pub(crate) async fn publish_once(replica: &Replica, bus: &dyn Bus) -> Result<(), BusError> {
    let changes = replica.mind.lock().take_changes();
    if changes.is_empty() {
        return Ok(());
    }
    let records = batches(&changes).map(|changes| {
        let batch = ReservationBatch {
            router: replica.instance.clone(),
            at: replica.clock.now(),
            changes: changes.to_vec(),
        };
        Record(batch.to_bytes())
    });
    let partition = topics::RESERVATIONS.partition_of(replica.instance.as_str());
    let appended = bus.append(&partition, records.collect()).await;
    if appended.is_err() {
        replica.metrics.unpublished.inc_by(changes.len() as u64);
    }
    appended.map(|_| ())
}

/// Runs of changes that fit into a record each; a change that alone is too heavy stands alone.
fn batches(changes: &[ReservationChange]) -> impl Iterator<Item = &[ReservationChange]> {
    let weight = |change: &ReservationChange| match change {
        ReservationChange::Reserve { landmarks, .. } => 1 + landmarks.len(),
        ReservationChange::Release { .. } => 1,
    };
    let mut rest = changes;
    std::iter::from_fn(move || {
        let mut total = 0;
        let fits = rest.iter().take_while(|change| {
            total += weight(change);
            total <= BATCH_WEIGHT
        });
        let count = fits.count().max(1).min(rest.len());
        let (batch, later) = rest.split_at(count);
        rest = later;
        (!batch.is_empty()).then_some(batch)
    })
}

/// Ends what has run out and reports readiness, for ever.
pub(crate) async fn expire(
    replica: Arc<Replica>,
    component: Component,
    caught_up: [watch::Receiver<bool>; 2],
) {
    let mut ticks = interval(EXPIRE_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let now = replica.clock.now();
        replica.mind.lock().expire(now);
        if caught_up.iter().any(|it| !*it.borrow()) {
            component.waiting("the fleet has not been read yet");
        } else if let Some(why) = replica.mind.takes_nothing(now) {
            component.waiting(why);
        } else {
            component.ready();
        }
    }
}

/// Applies a table and its changes; reads it anew when the bus fails.
pub(crate) async fn follow_table(bus: &dyn Bus, spec: &TableSpec, apply: impl Fn(Change)) {
    loop {
        let followed = async {
            let mut changes = bus.watch(&spec.table).await?;
            while let Some(change) = changes.try_next().await? {
                apply(change);
            }
            Ok::<_, BusError>(())
        };
        let ended = followed.await;
        again(spec.table.0, ended).await;
    }
}

/// Applies what is appended from now on; takes the topic up again when the bus fails.
async fn follow_topic(
    replica: &Replica,
    bus: &dyn Bus,
    spec: &TopicSpec,
    apply: impl Fn(&Record) -> Result<(), contracts::DecodeError>,
) {
    loop {
        let followed = async {
            let mut records = tails(bus, spec).await?;
            while let Some(delivered) = records.try_next().await? {
                if let Err(error) = apply(&delivered.record) {
                    unreadable(replica, spec.name, &error);
                }
            }
            Ok::<_, BusError>(())
        };
        let ended = followed.await;
        again(spec.name, ended).await;
    }
}

async fn again(name: &str, ended: Result<(), BusError>) {
    match ended {
        Ok(()) => warn!(name, "the bus has ended a stream; reading again"),
        Err(error) => warn!(name, %error, "the bus fails; reading again"),
    }
    sleep(RETRY_AFTER).await;
}

/// All partitions of a topic, from their ends on.
async fn tails(
    bus: &dyn Bus,
    spec: &TopicSpec,
) -> Result<SelectAll<BoxStream<'static, Result<Delivered, BusError>>>, BusError> {
    let mut partitions = Vec::new();
    for partition in spec.all_partitions() {
        let start = match bus.tail(&partition).await?.last {
            Some(last) => Start::After(last),
            None => Start::Earliest,
        };
        partitions.push(bus.read(&partition, start).await?);
    }
    Ok(select_all(partitions))
}

pub(crate) fn read<T: Encoding>(replica: &Replica, spec: &TableSpec, entry: &Entry) -> Option<T> {
    match T::from_bytes(&entry.value) {
        Ok(value) => Some(value),
        Err(error) => {
            unreadable(replica, spec.table.0, &error);
            None
        }
    }
}

/// Counts a record that makes no sense, and says so for the first of its kind.
fn unreadable(replica: &Replica, name: &str, error: &dyn std::error::Error) {
    let counter = replica.metrics.unreadable.with_label_values(&[name]);
    if counter.get() == 0 {
        warn!(name, %error, "unreadable record; from now on these are only counted");
    }
    counter.inc();
}

/// Takes in what another router has found of ranks.
fn hear(replica: &Replica, service: &ServiceInstance) {
    if service.kind == ServiceKind::Router && service.id != replica.instance {
        let mut router = replica.mind.lock();
        let truth = router.truth_mut();
        truth.hear(&service.id, &service.distrust, service.lease_until);
    }
}

fn worker_of(key: &Key) -> Option<WorkerId> {
    text_of(key)?.parse().ok()
}

fn text_of(key: &Key) -> Option<&str> {
    std::str::from_utf8(&key.0).ok()
}

#[cfg(test)]
mod tests {
    use domain::{DecisionId, SequenceHash, Timestamp, Tokens};

    use super::*;

    fn reserve(landmarks: usize) -> ReservationChange {
        ReservationChange::Reserve {
            id: DecisionId::new(1),
            target: "w1#1/0".parse().expect("a target"),
            uncached: Tokens::new(1),
            landmarks: vec![SequenceHash::new(1); landmarks],
            lease_until: Timestamp::ZERO,
            conversation: None,
        }
    }

    #[test]
    fn changes_are_cut_into_records_by_weight_and_none_is_left_out() {
        let release = ReservationChange::Release {
            id: DecisionId::new(1),
        };
        let changes = [
            reserve(1_500),
            release.clone(),
            reserve(1_500),
            reserve(9_000),
            release,
        ];

        let sizes: Vec<usize> = batches(&changes).map(<[_]>::len).collect();

        assert_eq!(sizes, [2, 1, 1, 1]);
        assert_eq!(batches(&[]).count(), 0);
    }
}
