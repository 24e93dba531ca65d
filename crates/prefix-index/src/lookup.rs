//! Looking up a request: from run to run, one comparison each where sequence hashes are given.
//!
//! Nothing is locked. The versions of all runs on the way, and of the targets, are compared at the end: if
//! none has changed, all of them stood as they were read at one moment, and that moment's state is the
//! answer. Otherwise the lookup is made again.

use domain::{BlockHash, SequenceHash};

use crate::answer::{Answer, Found, Walk, everywhere};
use crate::arena::{Line, WORDS, agreeing, word};
use crate::board::Board;
use crate::processor::read_ahead;
use crate::request::{Request, Sparse};
use crate::run::{Entry, NO_RUN, VERSION, View};
use crate::slower::pass_slowly;
use crate::sync::{Conflict, begin_read, end_read, is_still, relax};

/// How often a lookup is made again before the reader asks the writer to wait.
const ATTEMPTS: usize = if cfg!(all(loom, test)) { 10_000 } else { 16 };
/// Blocks compared one after the other where a chain parts from a run; a longer stretch is halved first.
const COMPARED: usize = 32;

/// Lines of a column that are read ahead; what follows comes by itself.
const AHEAD: usize = 32;

/// One way to name the blocks of a request densely.
pub(crate) trait Dense: Copy {
    /// The first run.
    fn first(self, board: &Board, key: u64) -> Result<Option<u32>, Conflict>;
    /// The run that follows after `matched` blocks of `run`, `depth` blocks from the first.
    fn next(
        self,
        board: &Board,
        key: u64,
        run: u32,
        matched: u32,
        depth: u32,
    ) -> Result<Option<u32>, Conflict>;
    /// Whether the last block of the run is the one at its place, of a request that goes on behind it.
    fn has_last(self, board: &Board, view: &View, depth: usize) -> Result<bool, Conflict>;
    /// How many blocks from `depth` on are those of the run.
    fn matched(self, board: &Board, view: &View, depth: usize) -> Result<usize, Conflict>;
    /// How many blocks it has.
    fn len(self) -> usize;
}

impl Dense for &[SequenceHash] {
    fn first(self, board: &Board, key: u64) -> Result<Option<u32>, Conflict> {
        self.next(board, key, NO_RUN, 0, 0)
    }

    #[inline]
    fn next(
        self,
        board: &Board,
        key: u64,
        _: u32,
        _: u32,
        depth: u32,
    ) -> Result<Option<u32>, Conflict> {
        match self.get(depth as usize) {
            Some(hash) => board.head(key, hash.get(), depth),
            None => Ok(None),
        }
    }

    #[inline]
    fn has_last(self, board: &Board, view: &View, depth: usize) -> Result<bool, Conflict> {
        let last = view.len.checked_sub(1).ok_or(Conflict)?;
        let there = view.sequence(&board.lines, last).ok_or(Conflict)?;
        Ok(there == self[depth + last].get())
    }

    #[inline]
    fn matched(self, board: &Board, view: &View, depth: usize) -> Result<usize, Conflict> {
        let wanted = &self[depth..];
        let column = view.sequences(&board.lines).ok_or(Conflict)?;
        let most = view.len.min(wanted.len());
        if column.len() * WORDS < most {
            return Err(Conflict);
        }
        let equal = |blocks: usize| word(column, blocks - 1) == wanted[blocks - 1].get();
        if most == 0 || equal(most) {
            return Ok(most);
        }
        // `same` blocks agree and `other` do not.
        let (mut same, mut other) = (0, most);
        while COMPARED < other - same {
            let middle = same.midpoint(other);
            if equal(middle) {
                same = middle;
            } else {
                other = middle;
            }
        }
        let wanted = &wanted[same..other - 1];
        Ok(same + agreeing(column, same, wanted))
    }

    #[inline]
    fn len(self) -> usize {
        self.len()
    }
}

impl Dense for &[BlockHash] {
    fn first(self, board: &Board, key: u64) -> Result<Option<u32>, Conflict> {
        match self.first() {
            // The sequence hash of a first block is its own hash.
            Some(block) => board.head(key, block.get(), 0),
            None => Ok(None),
        }
    }

    #[inline]
    fn next(
        self,
        board: &Board,
        _: u64,
        run: u32,
        matched: u32,
        depth: u32,
    ) -> Result<Option<u32>, Conflict> {
        match self.get(depth as usize) {
            Some(block) => {
                let next = board.fork(run, matched, block.get())?;
                if let Some(run) = next {
                    board.touch_blocks(run, self.len() - depth as usize);
                }
                Ok(next)
            }
            None => Ok(None),
        }
    }

    #[inline]
    fn has_last(self, board: &Board, view: &View, depth: usize) -> Result<bool, Conflict> {
        let last = view.len.checked_sub(1).ok_or(Conflict)?;
        let there = view.block(&board.lines, last).ok_or(Conflict)?;
        Ok(there == self[depth + last].get())
    }

