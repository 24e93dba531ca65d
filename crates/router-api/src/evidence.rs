//! Watching where turns ran, and whether that is announced: the blocks that only such a turn has are announced by
//! the rank that computed them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use affinity::ConversationKey;
use contracts::rpc::{CallError, LocateRequest, OverlapRequest, PrefixHashes};
use domain::{DecisionId, DpRank, KvEndpoints, Namespace, SequenceHash, Target, TargetState};
use futures::StreamExt;
use futures::stream;
use placement::Place;
use prometheus::IntCounter;
use routing::Seen;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use crate::replica::{ASK_TIMEOUT, Replica};
use crate::run::Run;

/// Turns watched at once. Beyond, turns are not watched, which is counted: others of the same worker are.
const MAX_WATCHED: usize = 1_024;
/// Turns that wait to be watched, while others are taken up.
const LANE_DEPTH: usize = 64;
/// A rank that has announced nothing for so long after its turn's end is silent.
const DEADLINE: Duration = Duration::from_secs(15);
/// Another's turn with the same prompt may have been announced first: it is looked for again after this.
const SECOND_LOOK: Duration = Duration::from_millis(250);
/// An index further behind the log than this says nothing of silence.
const LEVEL: Duration = Duration::from_secs(5);
/// Targets of which it is known when they were heard last; more than any fleet has ranks.
const MAX_HEARD: usize = 65_536;
/// Blocks not announced so long after the first token are overdue.
const OVERDUE: Duration = Duration::from_secs(1);

/// The end of a prompt of which nobody had carried or announced the last full block before: only its turn can have
/// computed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tail {
    namespace: Namespace,
    end: PrefixHashes,
}

impl Tail {
    /// None where the prompt has no block that is new, `known` leading ones being known.
    pub(crate) fn new(namespace: Namespace, hashes: &[SequenceHash], known: u32) -> Option<Self> {
        let is_new = (known as usize) < hashes.len();
        is_new.then(|| Self {
            namespace,
            end: PrefixHashes::end(hashes),
        })
    }
}

/// A turn to be watched.
pub(crate) struct Watch {
    pub(crate) run: Run,
    /// The rank that its answer names.
    pub(crate) named: Option<DpRank>,
    pub(crate) tail: Option<Tail>,
    pub(crate) first_token: Instant,
}

/// The turns watched now.
pub(crate) struct Evidence {
    lane: mpsc::Sender<Watch>,
    /// The last turn of each conversation at a target, while nothing has announced its blocks. Guards nothing
    /// else.
    unannounced: Mutex<HashMap<(ConversationKey, Target), Unannounced>>,
    /// When each target was last seen to announce something. Guards nothing else.
    heard: Mutex<HashMap<Target, Instant>>,
    skipped: IntCounter,
}

struct Unannounced {
    turn: DecisionId,
    first_token: Instant,
    /// Whether its rank has been called silent already.
    told: bool,
}

impl Evidence {
    /// Also gives the end of the lane that [`serve`] takes.
    pub(crate) fn new(skipped: IntCounter) -> (Self, mpsc::Receiver<Watch>) {
        let (lane, watches) = mpsc::channel(LANE_DEPTH);
        let evidence = Self {
            lane,
            unannounced: Mutex::default(),
            heard: Mutex::default(),
            skipped,
        };
        (evidence, watches)
    }

    /// Watches a turn, if there is room.
    pub(crate) fn watch(&self, watch: Watch) {
        let key = key_of(&watch);
        let waiting = Unannounced {
            turn: watch.run.decision.id,
            first_token: watch.first_token,
            told: false,
        };
        match (self.lane.try_send(watch), key) {
            (Ok(()), Some(key)) => {
                self.lock().insert(key, waiting);
            }
            (Ok(()), None) => {}
            (Err(_), _) => self.skipped.inc(),
        }
    }

    /// Whether the last turn of a conversation at `target` has not been announced although it is overdue. It is
    /// said once.
    pub(crate) fn is_overdue(&self, key: &ConversationKey, target: &Target) -> bool {
        let mut unannounced = self.lock();
        let Some(waiting) = unannounced.get_mut(&(key.clone(), target.clone())) else {
            return false;
        };
        let overdue = OVERDUE < waiting.first_token.elapsed()
            && !waiting.told
            && !self.is_heard_since(target, waiting.first_token);
        waiting.told |= overdue;
        overdue
    }

    /// Whether no later turn of its conversation has gone where this one did: that would hold the same blocks.
    fn is_last(&self, watch: &Watch) -> bool {
        let Some(key) = key_of(watch) else {
            return true;
        };
        let last = self.lock().get(&key).map(|it| it.turn);
        last == Some(watch.run.decision.id)
    }

    /// A target has announced something.
    fn hear(&self, target: &Target) {
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        if MAX_HEARD <= heard.len() {
            heard.clear();
        }
        heard.insert(target.clone(), Instant::now());
    }

    /// Whether a target has announced anything since then: one that has is not silent, and what it did not
    /// announce has another reason, such as a prompt of which the router knows other tokens than the engine.
    fn is_heard_since(&self, target: &Target, since: Instant) -> bool {
        let heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        heard.get(target).is_some_and(|at| since < *at)
    }

