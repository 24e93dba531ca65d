//! Namespaces by number, while any run is theirs.

use std::collections::HashMap;

use domain::Namespace;

#[derive(Debug, Default)]
pub(crate) struct Namespaces {
    numbers: HashMap<Namespace, u32>,
    named: Vec<Option<Named>>,
    free: Vec<u32>,
    /// How many have a live run.
    live: usize,
}

#[derive(Debug)]
struct Named {
    name: Namespace,
    key: u64,
    runs: u64,
    /// Those that are not ghosts altogether.
    live: u64,
}

impl Namespaces {
    /// The number of `name`, given to it where it has none. `hint` is tried first. Who plants no run under it
    /// calls [`Self::release`].
    pub(crate) fn number(&mut self, name: &Namespace, hint: u32, key: impl FnOnce() -> u64) -> u32 {
        let hinted = self.named.get(hint as usize).and_then(Option::as_ref);
        if hinted.is_some_and(|it| it.name == *name) {
            return hint;
        }
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let number = self.free.pop().unwrap_or_else(|| {
            self.named.push(None);
            self.named.len() as u32 - 1
        });
        self.named[number as usize] = Some(Named {
            name: name.clone(),
            key: key(),
            runs: 0,
            live: 0,
        });
        self.numbers.insert(name.clone(), number);
        number
    }

    /// Gives the number back if no run is under it.
    pub(crate) fn release(&mut self, number: u32) {
        let unused = self.named[number as usize].take_if(|it| it.runs == 0);
        if let Some(unused) = unused {
            self.numbers.remove(&unused.name);
            self.free.push(number);
        }
    }

    pub(crate) fn add_run(&mut self, number: u32) {
        self.at_mut(number).runs += 1;
    }

    pub(crate) fn drop_run(&mut self, number: u32) {
        self.at_mut(number).runs -= 1;
        self.release(number);
    }

    /// Counts a run of the namespace that comes to life, or becomes a ghost.
    pub(crate) fn count_live(&mut self, number: u32, lives: bool) {
        let named = self.at_mut(number);
        if lives {
            named.live += 1;
            self.live += usize::from(named.live == 1);
        } else {
            named.live -= 1;
            self.live -= usize::from(named.live == 0);
        }
    }

    pub(crate) fn key(&self, number: u32) -> u64 {
        self.at(number).key
    }

    pub(crate) fn name(&self, number: u32) -> &Namespace {
        &self.at(number).name
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.numbers.len()
    }

    /// How many of them have more than ghosts.
    pub(crate) fn live(&self) -> usize {
        self.live
    }

    fn at(&self, number: u32) -> &Named {
        let named = self.named[number as usize].as_ref();
        named.expect("a number in use has a name")
    }

    fn at_mut(&mut self, number: u32) -> &mut Named {
        let named = self.named[number as usize].as_mut();
        named.expect("a number in use has a name")
    }
}
