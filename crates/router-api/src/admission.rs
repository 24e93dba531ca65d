//! Waiting for a target: where every one of a model is past its limit, requests wait here, their clients' connections
//! held, until one is not. [`routing::admission`] says who goes next.

mod priority;
mod settings;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use domain::{ModelName, Timestamp, Tokens};
use prometheus::{Histogram, IntGauge};
use routing::admission::{Asking, Bounds, Entered, Limit, Queue, Refusal, Room, Standing, Ticket};
use service_kit::CancellationToken;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, timeout};

use crate::error::ApiError;
use crate::intake::Intake;
use crate::metrics::QueueMetrics;
use crate::replica::Replica;

pub(crate) use priority::asked;
pub use settings::AdmissionConfig;
pub(crate) use settings::{priority, priority_number};

/// How often room is looked for while somebody waits. It comes with time alone, as prefills proceed; and an engine has
/// much more than this to do when it is at its limit.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Those that wait, by model.
pub(crate) struct Admission {
    limit: Limit,
    bounds: Bounds,
    /// Guards who waits; held for one look or one change, never across an await.
    desks: Mutex<Desks>,
    /// Somebody waits who was the first, or one that was let go has been placed.
    changed: Notify,
    metrics: QueueMetrics,
}

#[derive(Default)]
struct Desks {
    /// Whether the router ends: then nobody waits any more.
    is_closed: bool,
    by_model: HashMap<ModelName, Desk>,
}

/// The queue of one model, and how whoever waits in it is reached.
struct Desk {
    queue: Queue,
    callers: HashMap<Ticket, oneshot::Sender<Called>>,
}

/// What one that waited is told.
enum Called {
    /// To go.
    Go,
    /// Not to wait any longer.
    Refused(Refusal),
}

/// One request's place in a queue: it waits, and is then on its way to being placed. Given back when dropped, whether
/// it has been placed or its client has left.
pub(crate) struct Waiter {
    replica: Arc<Replica>,
    model: ModelName,
    ticket: Ticket,
    called: oneshot::Receiver<Called>,
    /// None once it does not wait any more.
    wait: Option<Wait>,
}

/// A wait, counted for as long as it lasts.
struct Wait {
    since: Instant,
    waiting: IntGauge,
    seconds: Histogram,
}

impl Drop for Wait {
    fn drop(&mut self) {
        self.waiting.dec();
        self.seconds.observe(self.since.elapsed().as_secs_f64());
    }
}

