//! Decisions and outcomes, appended to the bus off the path of their requests. What the bus does not take is dropped and
//! counted: a request never waits for its record.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use bus::{Bus, Partition, Record};
use contracts::{Cacheable, DecisionRecord, Encoding, OutcomeRecord, RecordedChoice, topics};
use domain::{DecisionId, InstanceId, Timestamp};
use futures::future::join_all;
use prometheus::IntCounterVec;
use routing::Decision;
use service_kit::CancellationToken;
use tokio::sync::mpsc;
use tracing::warn;
use xxhash_rust::xxh3::xxh3_64;

use crate::ledger::{End, Entry};
use crate::place::degraded_name;
use crate::replica::Replica;
use crate::view::names;

/// Records that wait for the bus: a second of 2,000 requests. The ledger holds on to the same decisions for longer, so they
/// take no memory of their own.
const MAX_WAITING: usize = 4_096;
/// Records encoded and appended together.
const MAX_TOGETHER: usize = 256;
/// The largest batch on the bus, and the largest record; a whole decision that is larger, of a fleet of some 1,000 targets,
/// is recorded in part.
const BATCH_BYTES: usize = 256 << 10;

/// Something to be recorded.
pub(crate) enum News {
    Decided(Entry),
    Ended(Arc<Decision>, End, Timestamp),
}

/// Takes what is to be recorded.
pub(crate) struct Records {
    /// None where nothing is recorded.
    sender: Option<mpsc::Sender<News>>,
    dropped: IntCounterVec,
}

impl Records {
    /// With `enabled` false nothing is recorded.
    pub(crate) fn new(enabled: bool, dropped: IntCounterVec) -> (Self, mpsc::Receiver<News>) {
        let (sender, receiver) = mpsc::channel(MAX_WAITING);
        let sender = enabled.then_some(sender);
        (Self { sender, dropped }, receiver)
    }

    /// A request has been placed.
    pub(crate) fn decided(&self, entry: &Entry) {
        self.tell(|| News::Decided(entry.clone()));
    }

    /// It has ended.
    pub(crate) fn ended(&self, decision: &Arc<Decision>, end: End, now: Timestamp) {
        self.tell(|| News::Ended(decision.clone(), end, now));
    }

    fn tell(&self, news: impl FnOnce() -> News) {
        let Some(sender) = &self.sender else { return };
        if let Err(refused) = sender.try_send(news()) {
            let topic = refused.into_inner().topic();
            self.dropped.with_label_values(&[topic]).inc();
        }
    }
}

impl News {
    const fn topic(&self) -> &'static str {
        match self {
            Self::Decided(_) => topics::DECISIONS.name,
            Self::Ended(..) => topics::OUTCOMES.name,
        }
    }

    /// Where it is appended, and what.
    fn record(&self, router: &InstanceId, whole_one_in: NonZeroU32) -> (Partition, Record) {
        match self {
            Self::Decided(entry) => {
                let decision = &entry.decision;
                let mut record = decision_record(entry, router);
                if !is_whole(decision.id, whole_one_in) {
                    record = record.excerpt();
                }
                let mut bytes = record.to_bytes();
                if BATCH_BYTES < bytes.len() {
                    bytes = record.excerpt().to_bytes();
                }
                (partition(&topics::DECISIONS, decision), Record(bytes))
            }
            Self::Ended(decision, end, now) => {
                let record = outcome_record(decision, end, *now, router);
                let partition = partition(&topics::OUTCOMES, decision);
                (partition, Record(record.to_bytes()))
            }
        }
    }
}

fn partition(topic: &bus::TopicSpec, decision: &Decision) -> Partition {
    topics::of_conversation(topic, decision.request.conversation, decision.id)
}

/// Whether a decision is recorded whole: by its id, so that a reader of both topics knows it too.
fn is_whole(id: DecisionId, one_in: NonZeroU32) -> bool {
    xxh3_64(&id.get().to_be_bytes()).is_multiple_of(u64::from(one_in.get()))
}

/// All of a decision.
pub(crate) fn decision_record(entry: &Entry, router: &InstanceId) -> DecisionRecord {
    let decision: &Decision = &entry.decision;
    let degraded = decision.degraded.iter();
    let degraded = degraded.map(|it| degraded_name(*it, entry.tokens_known).to_owned());
    DecisionRecord {
        id: decision.id,
        router: router.clone(),
        at: decision.at,
        model: decision.model.clone(),
        endpoint: decision.endpoint,
        queued: entry.queued,
        retry_of: entry.retry_of,
        place: decision.place.clone(),
        wanted: decision.wanted.clone(),
        reason: names::reason(decision.reason),
        binding: names::binding(decision.binding),
        degraded: degraded.collect(),
        free: decision.is_free(),
        uncached: decision.uncached,
        cacheable: decision.overlap.map(|it| Cacheable {
            ceiling: it.ceiling,
            stored: it.stored,
            best: it.best,
            ready: it.ready,
        }),
        index_age: decision.index_age,
        policy: decision.policy,
        seed: decision.seed,
        asked: decision.request.clone(),
        snapshot: decision.snapshot.clone(),
        choice: decision.choice.as_ref().ok().map(RecordedChoice::of),
        digest: None,
    }
}

