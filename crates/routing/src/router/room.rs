//! What the targets of a model may still be given.

use domain::{ModelName, Target, TargetState, Timestamp};

use super::Router;
use crate::admission::{Limit, Room};
use crate::fleet::Member;

impl Router {
    /// Whether some target of `model` is below its limit, so that a request need not wait. Also true where none takes a
    /// request at all: waiting helps nobody then.
    pub fn has_room(&self, model: &ModelName, limit: &Limit, now: Timestamp) -> bool {
        self.rooms(model, limit, now)
            .is_none_or(|mut rooms| rooms.any(Room::is_some))
    }

    /// What the targets of `model` may be given in all until each is at its limit; [`Room::ALL`] where none takes a
    /// request.
    pub fn room(&self, model: &ModelName, limit: &Limit, now: Timestamp) -> Room {
        let rooms = self.rooms(model, limit, now);
        rooms.map_or(Room::ALL, |rooms| rooms.fold(Room::NONE, Room::and))
    }

    /// The room at each target that can be chosen, as `placement` chooses: where all failed lately they count all the
    /// same. None where there is no such target.
    fn rooms<'a>(
        &'a self,
        model: &'a ModelName,
        limit: &'a Limit,
        now: Timestamp,
    ) -> Option<impl Iterator<Item = Room> + 'a> {
        let open = move || {
            let members = self.fleet.members(model, now);
            members.flat_map(move |member| {
                let ranks = member.worker.ranks();
                let open = ranks.filter(|it| takes_new(self.fleet.state(&member.worker, *it)));
                open.map(move |dp_rank| {
                    let target = Target {
                        worker: member.worker.id.clone(),
                        epoch: self.fleet.epoch(&member.worker),
                        dp_rank,
                    };
                    (member, target)
                })
            })
        };
        let fails = move |target: &Target| {
            let avoided = self.fleet.memory(target).avoid_until;
            avoided.is_some_and(|until| now < until)
        };
        open().next()?;
        let all_fail = open().all(|it| fails(&it.1));
        let chosen = open().filter(move |it| all_fail || !fails(&it.1));
        Some(chosen.map(move |(member, target)| self.room_at(member, &target, limit, now)))
    }

    /// Its engine knows better than the router what waits: where it says that nothing does, only what was sent there
    /// since may. So an engine that is faster than what is known of it is never kept waiting by its own router. And what
    /// it says is waiting counts, each for the mean of what requests have to compute, though by the rate that is known
    /// of it that were done: one that is slower is not given more for ever.
    fn room_at(&self, member: &Member, target: &Target, limit: &Limit, now: Timestamp) -> Room {
        let pending = self.reservations.pending(target, now).as_f64();
        let tokens = match member.load(target.dp_rank, now) {
            None => pending,
            Some(load) => {
                let since = self.reservations.pending_since(target, load.at, now);
                let miss = self.mean_miss.get();
                let (_, foreign) = member.gauge(target.dp_rank, now);
                let said = f64::from(load.waiting) * miss + since.as_f64();
                match load.waiting {
                    0 => said,
                    _ => said.max(pending + f64::from(foreign) * miss),
                }
            }
        };
        limit.left(
            member.speed.prefill_rate(),
            tokens,
            self.active(target, now),
        )
    }
}

/// Whether a target in this state may be given a request without a binding.
const fn takes_new(state: TargetState) -> bool {
    match state {
        TargetState::Ready | TargetState::Partial | TargetState::Suspect => true,
        TargetState::Warming | TargetState::Draining | TargetState::Leaving | TargetState::Gone => {
            false
        }
    }
}
