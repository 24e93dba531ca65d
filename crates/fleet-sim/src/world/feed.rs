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