fn outcome_record(
    decision: &Decision,
    end: &End,
    at: Timestamp,
    router: &InstanceId,
) -> OutcomeRecord {
    let outcome = &end.outcome;
    OutcomeRecord {
        id: decision.id,
        router: router.clone(),
        at,
        model: decision.model.clone(),
        status: names::status(outcome.status).to_owned(),
        ttft: outcome.ttft,
        duration: outcome.duration,
        observed_rank: outcome.observed_rank,
        usage: outcome.usage,
        waterfall: end.waterfall,
    }
}

/// Appends what is told until `closing`, and then what is left.
pub(crate) async fn publish(
    replica: Arc<Replica>,
    mut news: mpsc::Receiver<News>,
    bus: Arc<dyn Bus>,
    closing: CancellationToken,
) {
    let mut failing = false;
    loop {
        let mut taken = Vec::with_capacity(MAX_TOGETHER);
        let count = tokio::select! {
            biased;
            () = closing.cancelled() => {
                news.close();
                news.recv_many(&mut taken, MAX_TOGETHER).await
            }
            count = news.recv_many(&mut taken, MAX_TOGETHER) => count,
        };
        if count == 0 {
            // Told or not, there is nothing more: nobody may send, or nothing is recorded at all.
            return closing.cancelled().await;
        }
        let appended = append(&replica, bus.as_ref(), taken).await;
        match appended {
            Ok(()) => failing = false,
            Err(error) if !std::mem::replace(&mut failing, true) => {
                warn!(%error, "decisions and outcomes are not recorded");
            }
            Err(_) => {}
        }
    }
}

async fn append(replica: &Replica, bus: &dyn Bus, news: Vec<News>) -> Result<(), bus::BusError> {
    let mut partitions: HashMap<Partition, Vec<Record>> = HashMap::new();
    for it in news {
        let whole_one_in = replica.config.records_whole_one_in;
        let (partition, record) = it.record(&replica.instance, whole_one_in);
        partitions.entry(partition).or_default().push(record);
    }
    let appends = partitions.into_iter().map(async |(partition, records)| {
        let mut ended = Ok(());
        for batch in batches(records) {
            let count = batch.len();
            if let Err(error) = bus.append(&partition, batch).await {
                let dropped = &replica.metrics.records_dropped;
                let dropped = dropped.with_label_values(&[partition.topic]);
                dropped.inc_by(count as u64);
                ended = Err(error);
            }
        }
        ended
    });
    join_all(appends).await.into_iter().collect()
}

/// Runs of records that are a batch each.
fn batches(records: Vec<Record>) -> Vec<Vec<Record>> {
    let mut batches: Vec<Vec<Record>> = Vec::new();
    let mut bytes = 0;
    for record in records {
        let size = record.0.len();
        match batches.last_mut() {
            Some(batch) if bytes + size <= BATCH_BYTES => batch.push(record),
            _ => {
                bytes = 0;
                batches.push(vec![record]);
            }
        }
        bytes += size;
    }
    batches
}

/// The decisions kept, each as one line of JSON.
pub(crate) fn lines(entries: &[Entry], router: &InstanceId, whole: bool) -> String {
    let mut lines = String::new();
    for entry in entries {
        let record = decision_record(entry, router);
        let record = match whole {
            true => record,
            false => record.excerpt(),
        };
        lines.push_str(&record.to_json());
        lines.push('\n');
    }
    lines
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn batches_stay_below_the_limit_and_leave_no_record_out() {
        let record = |size: usize| Record(Bytes::from(vec![0; size]));
        let sizes = [100 << 10, 100 << 10, 100 << 10, 300 << 10, 1, 1];
        let batches = batches(sizes.map(record).to_vec());
        let counts: Vec<usize> = batches.iter().map(Vec::len).collect();
        assert_eq!(counts, [2, 1, 1, 2]);
    }

    #[test]
    fn one_in_so_many_is_whole_and_always_the_same_ones() {
        let whole = |one_in: u32| {
            let one_in = NonZeroU32::new(one_in).expect("not zero");
            let ids = (0..100_000_u128).map(|it| DecisionId::new(7 << 64 | it));
            ids.filter(|it| is_whole(*it, one_in)).count()
        };
        assert_eq!(whole(1), 100_000);
        let found = whole(100);
        assert!((800..1_200).contains(&found), "{found}");
        assert_eq!(whole(100), found);
    }
}
