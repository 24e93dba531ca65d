//! The naive model that says what is right: for each target, the set of what it holds.

use std::collections::{BTreeMap, BTreeSet};

use domain::SequenceHash;

use crate::event::{Change, Event, Request, extend};

/// What each target holds, by the engine's name. A name stands for one block at a time.
#[derive(Clone, Debug, Default)]
pub struct Model {
    targets: BTreeMap<u32, BTreeMap<u64, Held>>,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    sequence: SequenceHash,
    parent: Option<u64>,
}

impl Model {
    /// Applies `event`, whose parent is held.
    pub fn apply(&mut self, event: &Event) {
        let held = self.targets.entry(event.target).or_default();
        match &event.change {
            Change::Stored { parent, blocks } => {
                let mut parent = *parent;
                for block in blocks {
                    let before = parent.map(|it| held[&it].sequence);
                    let sequence = extend(before, block.content);
                    held.insert(block.name, Held { sequence, parent });
                    parent = Some(block.name);
                }
            }
            Change::Removed(names) => held.retain(|name, _| !names.contains(name)),
            Change::Cleared => held.clear(),
        }
    }

    /// Leading blocks of `request` that each of `targets` targets holds.
    pub fn depths(&self, request: &Request, targets: u32) -> Vec<u32> {
        let depth = |target| {
            let held: BTreeSet<SequenceHash> = self.sequences(target).collect();
            request
                .sequence
                .iter()
                .take_while(|it| held.contains(it))
                .count() as u32
        };
        (0..targets).map(depth).collect()
    }

    /// The names of what `target` holds.
    pub fn names(&self, target: u32) -> impl Iterator<Item = u64> {
        self.targets
            .get(&target)
            .into_iter()
            .flatten()
            .map(|(name, _)| *name)
    }

    /// The names of those blocks of `target` that it holds no child of.
    pub fn leaves(&self, target: u32) -> Vec<u64> {
        let held = || self.targets.get(&target).into_iter().flatten();
        let parents: BTreeSet<u64> = held().filter_map(|(_, it)| it.parent).collect();
        held()
            .map(|(name, _)| *name)
            .filter(|it| !parents.contains(it))
            .collect()
    }

    fn sequences(&self, target: u32) -> impl Iterator<Item = SequenceHash> {
        self.targets
            .get(&target)
            .into_iter()
            .flatten()
            .map(|(_, it)| it.sequence)
    }
}