    #[inline]
    fn matched(self, board: &Board, view: &View, depth: usize) -> Result<usize, Conflict> {
        let column = view.blocks(&board.lines).ok_or(Conflict)?;
        let most = view.len.min(self.len() - depth);
        if column.len() * WORDS < most {
            return Err(Conflict);
        }
        let wanted = &self[depth..depth + most];
        Ok(agreeing(column, 0, wanted))
    }

    #[inline]
    fn len(self) -> usize {
        self.len()
    }
}

impl Board {
    /// Who holds how much of `request`, into `answer`.
    pub(crate) fn lookup(&self, key: u64, request: Request<'_>, answer: &mut Answer) {
        for _ in 0..ATTEMPTS {
            if self.try_lookup(key, request, answer).is_ok() {
                return;
            }
            relax();
        }
        let turn = self.take_turn();
        while self.try_lookup(key, request, answer).is_err() {
            std::thread::yield_now();
        }
        drop(turn);
    }

    /// Reads ahead the hashes of the first `blocks` of a run: the waits for its lines overlap.
    #[inline]
    fn touch_blocks(&self, run: u32, blocks: usize) {
        let view = self.runs.line(run).map(View::read);
        let column = view.and_then(|it| it.blocks(&self.lines));
        let some = blocks.div_ceil(WORDS).min(AHEAD);
        let some = column.unwrap_or_default().iter().take(some);
        some.for_each(read_ahead);
    }

    fn try_lookup(
        &self,
        key: u64,
        request: Request<'_>,
        answer: &mut Answer,
    ) -> Result<(), Conflict> {
        let seen = begin_read(&self.targets.version)?;
        answer.clear();
        answer.targets_version = seen;
        self.live(&mut answer.walk.alive)?;
        answer.found.words = answer.walk.alive.len();
        match request {
            Request::Sequences(hashes) => self.follow(key, hashes, answer)?,
            Request::Blocks(hashes) => self.follow(key, hashes, answer)?,
            Request::Sparse(sparse) => self.reach_for(key, sparse, answer)?,
            Request::Window(window) => self.go_on(key, window, answer)?,
        }
        answer.finish();
        end_read();
        let unchanged = |(run, seen): &(u32, u64)| {
            let header = self.runs.line(*run);
            header.is_some_and(|it| is_still(it.atomic(VERSION), *seen))
        };
        if answer.walk.visited.iter().all(unchanged) && is_still(&self.targets.version, seen) {
            return Ok(());
        }
        Err(Conflict)
    }

    #[inline]
    fn follow<D: Dense>(&self, key: u64, request: D, answer: &mut Answer) -> Result<(), Conflict> {
        let first = request.first(self, key)?;
        self.follow_from(key, request, first, 0, answer)
    }

    /// Follows a request from its block at `depth` on, with which the run `next` begins.
    #[inline]
    pub(crate) fn follow_from<D: Dense>(
        &self,
        key: u64,
        request: D,
        mut next: Option<u32>,
        mut depth: usize,
        answer: &mut Answer,
    ) -> Result<(), Conflict> {
        while let Some(run) = next {
            let (view, seen) = self.view(run)?;
            answer.walk.visited.push((run, seen));
            if view.key != key || view.start as usize != depth {
                return Err(Conflict);
            }
            // What follows on all of the run, if all of it seems to be wanted, is looked for first, so that the waits
            // for both overlap.
            let end = depth + view.len;
            let goes_on = view.has_children && end < request.len();
            let has_last = goes_on && request.has_last(self, &view, depth)?;
            let after_all = if has_last {
                request.next(self, key, run, view.len as u32, end as u32)?
            } else {
                None
            };
            let matched = request.matched(self, &view, depth)?;
            if matched == 0 {
                return Err(Conflict);
            }
            self.pass(&view, matched as u32, answer)?;
            depth += matched;
            answer.known = depth as u32;
            if depth == request.len() || !view.has_children {
                break;
            }
            next = if has_last && depth == end {
                after_all
            } else {
                request.next(self, key, run, matched as u32, depth as u32)?
            };
        }
        Ok(())
    }

