//! What was used lately, within a bound.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use domain::Timestamp;

/// A map that forgets what was not written for a while, and the oldest first where it is full.
///
/// Entries live in two generations: the older one is dropped whole when the younger is full or `period` old,
/// so an entry lasts between one and two periods after its last write, and less only where the map is full.
#[derive(Debug)]
pub(crate) struct Recent<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
    /// When the younger generation began.
    since: Timestamp,
    period: Duration,
    max_young: usize,
}

impl<K: Eq + Hash, V> Recent<K, V> {
    /// A map of at most `max_entries`, which is at least two.
    pub(crate) fn new(max_entries: usize, period: Duration) -> Self {
        assert!(max_entries >= 2, "each generation holds something");
        Self {
            young: HashMap::new(),
            old: HashMap::new(),
            since: Timestamp::ZERO,
            period,
            max_young: max_entries / 2,
        }
    }

    /// What was written last under `key`, unless that is forgotten by `now`.
    pub(crate) fn get(&self, key: &K, now: Timestamp) -> Option<&V> {
        let periods = |count| now < self.since + self.period * count;
        let young = self.young.get(key).filter(|_| periods(2));
        young.or_else(|| self.old.get(key).filter(|_| periods(1)))
    }

    /// Writes under `key`, which makes it the youngest.
    pub(crate) fn put(&mut self, key: K, value: V, now: Timestamp) {
        if self.since + self.period * 2 <= now {
            self.young.clear();
        }
        let full = self.young.len() >= self.max_young && !self.young.contains_key(&key);
        if full || self.since + self.period <= now {
            self.old = std::mem::take(&mut self.young);
            self.since = now;
        }
        self.old.remove(&key);
        self.young.insert(key, value);
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn what_is_not_written_for_two_periods_is_forgotten() {
        let mut recent = Recent::new(100, Duration::from_secs(10));
        recent.put("a", 1, at(100));
        recent.put("b", 2, at(109));
        assert_eq!(
            recent.get(&"a", at(119)),
            Some(&1),
            "nobody has written since"
        );
        assert_eq!(recent.get(&"a", at(120)), None);
        recent.put("a", 3, at(112));
        recent.put("c", 4, at(122));
        assert_eq!(recent.get(&"a", at(131)), Some(&3));
        assert_eq!(
            recent.get(&"b", at(122)),
            None,
            "written before the last period"
        );
        assert_eq!(recent.get(&"a", at(132)), None);
        assert_eq!(recent.get(&"c", at(141)), Some(&4));
    }

    #[test]
    fn a_full_map_keeps_the_youngest_half() {
        let mut recent = Recent::new(8, Duration::from_secs(10));
        for number in 0..1_000_u32 {
            recent.put(number, number, at(1));
            assert!(recent.len() <= 8);
            for last in number.saturating_sub(3)..=number {
                assert_eq!(recent.get(&last, at(1)), Some(&last));
            }
        }
        for _ in 0..100 {
            recent.put(999, 7, at(1));
        }
        assert_eq!(
            recent.get(&998, at(1)),
            Some(&998),
            "a rewrite pushes nobody out"
        );
    }
}
