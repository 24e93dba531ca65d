//! Notices when nothing is left where something is drained: nothing runs there, and no conversation is kept there,
//! unless all are to move at their next turn.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use contracts::rpc::{CallError, Filter, Search};
use domain::{Drain, Target, Timestamp};
use tokio::time::{Instant, sleep};
use tracing::info;

use crate::replica::Replica;

/// How often is looked. Looking for bindings may pass over all that there are, so after a long look longer.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// The share of time that may be spent looking: one part in so many.
const SHARE: u32 = 20;

/// Since when what is drained is empty, by its text form.
#[derive(Debug, Default)]
pub(crate) struct Emptied {
    /// Guards nothing but the map; each critical section is one look-up or change.
    since: Mutex<BTreeMap<String, Timestamp>>,
}

impl Emptied {
    /// Since when nothing is left there, if that is so.
    pub(crate) fn since(&self, drain: &Drain) -> Option<Timestamp> {
        self.lock().get(&drain.place()).copied()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Timestamp>> {
        self.since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this is new.
    fn set(&self, place: &str, empty: bool, now: Timestamp) -> bool {
        let mut since = self.lock();
        if !empty {
            since.remove(place);
            return false;
        }
        let known = since.contains_key(place);
        since.entry(place.to_owned()).or_insert(now);
        !known
    }
}

/// Looks at all that is drained, for ever.
pub(crate) async fn watch(replica: Arc<Replica>) {
    loop {
        let began = Instant::now();
        let drains: Vec<Drain> = replica.mind.lock().drains().cloned().collect();
        let places: Vec<String> = drains.iter().map(Drain::place).collect();
        replica.emptied.lock().retain(|it, _| places.contains(it));
        for (drain, place) in drains.iter().zip(&places) {
            // Of a store that does not answer nothing new is known.
            let Ok(empty) = is_empty(&replica, drain).await else {
                continue;
            };
            if replica.emptied.set(place, empty, replica.clock.now()) {
                let (moves, actor) = (drain.moves, &drain.actor);
                info!(place, moves, %actor, "drained: nothing is left there");
            }
        }
        sleep(LOOK_EVERY.max(SHARE * began.elapsed())).await;
    }
}

async fn is_empty(replica: &Replica, drain: &Drain) -> Result<bool, CallError> {
    Ok(is_idle(replica, drain) && (drain.moves || !is_bound(replica, drain).await?))
}

/// Whether nothing runs there, by this router's own requests and the engine's gauges.
fn is_idle(replica: &Replica, drain: &Drain) -> bool {
    let now = replica.clock.now();
    let router = replica.mind.lock();
    let Some(worker) = router.worker(&drain.worker) else {
        return true;
    };
    let epoch = router.epoch(&worker.id).unwrap_or(worker.epoch);
    let ranks = worker.ranks();
    let mut drained = ranks.filter(|it| drain.dp_rank.is_none_or(|rank| rank == *it));
    drained.all(|dp_rank| {
        let target = Target {
            worker: worker.id.clone(),
            epoch,
            dp_rank,
        };
        router.active(&target, now) == 0
    })
}

/// Whether a conversation is kept there.
async fn is_bound(replica: &Replica, drain: &Drain) -> Result<bool, CallError> {
    let mut search = Search {
        after: None,
        limit: 1,
        filter: Filter {
            worker: Some(drain.worker.clone()),
            dp_rank: drain.dp_rank,
            ..Filter::default()
        },
    };
    loop {
        let page = replica.affinity.search(search.clone()).await?;
        if !page.bindings.is_empty() {
            return Ok(true);
        }
        match page.next {
            Some(next) => search.after = Some(next),
            None => return Ok(false),
        }
    }
}
