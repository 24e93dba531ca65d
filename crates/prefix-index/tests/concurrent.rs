//! Readers beside the writer see only states that the index was in.
//!
//! The changes, and what a lookup of every path must answer after each, are worked out beforehand, so that the
//! writer changes as fast as it can. A reader notes how many changes were done before a lookup and how many
//! had begun after it; its answer must be that of a state in between.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use domain::{
    BlockHash, BlockSize, DpRank, EngineHash, Epoch, KvOp, ModelName, Namespace, SequenceHash,
    StoredBlock, StoredBlocks, Target, Tier, WorkerId, sequence_hashes,
};
use prefix_index::{Answer, PrefixIndex, Reader, Sparse};

const TARGETS: usize = 5;
const PATHS: usize = 6;
const BLOCKS: u64 = 48;
const CHANGES: usize = 100_000;

struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % end
    }
}

fn target(rank: usize) -> Target {
    Target {
        worker: WorkerId::new("w").unwrap(),
        epoch: Epoch::FIRST,
        dp_rank: DpRank::new(rank as u32),
    }
}

fn namespace() -> Namespace {
    Namespace {
        model: ModelName::new("m").unwrap(),
        lora: None,
        salt: None,
        block_size: BlockSize::new(16).unwrap(),
    }
}

/// Chains that begin alike and part from each other at several depths.
fn paths() -> Vec<Vec<BlockHash>> {
    let path = |number: u64| {
        let shared = [0, 12, 24, 40][number as usize % 4];
        let block = |it: u64| BlockHash::new(if it < shared { it } else { 1000 * number + it });
        (0..BLOCKS).map(block).collect()
    };
    (1..=PATHS as u64).map(path).collect()
}

fn name(sequence: SequenceHash) -> EngineHash {
    EngineHash::Int(sequence.get())
}

/// How many leading blocks of each path each target holds.
type State = [[u8; TARGETS]; PATHS];

struct World {
    paths: Vec<Vec<BlockHash>>,
    chains: Vec<Vec<SequenceHash>>,
    changes: Vec<(Target, KvOp)>,
    /// One more than changes.
    states: Vec<State>,
    done: AtomicUsize,
    begun: AtomicUsize,
    ended: AtomicBool,
}

impl World {
    fn new() -> Self {
        let paths = paths();
        let mut world = Self {
            chains: paths.iter().map(|it| sequence_hashes(it)).collect(),
            paths,
            changes: Vec::new(),
            states: vec![[[0; TARGETS]; PATHS]],
            done: AtomicUsize::new(0),
            begun: AtomicUsize::new(0),
            ended: AtomicBool::new(false),
        };
        let mut held: [BTreeSet<u64>; TARGETS] = Default::default();
        let mut random = Random(0x0123_4567_89ab_cdef);
        while world.changes.len() < CHANGES {
            let rank = random.below(TARGETS);
            let path = random.below(PATHS);
            if let Some(op) = world.change(&mut held[rank], path, &mut random) {
                world.changes.push((target(rank), op));
                let depth = |chain: &Vec<SequenceHash>| {
                    let held = &held[rank];
                    chain
                        .iter()
                        .take_while(|it| held.contains(&it.get()))
                        .count() as u8
                };
                let depths: Vec<u8> = world.chains.iter().map(depth).collect();
                let mut state = *world.states.last().unwrap();
                (0..PATHS).for_each(|path| state[path][rank] = depths[path]);
                world.states.push(state);
            }
        }
        world
    }

    /// A change of one target that is one change of one run, so that there is no state in between.
    fn change(&self, held: &mut BTreeSet<u64>, path: usize, random: &mut Random) -> Option<KvOp> {
        let (blocks, chain) = (&self.paths[path], &self.chains[path]);
        let depth = chain
            .iter()
            .take_while(|it| held.contains(&it.get()))
            .count();
        match random.below(60) {
            0 => {
                held.clear();
                Some(KvOp::Cleared)
            }
            1..=34 if depth < chain.len() => {
                held.insert(chain[depth].get());
                let block = StoredBlock {
                    engine_hash: name(chain[depth]),
                    block_hash: blocks[depth],
                };
                Some(KvOp::Stored(StoredBlocks {
                    group: 0,
                    parent: depth.checked_sub(1).map(|it| name(chain[it])),
                    blocks: vec![block],
                    tier: Tier::Gpu,
                    namespace: namespace(),
                    session: None,
                }))
            }
            // The last one mostly; otherwise one that may leave a hole.
            kind => {
                let offset = match kind {
                    1..=56 => depth.checked_sub(1)?,
                    _ => random.below(chain.len()),
                };
                let gone = chain[offset];
                held.remove(&gone.get()).then(|| KvOp::Removed {
                    group: 0,
                    engine_hashes: vec![name(gone)],
                    tier: Tier::Gpu,
                })
            }
        }
    }

    /// One lookup. Whether it could be judged: not if a target was cleared since.
    fn look(&self, reader: &Reader, random: &mut Random, answer: &mut Answer) -> bool {
        let path = random.below(PATHS);
        let chain = &self.chains[path];
        let sparse = [chain[15], chain[31], chain[47]];
        let key = reader.key(&namespace());
        let first = self.done.load(Ordering::SeqCst);
        match random.below(3) {
            0 => reader.lookup(key, chain, answer),
            1 => reader.lookup(key, &self.paths[path], answer),
            _ => reader.lookup(key, Sparse::new(16, 48, &sparse).unwrap(), answer),
        }
        let last = self.begun.load(Ordering::SeqCst);
        let Some(groups) = reader.name(answer) else {
            return false;
        };
        let mut seen = [0; TARGETS];
        for group in &groups {
            for target in &group.targets {
                seen[target.dp_rank.get() as usize] = group.depths.gpu as u8;
            }
        }
        let known = answer.known() as u8;
        let mut possible = self.states[first..=last].iter().map(|it| it[path]);
        assert!(
            possible.any(|it| it.map(|depth| depth.min(known)) == seen),
            "of path {path} {known} blocks are known, after {first} to {last} changes: {seen:?}, not {:?}",
            &self.states[first..=last]
                .iter()
                .map(|it| it[path])
                .collect::<Vec<_>>()
        );
        true
    }
}

#[test]
fn readers_see_only_states_that_the_index_was_in() {
    let world = World::new();
    let mut index = PrefixIndex::new(1000);
    let readers = [index.reader(), index.reader()];
    std::thread::scope(|scope| {
        let read = |(reader, seed): (Reader, u64)| {
            let world = &world;
            scope.spawn(move || {
                let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
                let mut answer = Answer::new();
                let mut judged = 0;
                while !world.ended.load(Ordering::SeqCst) {
                    judged += usize::from(world.look(&reader, &mut random, &mut answer));
                }
                judged
            })
        };
        let threads: Vec<_> = readers.into_iter().zip(1..).map(read).collect();
        for ((target, op), number) in world.changes.iter().zip(1..) {
            world.begun.store(number, Ordering::SeqCst);
            index.apply(target, op).unwrap();
            world.done.store(number, Ordering::SeqCst);
        }
        world.ended.store(true, Ordering::SeqCst);
        let judged: usize = threads.into_iter().map(|it| it.join().unwrap()).sum();
        assert!(0 < judged);
    });
    let mut answer = Answer::new();
    let reader = index.reader();
    let key = reader.key(&namespace());
    for (chain, depths) in world.chains.iter().zip(world.states.last().unwrap()) {
        reader.lookup(key, chain, &mut answer);
        assert_eq!(answer.best(), u32::from(*depths.iter().max().unwrap()));
    }
}
