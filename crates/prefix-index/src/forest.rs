//! The runs of all namespaces as the writer sees them: finding, planting and growing them.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use crate::arena::{Space, WORDS, rounded, set_word, word};
use crate::board::Board;
use crate::editing::Editing;
use crate::ghosts::{Ghosts, Life};
use crate::list::List;
use crate::namespaces::Namespaces;
use crate::naming::{Column, Domains};
use crate::request::Sparse;
use crate::run::{Entry, KEY, LIST, MAX_BLOCKS, NO_RUN, PARENT, VERSION, View, WHOLE};
use crate::sync::{Ordering, begin_write, end_write};
use crate::table::Place;

/// Lines kept free: beyond, new blocks are refused. An operation of [`MAX_NEW_BLOCKS`] cannot need more.
const SPARE_LINES: usize = if cfg!(test) { 1 } else { 8 << 20 };
/// The most blocks of one operation.
pub(crate) const MAX_NEW_BLOCKS: usize = 1 << 21;

/// Runs and their blocks.
#[derive(Debug)]
pub(crate) struct Forest {
    pub(crate) board: Arc<Board>,
    /// Of headers.
    pub(crate) runs: Space,
    /// Of everything else.
    pub(crate) lines: Space,
    pub(crate) info: Vec<Info>,
    pub(crate) namespaces: Namespaces,
    pub(crate) domains: Domains,
    /// Blocks whose sequence hash is the canonical name of a block elsewhere.
    pub(crate) unnamed: BTreeSet<Place>,
    /// Blocks of all runs.
    pub(crate) blocks: usize,
    pub(crate) ghosts: Ghosts,
    pub(crate) list: List,
    pub(crate) editing: Editing,
    /// Runs that have more than [`crate::run::MAX_PARTS`] since the operation began.
    pub(crate) crowded: Vec<u32>,
}

/// What only the writer needs to know of a run: one cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Info {
    pub(crate) namespace: u32,
    pub(crate) life: Life,
    /// Names that are not sequence hashes, by domain, ascending.
    pub(crate) columns: Vec<Column>,
    /// Of how many of the first blocks the sequence hashes are canonical names, but for those of
    /// [`Forest::unnamed`].
    pub(crate) named: u16,
}

/// New blocks: their own hashes and their sequence hashes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewBlocks<'a> {
    pub(crate) blocks: &'a [u64],
    pub(crate) sequences: &'a [u64],
}

impl Forest {
    pub(crate) fn new(departed_bound: usize) -> Self {
        Self {
            board: Arc::new(Board::new(departed_bound)),
            runs: Space::new(),
            lines: Space::new(),
            info: vec![Info::default()],
            namespaces: Namespaces::default(),
            domains: Domains::new(),
            unnamed: BTreeSet::new(),
            blocks: 0,
            ghosts: Ghosts::new(departed_bound),
            list: List::default(),
            editing: Editing::nothing(),
            crowded: Vec::new(),
        }
    }

    pub(crate) fn blocks(&self) -> usize {
        self.blocks
    }

    /// Runs that are still to be looked at for names that nobody uses any more.
    pub(crate) fn unswept(&self) -> usize {
        self.domains.unswept(self.info.len())
    }

    /// Lines in use, and lines that ever were.
    pub(crate) fn lines_used(&self) -> (usize, usize) {
        let used = self.runs.used() + self.lines.used();
        (used, self.runs.reached() + self.lines.reached())
    }

    /// Whether an operation of `blocks` blocks finds room.
    pub(crate) fn has_room(&self, blocks: usize) -> bool {
        blocks <= MAX_NEW_BLOCKS
            && SPARE_LINES <= self.lines.untouched()
            && SPARE_LINES <= self.runs.untouched()
    }

