//! Runs that more stretches are held of than fit a list: hundreds of targets, each with a hole at every second
//! block. The target whose operation makes a run so keeps of it only the blocks in GPU memory from the first on:
//! it claims less than it holds, never more, and says that it is partial.

use crate::forest::place;
use crate::holders::Hold;
use crate::run::{MAX_PARTS, Tiers};
use crate::work::Work;

impl Work<'_> {
    /// Ends an operation: lets go of what the target holds behind its first blocks in GPU memory, in the runs
    /// that it has made too crowded. Answers how many blocks that were.
    pub(crate) fn relieve(&mut self) -> u64 {
        self.forest.flush();
        let before = self.rank.blocks;
        for run in std::mem::take(&mut self.forest.crowded) {
            let view = self.forest.view(run);
            if view.parts <= MAX_PARTS {
                continue;
            }
            let mut held = self.forest.stretches(&view, self.rank.slot);
            let left = match held.first() {
                Some((first, Tiers::GPU)) if first.start == 0 => {
                    let cut = first.end as u32;
                    held.remove(0);
                    Hold::Prefix(cut)
                }
                _ => Hold::Nothing,
            };
            if left == Hold::Nothing {
                self.rank.held_runs -= 1;
            }
            self.forest.set_hold(run, self.rank.slot, left);
            for (range, _) in held {
                self.rank.blocks -= range.len() as u64;
                for offset in range {
                    self.rank.odd.take(place(run, offset));
                }
            }
            self.forest.settle(run);
        }
        let dropped = before - self.rank.blocks;
        if 0 < dropped {
            self.rank.crowded_out = true;
            self.lose_track();
        }
        dropped
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use domain::{
        BlockHash, EngineHash, KvOp, SequenceHash, StoredBlock, StoredBlocks, Tier, sequence_hashes,
    };

    use crate::run::MAX_BLOCKS;
    use crate::samples::{namespace, target};
    use crate::{Answer, Applied, Claims, PrefixIndex, Size};

    /// So many that their holes do not all fit a run's list.
    const TARGETS: u32 = 80;

    fn blocks() -> Vec<BlockHash> {
        (1..=MAX_BLOCKS as u64).map(BlockHash::new).collect()
    }

    fn chain() -> Vec<SequenceHash> {
        sequence_hashes(&blocks())
    }

    fn name(at: usize) -> EngineHash {
        EngineHash::Int(chain()[at].get())
    }

    fn stored(group: u32, from: usize, to: usize, tier: Tier) -> KvOp {
        let block = |at: usize| StoredBlock {
            engine_hash: name(at),
            block_hash: blocks()[at],
        };
        KvOp::Stored(StoredBlocks {
            group,
            parent: from.checked_sub(1).map(name),
            blocks: (from..to).map(block).collect(),
            tier,
            namespace: namespace(),
            session: None,
        })
    }

    fn removed(group: u32, at: impl Iterator<Item = usize>) -> KvOp {
        KvOp::Removed {
            group,
            engine_hashes: at.map(name).collect(),
            tier: Tier::Gpu,
        }
    }

    /// Every second block of the run is missing, from the second on.
    fn holes() -> KvOp {
        removed(0, (1..MAX_BLOCKS).step_by(2))
    }

    fn crowd() -> (PrefixIndex, Vec<Applied>) {
        let mut index = PrefixIndex::new(1000);
        for rank in 0..TARGETS {
            let whole = stored(0, 0, MAX_BLOCKS, Tier::Gpu);
            index.apply(&target(rank), &whole).expect("not fenced");
        }
        let punch = |rank| index.apply(&target(rank), &holes()).expect("not fenced");
        let applied = (0..TARGETS).map(punch).collect();
        (index, applied)
    }

    fn depth(index: &PrefixIndex, rank: u32) -> u32 {
        let reader = index.reader();
        let overlap = reader.overlap(&namespace(), &chain()[..]);
        let groups = overlap.groups.iter();
        let mut of = groups.filter(|it| it.targets.contains(&target(rank)));
        of.next().map_or(0, |it| it.depths.disk)
    }

    #[test]
    fn of_a_run_with_too_many_holes_a_target_keeps_what_leads() {
        let (mut index, applied) = crowd();
        let reader = index.reader();
        let mut answer = Answer::new();
        reader.lookup(reader.key(&namespace()), &chain()[..], &mut answer);
        assert_eq!(answer.best(), 1);
        let term = |at: usize| chain()[at].digest_term();
        let torn = (0..MAX_BLOCKS).step_by(2).map(term);
        let torn = torn.fold(0, u64::wrapping_add);
        let mut dropped = 0;
        for rank in 0..TARGETS {
            let applied = applied[rank as usize];
            let summary = index.rank(&target(rank)).expect("known");
            assert_eq!(depth(&index, rank), 1, "what leads is exact");
            if applied.orphans == 0 {
                assert_eq!(summary.claims, Claims::Complete);
                assert_eq!(summary.blocks, MAX_BLOCKS as u64 / 2);
                assert_eq!(summary.digest, torn);
                continue;
            }
            dropped += 1;
            assert!(matches!(summary.claims, Claims::Partial { .. }));
            assert_eq!(summary.blocks + applied.orphans, MAX_BLOCKS as u64 / 2);
            assert_eq!((summary.blocks, summary.digest), (1, term(0)));
        }
        assert!(0 < dropped && dropped < TARGETS, "{dropped}");

        let last = target(TARGETS - 1);
        let again = stored(0, 1, MAX_BLOCKS, Tier::Gpu);
        index.apply(&last, &again).expect("not fenced");
        assert_eq!(depth(&index, TARGETS - 1), MAX_BLOCKS as u32);
        for rank in 0..TARGETS {
            let all = removed(0, 0..MAX_BLOCKS);
            index.apply(&target(rank), &all).expect("not fenced");
        }
        let empty = Size {
            targets: TARGETS as usize,
            ..Size::default()
        };
        assert_eq!(index.size(), empty);
    }

    #[test]
    fn however_many_holes_an_operation_makes_the_list_is_written_once() {
        let (mut index, _) = crowd();
        let run = index
            .forest
            .root(index.reader().key(&namespace()).0, blocks()[0].get());
        let run = run.expect("all hold its first block");
        let version = |index: &PrefixIndex| {
            let header = &index.forest.board.runs.own(run, 1)[0];
            header.get(crate::run::VERSION) / 2
        };
        let fill = stored(0, 0, MAX_BLOCKS, Tier::Gpu);
        // Every second block is held twice now, and is only gone when it is removed again.
        let rest = || removed(0, (0..MAX_BLOCKS).step_by(2).chain([1, 5]));
        for (op, written) in [(fill, 1), (holes(), 1), (rest(), 0), (rest(), 1)] {
            let before = version(&index);
            index.apply(&target(0), &op).expect("not fenced");
            assert_eq!(version(&index), before + written, "{op:?}");
        }
        assert_eq!(index.blocks(&target(0)), Some(0));
    }

    #[test]
    fn a_snapshot_restored_among_too_many_holes_stays_partial() {
        let (mut index, _) = crowd();
        let mut alone = PrefixIndex::new(1000);
        let new = target(TARGETS);
        for op in [stored(0, 0, MAX_BLOCKS, Tier::Gpu), holes()] {
            alone.apply(&new, &op).expect("not fenced");
        }
        let snapshot = alone.snapshot(&new).expect("known");
        assert_eq!(snapshot.claims, Claims::Complete);
        for _ in 0..2 {
            index.restore(&new, &snapshot).expect("a sound snapshot");
            let summary = index.rank(&new).expect("known");
            assert_eq!(summary.blocks, 1);
            assert!(matches!(summary.claims, Claims::Partial { .. }));
        }
    }

    #[test]
    fn readers_meanwhile_see_no_more_than_what_leads() {
        let mut index = PrefixIndex::new(1000);
        for rank in 0..TARGETS {
            let whole = stored(0, 0, MAX_BLOCKS, Tier::Gpu);
            index.apply(&target(rank), &whole).expect("not fenced");
        }
        let reader = index.reader();
        let ended = AtomicBool::new(false);
        thread::scope(|scope| {
            let looking = scope.spawn(|| {
                let mut seen = BTreeSet::new();
                loop {
                    let last = ended.load(Ordering::Acquire);
                    let overlap = reader.overlap(&namespace(), &chain()[..]);
                    let targets = overlap.groups.iter().map(|it| it.targets.len());
                    assert_eq!(targets.sum::<usize>(), TARGETS as usize);
                    seen.extend(overlap.groups.iter().map(|it| it.depths.gpu));
                    if last {
                        return seen;
                    }
                }
            });
            for rank in 0..TARGETS {
                index.apply(&target(rank), &holes()).expect("not fenced");
            }
            ended.store(true, Ordering::Release);
            let seen = looking.join().expect("the reader has seen what it may");
            assert!(seen.is_subset(&BTreeSet::from([1, MAX_BLOCKS as u32])));
        });
    }

    /// Of what each target would hold in an index of its own, it claims all or is partial, and nothing else.
    #[test]
    fn crowded_targets_claim_nothing_that_they_would_not_claim_alone() {
        let mut index = PrefixIndex::new(1000);
        let mut alone: Vec<PrefixIndex> = (0..TARGETS).map(|_| PrefixIndex::new(1000)).collect();
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let mut below = |bound: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random >> 20) as usize % bound
        };
        let mut dropped = 0;
        let mut exact = 0;
        for _ in 0..6000 {
            let rank = below(TARGETS as usize);
            let at = below(MAX_BLOCKS);
            let group = u32::from(below(8) == 0);
            let tier = [Tier::Gpu, Tier::Gpu, Tier::Host, Tier::Disk][below(4)];
            let op = match below(8) {
                0 => stored(group, 0, MAX_BLOCKS, tier),
                1 => stored(group, at, (at + 1 + below(4)).min(MAX_BLOCKS), tier),
                2 | 3 => KvOp::Retiered {
                    group,
                    engine_hashes: (at..MAX_BLOCKS).step_by(2).map(name).collect(),
                    from: Tier::Gpu,
                    to: tier,
                },
                4 => holes(),
                _ => removed(group, [at].into_iter()),
            };
            let who = target(rank as u32);
            dropped += index.apply(&who, &op).expect("not fenced").orphans;
            alone[rank].apply(&who, &op).expect("not fenced");
            let (ours, all) = (index.rank(&who), alone[rank].rank(&who));
            let (ours, all) = (ours.expect("known"), all.expect("known"));
            if ours.claims == Claims::Complete {
                exact += 1;
                assert_eq!(ours, all);
            }
            assert!(ours.blocks <= all.blocks, "{ours:?} {all:?}");
            let rank = rank as u32;
            assert!(depth(&index, rank) <= depth(&alone[rank as usize], rank));
        }
        assert!(0 < dropped && 0 < exact, "{dropped} {exact}");
    }
}
