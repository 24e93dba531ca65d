//! A bounded memory of sequence hashes by namespace: what was seen once, the least recent forgotten first.

use std::collections::{HashMap, HashSet};
use std::mem;

use domain::{Namespace, SequenceHash};

use domain::Folding;

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
    young: HashSet<SequenceHash, Folding>,
    old: HashSet<SequenceHash, Folding>,
}

/// One namespace's memory while something is written into it.
pub(crate) struct Writing<'a> {
    history: &'a mut History,
    of: &'a mut Generations,
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

    /// Writes what is remembered of `namespace`.
    pub(crate) fn write(&mut self, namespace: &Namespace, write: impl FnOnce(&mut Writing<'_>)) {
        let known = self.namespaces.remove_entry(namespace);
        let (namespace, mut of) =
            known.unwrap_or_else(|| (namespace.clone(), Generations::default()));
        write(&mut Writing {
            history: self,
            of: &mut of,
        });
        if !of.is_empty() {
            self.namespaces.insert(namespace, of);
        }
    }

    /// Hashes forgotten because the bound was reached.
    pub(crate) const fn forgotten(&self) -> u64 {
        self.forgotten
    }

    fn age(&mut self, written: &mut Generations) {
        self.forgotten += written.age();
        self.namespaces.retain(|_, generations| {
            self.forgotten += generations.age();
            !generations.is_empty()
        });
        self.young = 0;
    }
}

impl Writing<'_> {
    /// Remembers `hash`, as the youngest.
    pub(crate) fn insert(&mut self, hash: SequenceHash) {
        if self.history.young == self.history.most_young {
            self.history.age(self.of);
        }
        if self.of.young.insert(hash) {
            self.of.old.remove(&hash);
            self.history.young += 1;
        }
    }

    pub(crate) fn contains(&self, hash: SequenceHash) -> bool {
        self.of.contains(hash)
    }

    pub(crate) fn contains_young(&self, hash: SequenceHash) -> bool {
        self.of.young.contains(&hash)
    }
}

impl Generations {
    pub(crate) fn contains(&self, hash: SequenceHash) -> bool {
        self.young.contains(&hash) || self.old.contains(&hash)
    }

    fn is_empty(&self) -> bool {
        self.young.is_empty() && self.old.is_empty()
    }

    /// The younger generation becomes the older one; answers how many were lost with what was that.
    fn age(&mut self) -> u64 {
        let young = mem::take(&mut self.young);
        let lost = mem::replace(&mut self.old, young);
        lost.len() as u64
    }
}
