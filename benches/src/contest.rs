//! One structure in a comparison: its lane, its reader, and the loops that are timed.

use std::thread;
use std::time::{Duration, Instant};

use crate::clock::{Ticks, cpu_of, thread_cpu};
use crate::event::{Event, Request};
use crate::fleet::Fleet;
use crate::structures::{Crtc, How, KvIndex, Lane, Ours, Positional, Queue, Structure};

/// How long it waits before it looks again.
const PAUSE: Duration = Duration::from_micros(50);
/// Bytes of requests that are read just before they are looked up: they stay in the second-level cache.
const WARM_BYTES: usize = 256 * 1024;
/// Requests at most: a clock is read for so many.
const WARM_REQUESTS: usize = 32;
/// How long an update may take to be seen before the structure is called wrong.
const PATIENCE: Duration = Duration::from_secs(10);

/// What lookups beside events cost.
#[derive(Clone, Copy, Debug)]
pub struct Mixed {
    /// CPU time of both threads.
    pub cpu: Duration,
    /// Wall time until the last event was applied.
    pub wall: Duration,
    /// Wall time until the last event was sent.
    pub issued: Duration,
}

/// A structure in a comparison.
pub trait Contestant {
    /// What it is called in rows and tables.
    fn name(&self) -> &'static str;
    /// CPU time its lane takes for `events`.
    fn apply(&mut self, events: &[Event]) -> Duration;
    /// Sends `events` and waits until they are applied. For streams that are too large to be laid ready.
    fn stream(&mut self, events: &mut dyn Iterator<Item = Event>);
    /// Takes `requests` as what the lookups below ask.
    fn prepare(&mut self, requests: &[Request]);
    /// CPU time of one pass over the prepared requests.
    fn pass(&mut self, how: How) -> Duration;
    /// Wall time of each lookup of one pass, in nanoseconds.
    fn times(&mut self, how: How, ticks: Ticks) -> Vec<f64>;
    /// Leading blocks of the prepared request `at` that each target holds, as answered `how`.
    fn depths(&mut self, at: usize, how: How, targets: u32) -> Vec<u32>;
    /// One pass, with the groups of `events` sent to the lane one after each lookup, and the wall time of each
    /// lookup in nanoseconds. Whoever sends waits while more than `backlog` events do.
    fn mixed(&mut self, events: &[Vec<Event>], backlog: usize, ticks: Ticks) -> (Mixed, Vec<f64>);
    /// Wall time, in nanoseconds, from sending an event that stores a conversation's last blocks behind
    /// `background` events until a lookup shows it; of so many conversations of `fleet`.
    fn visible(&mut self, fleet: &Fleet, background: usize, probes: usize) -> Vec<f64>;
}

/// The structures to compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, clap::ValueEnum)]
pub enum Kind {
    /// Rankway's.
    Ours,
    /// Dynamo's `ConcurrentRadixTreeCompressed`.
    Crtc,
    /// Dynamo's `PositionalIndexer`.
    Positional,
    /// SMG's `ChainIndex`.
    KvIndex,
}

impl Kind {
    /// All, ours first.
    pub const ALL: [Self; 4] = [Self::Ours, Self::Crtc, Self::Positional, Self::KvIndex];

    /// What it is called in rows and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ours => Ours::NAME,
            Self::Crtc => Crtc::NAME,
            Self::Positional => Positional::NAME,
            Self::KvIndex => KvIndex::NAME,
        }
    }

    /// An empty one with its lane.
    pub fn start(self, targets: u32, queue: Queue) -> Box<dyn Contestant> {
        match self {
            Self::Ours => Entrant::<Ours>::boxed(targets, queue),
            Self::Crtc => Entrant::<Crtc>::boxed(targets, queue),
            Self::Positional => Entrant::<Positional>::boxed(targets, queue),
            Self::KvIndex => Entrant::<KvIndex>::boxed(targets, queue),
        }
    }

    /// Runs the lane of an empty one over `events` on this very thread, inside of `around`.
    pub fn run_here(
        self,
        targets: u32,
        events: &[Event],
        around: &mut dyn FnMut(&mut dyn FnMut()),
    ) {
        match self {
            Self::Ours => run_here::<Ours>(targets, events, around),
            Self::Crtc => run_here::<Crtc>(targets, events, around),
            Self::Positional => run_here::<Positional>(targets, events, around),
            Self::KvIndex => run_here::<KvIndex>(targets, events, around),
        }
    }
}

fn run_here<S: Structure>(
    targets: u32,
    events: &[Event],
    around: &mut dyn FnMut(&mut dyn FnMut()),
) {
    let structure = S::new(targets);
    let (steps, incoming) = flume::unbounded();
    for event in events {
        steps
            .send(structure.step(event))
            .expect("the other end is here");
    }
    drop(steps);
    around(&mut || structure.run_lane(incoming.clone()));
}

struct Entrant<S: Structure> {
    lane: Lane<S>,
    reader: S::Reader,
    queries: Vec<S::Query>,
    blocks: Vec<usize>,
}