    /// Makes room for the set of slots in use, within a change of the targets.
    pub(crate) fn make_room_for_slots(&mut self, slots: u32) {
        let board = &*self.board;
        let old = board.targets.live.load(Ordering::Relaxed);
        let (old_line, old_words) = ((old >> 32) as u32, old as u32 as usize);
        let words = (slots as usize).div_ceil(64);
        if words <= old_words {
            return;
        }
        let (lines, old_lines) = (words.div_ceil(WORDS), old_words.div_ceil(WORDS));
        let mut line = old_line;
        if old_lines < lines {
            line = self.lines.take(&board.lines, lines);
            let into = board.lines.own(line, lines);
            (0..lines * WORDS).for_each(|index| set_word(into, index, 0));
            if old_lines != 0 {
                let from = board.lines.own(old_line, old_lines);
                (0..old_words).for_each(|index| set_word(into, index, word(from, index)));
                self.lines.give(old_line, old_lines);
            }
        }
        let extent = (u64::from(line) << 32) | words as u64;
        board.targets.live.store(extent, Ordering::Relaxed);
    }

    pub(crate) fn view(&self, run: u32) -> View {
        View::read(&self.board.runs.own(run, 1)[0])
    }

    pub(crate) fn sequence_at(&self, place: Place) -> u64 {
        let view = self.view(place.run);
        view.sequence(&self.board.lines, place.offset as usize)
            .expect("a block has a sequence hash")
    }

    /// Whether `block` is at `at`.
    pub(crate) fn has_block(&self, at: Place, block: u64) -> bool {
        let view = self.view(at.run);
        let offset = at.offset as usize;
        offset < view.len && self.block_at(&view, offset) == block
    }

    /// The hash of the block at `offset`.
    pub(crate) fn block_at(&self, view: &View, offset: usize) -> u64 {
        let blocks = view.blocks(&self.board.lines).expect("the writer's own");
        word(blocks, offset)
    }

    /// The run under `key` that begins a chain with `block`.
    pub(crate) fn root(&self, key: u64, block: u64) -> Option<u32> {
        let head = self.board.head(key, block, 0);
        head.expect("nobody else writes")
    }

    /// The run that hangs on `parent` after its first `hangs_at` blocks and begins with `block`.
    pub(crate) fn fork(&self, parent: u32, hangs_at: usize, block: u64) -> Option<u32> {
        let fork = self.board.fork(parent, hangs_at as u32, block);
        fork.expect("nobody else writes")
    }

    /// A new run of up to [`MAX_BLOCKS`] of `new`, all of which `holder` holds in GPU memory, or nobody. It
    /// hangs on the first `hangs_at` blocks of `parent`, or begins a chain.
    pub(crate) fn plant(
        &mut self,
        namespace: u32,
        (parent, hangs_at): (u32, usize),
        new: NewBlocks<'_>,
        holder: Option<u32>,
    ) -> u32 {
        let board = self.board.clone();
        let run = self.runs.take(&board.runs, 1);
        let key = self.namespaces.key(namespace);
        let start = match parent {
            NO_RUN => 0,
            _ => self.view(parent).start + hangs_at as u32,
        };
        if self.info.len() <= run as usize {
            self.info.resize_with(run as usize + 1, Info::default);
        }
        let len = new.blocks.len().min(MAX_BLOCKS);
        let column_lines = column_lines(len);
        let columns = self.lines.take(&board.lines, 2 * column_lines);
        let header = &board.runs.own(run, 1)[0];
        begin_write(header.atomic(VERSION));
        header.set(KEY, key);
        header.set(PARENT, (u64::from(parent) << 32) | hangs_at as u64);
        if let Some(slot) = holder {
            header.set(LIST, Entry::One { cut: WHOLE, slot }.bits());
        }
        let view = View {
            key,
            start,
            len,
            column_lines,
            columns,
            prefixes: holder.is_some().into(),
            ..View::empty()
        };
        view.write_span(header);
        end_write(header.atomic(VERSION));
        fill(&board, &mut self.lines, run, &view, 0, new);
        self.blocks += len;
        let hash = board.secrets.sequence(key, new.sequences[0]);
        let first = Place { run, offset: 0 };
        board
            .heads
            .insert(&board.lines, &mut self.lines, hash, first);
        if parent != NO_RUN {
            let hash = board.secrets.fork(parent, hangs_at as u32, new.blocks[0]);
            board
                .forks
                .insert(&board.lines, &mut self.lines, hash, first);
            self.count_child(parent, hangs_at as u16, true);
        }
        self.info[run as usize].namespace = namespace;
        self.namespaces.add_run(namespace);
        run
    }

