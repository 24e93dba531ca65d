//! One simulated world: clients, router replicas, bindings, an index and engines, in simulated time.
//!
//! Each of them runs the code of the services, or stands for a process in its place; what happens next stands in one
//! queue, and everything that is drawn comes from the seed. So the same workload in the same setting gives the same
//! report, bit for bit.

mod bindings;
mod engines;
mod faults;
mod feed;
mod index;
mod measure;
mod passes;
mod routers;
mod sessions;
mod turns;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet};
use std::sync::Arc;

use domain::{DpRank, ModelName, Timestamp};
use engine_model::InvalidEngine;

use self::bindings::Bindings;
use self::engines::Engines;
use self::feed::Feed;
use self::index::Index;
use self::measure::Measure;
use self::routers::Routers;
use self::sessions::{Sessions, Turn};
use self::turns::{Home, Names, Open};
use crate::report::Progress;
use crate::{Report, Setting, Workload};

/// Progress is reported once in so many requests.
const PROGRESS_EVERY: usize = 64;

/// Why a world cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// Its engines cannot be made.
    #[error(transparent)]
    Engine(#[from] InvalidEngine),
    /// It has no workers.
    #[error("a fleet has at least one worker")]
    NoWorkers,
    /// It has no routers.
    #[error("a fleet has at least one router")]
    NoRouters,
    /// A session asks nothing.
    #[error("session {session} has no turns")]
    NoTurns {
        /// Which one.
        session: usize,
    },
    /// A session begins after something that the workload does not have.
    #[error("session {session} waits for a session or a turn that is not there")]
    WaitsForNothing {
        /// Which one.
        session: usize,
    },
    /// Sessions wait for each other.
    #[error("{requests} requests were never sent: their sessions wait for each other")]
    NeverSent {
        /// How many.
        requests: usize,
    },
}

/// What happens next. Of what happens at one time the first in this order comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    /// A worker's pass ends.
    PassEnds(usize),
    /// A message of a rank reaches the index.
    Announced(u64),
    /// A worker dies.
    Dies(usize),
    /// It is back.
    Returns(usize),
    /// Its new incarnation is known.
    Noticed(usize),
    /// An operator drains a worker.
    Drains,
    /// One more worker joins.
    Joins,
    /// Routers are cut off from the store of bindings.
    Cut,
    /// They are connected again.
    Healed,
    /// Routers tell each other what they have reserved.
    Told,
    /// Routers see the gauges.
    Gauges,
    /// A client sends a turn.
    Sent(Turn),
}

struct World<'a> {
    workload: &'a Workload,
    setting: &'a Setting,
    model: ModelName,
    names: Names,
    sessions: Sessions<'a>,
    routers: Routers,
    bindings: Bindings,
    engines: Engines,
    index: Index,
    feed: Feed,
    measure: Measure,
    /// By request.
    open: BTreeMap<u64, Open>,
    requests: u64,
    due: BinaryHeap<Reverse<(Timestamp, Due)>>,
    /// Turns that stand in `due`.
    to_send: usize,
    /// Whether `due` has the next look at the gauges, and the next word between routers.
    gauges_due: bool,
    told_due: bool,
    done: usize,
    /// Where the last turn was sent. Never iterated.
    homes: HashMap<Home, (usize, DpRank)>,
}

/// Runs `workload` in `setting`. The same arguments give the same report.
pub fn run(
    workload: &Workload,
    setting: &Setting,
    mut progress: impl FnMut(Progress),
) -> Result<Report, RunError> {
    let mut world = World::new(workload, setting)?;
    let total = workload.requests();
    let until = setting.until.map(|it| Timestamp::ZERO + it);
    let mut now = Timestamp::ZERO;
    let mut shown = 0;
    while let Some(Reverse((at, due))) = world.due.pop() {
        if until.is_some_and(|until| until < at) {
            break;
        }
        now = at;
        world.happen(due, now)?;
        if shown + PROGRESS_EVERY <= world.done {
            shown = world.done;
            progress(world.progress(total, now));
        }
    }
    progress(world.progress(total, now));
    if setting.until.is_none() && world.done < total {
        return Err(RunError::NeverSent {
            requests: total - world.done,
        });
    }
    world.measure.close(now);
    let World {
        sessions,
        engines,
        bindings,
        measure,
        ..
    } = world;
    Ok(measure.into_report((workload, setting), (&engines, &bindings, &sessions)))
}

