//! Blocks that nobody holds any more: how they stay as ghosts, and how the oldest of them go.
//!
//! What is evicted often comes back. So blocks that lose their last holder stay in their run, with their names,
//! and a chain that comes back is joined like any other. There are only so many of them: beyond, the run that
//! lost blocks first lets go of all its ghosts, unless some of it was held again meanwhile, which gives it one
//! more turn. What goes is remembered among the departed.

use std::collections::VecDeque;

use crate::arena::word;
use crate::forest::{Forest, Info, anchors, column_lines, place, resize};
use crate::run::{NO_RUN, VERSION, View};
use crate::sync::{begin_write, end_write};
use crate::table::Place;

/// One in so many of the blocks that are remembered after nobody holds them may be a ghost. A ghost takes about
/// eight times the memory of one that has departed.
const GHOST_PART: usize = 4;

/// Which blocks are ghosts.
#[derive(Debug)]
pub(crate) struct Ghosts {
    /// Runs that may have some, those that lost blocks first at the front.
    runs: VecDeque<u32>,
    /// The most there are after an operation.
    most: usize,
    /// Blocks of all runs that are none.
    live: usize,
}

/// Runs that hang on the same blocks of another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hanging {
    at: u16,
    runs: u32,
    /// Those that are not ghosts altogether.
    live: u32,
}

/// What hangs on a run, and what of it is alive.
#[derive(Debug, Default)]
pub(crate) struct Life {
    /// By where they hang, ascending.
    hanging: Vec<Hanging>,
    /// The last place where a run hangs that is not a ghost altogether; 0 is none.
    hung: u16,
    /// Its first blocks that are held, or lie before a held one of their chain. The rest are ghosts.
    live: u16,
    /// Whether it is among [`Ghosts::runs`], and whether it was held again since.
    queued: bool,
    revived: bool,
}

impl Ghosts {
    pub(crate) fn new(departed_bound: usize) -> Self {
        Self {
            runs: VecDeque::new(),
            most: departed_bound / GHOST_PART,
            live: 0,
        }
    }

    /// Blocks of all runs that are held, or lie before a held one of their chain.
    pub(crate) fn live(&self) -> usize {
        self.live
    }
}

impl Life {
    /// How many of the first blocks stay whatever goes.
    fn needed(&self) -> usize {
        let hung = self.hanging.last().map_or(0, |it| it.at);
        hung.max(self.live).into()
    }

    /// Counts a run that comes to hang at `at`, as a ghost.
    fn hang(&mut self, at: u16) {
        match self.hanging.binary_search_by_key(&at, |it| it.at) {
            Ok(index) => self.hanging[index].runs += 1,
            Err(index) => {
                let (runs, live) = (1, 0);
                self.hanging.insert(index, Hanging { at, runs, live });
            }
        }
    }

    /// Counts a run that hung at `at` no more. It was a ghost.
    fn unhang(&mut self, at: u16) {
        let index = self.hanging.binary_search_by_key(&at, |it| it.at);
        let index = index.expect("what hangs there was counted");
        self.hanging[index].runs -= 1;
        if self.hanging[index].runs == 0 {
            self.hanging.remove(index);
        }
    }

    /// Counts a run that hangs at `at` among the ghosts or out of them.
    fn revive(&mut self, at: u16, lives: bool) {
        let index = self.hanging.binary_search_by_key(&at, |it| it.at);
        let index = index.expect("what hangs there was counted");
        if lives {
            self.hanging[index].live += 1;
            self.hung = self.hung.max(at);
            return;
        }
        self.hanging[index].live -= 1;
        if self.hung == at && self.hanging[index].live == 0 {
            let rest = self.hanging[..index].iter().rev();
            let mut live = rest.filter(|it| it.live != 0);
            self.hung = live.next().map_or(0, |it| it.at);
        }
    }
}

