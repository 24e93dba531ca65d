//! A bounded memory of sequence hashes by namespace: what was seen once, the least recent forgotten first.

use std::collections::{HashMap, HashSet};
use std::mem;

use domain::{Namespace, SequenceHash};

/// Two generations a namespace. When the younger ones together reach half the bound, all of them become
/// the older ones, and what was older is forgotten.
#[derive(Debug)]
pub(crate) struct History {
    namespaces: HashMap<Namespace, Generations>,
    /// Hashes in the younger generations.
    young: usize,
    /// The most of them, at least 1.
    most_young: usize,
    forgotten: u64,
}

/// What is remembered of one namespace.
#[derive(Debug, Default)]
pub(crate) struct Generations {
    young: HashSet<SequenceHash>,
    old: HashSet<SequenceHash>,
}

impl History {
    /// Remembers at most `bound` hashes; at least two.
    pub(crate) fn new(bound: usize) -> Self {
        Self {
            namespaces: HashMap::new(),
            young: 0,
            most_young: (bound / 2).max(1),
            forgotten: 0,
        }
    }

    pub(crate) fn of(&self, namespace: &Namespace) -> Option<&Generations> {
        self.namespaces.get(namespace)
    }

    pub(crate) fn insert(&mut self, namespace: &Namespace, hash: SequenceHash) {
        if self.young == self.most_young {
            self.age();
        }
        if !self.namespaces.contains_key(namespace) {
            let empty = Generations::default();
            self.namespaces.insert(namespace.clone(), empty);
        }
        let generations = self
            .namespaces
            .get_mut(namespace)
            .expect("it was there or has just been inserted");
        if generations.young.insert(hash) {
            generations.old.remove(&hash);
            self.young += 1;
        }
    }

    /// Hashes forgotten because the bound was reached.
    pub(crate) const fn forgotten(&self) -> u64 {
        self.forgotten
    }

    fn age(&mut self) {
        self.namespaces.retain(|_, generations| {
            let young = mem::take(&mut generations.young);
            let lost = mem::replace(&mut generations.old, young);
            self.forgotten += lost.len() as u64;
            !generations.old.is_empty()
        });
        self.young = 0;
    }
}

impl Generations {
    pub(crate) fn contains(&self, hash: SequenceHash) -> bool {
        self.young.contains(&hash) || self.old.contains(&hash)
    }

    pub(crate) fn contains_young(&self, hash: SequenceHash) -> bool {
        self.young.contains(&hash)
    }
}
