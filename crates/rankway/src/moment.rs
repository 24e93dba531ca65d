//! A moment as people read it.

/// Seconds since the Unix epoch as `2026-11-29T20:11:36Z`.
pub(crate) fn moment(seconds: f64) -> String {
    // A float to integer cast saturates; no clock shows a time before 1970.
    let seconds = seconds as u64;
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Year, month and day of a day since 1970, in the Gregorian calendar. Years are counted from March on, so that a leap
/// day is the last of its year.
const fn date(days: u64) -> (u64, u64, u64) {
    /// Days of 400 years, after which the calendar repeats itself.
    const CYCLE: u64 = 146_097;
    // From the first of March of the year 0.
    let days = days.saturating_add(719_468);
    let (cycle, day) = (days / CYCLE, days % CYCLE);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    // Months of March to July have 153 days together, and so have those from August on.
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let year = 400 * cycle + year;
    match month {
        0..=9 => (year, month + 3, day),
        _ => (year + 1, month - 9, day),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_written_in_utc() {
        // Computed with Python's datetime.
        for (seconds, expected) in [
            (0.0, "1970-01-01T00:00:00Z"),
            (951_782_399.9, "2000-02-28T23:59:59Z"),
            (951_782_400.0, "2000-02-29T00:00:00Z"),
            (1_709_251_200.0, "2024-03-01T00:00:00Z"),
            (1_796_000_096.5, "2026-11-30T00:54:56Z"),
            (4_107_542_399.0, "2100-02-28T23:59:59Z"),
            (4_107_542_400.0, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(moment(seconds), expected);
        }
        moment(f64::NAN);
        moment(-1.0);
        moment(f64::INFINITY);
    }
}