impl<S: Structure> Entrant<S> {
    fn boxed(targets: u32, queue: Queue) -> Box<dyn Contestant> {
        let lane = Lane::<S>::start(targets, queue);
        Box::new(Self {
            reader: lane.structure().reader(),
            lane,
            queries: Vec::new(),
            blocks: Vec::new(),
        })
    }

    /// Brings the hashes of `query` into the cache, where they are when whoever asks has just made them.
    fn warm(query: &S::Query, how: How) {
        std::hint::black_box(S::read_by(query, how));
    }

    fn look(reader: &mut S::Reader, query: &S::Query, how: How) {
        match how {
            How::Native => S::native(reader, query),
            How::BySequence => S::by_sequence(reader, query),
            How::Scores => drop(std::hint::black_box(S::scores(reader, query))),
        }
    }

    fn hold_back(&self, backlog: usize) {
        if backlog < self.lane.waiting() {
            while backlog / 2 < self.lane.waiting() {
                thread::sleep(PAUSE);
            }
        }
    }
}

impl<S: Structure> Contestant for Entrant<S> {
    fn name(&self) -> &'static str {
        S::NAME
    }

    fn apply(&mut self, events: &[Event]) -> Duration {
        self.lane.apply(self.lane.steps(events))
    }

    fn stream(&mut self, events: &mut dyn Iterator<Item = Event>) {
        for event in events {
            self.lane.send(self.lane.structure().step(&event));
        }
        self.lane.drain();
    }

    fn prepare(&mut self, requests: &[Request]) {
        self.queries = requests.iter().map(S::query).collect();
        self.blocks = requests.iter().map(Request::blocks).collect();
    }

    fn pass(&mut self, how: How) -> Duration {
        let longest = self.blocks.iter().copied().max().unwrap_or(0).max(1);
        let at_once = (WARM_BYTES / (longest * size_of::<u64>())).clamp(1, WARM_REQUESTS);
        let (reader, mut total) = (&mut self.reader, Duration::ZERO);
        for queries in self.queries.chunks(at_once) {
            queries.iter().for_each(|it| Self::warm(it, how));
            total += cpu_of(|| queries.iter().for_each(|it| Self::look(reader, it, how)));
        }
        total
    }

    fn times(&mut self, how: How, ticks: Ticks) -> Vec<f64> {
        let reader = &mut self.reader;
        let time = |query| {
            Self::warm(query, how);
            ticks.time(|| Self::look(reader, query, how))
        };
        self.queries.iter().map(time).collect()
    }

    fn depths(&mut self, at: usize, how: How, targets: u32) -> Vec<u32> {
        if how == How::Scores {
            let scores = S::scores(&mut self.reader, &self.queries[at]);
            return crate::structures::depths(&scores, targets);
        }
        Self::look(&mut self.reader, &self.queries[at], how);
        S::depths(&mut self.reader, targets)
    }

    fn mixed(&mut self, events: &[Vec<Event>], backlog: usize, ticks: Ticks) -> (Mixed, Vec<f64>) {
        let steps: Vec<Vec<S::Step>> = events.iter().map(|it| self.lane.steps(it)).collect();
        let mut times = Vec::with_capacity(self.queries.len());
        let lane = self.lane.drain();
        let (own, start) = (thread_cpu(), Instant::now());
        let mut steps = steps.into_iter();
        for query in &self.queries {
            Self::warm(query, How::Native);
            times.push(ticks.time(|| Self::look(&mut self.reader, query, How::Native)));
            for step in steps.next().unwrap_or_default() {
                self.hold_back(backlog);
                self.lane.send(step);
            }
        }
        let issued = start.elapsed();
        let cpu = self.lane.drain() - lane + (thread_cpu() - own);
        let wall = start.elapsed();
        (Mixed { cpu, wall, issued }, times)
    }

    fn visible(&mut self, fleet: &Fleet, background: usize, probes: usize) -> Vec<f64> {
        let mut times = Vec::with_capacity(probes);
        let targets = fleet.targets();
        for probe in 0..probes {
            let (request, target, [evict, store]) = fleet.tail(probe % fleet.conversations());
            let query = S::query(&request);
            let depth = u32::try_from(request.blocks()).expect("a request is short");
            let others = fleet.churn_without(probe % fleet.conversations(), background);
            let (others, store) = (self.lane.steps(&others), self.lane.structure().step(&store));
            self.lane.send(self.lane.structure().step(&evict));
            self.lane.drain();
            for other in others {
                self.lane.send(other);
            }
            let start = Instant::now();
            self.lane.send(store);
            loop {
                S::native(&mut self.reader, &query);
                let elapsed = start.elapsed();
                if S::depths(&mut self.reader, targets)[target as usize] == depth {
                    times.push(elapsed.as_nanos() as f64);
                    break;
                }
                assert!(elapsed < PATIENCE, "{} never showed an update", S::NAME);
            }
        }
        times
    }
}
