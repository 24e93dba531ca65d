//! Gathering against a naive model: the set of pages that lie somewhere, and from it the set of whole blocks.

use std::collections::{BTreeMap, BTreeSet};

use domain::{BlockHash, HashSeed, Target, sequence_hashes};
use prefix_index::PrefixIndex;
use proptest::prelude::*;

use super::tests::{BLOCK, PAGE, name, pages, size, store, tokens};
use super::*;

/// A path of pages, each one of a few contents, from the root.
type Path = Vec<u8>;

fn target() -> Target {
    "w#1/0".parse().unwrap()
}

fn apply(index: &mut PrefixIndex, ops: &[KvOp]) {
    for op in ops {
        let applied = index.apply(&target(), op).unwrap();
        assert_eq!(applied.orphans, 0, "{op:?}");
        assert_eq!(applied.renamed, 0, "{op:?}");
    }
}

/// For each tier and page path, whether the engine holds that page there.
#[derive(Default)]
struct Naive(BTreeMap<Path, BTreeSet<Tier>>);

impl Naive {
    fn take(&mut self, step: &Step) {
        match step {
            Step::Store {
                path,
                from,
                tier: to,
            } => self.store(path, *from, tier(*to)),
            Step::Remove { path, tier: from } => self.remove(path, tier(*from)),
            Step::Shift { path, from, to } => {
                if let Some(tiers) = self.0.get_mut(path)
                    && tiers.remove(&tier(*from))
                {
                    tiers.insert(tier(*to));
                }
            }
            Step::Clear => self.0.clear(),
            Step::Restart | Step::Kill { .. } | Step::TellAll => {}
        }
    }

    /// Whether the engine knows the page, be it only for what hangs on it.
    fn knows(&self, path: &[u8]) -> bool {
        self.0.keys().any(|it| it.starts_with(path))
    }

    fn store(&mut self, path: &[u8], from: usize, tier: Tier) {
        if 0 < from && !self.knows(&path[..from]) {
            return;
        }
        for at in from..path.len() {
            self.0.entry(path[..=at].to_vec()).or_default().insert(tier);
        }
    }

    fn remove(&mut self, path: &[u8], tier: Tier) {
        if let Some(tiers) = self.0.get_mut(path) {
            tiers.remove(&tier);
            if tiers.is_empty() {
                self.0.remove(path);
            }
        }
    }

    /// The tier of the block that ends with a path.
    fn tier(&self, path: &[u8]) -> Option<Tier> {
        let pages = (BLOCK / PAGE) as usize;
        let first = path.len() - pages;
        let fastest = |len| self.0.get(&path[..len])?.first().copied();
        let all: Option<Vec<Tier>> = (first + 1..=path.len()).map(fastest).collect();
        all?.into_iter().max()
    }

    /// The whole blocks that no missing block parts from the root, with the slowest tier up to them.
    fn reachable(&self) -> BTreeMap<Path, Tier> {
        let pages = (BLOCK / PAGE) as usize;
        let mut reachable = BTreeMap::new();
        for path in self.0.keys().filter(|it| it.len() % pages == 0) {
            let tiers: Option<Vec<Tier>> = (1..=path.len() / pages)
                .map(|blocks| self.tier(&path[..blocks * pages]))
                .collect();
            if let Some(slowest) = tiers.and_then(|it| it.into_iter().max()) {
                reachable.insert(path.clone(), slowest);
            }
        }
        reachable
    }
}

fn contents(path: &[u8]) -> Vec<BlockHash> {
    block_hashes(&tokens(path), size(BLOCK), HashSeed::of(None, None))
}

/// An index that follows what was said answers what the model says, for every path of the model and beside it.
fn check(index: &PrefixIndex, naive: &Naive, all: &BTreeSet<Path>) {
    let namespace = pages().namespace(None);
    let reachable = naive.reachable();
    for path in all {
        let hashes = sequence_hashes(&contents(path));
        let overlap = index.overlap(&namespace, &hashes);
        let depths = overlap
            .groups
            .first()
            .map(|it| it.depths)
            .unwrap_or_default();
        let through = |tier: Tier| {
            let held = (1..=hashes.len()).take_while(|blocks| {
                let path = &path[..blocks * (BLOCK / PAGE) as usize];
                reachable.get(path).is_some_and(|it| *it <= tier)
            });
            held.count() as u32
        };
        let expected = (through(Tier::Gpu), through(Tier::Host), through(Tier::Disk));
        assert_eq!((depths.gpu, depths.host, depths.disk), expected, "{path:?}");
    }
    // Nothing is claimed that is not whole, reachable or not.
    let whole = all
        .iter()
        .flat_map(|path| (1..=path.len()).map(|len| path[..len].to_vec()))
        .filter(|path| path.len() % (BLOCK / PAGE) as usize == 0)
        .filter(|path| naive.tier(path).is_some())
        .collect::<BTreeSet<_>>();
    let claimed = index.rank(&target()).map_or(0, |it| it.blocks);
    assert!(
        claimed <= whole.len() as u64,
        "{claimed} of {}",
        whole.len()
    );
}

#[derive(Clone, Debug)]
enum Step {
    Store {
        path: Path,
        from: usize,
        tier: u8,
    },
    Remove {
        path: Path,
        tier: u8,
    },
    Shift {
        path: Path,
        from: u8,
        to: u8,
    },
    Clear,
    Restart,
    /// As a restart, but the store had missed the last few steps, which the engine repeats and readers drop.
    Kill {
        missed: usize,
    },
    TellAll,
}

