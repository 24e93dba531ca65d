//! Which decisions wait for their outcome, and which have had it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use domain::{DecisionId, TenantId};
use tokio::time::Instant;

use super::room::{Room, Share};
use crate::chain::Chain;
use crate::error::ApiError;
use crate::query::wrong;
use crate::turn::Turn;

/// Decisions remembered once they are over, so that a report that is sent again has its answer: as many as are kept
/// whole.
const MAX_OVER: usize = 10_000;

/// A decision by who may tell its outcome.
type Of = (TenantId, DecisionId);

/// A turn whose outcome is to be told.
pub(super) struct Awaited {
    of: Of,
    pub(super) turn: Turn,
    /// Until the id of its answer is told, where later turns may be known by nothing else.
    chain: Option<Chain>,
    lease: Duration,
    until: Instant,
    /// Of the room there is; given back with it.
    _share: Share,
}

/// All of them, and those that are over.
#[derive(Default)]
pub(super) struct Desk {
    pub(super) room: Room,
    /// Guards what is below; held to look up or to change one, and to look for those whose lease has ended.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    awaited: HashMap<Of, Awaited>,
    /// Of which a report is being taken.
    reported: HashSet<Of>,
    over: HashMap<Of, Over>,
    /// Oldest first.
    order: VecDeque<Of>,
}

/// How a decision stopped waiting.
#[derive(Clone, Copy)]
enum Over {
    Settled,
    Expired(Duration),
}

/// A decision of which a report is being taken. When dropped it waits on, or is settled if its turn was taken.
pub(super) struct Reported<'a> {
    desk: &'a Desk,
    of: Of,
    awaited: Option<Awaited>,
}

impl Reported<'_> {
    /// What waits; none once its turn was taken.
    pub(super) const fn awaited(&mut self) -> Option<&mut Awaited> {
        self.awaited.as_mut()
    }

    /// It is over.
    pub(super) fn take(&mut self) -> Option<Turn> {
        self.awaited.take().map(|it| it.turn)
    }
}

impl Drop for Reported<'_> {
    fn drop(&mut self) {
        let mut state = self.desk.lock();
        state.reported.remove(&self.of);
        match self.awaited.take() {
            Some(awaited) => {
                state.awaited.insert(self.of.clone(), awaited);
            }
            None => state.close(self.of.clone(), Over::Settled),
        }
    }
}

impl Awaited {
    pub(super) fn new(
        tenant: &TenantId,
        (turn, chain, share): (Turn, Option<Chain>, Share),
        lease: Duration,
    ) -> Self {
        Self {
            of: (tenant.clone(), turn.decision.id),
            turn,
            chain,
            lease,
            until: Instant::now() + lease,
            _share: share,
        }
    }

    /// Its answer has this id: a turn that names it shall be found.
    pub(super) async fn go_on_by(&mut self, id: Option<&str>) -> Result<(), ApiError> {
        if let (Some(chain), Some(id)) = (&self.chain, id) {
            if !chain.told(id, &self.turn.decision).await {
                return Err(wrong("response_id", &"it is no id of a conversation"));
            }
            self.chain = None;
        }
        Ok(())
    }

    /// Its lease begins anew.
    pub(super) fn renew(&mut self) -> Duration {
        self.until = Instant::now() + self.lease;
        self.lease
    }
}

impl Desk {
    pub(super) fn take(&self, awaited: Awaited) {
        self.lock().awaited.insert(awaited.of.clone(), awaited);
    }

    /// Takes a decision out, if it waits and its lease goes on; none where its outcome was told before.
    pub(super) fn find(
        &self,
        tenant: &TenantId,
        id: DecisionId,
    ) -> Result<Option<Reported<'_>>, ApiError> {
        let of = (tenant.clone(), id);
        let mut state = self.lock();
        match state.awaited.get(&of) {
            // It is taken out with the others.
            Some(awaited) if awaited.until <= Instant::now() => {
                return Err(expired(id, awaited.lease));
            }
            Some(_) => {
                let awaited = state.awaited.remove(&of);
                state.reported.insert(of.clone());
                return Ok(Some(Reported {
                    desk: self,
                    of,
                    awaited,
                }));
            }
            None => {}
        }
        if state.reported.contains(&of) {
            return Err(ApiError::Conflict {
                why: format!("another report of decision {id} is being taken"),
            });
        }
        match state.over.get(&of) {
            Some(Over::Settled) => Ok(None),
            Some(Over::Expired(lease)) => Err(expired(id, *lease)),
            None => Err(ApiError::UnknownDecision {
                why: format!(
                    "no decision {id} waits for its outcome here: it was made without \"commit\": true, or by another \
                     router, or too long ago"
                ),
            }),
        }
    }

    /// Takes out all whose lease has ended.
    pub(super) fn expired(&self) -> Vec<Awaited> {
        let now = Instant::now();
        let mut state = self.lock();
        let late = state.awaited.iter().filter(|(_, it)| it.until <= now);
        let late: Vec<_> = late.map(|(of, it)| (of.clone(), it.lease)).collect();
        let taken = late.into_iter().filter_map(|(of, lease)| {
            state.close(of.clone(), Over::Expired(lease));
            state.awaited.remove(&of)
        });
        taken.collect()
    }

    /// Takes out all.
    pub(super) fn all(&self) -> Vec<Awaited> {
        let awaited = std::mem::take(&mut self.lock().awaited);
        awaited.into_values().collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn close(&mut self, of: Of, how: Over) {
        self.over.insert(of.clone(), how);
        self.order.push_back(of);
        if MAX_OVER < self.order.len()
            && let Some(oldest) = self.order.pop_front()
        {
            self.over.remove(&oldest);
        }
    }
}

fn expired(id: DecisionId, lease: Duration) -> ApiError {
    ApiError::UnknownDecision {
        why: format!(
            "the lease of decision {id} ended {} s after the last word of it: it counts as cancelled",
            lease.as_secs()
        ),
    }
}
