//! What bindings the bus has told of: gone by where the store that owns them is silent.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};

use affinity::{Binding, ConversationKey};

/// Bindings remembered, about 500 bytes each; those of which nothing has been heard for longest go first.
const CAPACITY: usize = 65_536;

/// Bindings as they were last written, by any router.
#[derive(Default)]
pub(crate) struct Heard {
    /// Guards nothing else; each critical section is one look-up or change.
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    bindings: HashMap<ConversationKey, (u64, Binding)>,
    /// By when they were heard of.
    order: BTreeMap<u64, ConversationKey>,
    heard: u64,
}

impl Heard {
    /// A binding was written.
    pub(crate) fn hear(&self, binding: Binding) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let Known {
            bindings,
            order,
            heard,
        } = &mut *known;
        *heard += 1;
        let key = binding.key.clone();
        order.insert(*heard, key.clone());
        if let Some((before, _)) = bindings.insert(key, (*heard, binding)) {
            order.remove(&before);
        }
        if CAPACITY < bindings.len()
            && let Some((_, oldest)) = order.pop_first()
        {
            bindings.remove(&oldest);
        }
    }

    /// Where a conversation was bound when last heard of.
    pub(crate) fn get(&self, key: &ConversationKey) -> Option<Binding> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.bindings.get(key).map(|(_, binding)| binding.clone())
    }
}
