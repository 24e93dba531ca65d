//! What becomes of a rank's messages on their way to whoever hears them, where that is not as it should be.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use domain::DpRank;
use serde::Serialize;

use crate::generator::mixed;

/// Of so many messages one is lost.
const LOST: u64 = 100;
/// Of so many one is late.
const LATE: u64 = 20;
/// A late message is overtaken by at most so many.
const OVERTAKEN: u64 = 16;
/// Of so many one comes twice.
const REPEATED: u64 = 50;
/// Of so many requests for a replay one is lost.
const REQUESTS_LOST: u64 = 20;
/// How long a message may be late where no other follows.
pub(crate) const LATEST: Duration = Duration::from_millis(50);

/// What has become of the messages of one rank.
#[derive(Clone, Debug, Default)]
pub(crate) struct LineState(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    cut: AtomicBool,
    sent: AtomicU64,
    lost: AtomicU64,
    late: AtomicU64,
    repeated: AtomicU64,
    requests: AtomicU64,
    requests_lost: AtomicU64,
}

/// The same as numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct LineCounts {
    /// Messages that were published.
    sent: u64,
    lost: u64,
    late: u64,
    repeated: u64,
    /// Requests for a replay.
    requests: u64,
    requests_lost: u64,
}

impl LineState {
    /// From now on, or no more, each message is lost.
    pub(crate) fn cut(&self, cut: bool) {
        self.0.cut.store(cut, Relaxed);
    }

    pub(crate) fn counts(&self) -> LineCounts {
        let it = &self.0;
        LineCounts {
            sent: it.sent.load(Relaxed),
            lost: it.lost.load(Relaxed),
            late: it.late.load(Relaxed),
            repeated: it.repeated.load(Relaxed),
            requests: it.requests.load(Relaxed),
            requests_lost: it.requests_lost.load(Relaxed),
        }
    }
}

/// The way of one rank's messages: as it should be, unless it is told to lose some.
#[derive(Debug)]
pub(crate) struct Line<M> {
    lossy: bool,
    lossy_replays: bool,
    /// What is drawn next follows from it.
    draws: u64,
    /// Messages that are late, each with how many more overtake it.
    late: Vec<(u64, M)>,
    state: LineState,
}

impl<M: Clone> Line<M> {
    pub(crate) fn new(seed: u64, rank: DpRank, lossy: bool, lossy_replays: bool) -> Self {
        Self {
            lossy,
            lossy_replays,
            draws: mixed(seed ^ mixed(u64::from(rank.get()))),
            late: Vec::new(),
            state: LineState::default(),
        }
    }

    pub(crate) fn state(&self) -> LineState {
        self.state.clone()
    }

    /// What arrives when `message` is sent, in this order.
    pub(crate) fn carry(&mut self, message: M) -> Vec<M> {
        let state = self.state.clone();
        let counts = &*state.0;
        counts.sent.fetch_add(1, Relaxed);
        let mut arrived = Vec::new();
        if counts.cut.load(Relaxed) {
            counts.lost.fetch_add(1 + self.late.len() as u64, Relaxed);
            self.late.clear();
            return arrived;
        }
        if !self.lossy {
            return vec![message];
        }
        if self.one_in(LOST) {
            counts.lost.fetch_add(1, Relaxed);
        } else {
            if self.one_in(REPEATED) {
                counts.repeated.fetch_add(1, Relaxed);
                let after = self.drawn() % OVERTAKEN;
                // Itself is the first to overtake its repetition.
                self.late.push((after + 1, message.clone()));
            }
            if self.one_in(LATE) {
                counts.late.fetch_add(1, Relaxed);
                let after = 1 + self.drawn() % OVERTAKEN;
                self.late.push((after + 1, message));
            } else {
                arrived.push(message);
            }
        }
        for (after, message) in std::mem::take(&mut self.late) {
            match after - 1 {
                0 => arrived.push(message),
                after => self.late.push((after, message)),
            }
        }
        arrived
    }

    /// Whether something is on its way that arrives after [`LATEST`] where nothing is sent before.
    pub(crate) fn is_late(&self) -> bool {
        !self.late.is_empty()
    }

    /// What arrives after a pause.
    pub(crate) fn arrive(&mut self) -> Vec<M> {
        let late = std::mem::take(&mut self.late);
        late.into_iter().map(|(_, message)| message).collect()
    }

    /// Whether a request for a replay is heard.
    pub(crate) fn hears_request(&mut self) -> bool {
        let state = self.state.clone();
        state.0.requests.fetch_add(1, Relaxed);
        let lost = self.lossy_replays && self.one_in(REQUESTS_LOST);
        state.0.requests_lost.fetch_add(u64::from(lost), Relaxed);
        !lost
    }

    fn one_in(&mut self, many: u64) -> bool {
        self.drawn().is_multiple_of(many)
    }

    fn drawn(&mut self) -> u64 {
        self.draws = self.draws.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed(self.draws)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn sent(line: &mut Line<u64>, messages: u64) -> Vec<u64> {
        let mut arrived: Vec<u64> = (0..messages).flat_map(|it| line.carry(it)).collect();
        arrived.extend(line.arrive());
        arrived
    }

    #[test]
    fn a_line_that_loses_nothing_carries_all_in_order() {
        let mut line = Line::new(1, DpRank::new(0), false, false);
        assert_eq!(sent(&mut line, 100), (0..100).collect::<Vec<_>>());
        assert!((0..100).all(|_| line.hears_request()));
    }

    #[test]
    fn what_is_said_to_be_lost_late_and_repeated_is_and_nothing_else() {
        let mut line = Line::new(7, DpRank::new(3), true, true);
        let arrived = sent(&mut line, 20_000);

        let counts = line.state().counts();
        let mut times = BTreeMap::<u64, u64>::new();
        for it in &arrived {
            *times.entry(*it).or_default() += 1;
        }
        let twice = times.values().filter(|it| **it == 2).count() as u64;
        assert_eq!(counts.sent, 20_000);
        assert_eq!(counts.lost, 20_000 - times.len() as u64);
        assert_eq!(counts.repeated, twice);
        assert!(times.values().all(|it| *it <= 2));
        assert!((100..400).contains(&counts.lost), "{counts:?}");
        assert!((200..800).contains(&counts.repeated), "{counts:?}");
        assert!((500..2_000).contains(&counts.late), "{counts:?}");
        let mut newest = 0;
        for it in arrived {
            newest = newest.max(it);
            assert!(newest - it <= OVERTAKEN + 1, "{it} after {newest}");
        }
        let heard = (0..2_000).filter(|_| line.hears_request()).count();
        assert!((1_800..1_990).contains(&heard), "{heard}");
    }

    #[test]
    fn the_same_seed_does_the_same_and_what_is_cut_carries_nothing() {
        let line = || Line::new(7, DpRank::new(3), true, false);
        assert_eq!(sent(&mut line(), 1_000), sent(&mut line(), 1_000));
        let mut line = line();
        line.state().cut(true);
        assert_eq!(sent(&mut line, 10), Vec::<u64>::new());
        assert_eq!(line.state().counts().lost, 10);
        line.state().cut(false);
        assert!(!sent(&mut line, 10).is_empty());
    }
}
