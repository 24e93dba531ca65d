//! Going on from a block that a sparse question has found.

use domain::SequenceHash;

use crate::answer::Answer;
use crate::board::Board;
use crate::lookup::Dense;
use crate::request::Window;
use crate::run::View;
use crate::sync::Conflict;

impl Board {
    /// Takes the way from the root to the last block before the window, and goes on through it.
    pub(crate) fn go_on(
        &self,
        key: u64,
        window: Window<'_>,
        answer: &mut Answer,
    ) -> Result<(), Conflict> {
        let Some(run) = self.anchor(key, window.last.get(), window.after)? else {
            return Ok(());
        };
        let (view, seen) = self.view(run)?;
        answer.walk.visited.push((run, seen));
        let offset = window.after.checked_sub(view.start).ok_or(Conflict)? as usize;
        let is_there = |place: usize, hash: SequenceHash| {
            view.sequence(&self.lines, place)
                .is_some_and(|it| it == hash.get())
        };
        let last = offset.checked_sub(1).ok_or(Conflict)?;
        if view.key != key || view.len < offset || !is_there(last, window.last) {
            return Err(Conflict);
        }
        let in_run = (offset..view.len).zip(window.hashes);
        let matched = in_run.take_while(|(place, hash)| is_there(*place, **hash));
        let depth = window.after + matched.count() as u32;
        self.walk_down(run, depth, answer)?;
        if window.len() <= depth as usize || !view.has_children {
            return Ok(());
        }
        let next = window.next(self, key, run, depth - view.start, depth)?;
        self.follow_from(key, window, next, depth as usize, answer)
    }
}

impl Dense for Window<'_> {
    /// A window is never a request's beginning.
    fn first(self, _: &Board, _: u64) -> Result<Option<u32>, Conflict> {
        Ok(None)
    }

    fn next(
        self,
        board: &Board,
        key: u64,
        _: u32,
        _: u32,
        depth: u32,
    ) -> Result<Option<u32>, Conflict> {
        match self.hashes.get((depth - self.after) as usize) {
            Some(hash) => board.head(key, hash.get(), depth),
            None => Ok(None),
        }
    }

    fn has_last(self, board: &Board, view: &View, depth: usize) -> Result<bool, Conflict> {
        self.hashes
            .has_last(board, view, depth - self.after as usize)
    }

    fn matched(self, board: &Board, view: &View, depth: usize) -> Result<usize, Conflict> {
        self.hashes
            .matched(board, view, depth - self.after as usize)
    }

    fn len(self) -> usize {
        self.after as usize + self.hashes.len()
    }
}