fn path() -> impl Strategy<Value = Path> {
    // Few contents, one of them often, so that paths meet again and again.
    let page = prop_oneof![4 => Just(0_u8), 1 => Just(1)];
    prop::collection::vec(page, 1..7)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (path(), 0_usize..8, 0_u8..3).prop_map(|(path, from, tier)| Step::Store { from: from % path.len(), path, tier }),
        12 => (path(), 0_u8..3).prop_map(|(path, tier)| Step::Remove { path, tier }),
        3 => (path(), 0_u8..3, 0_u8..3).prop_map(|(path, from, to)| Step::Shift { path, from, to }),
        1 => Just(Step::Clear),
        1 => Just(Step::Restart),
        3 => (0_usize..6).prop_map(|missed| Step::Kill { missed }),
        1 => Just(Step::TellAll),
    ]
}

fn tier(tier: u8) -> Tier {
    [Tier::Gpu, Tier::Host, Tier::Disk][usize::from(tier)]
}

/// What the gathering says of a step of the engine.
fn said(pages: &mut Pages, step: &Step) -> Vec<KvOp> {
    match step {
        Step::Store {
            path,
            from,
            tier: to,
        } => store(pages, path, *from, tier(*to)),
        Step::Remove { path, tier: from } => pages.remove(0, &[name(path)], tier(*from)),
        Step::Shift { path, from, to } => pages.shift(0, name(path), tier(*from), tier(*to)),
        Step::Clear => {
            pages.clear();
            vec![KvOp::Cleared]
        }
        Step::Restart | Step::Kill { .. } | Step::TellAll => Vec::new(),
    }
}

struct World {
    pages: Pages,
    index: PrefixIndex,
    naive: Naive,
    /// What a store of its own keeps.
    kept: BTreeMap<PageName, Record>,
    all: BTreeSet<Path>,
    /// What was kept before each step since the last restart.
    history: Vec<(BTreeMap<PageName, Record>, Step)>,
}

impl World {
    fn new() -> Self {
        Self {
            pages: pages(),
            index: PrefixIndex::new(0),
            naive: Naive::default(),
            kept: BTreeMap::new(),
            all: BTreeSet::new(),
            history: Vec::new(),
        }
    }

    fn step(&mut self, step: Step) {
        self.history.push((self.kept.clone(), step.clone()));
        let ops = match step {
            Step::Restart => {
                self.restart(self.kept.clone());
                Vec::new()
            }
            Step::Kill { missed } => {
                self.kill(missed);
                Vec::new()
            }
            Step::TellAll => {
                self.history.clear();
                self.pages.tell_all(0)
            }
            step => {
                self.naive.take(&step);
                if let Step::Store { path, .. } = &step {
                    self.all.insert(path.clone());
                }
                said(&mut self.pages, &step)
            }
        };
        apply(&mut self.index, &ops);
        self.keep();
    }

    fn restart(&mut self, kept: BTreeMap<PageName, Record>) {
        self.history.clear();
        self.kept = kept;
        let kept = Kept {
            geometry: self.pages.geometry,
            pages: self.kept.clone().into_iter().collect(),
        };
        self.pages = Pages::restore("m".parse().unwrap(), size(BLOCK), kept);
    }

    fn kill(&mut self, missed: usize) {
        // The last one is the kill itself.
        self.history.pop();
        let from = self.history.len().saturating_sub(missed);
        let again = self.history.split_off(from);
        let kept = again.first().map_or(&self.kept, |(kept, _)| kept);
        self.restart(kept.clone());
        for (_, step) in again {
            said(&mut self.pages, &step);
        }
    }

    fn keep(&mut self) {
        let changes = self.pages.changes();
        if changes.cleared {
            self.kept.clear();
        }
        for (name, record) in changes.pages {
            match record {
                Some(record) => self.kept.insert(name, record),
                None => self.kept.remove(&name),
            };
        }
        assert_eq!(self.kept.len(), self.pages.tree.len());
    }

    /// Whatever is claimed is there.
    fn claims_are_true(&self) {
        let namespace = pages().namespace(None);
        let reachable = self.naive.reachable();
        for path in &self.all {
            let hashes = sequence_hashes(&contents(path));
            let overlap = self.index.overlap(&namespace, &hashes);
            let depths = overlap
                .groups
                .first()
                .map(|it| it.depths)
                .unwrap_or_default();
            let claimed = &path[..depths.disk as usize * (BLOCK / PAGE) as usize];
            assert!(
                claimed.is_empty() || reachable.contains_key(claimed),
                "{path:?}"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(250))]

    #[test]
    fn blocks_are_said_exactly_while_all_their_pages_are_there(
        steps in prop::collection::vec(step(), 0..60),
    ) {
        let mut world = World::new();
        for step in steps {
            if !matches!(step, Step::Restart | Step::Kill { .. }) {
                world.step(step);
                check(&world.index, &world.naive, &world.all);
            }
        }
    }

}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn after_restarts_whatever_is_said_is_true_and_every_removal_counts(
        steps in prop::collection::vec(step(), 0..60),
    ) {
        let mut world = World::new();
        for step in steps {
            world.step(step);
            world.claims_are_true();
        }
    }

    #[test]
    fn beyond_the_limit_pages_are_let_go_and_what_is_said_stays_true(
        steps in prop::collection::vec(step(), 0..60),
        limit in 8_usize..14,
    ) {
        let mut world = World::new();
        world.pages.limit = limit;
        for step in steps {
            if !matches!(step, Step::Restart | Step::Kill { .. }) {
                world.step(step);
                prop_assert!(world.pages.tree.len() <= limit);
                world.claims_are_true();
            }
        }
    }
}
