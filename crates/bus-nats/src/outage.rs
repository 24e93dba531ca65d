//! What the log says of a server that is away: a line when it is lost, one in ten seconds while it stays away, and one
//! when it is back, however often the connection is tried meanwhile.

use std::time::Duration;

use tokio::time::Instant;

/// Between two lines of one kind.
const BETWEEN: Duration = Duration::from_secs(10);

/// Lets one line through in ten seconds, and counts those that it keeps back.
#[derive(Debug, Default)]
pub(crate) struct Seldom {
    said: Option<Instant>,
    kept_back: u64,
}

/// How long a server was away, and what was said of it.
#[derive(Debug, Default)]
pub(crate) struct Outage {
    lines: Seldom,
    /// Since when it is away, if that was said.
    told: Option<Instant>,
}

impl Seldom {
    /// Whether a line may be said now, and then how many were kept back since the last one.
    pub(crate) fn admit(&mut self, now: Instant) -> Option<u64> {
        if self.said.is_some_and(|it| now < it + BETWEEN) {
            self.kept_back += 1;
            return None;
        }
        self.said = Some(now);
        Some(std::mem::take(&mut self.kept_back))
    }
}

impl Outage {
    /// The server is lost, or was not reached: whether to say so, and then how often that was not said.
    pub(crate) fn worse(&mut self, now: Instant) -> Option<u64> {
        let admitted = self.lines.admit(now)?;
        self.told.get_or_insert(now);
        Some(admitted)
    }

    /// It is back: for how long its absence was told, if it was.
    pub(crate) fn over(&mut self, now: Instant) -> Option<Duration> {
        self.told.take().map(|since| now - since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_away_for_a_minute_takes_seven_lines_and_one_when_it_is_back() {
        let (mut outage, begin) = (Outage::default(), Instant::now());
        assert_eq!(outage.over(begin), None);
        let tries = (0..240).map(|it| begin + it * Duration::from_millis(250));
        let said: Vec<u64> = tries.filter_map(|now| outage.worse(now)).collect();
        assert_eq!(said, [0, 39, 39, 39, 39, 39]);
        let back = begin + Duration::from_secs(60);
        assert_eq!(outage.worse(back), Some(39));
        assert_eq!(outage.over(back), Some(Duration::from_secs(60)));
        assert_eq!(outage.over(back), None);
    }

    #[test]
    fn a_server_that_comes_and_goes_takes_two_lines_in_ten_seconds() {
        let (mut outage, begin) = (Outage::default(), Instant::now());
        let mut lines = 0;
        for now in (0..100).map(|it| begin + it * Duration::from_millis(100)) {
            lines += usize::from(outage.worse(now).is_some());
            lines += usize::from(outage.over(now).is_some());
        }
        assert_eq!(lines, 2);
    }
}
