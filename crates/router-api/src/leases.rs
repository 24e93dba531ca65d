//! The leases this router holds at the affinity store: confirmed, renewed and given back in order, without
//! a request ever waiting for it.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use affinity::ConversationKey;
use contracts::rpc::{Affinity, CallError, Confirm, Release, Renew};
use domain::InstanceId;
use prometheus::IntCounter;
use service_kit::CancellationToken;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{interval, timeout};
use tracing::warn;

/// Lanes side by side, so that a slow call holds up an eighth of the conversations. What concerns one
/// conversation stays in one lane, in order.
const LANES: usize = 8;
/// Notes waiting in a lane; beyond it they are dropped and the lease runs out by itself.
const LANE_DEPTH: usize = 4096;
/// Leases live 15 s.
const RENEW_EVERY: Duration = Duration::from_secs(5);
/// Conversations named in one renewal: about 2 MiB of ids.
const RENEWED_AT_ONCE: usize = 16_384;
/// How long the store may take to note something; nobody waits for it.
const NOTE_TIMEOUT: Duration = Duration::from_secs(1);

/// What the store is told.
pub(crate) enum Note {
    Confirm(Confirm),
    Release(Release),
    /// A give-back somebody waits for.
    ReleaseNow(Release, oneshot::Sender<()>),
}

/// The leases held now, and the lanes to the store.
pub(crate) struct Leases {
    lanes: Vec<mpsc::Sender<Note>>,
    /// Requests in flight by conversation. Guards nothing else.
    held: Mutex<BTreeMap<ConversationKey, u32>>,
    dropped: IntCounter,
}

/// The other ends of the lanes, until they are served.
pub(crate) struct Lanes(Vec<mpsc::Receiver<Note>>);

impl Leases {
    pub(crate) fn new(dropped: IntCounter) -> (Self, Lanes) {
        let (lanes, ends) = (0..LANES).map(|_| mpsc::channel(LANE_DEPTH)).unzip();
        let held = Mutex::default();
        let leases = Self {
            lanes,
            held,
            dropped,
        };
        (leases, Lanes(ends))
    }

    /// Counts a lease that an acquire or rebind has given.
    pub(crate) fn took(&self, key: &ConversationKey) {
        *self.lock().entry(key.clone()).or_default() += 1;
    }

    /// Says that a first byte was served.
    pub(crate) fn confirm(&self, confirm: Confirm) {
        self.send(confirm.key.clone(), Note::Confirm(confirm));
    }

    /// Gives a lease back.
    pub(crate) fn release(&self, release: Release) {
        self.gave(&release.key);
        self.send(release.key.clone(), Note::Release(release));
    }

    /// Gives a lease back; resolves when the store knows, or will not.
    pub(crate) fn release_now(&self, release: Release) -> impl Future<Output = ()> + use<> {
        self.gave(&release.key);
        let (done, known) = oneshot::channel();
        self.send(release.key.clone(), Note::ReleaseNow(release, done));
        async {
            // A lane that drops the note drops the sender too: nobody will know then.
            let _dropped = known.await;
        }
    }

    fn gave(&self, key: &ConversationKey) {
        let mut held = self.lock();
        if let Some(count) = held.get_mut(key) {
            *count -= 1;
            if *count == 0 {
                held.remove(key);
            }
        }
    }

    fn send(&self, key: ConversationKey, note: Note) {
        // The same in every lane's eyes for as long as the process lives, which is all it needs.
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(&key);
        let lane = (hash % LANES as u64) as usize;
        if self.lanes[lane].try_send(note).is_err() {
            self.dropped.inc();
        }
    }

    fn held(&self) -> Vec<ConversationKey> {
        self.lock().keys().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ConversationKey, u32>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lanes {
    /// Serves the lanes until `closing`, and then what is still in them.
    pub(crate) async fn serve(self, store: Store, closing: CancellationToken) {
        let mut lanes = JoinSet::new();
        for lane in self.0 {
            lanes.spawn(serve_lane(lane, store.clone(), closing.clone()));
        }
        lanes.join_all().await;
    }
}

/// The affinity store as it is told things: what it does not take is counted, and said once until it takes
/// something again. Leases that are not confirmed, renewed or given back end by themselves.
#[derive(Clone)]
pub(crate) struct Store {
    affinity: Arc<dyn Affinity>,
    untold: IntCounter,
    failing: Arc<AtomicBool>,
}

impl Store {
    pub(crate) fn new(affinity: Arc<dyn Affinity>, untold: IntCounter) -> Self {
        Self {
            affinity,
            untold,
            failing: Arc::default(),
        }
    }

    /// Renews what is held, for ever.
    pub(crate) async fn renew(self, leases: Arc<Leases>, actor: InstanceId) {
        let mut ticks = interval(RENEW_EVERY);
        loop {
            ticks.tick().await;
            for keys in leases.held().chunks(RENEWED_AT_ONCE) {
                let (actor, keys) = (actor.clone(), keys.to_vec());
                let renewed = self.affinity.renew(Renew { actor, keys });
                self.tell("renew", renewed).await;
            }
        }
    }

    async fn note(&self, note: Note) {
        let affinity = self.affinity.as_ref();
        match note {
            Note::Confirm(confirm) => {
                let call = async { affinity.confirm(confirm).await.map(|_| ()) };
                self.tell("confirm", call).await;
            }
            Note::Release(release) => self.tell("release", affinity.release(release)).await,
            Note::ReleaseNow(release, done) => {
                self.tell("release", affinity.release(release)).await;
                // Who has stopped waiting does not need to know.
                let _gone = done.send(());
            }
        }
    }

    async fn tell(&self, what: &'static str, call: impl Future<Output = Result<(), CallError>>) {
        let late = Err(CallError::DeadlineExceeded {
            service: "affinity",
        });
        match timeout(NOTE_TIMEOUT, call).await.unwrap_or(late) {
            // The conversation has moved on, which is the store's to know.
            Ok(()) | Err(CallError::FailedPrecondition { .. }) => {
                self.failing.store(false, Ordering::Relaxed);
            }
            Err(error) => {
                self.untold.inc();
                if !self.failing.swap(true, Ordering::Relaxed) {
                    warn!(what, %error, "the affinity store does not listen");
                }
            }
        }
    }
}

async fn serve_lane(mut lane: mpsc::Receiver<Note>, store: Store, closing: CancellationToken) {
    loop {
        tokio::select! {
            biased;
            note = lane.recv() => match note {
                Some(note) => store.note(note).await,
                None => return,
            },
            () = closing.cancelled() => return,
        }
    }
}
