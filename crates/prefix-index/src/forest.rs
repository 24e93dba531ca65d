//! The runs of all namespaces as the writer sees them: finding, growing, trimming and freeing them.

use std::sync::Arc;

use crate::arena::{Space, WORDS, rounded, set_word, word};
use crate::board::Board;
use crate::list::List;
use crate::namespaces::Namespaces;
use crate::naming::{Column, Domains};
use crate::request::Sparse;
use crate::run::{KEY, MAX_BLOCKS, NO_RUN, PARENT, VERSION, View};
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
    runs: Space,
    /// Of everything else.
    pub(crate) lines: Space,
    pub(crate) info: Vec<Info>,
    pub(crate) namespaces: Namespaces,
    pub(crate) domains: Domains,
    /// Blocks of all runs.
    blocks: usize,
    pub(crate) list: List,
    /// Runs that have more than [`crate::run::MAX_PARTS`] since the operation began.
    pub(crate) crowded: Vec<u32>,
}

/// What only the writer needs to know of a run.
#[derive(Debug, Default)]
pub(crate) struct Info {
    pub(crate) namespace: u32,
    /// How many runs hang on it, by offset, ascending.
    children: Vec<(u16, u32)>,
    /// Names that are not sequence hashes, by domain, ascending.
    pub(crate) columns: Vec<Column>,
    /// Offsets of blocks that are held and whose sequence hash is the name of a block elsewhere.
    pub(crate) unnamed: Vec<u16>,
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
            blocks: 0,
            list: List::default(),
            crowded: Vec::new(),
        }
    }

    pub(crate) fn blocks(&self) -> usize {
        self.blocks
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
        let lines = (slots as usize).div_ceil(64).div_ceil(WORDS);
        if lines * WORDS <= old_words {
            return;
        }
        let line = self.lines.take(&board.lines, lines);
        let into = board.lines.own(line, lines);
        (0..lines * WORDS).for_each(|index| set_word(into, index, 0));
        if old_words != 0 {
            let from = board.lines.own(old_line, old_words / WORDS);
            (0..old_words).for_each(|index| set_word(into, index, word(from, index)));
            self.lines.give(old_line, old_words / WORDS);
        }
        let extent = (u64::from(line) << 32) | (lines * WORDS) as u64;
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
        let blocks = view.blocks(&self.board.lines).expect("the writer's own");
        offset < view.len && word(blocks, offset) == block
    }

    /// The run under `key` that begins a chain with `block`.
    pub(crate) fn root(&self, key: u64, block: u64) -> Option<u32> {
        let head = self.board.head(key, block, 0);
        head.expect("nobody else writes")
    }

    /// The run that hangs on `parent` after its first `hangs_at` blocks and begins with `block`.
    pub(crate) fn fork(&self, parent: u32, hangs_at: usize, block: u64) -> Option<u32> {
        if !self.view(parent).has_children {
            return None;
        }
        let fork = self.board.fork(parent, hangs_at as u32, block);
        fork.expect("nobody else writes")
    }

    /// A new run of up to [`MAX_BLOCKS`] of `new`, which nobody holds yet. It hangs on the first `hangs_at`
    /// blocks of `parent`, or begins a chain.
    pub(crate) fn plant(
        &mut self,
        namespace: u32,
        (parent, hangs_at): (u32, usize),
        new: NewBlocks<'_>,
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
        let view = View {
            start,
            len,
            column_lines,
            columns,
            ..View::empty()
        };
        view.write_span(header);
        end_write(header.atomic(VERSION));
        self.fill(run, 0, new);
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
    pub(crate) fn append(&mut self, run: u32, new: NewBlocks<'_>) -> usize {
        let mut view = self.view(run);
        let count = new.blocks.len().min(MAX_BLOCKS - view.len);
        let old = view.len;
        view.len += count;
        let lines = if view.column_lines * WORDS < view.len {
            column_lines(view.len)
        } else {
            view.column_lines
        };
        let board = self.board.clone();
        let header = &board.runs.own(run, 1)[0];
        begin_write(header.atomic(VERSION));
        self.resize(&mut view, lines, old);
        view.write_span(header);
        self.fill(run, old, new);
        end_write(header.atomic(VERSION));
        count
    }

    /// Moves the columns, whose first `kept` blocks count, to ones of `lines` lines each.
    fn resize(&mut self, view: &mut View, lines: usize, kept: usize) {
        if lines == view.column_lines {
            return;
        }
        let board = &*self.board;
        let to = self.lines.take(&board.lines, 2 * lines);
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
        self.lines.give(view.columns, 2 * view.column_lines);
        view.columns = to;
        view.column_lines = lines;
    }

    /// Writes `new` behind the first `from` blocks, as far as the run reaches.
    fn fill(&mut self, run: u32, from: usize, new: NewBlocks<'_>) {
        let view = self.view(run);
        let board = &*self.board;
        let blocks = view.blocks(&board.lines).expect("the writer's own");
        let sequences = view.sequences(&board.lines).expect("the writer's own");
        let key = view.key;
        for (offset, (block, sequence)) in
            (from..view.len).zip(new.blocks.iter().zip(new.sequences))
        {
            set_word(blocks, offset, *block);
            set_word(sequences, offset, *sequence);
            if is_anchor(view.start, offset) {
                let hash = board.secrets.sequence(key, *sequence);
                let place = place(run, offset);
                board
                    .anchors
                    .insert(&board.lines, &mut self.lines, hash, place);
            }
        }
        self.blocks += view.len - from;
    }

    /// Lets go of the blocks at the end of `run` that neither anybody holds nor anything hangs on, and of the
    /// run if none are left, and so on with its parent. Answers how many blocks went.
    pub(crate) fn trim(&mut self, mut run: u32) -> usize {
        let mut gone = 0;
        loop {
            let mut view = self.view(run);
            let held = self.held_to(&view);
            let hung = self.info[run as usize].children.last();
            let end = held.max(hung.map_or(0, |it| it.0 as usize));
            if end == view.len {
                return gone;
            }
            gone += view.len - end;
            self.blocks -= view.len - end;
            self.forget(run, &view, end);
            if end == 0 {
                let (parent, hangs_at) = (view.parent, view.hangs_at);
                self.uproot(run, &view);
                if parent == NO_RUN {
                    return gone;
                }
                self.count_child(parent, hangs_at as u16, false);
                run = parent;
                continue;
            }
            view.len = end;
            let board = self.board.clone();
            let header = &board.runs.own(run, 1)[0];
            begin_write(header.atomic(VERSION));
            let lines = column_lines(end);
            if lines * 2 <= view.column_lines {
                self.resize(&mut view, lines, end);
            }
            view.write_span(header);
            end_write(header.atomic(VERSION));
            for column in &mut self.info[run as usize].columns {
                column.trim(end);
            }
            self.info[run as usize]
                .unnamed
                .retain(|it| usize::from(*it) < end);
            return gone;
        }
    }

    /// Moves the blocks from `from` on among the departed, and takes their anchors away.
    fn forget(&mut self, run: u32, view: &View, from: usize) {
        let board = &*self.board;
        let sequences = view.sequences(&board.lines).expect("the writer's own");
        let hash = |offset: usize| board.secrets.sequence(view.key, word(sequences, offset));
        let touched = (from..view.len).map(|it| board.departed.touch(hash(it)));
        std::hint::black_box(touched.fold(0, |all, it| all ^ it));
        for offset in from..view.len {
            let hash = hash(offset);
            board.departed.insert(hash);
            if is_anchor(view.start, offset) {
                let place = place(run, offset);
                board
                    .anchors
                    .remove(&board.lines, &mut self.lines, hash, place);
            }
        }
    }

    /// Frees a run without blocks.
    fn uproot(&mut self, run: u32, view: &View) {
        let board = &*self.board;
        let sequence = view.sequence(&board.lines, 0).expect("the writer's own");
        let block = word(view.blocks(&board.lines).expect("the writer's own"), 0);
        let first = Place { run, offset: 0 };
        let hash = board.secrets.sequence(view.key, sequence);
        board
            .heads
            .remove(&board.lines, &mut self.lines, hash, first);
        if view.parent != NO_RUN {
            let hash = board.secrets.fork(view.parent, view.hangs_at, block);
            board
                .forks
                .remove(&board.lines, &mut self.lines, hash, first);
        }
        let header = &board.runs.own(run, 1)[0];
        begin_write(header.atomic(VERSION));
        View::empty().write_span(header);
        end_write(header.atomic(VERSION));
        self.lines.give(view.columns, 2 * view.column_lines);
        if view.list != 0 {
            self.lines.give(view.list, view.list_lines);
        }
        self.runs.give(run, 1);
        let info = std::mem::take(&mut self.info[run as usize]);
        debug_assert!(
            info.children.is_empty(),
            "what something hangs on is not freed"
        );
        self.namespaces.drop_run(info.namespace);
    }

    fn count_child(&mut self, run: u32, hangs_at: u16, comes: bool) {
        let children = &mut self.info[run as usize].children;
        let had_any = !children.is_empty();
        match children.binary_search_by_key(&hangs_at, |it| it.0) {
            Ok(at) if comes => children[at].1 += 1,
            Ok(at) if children[at].1 == 1 => {
                children.remove(at);
            }
            Ok(at) => children[at].1 -= 1,
            Err(at) => children.insert(at, (hangs_at, 1)),
        }
        let has_any = !children.is_empty();
        if had_any != has_any {
            let header = &self.board.runs.own(run, 1)[0];
            let mut view = View::read(header);
            view.has_children = has_any;
            begin_write(header.atomic(VERSION));
            view.write_lists(header);
            end_write(header.atomic(VERSION));
        }
    }
}

/// Lines of a column of `len` blocks. Both columns are one extent, whose rounding is theirs to use.
fn column_lines(len: usize) -> usize {
    rounded(2 * len.div_ceil(WORDS)) / 2
}

pub(crate) fn place(run: u32, offset: usize) -> Place {
    Place {
        run,
        offset: offset as u16,
    }
}

fn is_anchor(start: u32, offset: usize) -> bool {
    (start + offset as u32 + 1).is_multiple_of(Sparse::GRAIN)
}