impl<'a> World<'a> {
    fn new(workload: &'a Workload, setting: &'a Setting) -> Result<Self, RunError> {
        if setting.fleet.workers == 0 {
            return Err(RunError::NoWorkers);
        }
        if setting.routers == 0 {
            return Err(RunError::NoRouters);
        }
        let model = ModelName::new("model").expect("a short printable name");
        let (sessions, begin) = Sessions::new(workload)?;
        let block_size = workload.block_size;
        let kv_blocks = setting.fleet.kv_blocks;
        let mut world = Self {
            workload,
            setting,
            names: Names::new(&model),
            sessions,
            routers: Routers::new(setting, &model),
            bindings: Bindings::new(),
            engines: Engines::new(setting, block_size)?,
            index: Index::new(model.clone(), block_size, kv_blocks, blocks_of(workload)),
            feed: Feed::new(setting.events, setting.seed),
            measure: Measure::new(setting),
            open: BTreeMap::new(),
            requests: 0,
            due: BinaryHeap::new(),
            to_send: 0,
            gauges_due: false,
            told_due: false,
            done: 0,
            homes: HashMap::new(),
            model,
        };
        (0..world.engines.len()).for_each(|it| world.register(it));
        begin.into_iter().for_each(|it| world.send(it));
        world.plan_faults();
        Ok(world)
    }

    fn happen(&mut self, due: Due, now: Timestamp) -> Result<(), InvalidEngine> {
        match due {
            Due::PassEnds(worker) => self.end_pass(worker, now),
            Due::Announced(message) => {
                if let Some(message) = self.feed.take(message) {
                    self.index.receive(&message);
                }
            }
            Due::Dies(worker) => self.die(worker, now)?,
            Due::Returns(worker) => self.come_back(worker, now),
            Due::Noticed(worker) => self.notice(worker),
            Due::Drains => self.drain(now),
            Due::Joins => {
                let worker = self.engines.add()?;
                self.register(worker);
            }
            Due::Cut => self.cut(now),
            Due::Healed => self.bindings.heal(now),
            Due::Told => {
                self.told_due = false;
                self.routers.tell(now);
            }
            Due::Gauges => self.show_gauges(now),
            Due::Sent(turn) => {
                self.to_send -= 1;
                self.begin(turn, now);
            }
        }
        Ok(())
    }

    fn at(&mut self, at: Timestamp, due: Due) {
        self.due.push(Reverse((at, due)));
    }

    fn send(&mut self, (at, turn): (Timestamp, Turn)) {
        self.to_send += 1;
        self.at(at, Due::Sent(turn));
    }

    /// Whether anything is left to be served.
    fn is_busy(&self) -> bool {
        !self.open.is_empty() || self.to_send > 0
    }

    /// A worker is there.
    fn register(&mut self, worker: usize) {
        self.measure.add_worker(self.engines.ranks());
        let registration = self.engines.registration(worker, &self.model);
        self.routers.set_worker(&registration);
    }

    fn start_pass(&mut self, worker: usize, now: Timestamp) {
        if let Some(ends_at) = self.engines.start_pass(worker, now) {
            self.at(ends_at, Due::PassEnds(worker));
        }
    }

    /// Something was sent: the others hear of it, and all look at the gauges again.
    fn wake(&mut self, now: Timestamp) {
        if !self.gauges_due {
            self.show_gauges(now);
        }
        if !self.told_due && self.routers.len() > 1 {
            self.told_due = true;
            let every = self.setting.tells_every().as_micros().max(1);
            let every = u64::try_from(every).unwrap_or(u64::MAX);
            let next = now.as_micros() / every + 1;
            let next = Timestamp::from_micros(next.saturating_mul(every));
            self.at(next, Due::Told);
        }
    }

    fn show_gauges(&mut self, now: Timestamp) {
        for worker in 0..self.engines.len() {
            if let Some(loads) = self.engines.gauges(worker, now) {
                let id = self.engines.id(worker);
                self.routers.see(id, &loads);
            }
        }
        self.routers.expire(now);
        if self.routers.len() == 1 {
            // It has nobody to tell.
            self.routers.tell(now);
        }
        // Nothing changes while nothing is there.
        self.gauges_due = !self.open.is_empty();
        if self.gauges_due {
            self.at(now + self.setting.gauges_every, Due::Gauges);
        }
    }

    fn progress(&self, total: usize, now: Timestamp) -> Progress {
        Progress {
            done: self.done,
            total,
            at: now.since(Timestamp::ZERO),
        }
    }
}

/// Blocks of all contents, each counted once.
fn blocks_of(workload: &Workload) -> usize {
    let turns = workload.sessions.iter().flat_map(|it| &it.turns);
    let mut seen = HashSet::new();
    let fresh = turns.filter(|it| seen.insert(Arc::as_ptr(&it.content)));
    fresh.map(|it| it.content.blocks().len()).sum()
}