    /// A turn is watched no more. Whether its rank has been called silent.
    fn settled(&self, watch: &Watch) -> bool {
        let Some(key) = key_of(watch) else {
            return false;
        };
        let mut unannounced = self.lock();
        let told = unannounced.get(&key).is_some_and(|it| it.told);
        if unannounced
            .get(&key)
            .is_some_and(|it| it.turn == watch.run.decision.id)
        {
            unannounced.remove(&key);
        }
        told
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(ConversationKey, Target), Unannounced>> {
        self.unannounced
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watch {
    /// The rank that is to announce its blocks: the one its answer names, else the one asked for; none where
    /// its engine chose.
    fn announcer(&self) -> Option<Target> {
        let asked = self.run.decision.target()?;
        let dp_rank = self.named.unwrap_or(asked.dp_rank);
        Some(self.run.at(dp_rank))
    }
}

fn key_of(watch: &Watch) -> Option<(ConversationKey, Target)> {
    Some((watch.run.conversation.clone()?, watch.announcer()?))
}

/// Watches turns, for ever.
pub(crate) async fn serve(replica: Arc<Replica>, mut watches: mpsc::Receiver<Watch>) {
    let watches = stream::poll_fn(|context| watches.poll_recv(context));
    watches
        .for_each_concurrent(MAX_WATCHED, |watch| settle(&replica, watch))
        .await;
}

async fn settle(replica: &Replica, watch: Watch) {
    let is_asked = watch.run.decision.target().is_some();
    let seen = match (watch.named, &watch.tail) {
        (Some(rank), _) if !is_asked => Seen::Named(rank),
        (_, Some(tail)) => look(replica, &watch, tail).await,
        (_, None) => Seen::Nothing,
    };
    let told = replica.evidence.settled(&watch);
    if let Seen::Announced { dp_rank, .. } = seen {
        replica.evidence.hear(&watch.run.at(dp_rank));
    }
    match (&watch.run.decision.place, watch.named) {
        (Place::Target(_), _) if seen == Seen::Silence && told => {}
        (Place::Target(_), Some(ran)) => replica.saw_announcement(&watch.run, ran, seen),
        (Place::Target(_), None) => replica.saw(&watch.run, seen),
        (Place::Worker { .. }, _) => replica.learn_rank(&watch.run, seen).await,
    }
}

async fn look(replica: &Replica, watch: &Watch, tail: &Tail) -> Seen {
    let announces = {
        let router = replica.mind.lock();
        let worker = router.worker(watch.run.decision.place.worker());
        worker.is_some_and(|it| it.kv_endpoints != KvEndpoints::None)
    };
    if !announces {
        return Seen::Nothing;
    }
    let locate = async |deadline| {
        let Target { worker, epoch, .. } = watch.run.at(DpRank::new(0));
        let request = LocateRequest {
            namespace: tail.namespace.clone(),
            worker,
            epoch,
            hashes: tail.end.clone(),
            deadline,
        };
        replica.index.locate(request).await
    };
    // What is there already may have been there for long.
    let mut after = Duration::ZERO;
    let mut found = locate(Duration::ZERO).await;
    if found.as_ref().is_ok_and(Vec::is_empty) {
        found = locate(DEADLINE).await;
        after = watch.first_token.elapsed();
    }
    let expected = watch.announcer().map(|it| it.dp_rank);
    let elsewhere = |ranks: &Vec<DpRank>| expected.is_some_and(|it| !ranks.contains(&it));
    if found
        .as_ref()
        .is_ok_and(|it| !it.is_empty() && elsewhere(it))
    {
        sleep(SECOND_LOOK).await;
        if replica.evidence.is_last(watch) {
            found = locate(Duration::ZERO).await;
        }
    }
    let Ok(ranks) = found else {
        return Seen::Nothing;
    };
    let ran = expected.filter(|it| ranks.contains(it));
    match (ran, &ranks[..]) {
        (Some(dp_rank), _) => Seen::Announced { dp_rank, after },
        (None, [only]) => Seen::Announced {
            dp_rank: *only,
            after,
        },
        (None, []) if is_silence(replica, watch, tail).await => Seen::Silence,
        // Where several hold it, it is not this turn's alone.
        (None, _) => Seen::Nothing,
    }
}

/// Whether nothing else explains that a block was not announced: its rank has not been heard since, and the block
/// has never been announced, by an index that has read the log and misses nothing of the rank.
async fn is_silence(replica: &Replica, watch: &Watch, tail: &Tail) -> bool {
    let request = OverlapRequest {
        namespace: tail.namespace.clone(),
        hashes: tail.end.clone(),
        record: false,
    };
    let rank = watch.announcer();
    let rank = rank.as_ref();
    if rank.is_some_and(|it| replica.evidence.is_heard_since(it, watch.first_token)) {
        return false;
    }
    let answer = tokio::time::timeout(ASK_TIMEOUT, replica.index.overlap(request)).await;
    let Ok(Ok::<_, CallError>(answer)) = answer else {
        return false;
    };
    let mut lost = answer.not_ready.iter();
    (answer.stored as usize) < tail.end.blocks()
        && answer.index_age <= LEVEL
        && !replica.writes_fail()
        && !rank.is_some_and(|it| answer.unknown.contains(it))
        && !lost.any(|(it, state)| Some(it) == rank && *state == TargetState::Suspect)
}
