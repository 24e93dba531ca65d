//! When a rank that is silent is asked whether something of it was missed.

use std::time::Duration;

use tokio::time::Instant;

/// One rank's silence. The waits double up to a limit: nothing but the engine's answer shows that the last message before
/// a pause was lost, and so that is asked for soon, while a rank that is idle is asked rarely.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quiet {
    since: Instant,
    wait: Duration,
    first: Duration,
    longest: Duration,
}

impl Quiet {
    pub(crate) fn new(first: Duration, longest: Duration, now: Instant) -> Self {
        let first = first.min(longest);
        Self {
            since: now,
            wait: first,
            first,
            longest,
        }
    }

    /// Something new was heard.
    pub(crate) fn heard(&mut self, now: Instant) {
        self.since = now;
        self.wait = self.first;
    }

    /// It has been asked.
    pub(crate) fn asked(&mut self, now: Instant) {
        self.since = now;
        self.wait = self.longest.min(self.wait * 2);
    }

    /// It cannot be asked at present.
    pub(crate) fn put_off(&mut self, now: Instant) {
        self.since = now;
    }

    /// When it is to be asked.
    pub(crate) fn due(&self) -> Instant {
        self.since + self.wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_just_spoken_is_asked_soon_and_what_is_idle_rarely() {
        let start = Instant::now();
        let (first, longest) = (Duration::from_millis(500), Duration::from_secs(5));
        let mut quiet = Quiet::new(first, longest, start);
        let mut waits = Vec::new();
        for _ in 0..6 {
            let now = quiet.due();
            waits.push((now - quiet.since).as_millis());
            quiet.asked(now);
        }
        assert_eq!(waits, [500, 1_000, 2_000, 4_000, 5_000, 5_000]);

        quiet.heard(start);
        assert_eq!(quiet.due(), start + first);
        let shorter = Quiet::new(longest, first, start);
        assert_eq!(shorter.due(), start + first);
    }
}
