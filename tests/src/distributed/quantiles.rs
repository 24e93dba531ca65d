//! Quantiles of times, in milliseconds.

use std::time::Duration;

/// The median and the 99th percentile: the smallest values that so many are not above. 0 of nothing.
pub(super) fn p50_and_p99(mut times: Vec<Duration>) -> (f64, f64) {
    times.sort_unstable();
    let at = |share: f64| {
        let rank = (times.len() as f64 * share).ceil() as usize;
        let time = times.get(rank.saturating_sub(1));
        time.map_or(0.0, |it| it.as_secs_f64() * 1e3)
    };
    (at(0.5), at(0.99))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_were_measured() {
        let times = (1..=200).rev().map(Duration::from_millis).collect();
        assert_eq!(p50_and_p99(times), (100.0, 198.0));
        assert_eq!(p50_and_p99(vec![Duration::from_millis(7)]), (7.0, 7.0));
        assert_eq!(p50_and_p99(Vec::new()), (0.0, 0.0));
    }
}
