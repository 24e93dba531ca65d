//! When the fleet was last heard of, which is as of when its leases are judged: a bus that is away ends none.

use std::time::Duration;

use domain::Timestamp;

/// Nothing for so long, and the bus was away: while it is not, each service is heard of every five seconds.
const SILENCE: Duration = Duration::from_secs(7);
/// How long those that live may take to be heard of again afterwards: as long as a lease.
const RETURN: Duration = Duration::from_secs(15);

/// The last word of the fleet.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    last: Option<Timestamp>,
    /// The last absence of the bus.
    away: Option<Away>,
}

#[derive(Clone, Copy, Debug)]
struct Away {
    since: Timestamp,
    /// Until then nobody is missed.
    until: Timestamp,
}

impl Heard {
    /// Somebody has written into the fleet.
    pub(crate) fn hear(&mut self, now: Timestamp) {
        let Some(last) = self.last.replace(now) else {
            return;
        };
        if SILENCE < now.since(last) {
            let before = self.away.filter(|it| last < it.until);
            self.away = Some(Away {
                since: before.map_or(last, |it| it.since),
                until: now + RETURN,
            });
        }
    }

    /// As of when leases are judged now.
    pub(crate) fn as_of(&self, now: Timestamp) -> Timestamp {
        let missed = self.away.filter(|it| now < it.until).map(|it| it.since);
        missed.or(self.last).map_or(now, |it| it.min(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_stand_still_while_nothing_is_heard_and_until_the_living_are_back() {
        let at = |seconds: u64| Timestamp::ZERO + Duration::from_secs(seconds);
        let mut heard = Heard::default();
        assert_eq!(heard.as_of(at(9)), at(9));
        for second in [10, 15, 20] {
            heard.hear(at(second));
        }
        assert_eq!(heard.as_of(at(21)), at(20));
        assert_eq!(heard.as_of(at(90)), at(20));
        heard.hear(at(100));
        assert_eq!(heard.as_of(at(114)), at(20));
        heard.hear(at(110));
        assert_eq!(heard.as_of(at(120)), at(20));
        heard.hear(at(116));
        assert_eq!(heard.as_of(at(126)), at(116));
    }
}