    /// Adds as many of `new` to the end of `run` as it has room for. Answers how many.
    pub(crate) fn append(&mut self, run: u32, mut view: View, new: NewBlocks<'_>) -> usize {
        let count = new.blocks.len().min(MAX_BLOCKS - view.len);
        let old = view.len;
        view.len += count;
        let lines = if view.column_lines * WORDS < view.len {
            column_lines(view.len)
        } else {
            view.column_lines
        };
        let Self {
            board,
            lines: space,
            ..
        } = self;
        let header = &board.runs.own(run, 1)[0];
        begin_write(header.atomic(VERSION));
        resize(board, space, &mut view, lines, old);
        view.write_span(header);
        fill(board, space, run, &view, old, new);
        end_write(header.atomic(VERSION));
        self.blocks += count;
        count
    }
}

/// Moves the columns, whose first `kept` blocks count, to ones of `lines` lines each.
pub(crate) fn resize(board: &Board, space: &mut Space, view: &mut View, lines: usize, kept: usize) {
    if lines == view.column_lines {
        return;
    }
    let to = space.take(&board.lines, 2 * lines);
    for column in 0..2 {
        let from = board.lines.own(
            view.columns + (column * view.column_lines) as u32,
            view.column_lines,
        );
        let into = board.lines.own(to + (column * lines) as u32, lines);
        for (from, into) in from.iter().zip(into).take(kept.div_ceil(WORDS)) {
            (0..WORDS).for_each(|word| into.set(word, from.get(word)));
        }
    }
    space.give(view.columns, 2 * view.column_lines);
    view.columns = to;
    view.column_lines = lines;
}

/// Writes `new` behind the first `from` blocks, as far as the run reaches.
fn fill(board: &Board, space: &mut Space, run: u32, view: &View, from: usize, new: NewBlocks<'_>) {
    let blocks = view.blocks(&board.lines).expect("the writer's own");
    let sequences = view.sequences(&board.lines).expect("the writer's own");
    let new_blocks = new.blocks.iter().zip(new.sequences);
    for (offset, (block, sequence)) in (from..view.len).zip(new_blocks) {
        set_word(blocks, offset, *block);
        set_word(sequences, offset, *sequence);
    }
    for offset in anchors(view.start, from..view.len) {
        let sequence = new.sequences[offset - from];
        let hash = board.secrets.sequence(view.key, sequence);
        let place = place(run, offset);
        board.anchors.insert(&board.lines, space, hash, place);
    }
}

/// Lines of a column of `len` blocks. Both columns are one extent, whose rounding is theirs to use.
pub(crate) fn column_lines(len: usize) -> usize {
    rounded(2 * len.div_ceil(WORDS)) / 2
}

pub(crate) fn place(run: u32, offset: usize) -> Place {
    Place {
        run,
        offset: offset as u16,
    }
}

/// The offsets of `range` in a run after `start` blocks whose blocks have anchors: one in
/// [`Sparse::GRAIN`] of a chain.
pub(crate) fn anchors(start: u32, range: Range<usize>) -> impl Iterator<Item = usize> {
    let grain = Sparse::GRAIN as usize;
    let past = (start as usize + range.start) % grain;
    (range.start + grain - 1 - past..range.end).step_by(grain)
}