impl Forest {
    /// Sees which blocks of `run` are ghosts, after those who hold it or its length have changed.
    pub(crate) fn settle(&mut self, mut run: u32) {
        loop {
            let view = self.view(run);
            let held = self.held_to(&view);
            let Info {
                life, namespace, ..
            } = &mut self.info[run as usize];
            let before = life.live;
            life.live = life.hung.max(held as u16);
            let (live, number) = (life.live, *namespace);
            if usize::from(live) < view.len && !life.queued {
                life.queued = true;
                self.ghosts.runs.push_back(run);
            }
            life.revived |= before < live && life.queued;
            self.ghosts.live += usize::from(live);
            self.ghosts.live -= usize::from(before);
            if (before == 0) == (live == 0) {
                return;
            }
            self.namespaces.count_live(number, live != 0);
            if view.parent == NO_RUN {
                return;
            }
            let parent = &mut self.info[view.parent as usize].life;
            parent.revive(view.hangs_at as u16, live != 0);
            run = view.parent;
        }
    }

    /// Lets the oldest ghosts go that are too many.
    pub(crate) fn reclaim(&mut self) {
        self.reclaim_beyond(self.ghosts.most);
    }

    /// Lets the oldest ghosts go until there are at most `most`.
    pub(crate) fn reclaim_beyond(&mut self, most: usize) {
        while most < self.ghosts() {
            let Some(run) = self.ghosts.runs.pop_front() else {
                debug_assert!(false, "a ghost that nothing hangs on is in the queue");
                return;
            };
            let life = &mut self.info[run as usize].life;
            if std::mem::take(&mut life.revived) {
                self.ghosts.runs.push_back(run);
            } else {
                life.queued = false;
                self.trim(run);
            }
        }
    }

    /// Blocks that nobody holds and that lead to none that is held.
    pub(crate) fn ghosts(&self) -> usize {
        self.blocks() - self.ghosts.live
    }

    /// Lets go of the ghosts at the end of `run` that nothing hangs on, and of the run if nothing is left, and
    /// so on with its parent.
    fn trim(&mut self, mut run: u32) {
        loop {
            let view = self.view(run);
            let end = self.info[run as usize].life.needed();
            if end == view.len {
                return;
            }
            self.blocks -= view.len - end;
            self.depart(run, &view, end);
            self.unname_from(run, &view, end);
            if 0 < end {
                self.shorten(run, view, end);
                return;
            }
            self.uproot(run, &view);
            if view.parent == NO_RUN {
                return;
            }
            self.count_child(view.parent, view.hangs_at as u16, false);
            if self.info[view.parent as usize].life.queued {
                return;
            }
            run = view.parent;
        }
    }

    /// Makes `run` end after its first `end` blocks.
    fn shorten(&mut self, run: u32, mut view: View, end: usize) {
        view.len = end;
        let Self {
            board,
            lines: space,
            ..
        } = self;
        let header = &board.runs.own(run, 1)[0];
        begin_write(header.atomic(VERSION));
        let lines = column_lines(end);
        if lines * 2 <= view.column_lines {
            resize(board, space, &mut view, lines, end);
        }
        view.write_span(header);
        end_write(header.atomic(VERSION));
    }

    /// Moves the blocks from `from` on among the departed, and takes their anchors away.
    fn depart(&mut self, run: u32, view: &View, from: usize) {
        let board = &*self.board;
        let sequences = view.sequences(&board.lines).expect("the writer's own");
        let hash = |offset: usize| board.secrets.sequence(view.key, word(sequences, offset));
        (from..view.len).for_each(|offset| board.departed.touch(hash(offset)));
        (from..view.len).for_each(|offset| board.departed.insert(hash(offset)));
        for offset in anchors(view.start, from..view.len) {
            let place = place(run, offset);
            board
                .anchors
                .remove(&board.lines, &mut self.lines, hash(offset), place);
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
            info.life.hanging.is_empty(),
            "what something hangs on is not freed"
        );
        self.namespaces.drop_run(info.namespace);
    }

    /// Counts a run that comes to hang on `run` after its first `hangs_at` blocks, or does no more. It is a
    /// ghost.
    pub(crate) fn count_child(&mut self, run: u32, hangs_at: u16, comes: bool) {
        let life = &mut self.info[run as usize].life;
        let had_any = !life.hanging.is_empty();
        if comes {
            life.hang(hangs_at);
        } else {
            life.unhang(hangs_at);
        }
        let has_any = !life.hanging.is_empty();
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
