//! The table of blocks of each namespace.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use domain::{Namespace, SequenceHash};

use crate::history::History;
use crate::holders::{Holders, Slot};

/// The dense number of a namespace while it holds blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct NamespaceId(u32);

/// One block: its sequence hash within its namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Block {
    pub(crate) namespace: NamespaceId,
    pub(crate) sequence: SequenceHash,
}

/// Every block that some target holds, and a bounded memory of those that none holds any more.
#[derive(Debug)]
pub(crate) struct Namespaces {
    ids: HashMap<Namespace, NamespaceId>,
    tables: Vec<Option<Table>>,
    free: Vec<NamespaceId>,
    departed: History,
}

#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) name: Namespace,
    pub(crate) blocks: HashMap<SequenceHash, Holders>,
}

impl Namespaces {
    pub(crate) fn new(departed_bound: usize) -> Self {
        Self {
            ids: HashMap::new(),
            tables: Vec::new(),
            free: Vec::new(),
            departed: History::new(departed_bound),
        }
    }

    /// The number of `name`, given to it where it has none.
    ///
    /// The caller stores a block under it before it calls again, or calls [`Self::release`].
    pub(crate) fn intern(&mut self, name: &Namespace) -> NamespaceId {
        if let Some(id) = self.ids.get(name) {
            return *id;
        }
        let id = self.free.pop().unwrap_or_else(|| {
            self.tables.push(None);
            NamespaceId(
                u32::try_from(self.tables.len() - 1).expect("memory ends before 2^32 tables"),
            )
        });
        self.tables[id.0 as usize] = Some(Table {
            name: name.clone(),
            blocks: HashMap::new(),
        });
        self.ids.insert(name.clone(), id);
        id
    }

    /// Gives the number back if nothing is stored under it.
    pub(crate) fn release(&mut self, id: NamespaceId) {
        if let Some(table) = self.tables[id.0 as usize].take_if(|it| it.blocks.is_empty()) {
            self.ids.remove(&table.name);
            self.free.push(id);
        }
    }

    pub(crate) fn table(&self, name: &Namespace) -> Option<&Table> {
        self.at(*self.ids.get(name)?)
    }

    pub(crate) fn at(&self, id: NamespaceId) -> Option<&Table> {
        self.tables[id.0 as usize].as_ref()
    }

    pub(crate) fn departed(&self) -> &History {
        &self.departed
    }

    pub(crate) fn holders_mut(&mut self, block: Block) -> &mut Holders {
        let table = self.tables[block.namespace.0 as usize]
            .as_mut()
            .expect("a namespace in use has a table");
        table.blocks.entry(block.sequence).or_default()
    }

    /// Changes what `slot` holds of `block`, if anybody holds it, and forgets the block if that leaves
    /// nobody. Answers whether `slot` held it before and holds it after.
    pub(crate) fn take_from(
        &mut self,
        block: Block,
        slot: Slot,
        change: impl FnOnce(&mut Holders),
    ) -> (bool, bool) {
        let Some(table) = &mut self.tables[block.namespace.0 as usize] else {
            return (false, false);
        };
        let Entry::Occupied(mut entry) = table.blocks.entry(block.sequence) else {
            return (false, false);
        };
        let held = entry.get().holds(slot);
        change(entry.get_mut());
        let holds = entry.get().holds(slot);
        if entry.get().is_empty() {
            entry.remove();
            self.departed.insert(&table.name, block.sequence);
            self.release(block.namespace);
        }
        (held, holds)
    }

    /// Distinct blocks that some target holds, and namespaces that have any.
    pub(crate) fn len(&self) -> (usize, usize) {
        let blocks = self.tables.iter().flatten().map(|it| it.blocks.len());
        (blocks.sum(), self.ids.len())
    }
}
