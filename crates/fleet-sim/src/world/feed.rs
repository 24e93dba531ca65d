//! The way of KV events from the ranks to the index, and what is lost on it.

use std::collections::{BTreeMap, HashMap};

use domain::{KvOp, Target, Timestamp};

use crate::{EventFaults, Random};

/// Messages on their way.
pub(super) struct Feed {
    faults: EventFaults,
    random: Random,
    /// Until when the messages of a rank wait for one that was lost or is late.
    held_until: BTreeMap<Target, Timestamp>,
    /// Never iterated.
    messages: HashMap<u64, Message>,
    next: u64,
}

/// What a rank announced at the end of one pass.
#[derive(Clone, Debug)]
pub(super) struct Message {
    pub(super) target: Target,
    pub(super) ops: Vec<KvOp>,
}

/// When a message comes, and under which number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arrival {
    pub(super) at: Timestamp,
    pub(super) message: u64,
}

impl Feed {
    pub(super) fn new(faults: EventFaults, seed: u64) -> Self {
        /// Apart from what else is drawn from the run's seed.
        const OWN: u64 = 0x005e_ed0f_e7e5;
        Self {
            faults,
            random: Random::new(seed ^ OWN),
            held_until: BTreeMap::new(),
            messages: HashMap::new(),
            next: 0,
        }
    }

    /// Whether every message comes at once.
    pub(super) fn is_perfect(&self) -> bool {
        self.faults.are_none()
    }

    /// Sends a message; when it comes, if at all, and how often.
    pub(super) fn send(&mut self, message: Message, now: Timestamp) -> Vec<Arrival> {
        let EventFaults {
            delay,
            loss,
            duplicate,
            reorder,
            reorder_by,
            repaired_after,
        } = self.faults;
        let lost = self.random.chance(loss);
        let doubled = self.random.chance(duplicate);
        let late = self.random.chance(reorder);
        let sound = now + delay;
        let at = if late { sound + reorder_by } else { sound };
        let Some(repair) = repaired_after else {
            let mut arrivals = Vec::new();
            if !lost {
                arrivals.push(self.keep(message.clone(), at));
            }
            if doubled {
                arrivals.push(self.keep(message, at + delay));
            }
            return arrivals;
        };
        let at = if lost { at.max(now + repair) } else { at };
        let held = self.held_until.entry(message.target.clone()).or_default();
        let at = at.max(*held);
        if sound < at {
            *held = at;
        }
        vec![self.keep(message, at)]
    }

    fn keep(&mut self, message: Message, at: Timestamp) -> Arrival {
        self.next += 1;
        self.messages.insert(self.next, message);
        Arrival {
            at,
            message: self.next,
        }
    }

    /// A message that has come.
    pub(super) fn take(&mut self, message: u64) -> Option<Message> {
        self.messages.remove(&message)
    }

    /// The ranks whose messages wait for another: it is known that what they claim is not all.
    pub(super) fn suspects(&self, now: Timestamp) -> impl Iterator<Item = &Target> {
        let held = self.held_until.iter();
        held.filter(move |it| now < *it.1).map(|it| it.0)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use domain::{KvOp, Timestamp};

    use super::{Arrival, Feed, Message};
    use crate::EventFaults;

    const FAULTS: EventFaults = EventFaults {
        delay: Duration::from_millis(5),
        loss: 0.2,
        duplicate: 0.3,
        reorder: 0.2,
        reorder_by: Duration::from_millis(40),
        repaired_after: None,
    };

    /// Sends 1,000 messages of each of two ranks, one every 10 ms; when each comes, by rank and in the order of sending.
    fn sent(faults: EventFaults) -> BTreeMap<usize, Vec<Vec<Timestamp>>> {
        let mut feed = Feed::new(faults, 1);
        let mut ranks = BTreeMap::<usize, Vec<Vec<Timestamp>>>::new();
        for number in 0..2_000 {
            let rank = number % 2;
            let message = Message {
                target: format!("w1#1/{rank}").parse().unwrap(),
                ops: vec![KvOp::Cleared],
            };
            let now = Timestamp::ZERO + Duration::from_millis(10) * (number / 2) as u32;
            let arrivals = feed.send(message, now);
            let times = |it: &Arrival| {
                assert!(now + faults.delay <= it.at, "before it can be there");
                it.at
            };
            ranks
                .entry(rank)
                .or_default()
                .push(arrivals.iter().map(times).collect());
            assert!(arrivals.iter().all(|it| feed.take(it.message).is_some()));
        }
        ranks
    }

    #[test]
    fn where_nothing_is_fetched_again_messages_are_lost_late_and_doubled_as_often_as_said() {
        for of_rank in sent(FAULTS).into_values() {
            let share = |is: fn(&[Timestamp]) -> bool| {
                of_rank.iter().filter(|it| is(it)).count() as f64 / 1_000.0
            };
            // A lost one that is doubled comes once.
            assert!((share(|it| it.is_empty()) - 0.2 * 0.7).abs() < 0.04);
            assert!((share(|it| it.len() == 2) - 0.8 * 0.3).abs() < 0.04);
            let first: Vec<Timestamp> = of_rank
                .iter()
                .filter_map(|it| it.first().copied())
                .collect();
            assert!(!first.is_sorted(), "none was late");
        }
    }

    #[test]
    fn what_is_fetched_again_comes_in_order_and_once() {
        let repaired = EventFaults {
            repaired_after: Some(Duration::from_millis(200)),
            ..FAULTS
        };
        for of_rank in sent(repaired).into_values() {
            assert!(of_rank.iter().all(|it| it.len() == 1));
            assert!(of_rank.iter().flatten().is_sorted());
        }
    }
}
