//! The one thread that applies events to a structure, and what its work costs.

use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::{Keep, Structure};
use crate::clock::thread_cpu;
use crate::event::Event;

/// How many events may wait for the lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// Any number: they are laid ready before the clock starts.
    Unbounded,
    /// So many: whoever sends waits.
    Bounded(usize),
}

/// A structure and the thread that writes to it. Dropping it waits until the thread has let go of all it held,
/// so that nobody else is measured meanwhile.
pub struct Lane<S: Structure> {
    structure: Arc<S>,
    /// None while it is dropped.
    steps: Option<flume::Sender<S::Step>>,
    thread: Option<JoinHandle<()>>,
}

impl<S: Structure> Lane<S> {
    /// Starts a lane for an empty structure.
    pub fn start(targets: u32, queue: Queue) -> Self {
        let (steps, incoming) = match queue {
            Queue::Unbounded => flume::unbounded(),
            Queue::Bounded(events) => flume::bounded(events),
        };
        let structure = Arc::new(S::new(targets));
        let own = Arc::clone(&structure);
        let thread = thread::spawn(move || own.run_lane(incoming));
        Self {
            structure,
            steps: Some(steps),
            thread: Some(thread),
        }
    }

    /// The structure.
    pub fn structure(&self) -> &Arc<S> {
        &self.structure
    }

    /// `events` in the structure's own form.
    pub fn steps(&self, events: &[Event]) -> Vec<S::Step> {
        events.iter().map(|it| self.structure.step(it)).collect()
    }

    /// Hands the lane one event.
    pub fn send(&self, step: S::Step) {
        let sent = self.steps.as_ref().map(|it| it.send(step));
        assert!(
            matches!(sent, Some(Ok(()))),
            "the lane runs until it is dropped"
        );
    }

    /// Events that wait.
    pub fn waiting(&self) -> usize {
        self.steps.as_ref().map_or(0, flume::Sender::len)
    }

    /// CPU time the lane takes for `steps`, which all wait for it when it begins.
    pub fn apply(&self, steps: Vec<S::Step>) -> Duration {
        let (reached, begun) = mpsc::channel();
        let (open, gate) = mpsc::channel::<()>();
        let _first = self.mark(move || {
            // An opener that is gone has panicked, and nobody asks any more.
            let _ = gate.recv();
            let _ = reached.send(thread_cpu());
        });
        for step in steps {
            self.send(step);
        }
        let (done, ended) = mpsc::channel();
        let _last = self.mark(move || {
            let _ = done.send(thread_cpu());
        });
        open.send(()).expect("the lane waits at the gate");
        let begun = begun.recv().expect("the lane came to the mark");
        ended.recv().expect("the lane came to the mark") - begun
    }

    /// Waits until all that was sent is applied. Answers the CPU time that the lane has used by then.
    pub fn drain(&self) -> Duration {
        let (done, ended) = mpsc::channel();
        let _mark = self.mark(move || {
            let _ = done.send(thread_cpu());
        });
        ended.recv().expect("the lane came to the mark")
    }

    fn mark(&self, mark: impl FnOnce() + Send + 'static) -> Keep {
        let (step, keep) = S::mark(Box::new(mark));
        self.send(step);
        keep
    }
}

impl<S: Structure> Drop for Lane<S> {
    fn drop(&mut self) {
        drop(self.steps.take());
        // A lane that has panicked has said so, and its structure is not asked any more.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Block, Change, Request};
    use crate::structures::{Crtc, KvIndex, Ours, Positional};

    /// Two blocks at target 1, of which the second is then evicted.
    fn check<S: Structure>() {
        let request = Request::new(vec![7, 8]);
        let block = |at: usize| Block {
            name: request.sequence[at].get(),
            content: request.content[at],
        };
        let change = Change::Stored {
            parent: None,
            blocks: vec![block(0), block(1)],
        };
        let stored = Event { target: 1, change };
        let change = Change::Removed(vec![block(1).name]);
        let removed = Event { target: 1, change };
        let lane = Lane::<S>::start(2, Queue::Unbounded);
        let mut reader = lane.structure().reader();
        let query = S::query(&request);

        lane.apply(lane.steps(&[stored]));
        S::native(&mut reader, &query);
        assert_eq!(S::depths(&mut reader, 2), [0, 2], "{}", S::NAME);
        S::by_sequence(&mut reader, &query);
        assert_eq!(S::depths(&mut reader, 2), [0, 2], "{}", S::NAME);
        let mut scores: Vec<u32> = S::scores(&mut reader, &query)
            .scores
            .into_values()
            .collect();
        scores.retain(|it| *it != 0);
        assert_eq!(scores, [2], "{}", S::NAME);

        lane.send(lane.structure().step(&removed));
        lane.drain();
        S::native(&mut reader, &query);
        assert_eq!(S::depths(&mut reader, 2), [0, 1], "{}", S::NAME);
    }

    #[test]
    fn every_structure_answers_after_the_same_events() {
        check::<Ours>();
        check::<Crtc>();
        check::<Positional>();
        check::<KvIndex>();
    }
}