    /// Finds the deepest of the given positions that is known, and takes the way from the root to it.
    fn reach_for(&self, key: u64, sparse: Sparse<'_>, answer: &mut Answer) -> Result<(), Conflict> {
        let hashes = sparse.hashes();
        let mut deepest = None;
        let mut place = 0;
        while let Some(hash) = hashes.get(place) {
            let depth = sparse.depth(place);
            let run = match self.anchor(key, hash.get(), depth)? {
                Some(run) => Some(run),
                // A last block that no anchor is for may begin a run.
                None => self.head(key, hash.get(), depth - 1)?,
            };
            let Some(run) = run else {
                break;
            };
            let (view, seen) = self.view(run)?;
            answer.walk.visited.push((run, seen));
            let is_there = |place: usize| {
                let offset = sparse
                    .depth(place)
                    .checked_sub(view.start + 1)
                    .ok_or(Conflict)?;
                if view.len <= offset as usize {
                    return Ok(false);
                }
                let there = view
                    .sequence(&self.lines, offset as usize)
                    .ok_or(Conflict)?;
                Ok(there == hashes[place].get())
            };
            if view.key != key || !is_there(place)? {
                return Err(Conflict);
            }
            let (mut known, mut unknown) = (place, hashes.len());
            while known + 1 < unknown {
                let middle = known.midpoint(unknown);
                if is_there(middle)? {
                    known = middle;
                } else {
                    unknown = middle;
                }
            }
            deepest = Some((run, sparse.depth(known)));
            place = known + 1;
        }
        if let Some((run, depth)) = deepest {
            self.walk_down(run, depth, answer)?;
        }
        Ok(())
    }

    /// Goes from the root to the block of `run` that is `depth` blocks deep.
    pub(crate) fn walk_down(
        &self,
        run: u32,
        depth: u32,
        answer: &mut Answer,
    ) -> Result<(), Conflict> {
        answer.walk.way.clear();
        let (mut run, mut depth) = (run, depth);
        while run != NO_RUN {
            let (view, seen) = self.view(run)?;
            answer.walk.visited.push((run, seen));
            let blocks = depth.checked_sub(view.start).ok_or(Conflict)?;
            if blocks == 0 || view.len < blocks as usize {
                return Err(Conflict);
            }
            answer.walk.way.push((run, blocks));
            (run, depth) = (view.parent, view.start);
        }
        if depth != 0 {
            return Err(Conflict);
        }
        while let Some((run, blocks)) = answer.walk.way.pop() {
            let (view, seen) = self.view(run)?;
            answer.walk.visited.push((run, seen));
            self.pass(&view, blocks, answer)?;
            answer.known = view.start + blocks;
        }
        Ok(())
    }

    /// Takes the first `matched` blocks of a run: those of the slots alive that hold them all live on, and
    /// the others are answered.
    #[inline]
    fn pass(&self, view: &View, matched: u32, answer: &mut Answer) -> Result<(), Conflict> {
        if answer.walk.alive.is_empty() {
            return Ok(());
        }
        let entries = view.entries(&self.lines).ok_or(Conflict)?;
        let Answer { found, walk, .. } = answer;
        let words = found.words;
        walk.next.clear();
        walk.next.resize(words, 0);
        for index in 0..view.prefixes {
            match entries.get(index) {
                Entry::One { cut, slot } => {
                    let (at, bit) = (slot as usize / 64, 1 << (slot % 64));
                    let (Some(alive), Some(next)) = (walk.alive.get_mut(at), walk.next.get_mut(at))
                    else {
                        continue;
                    };
                    if *alive & bit == 0 {
                        continue;
                    }
                    *alive &= !bit;
                    if matched <= cut {
                        *next |= bit;
                    } else {
                        found.add(everywhere(view.start + cut), slot);
                    }
                }
                Entry::Many {
                    cut,
                    words: count,
                    line,
                } => {
                    let count = words.min(count as usize);
                    let lines = self.lines.lines(line, count.div_ceil(WORDS));
                    let lines = lines.ok_or(Conflict)?;
                    if matched <= cut {
                        take_set(lines, count, walk);
                    } else {
                        end_set(lines, count, walk, found, view.start + cut);
                    }
                }
                Entry::Part(_) => return Err(Conflict),
            }
        }
        if 0 < view.parts || !walk.slower.is_empty() {
            pass_slowly(view, entries, &self.lines, matched, walk, found);
        }
        if 0 < view.start {
            // Those that hold nothing of the run.
            if walk.alive.iter().any(|it| *it != 0) {
                let group = found.group(everywhere(view.start));
                group.copy_from_slice(&walk.alive);
            }
        }
        std::mem::swap(&mut walk.alive, &mut walk.next);
        Ok(())
    }
}

/// Lets those of a set that are alive live on.
#[inline]
fn take_set(lines: &[Line], count: usize, walk: &mut Walk) {
    let alive = walk.alive.iter_mut().zip(&mut walk.next);
    for (index, (alive, next)) in alive.enumerate().take(count) {
        let set = word(lines, index) & *alive;
        *alive &= !set;
        *next |= set;
    }
}

/// Answers those of a set that are alive, whose hold ends at `depth`.
#[inline]
fn end_set(lines: &[Line], count: usize, walk: &mut Walk, found: &mut Found, depth: u32) {
    let mut alive = walk.alive.iter().enumerate().take(count);
    if alive.all(|(index, alive)| word(lines, index) & alive == 0) {
        return;
    }
    let group = found.group(everywhere(depth));
    let alive = walk.alive.iter_mut().zip(group);
    for (index, (alive, into)) in alive.enumerate().take(count) {
        let set = word(lines, index) & *alive;
        *alive &= !set;
        *into |= set;
    }
}
