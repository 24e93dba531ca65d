//! What the writer and its readers both see.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard};

use domain::{Namespace, Target};

use crate::arena::{Arena, Line, WORDS, set_word, word};
use crate::departed::Departed;
use crate::run::{NO_RUN, VERSION, View};
use crate::sync::{AtomicU64, Conflict, Ordering, begin_read};
use crate::table::Table;
use domain::fold;

/// Bits of the parts of tables with an entry a run, and with an entry for every few blocks.
const RUN_PARTS: u32 = if cfg!(all(loom, test)) { 0 } else { 8 };

/// Everything that lookups need.
#[derive(Debug)]
pub(crate) struct Board {
    /// Headers of runs, by number.
    pub(crate) runs: Arena,
    /// Columns, lists, sets and tables.
    pub(crate) lines: Arena,
    /// Runs by the sequence hash of their first block.
    pub(crate) heads: Table,
    /// Runs by the run and the offset that they hang at and their first block.
    pub(crate) forks: Table,
    /// Blocks at depths that are multiples of [`crate::Sparse::GRAIN`], by sequence hash.
    pub(crate) anchors: Table,
    pub(crate) departed: Departed,
    pub(crate) secrets: Secrets,
    pub(crate) targets: Targets,
    turn: Turn,
}

/// Which slots are in use, and by whom.
#[derive(Debug)]
pub(crate) struct Targets {
    /// Of all that is here.
    pub(crate) version: AtomicU64,
    /// First line (high half) and number of words of the set of slots in use.
    pub(crate) live: AtomicU64,
    /// The names as of a version.
    pub(crate) directory: RwLock<Directory>,
}

/// The targets of the slots.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    /// The version of [`Targets`] that it belongs to.
    pub(crate) version: u64,
    pub(crate) targets: Vec<Option<Target>>,
    /// For each slot, its target's place in ascending order; found out when it is first asked for.
    order: OnceLock<Vec<u32>>,
}

impl Directory {
    pub(crate) fn order(&self) -> &[u32] {
        self.order.get_or_init(|| {
            let mut slots: Vec<usize> = (0..self.targets.len()).collect();
            slots.sort_unstable_by_key(|slot| self.targets[*slot].as_ref());
            let mut order = vec![0; slots.len()];
            for (place, slot) in slots.into_iter().enumerate() {
                order[slot] = place as u32;
            }
            order
        })
    }

    /// Makes `slot` mean `target`, or nobody, as of `version`.
    pub(crate) fn set(&mut self, version: u64, slot: u32, target: Option<Target>) {
        self.version = version;
        self.order = OnceLock::new();
        let slot = slot as usize;
        if self.targets.len() <= slot {
            self.targets.resize(slot + 1, None);
        }
        self.targets[slot] = target;
    }
}

/// What keeps others from choosing hashes that fall on the same slots of a table.
#[derive(Debug)]
pub(crate) struct Secrets {
    state: RandomState,
    sequences: u64,
    forks: [u64; 2],
    names: [u64; 2],
}

/// A way for a reader whom the writer disturbs again and again to have the index to itself for one lookup.
#[derive(Debug)]
struct Turn {
    asked: AtomicU64,
    lock: Mutex<()>,
}

impl Board {
    pub(crate) fn new(departed_bound: usize) -> Self {
        Self {
            runs: Arena::new(),
            lines: Arena::new(),
            heads: Table::new(RUN_PARTS),
            forks: Table::new(RUN_PARTS),
            anchors: Table::new(RUN_PARTS),
            departed: Departed::new(departed_bound),
            secrets: Secrets::new(),
            targets: Targets {
                version: AtomicU64::new(0),
                live: AtomicU64::new(0),
                directory: RwLock::default(),
            },
            turn: Turn {
                asked: AtomicU64::new(0),
                lock: Mutex::new(()),
            },
        }
    }

    /// A run's header, and the version it was read at.
    #[inline]
    pub(crate) fn view(&self, run: u32) -> Result<(View, u64), Conflict> {
        let header = self.runs.line(run).ok_or(Conflict)?;
        let seen = begin_read(header.atomic(VERSION))?;
        Ok((View::read(header), seen))
    }

    /// The run under `key` that begins with `sequence` after `start` blocks.
    #[inline]
    pub(crate) fn head(
        &self,
        key: u64,
        sequence: u64,
        start: u32,
    ) -> Result<Option<u32>, Conflict> {
        let hash = self.secrets.sequence(key, sequence);
        let place = self.heads.find(&self.lines, hash, |place| {
            self.looks(place.run, |view| {
                view.key == key
                    && view.start == start
                    && view.sequence(&self.lines, 0) == Some(sequence)
            })
        })?;
        Ok(place.map(|it| it.run))
    }