impl Admission {
    pub(crate) fn new(config: &AdmissionConfig, metrics: QueueMetrics) -> Self {
        Self {
            limit: config.limit(),
            bounds: config.bounds(),
            desks: Mutex::default(),
            changed: Notify::new(),
            metrics,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Desks> {
        // No holder can leave it half changed.
        self.desks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self, priority: routing::admission::Priority) -> Wait {
        let label = priority.get().to_string();
        let waiting = self.metrics.waiting.with_label_values(&[&label]);
        waiting.inc();
        Wait {
            since: Instant::now(),
            waiting,
            seconds: self.metrics.seconds.clone(),
        }
    }

    pub(crate) fn refused(&self, refusal: Refusal) -> ApiError {
        let cause = refusal.cause.name();
        self.metrics.refused.with_label_values(&[cause]).inc();
        ApiError::Queue {
            refusal,
            bounds: self.bounds,
        }
    }

    fn closing(&self) -> ApiError {
        self.metrics.refused.with_label_values(&["closing"]).inc();
        ApiError::Unavailable {
            why: "this router is about to end, and no target has room for the request: try again"
                .to_owned(),
        }
    }

    /// Nobody waits any more: all are told so, now and from now on.
    fn close(&self) {
        let mut desks = self.lock();
        desks.is_closed = true;
        for desk in desks.by_model.values_mut() {
            desk.callers.clear();
        }
    }
}

impl Desk {
    fn tell(&mut self, ticket: Ticket, told: Called) {
        if let Some(caller) = self.callers.remove(&ticket) {
            // One whose client has just left gives its place back by itself.
            let _gone = caller.send(told);
        }
    }

    /// Refuses who has waited too long, and lets go whom there is room for.
    fn look(&mut self, room: Room, now: Timestamp) {
        for (ticket, refusal) in self.queue.expire(now) {
            self.tell(ticket, Called::Refused(refusal));
        }
        for ticket in self.queue.let_go(room, now) {
            self.tell(ticket, Called::Go);
        }
    }
}

impl Replica {
    /// What would become of a request that has to compute so many tokens, if it were to be served now.
    pub(crate) fn standing(&self, intake: &Intake, tokens: Tokens) -> Standing {
        if !self.may_wait(intake) {
            return Standing::Goes;
        }
        let (has_room, now) = self.has_room(&intake.model);
        let desks = self.admission.lock();
        match desks.by_model.get(&intake.model) {
            Some(desk) => desk.queue.standing(&asking(intake, tokens), has_room, now),
            None => self
                .admission
                .queue()
                .standing(&asking(intake, tokens), has_room, now),
        }
    }

    /// Whether a request of this model would have to wait, by what is known before anybody is asked about it.
    pub(crate) fn is_waited(&self, intake: &Intake) -> bool {
        if !self.may_wait(intake) {
            return false;
        }
        let desks = self.admission.lock();
        let desk = desks.by_model.get(&intake.model);
        let others_wait = desk.is_some_and(|it| !it.queue.is_empty());
        drop(desks);
        others_wait || !self.has_room(&intake.model).0
    }

    /// A place in the queue for a request that has to compute so many tokens; none where it goes at once.
    ///
    /// Until it is placed nothing stands for one that goes at once. So only one `may_go` that is placed within the same
    /// poll: a limit is overshot by as many requests as there are threads, at most.
    pub(crate) fn enqueue(
        self: &Arc<Self>,
        intake: &Intake,
        tokens: Tokens,
        may_go: bool,
    ) -> Result<Option<Waiter>, ApiError> {
        if !self.may_wait(intake) {
            return Ok(None);
        }
        let (has_room, now) = self.has_room(&intake.model);
        let has_room = has_room && may_go;
        let admission = &self.admission;
        let mut desks = admission.lock();
        let is_closed = desks.is_closed;
        let desk = desks.by_model.entry(intake.model.clone());
        let desk = desk.or_insert_with(|| Desk {
            queue: admission.queue(),
            callers: HashMap::new(),
        });
        if is_closed {
            return match has_room {
                true => Ok(None),
                false => Err(admission.closing()),
            };
        }
        match desk.queue.enter(asking(intake, tokens), has_room, now) {
            Entered::Goes => Ok(None),
            Entered::Refused(refusal) => Err(admission.refused(refusal)),
            Entered::Waits { ticket, displaced } => {
                if let Some((other, refusal)) = displaced {
                    desk.tell(other, Called::Refused(refusal));
                }
                let (caller, called) = oneshot::channel();
                desk.callers.insert(ticket, caller);
                if desk.queue.len() == 1 {
                    admission.changed.notify_one();
                }
                Ok(Some(Waiter {
                    replica: self.clone(),
                    model: intake.model.clone(),
                    ticket,
                    called,
                    wait: Some(admission.wait(intake.priority)),
                }))
            }
        }
    }

    /// Whether a request ever waits: one that insists on a target waits there.
    fn may_wait(&self, intake: &Intake) -> bool {
        self.admission.limit.is_some() && intake.pin.is_none()
    }

    fn has_room(&self, model: &ModelName) -> (bool, Timestamp) {
        let now = self.clock.now();
        let router = self.mind.lock();
        (router.has_room(model, &self.admission.limit, now), now)
    }

    /// Looks for room once for all that wait. Says whether any still do.
    fn let_go(&self) -> bool {
        let admission = &self.admission;
        let desks = admission.lock();
        let waited_for = desks.by_model.iter().filter(|it| !it.1.queue.is_empty());
        let waited_for: Vec<ModelName> = waited_for.map(|it| it.0.clone()).collect();
        drop(desks);
        let mut waits = false;
        for model in waited_for {
            let now = self.clock.now();
            let room = self.mind.lock().room(&model, &admission.limit, now);
            if let Some(desk) = admission.lock().by_model.get_mut(&model) {
                desk.look(room, now);
                waits |= !desk.queue.is_empty();
            }
        }
        waits
    }
}

impl Admission {
    fn queue(&self) -> Queue {
        Queue::new(self.bounds)
    }
}

fn asking(intake: &Intake, tokens: Tokens) -> Asking {
    Asking {
        tenant: intake.tenant.id.clone(),
        weight: intake.tenant.weight,
        priority: intake.priority,
        tokens,
    }
}

impl Waiter {
    /// Waits to be let go: for how long it has.
    pub(crate) async fn called(&mut self) -> Result<Duration, ApiError> {
        let called = (&mut self.called).await;
        let wait = self.wait.take();
        let waited = wait.map_or(Duration::ZERO, |it| it.since.elapsed());
        match called {
            Ok(Called::Go) => Ok(waited),
            Ok(Called::Refused(refusal)) => Err(self.replica.admission.refused(refusal)),
            Err(_) => Err(self.replica.admission.closing()),
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let now = self.replica.clock.now();
        let admission = &self.replica.admission;
        let mut desks = admission.lock();
        if let Some(desk) = desks.by_model.get_mut(&self.model) {
            desk.callers.remove(&self.ticket);
            desk.queue.leave(self.ticket, now);
        }
        admission.changed.notify_one();
    }
}

/// Lets requests go as there is room for them, until `shutdown`; then tells all that wait, and whoever would.
pub(crate) async fn serve(replica: Arc<Replica>, shutdown: CancellationToken) {
    let looking = async {
        loop {
            let changed = replica.admission.changed.notified();
            match replica.let_go() {
                // Early or late, it looks again.
                true => {
                    let _early = timeout(LOOK_EVERY, changed).await;
                }
                false => changed.await,
            }
        }
    };
    tokio::select! {
        biased;
        () = shutdown.cancelled() => replica.admission.close(),
        () = looking => {}
    }
    // It is a background task, which end with the service.
    std::future::pending().await
}