    /// The run that hangs on `parent` after its first `hangs_at` blocks and begins with `block`.
    #[inline]
    pub(crate) fn fork(
        &self,
        parent: u32,
        hangs_at: u32,
        block: u64,
    ) -> Result<Option<u32>, Conflict> {
        debug_assert_ne!(parent, NO_RUN, "the first block of a chain is its sequence");
        let hash = self.secrets.fork(parent, hangs_at, block);
        let place = self.forks.find(&self.lines, hash, |place| {
            self.looks(place.run, |view| {
                view.parent == parent
                    && view.hangs_at == hangs_at
                    && view
                        .blocks(&self.lines)
                        .is_some_and(|it| !it.is_empty() && word(it, 0) == block)
            })
        })?;
        Ok(place.map(|it| it.run))
    }

    /// The run that has `sequence` at `depth`, which counts the block itself.
    pub(crate) fn anchor(
        &self,
        key: u64,
        sequence: u64,
        depth: u32,
    ) -> Result<Option<u32>, Conflict> {
        let hash = self.secrets.sequence(key, sequence);
        let place = self.anchors.find(&self.lines, hash, |place| {
            self.looks(place.run, |view| {
                let offset = depth.checked_sub(view.start + 1).map(|it| it as usize);
                view.key == key
                    && offset.is_some_and(|it| {
                        it < view.len && view.sequence(&self.lines, it) == Some(sequence)
                    })
            })
        })?;
        Ok(place.map(|it| it.run))
    }

    /// Whether the run looks so at the moment. The reader of the run itself finds out whether it was true.
    #[inline]
    fn looks(&self, run: u32, so: impl FnOnce(&View) -> bool) -> bool {
        self.runs.line(run).is_some_and(|header| {
            let view = View::read(header);
            0 < view.len && so(&view)
        })
    }

    /// Whether a block is remembered that nobody holds any more.
    pub(crate) fn has_departed(&self, key: u64, sequence: u64) -> bool {
        self.departed.contains(self.secrets.sequence(key, sequence))
    }

    /// Copies the slots in use, as far as there are any.
    #[inline]
    pub(crate) fn live(&self, into: &mut Vec<u64>) -> Result<(), Conflict> {
        let live = self.targets.live.load(Ordering::Relaxed);
        let words = live as u32 as usize;
        let first = (live >> 32) as u32;
        into.clear();
        if words != 0 {
            let lines = self
                .lines
                .lines(first, words.div_ceil(WORDS))
                .ok_or(Conflict)?;
            let all = lines.iter().flat_map(Line::words).take(words);
            into.extend(all.map(|it| it.load(Ordering::Relaxed)));
        }
        Ok(())
    }

    /// Sets a slot's bit of those in use, for which there is room. The writer's.
    pub(crate) fn set_live(&self, slot: u32, live: bool) {
        let extent = self.targets.live.load(Ordering::Relaxed);
        let lines = self.lines.own(
            (extent >> 32) as u32,
            (extent as u32 as usize).div_ceil(WORDS),
        );
        let (index, bit) = (slot as usize / 64, 1 << (slot % 64));
        let old = word(lines, index);
        set_word(lines, index, if live { old | bit } else { old & !bit });
    }

    pub(crate) fn directory(&self) -> RwLockReadGuard<'_, Directory> {
        let directory = self.targets.directory.read();
        directory.unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the writer lets this reader have its turn, and keeps it off until the answer is dropped.
    pub(crate) fn take_turn(&self) -> ReadersTurn<'_> {
        self.turn.asked.fetch_add(1, Ordering::SeqCst);
        ReadersTurn {
            _guard: self
                .turn
                .lock
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
            turn: &self.turn,
        }
    }

    /// Lets a reader that has asked for its turn have it before the writer goes on.
    pub(crate) fn let_readers_go_first(&self) {
        if self.turn.asked.load(Ordering::Relaxed) != 0 {
            drop(
                self.turn
                    .lock
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner),
            );
        }
    }
}

/// Ends a reader's turn when dropped.
pub(crate) struct ReadersTurn<'a> {
    _guard: MutexGuard<'a, ()>,
    turn: &'a Turn,
}

impl Drop for ReadersTurn<'_> {
    fn drop(&mut self) {
        self.turn.asked.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Secrets {
    fn new() -> Self {
        let state = RandomState::new();
        let secret = |number: u64| state.hash_one(number) | 1;
        Self {
            sequences: secret(0),
            forks: [secret(1), secret(2)],
            names: [secret(3), secret(4)],
            state,
        }
    }

    /// The key of a namespace.
    pub(crate) fn key(&self, namespace: &Namespace) -> u64 {
        self.state.hash_one(namespace)
    }

    #[inline]
    pub(crate) fn sequence(&self, key: u64, sequence: u64) -> u64 {
        fold(sequence ^ key, self.sequences)
    }

    #[inline]
    pub(crate) fn fork(&self, run: u32, hangs_at: u32, block: u64) -> u64 {
        let place = (u64::from(run) << 16) ^ u64::from(hangs_at);
        fold(block ^ self.forks[0], place ^ self.forks[1])
    }

    #[inline]
    pub(crate) fn name(&self, name: u64) -> u64 {
        fold(name ^ self.names[0], self.names[1])
    }
}
