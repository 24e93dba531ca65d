//! Any interleaving of routers against a naive model.

use proptest::prelude::*;

use super::story::*;
use super::*;

#[derive(Clone, Debug)]
enum Step {
    Acquire(u8, u32),
    Confirm {
        asked: Option<u32>,
        observed: u32,
        evidence: Evidence,
    },
    Rebind(u8, u32),
    Release {
        router: u8,
        elsewhere: Option<u32>,
        served: bool,
    },
    Renew(u8),
    Wait(u64),
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let evidence = prop_oneof![
        Just(Evidence::None),
        Just(Evidence::Asked),
        Just(Evidence::Answer),
        Just(Evidence::Event)
    ];
    let rank = || 0..3_u32;
    let router = || 0..3_u8;
    prop_oneof![
        4 => (router(), rank()).prop_map(|(router, rank)| Step::Acquire(router, rank)),
        4 => (prop::option::weighted(0.2, rank()), rank(), evidence).prop_map(
            |(asked, observed, evidence)| Step::Confirm { asked, observed, evidence }
        ),
        1 => (router(), rank()).prop_map(|(router, rank)| Step::Rebind(router, rank)),
        4 => (router(), prop::option::weighted(0.2, rank()), any::<bool>()).prop_map(
            |(router, elsewhere, served)| Step::Release { router, elsewhere, served }
        ),
        2 => router().prop_map(Step::Renew),
        3 => prop_oneof![4 => 1..12_u64, 2 => 12..20_u64, 1 => 1500..2000_u64].prop_map(Step::Wait),
        1 => Just(Step::Restart),
    ]
}

/// The same rules told naively: one entry per request in flight, everything else in plain fields.
#[derive(Default)]
struct Model {
    bound: Option<(u32, bool)>,
    has_followed: bool,
    in_flight: Vec<(u8, Timestamp)>,
    last_end: Timestamp,
}

/// Stands for whoever held a lease before a restart.
const UNKNOWN: u8 = u8::MAX;

impl Model {
    fn pass(&mut self, now: Timestamp) {
        let ended = self.in_flight.iter().filter(|(_, until)| *until <= now);
        self.last_end = ended.fold(self.last_end, |last, (_, until)| last.max(*until));
        self.in_flight.retain(|(_, until)| now < *until);
        let over = match self.bound {
            Some((_, true)) => self.last_end + TERMS.idle_ttl <= now,
            Some((_, false)) | None => true,
        };
        if over && self.in_flight.is_empty() {
            *self = Self::default();
        }
    }

    fn hold(&mut self, router: u8, now: Timestamp, requests: usize) {
        let until = now + TERMS.lease;
        for (holder, lease) in &mut self.in_flight {
            if *holder == router {
                *lease = until;
            }
        }
        self.in_flight.extend(vec![(router, until); requests]);
    }

    fn has(&self, router: u8) -> bool {
        self.in_flight.iter().any(|(holder, _)| *holder == router)
    }

    fn confirm(&mut self, asked: u32, observed: u32, evidence: Evidence) {
        let Some((rank, confirmed)) = &mut self.bound else {
            return;
        };
        let says_so = matches!(evidence, Evidence::Answer | Evidence::Event);
        if *rank == observed {
            *confirmed = true;
        } else if says_so && *rank == asked && !self.has_followed {
            (*rank, *confirmed, self.has_followed) = (observed, true, true);
        }
    }

    fn release(&mut self, router: u8, ran: u32, served: bool, now: Timestamp) {
        let held_by = |(holder, _): &(u8, Timestamp)| *holder == router;
        if let Some(index) = self.in_flight.iter().position(held_by) {
            self.in_flight.remove(index);
        }
        if let Some((rank, confirmed)) = &mut self.bound
            && served
        {
            self.last_end = now;
            *confirmed |= *rank == ran;
        }
        self.pass(now);
    }
}

/// What of a binding is written at once whenever it changes.
fn untouched(binding: &Binding) -> (&Target, bool, Option<MoveReason>, Timestamp, Owner) {
    let confirmed = binding.state == BindingState::Confirmed;
    (
        &binding.target,
        confirmed,
        binding.moved,
        binding.since,
        binding.owner,
    )
}

fn rank_target(rank: u32) -> Target {
    target(&format!("w1#1/{rank}"))
}

/// Takes one step in both, and says what the machine made of it.
fn take(step: &Step, story: &mut Story, model: &mut Model) -> Option<Outcome> {
    if let Step::Wait(seconds) = step {
        story.wait(*seconds);
    }
    let bound = model.bound.map_or(0, |(rank, _)| rank);
    let written = story.written.clone();
    model.take(step, bound, written.as_ref(), story.now);
    tell(step, story, bound, written)
}

impl Model {
    fn take(&mut self, step: &Step, bound: u32, written: Option<&Binding>, now: Timestamp) {
        match step {
            Step::Acquire(router, rank) => {
                if self.bound.is_none() {
                    self.bound = Some((*rank, false));
                    self.last_end = now;
                }
                self.hold(*router, now, 1);
            }
            Step::Confirm {
                asked,
                observed,
                evidence,
            } => self.confirm(asked.unwrap_or(bound), *observed, *evidence),
            Step::Rebind(router, rank) if self.bound.is_some() => {
                self.bound = Some((*rank, false));
                self.has_followed = false;
                self.hold(*router, now, 1);
            }
            Step::Release {
                router,
                elsewhere,
                served,
            } => self.release(*router, elsewhere.unwrap_or(bound), *served, now),
            Step::Renew(router) if self.bound.is_some() => {
                self.hold(*router, now, usize::from(!self.has(*router)));
            }
            Step::Rebind(..) | Step::Renew(_) => {}
            Step::Wait(_) => self.pass(now),
            Step::Restart => {
                self.in_flight.clear();
                if let Some(written) = written {
                    self.last_end = written.last_end;
                    if written.state != BindingState::Confirmed {
                        self.hold(UNKNOWN, now, 1);
                    }
                }
                self.pass(now);
            }
        }
    }
}

fn tell(step: &Step, story: &mut Story, bound: u32, written: Option<Binding>) -> Option<Outcome> {
    let actor = |router: u8| format!("r{router}").parse::<InstanceId>().unwrap();
    match *step {
        Step::Acquire(router, rank) => {
            Some(story.acquire(actor(router).as_str(), &rank_target(rank).to_string()))
        }
        Step::Confirm {
            asked,
            observed,
            evidence,
        } => {
            let event = Event::Confirm {
                asked: &rank_target(asked.unwrap_or(bound)),
                observed: &rank_target(observed),
                evidence,
                actor: &actor(1),
            };
            story.apply(event).ok()
        }
        Step::Rebind(router, rank) => {
            let event = Event::Rebind {
                to: &rank_target(rank),
                reason: MoveReason::PrefixLost,
                actor: &actor(router),
            };
            story.apply(event).ok()
        }
        Step::Release {
            router,
            elsewhere,
            served,
        } => {
            let ran = rank_target(elsewhere.unwrap_or(bound)).to_string();
            let held = Tokens::new(160);
            let end = match served {
                true => TurnEnd::Served { held },
                false => TurnEnd::Unserved,
            };
            Some(story.release(actor(router).as_str(), &ran, end))
        }
        Step::Renew(router) => {
            story.renew(actor(router).as_str());
            None
        }
        Step::Wait(_) => story.apply(Event::Lapse).ok(),
        Step::Restart => {
            story.standing = Standing::found(written, story.now, &TERMS);
            story.apply(Event::Lapse).ok()
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn any_interleaving_does_what_the_naive_model_does(
        steps in prop::collection::vec(step(), 1..60)
    ) {
        let mut story = Story::new();
        let mut model = Model::default();
        for step in &steps {
            take(step, &mut story, &mut model);
            let expected = model
                .bound
                .map(|(rank, confirmed)| (rank_target(rank).to_string(), confirmed));
            prop_assert_eq!(story.bound(), expected, "after {:?}", step);
            prop_assert_eq!(
                story.standing.is_in_flight(story.now),
                !model.in_flight.is_empty(),
                "after {:?}", step
            );
            let written = story.written.as_ref().map(untouched);
            let known = story.standing.binding.as_ref().map(untouched);
            prop_assert_eq!(written, known);
        }
        story.wait(15);
        story.apply(Event::Lapse).unwrap();
        prop_assert!(!story.standing.is_in_flight(story.now));
        prop_assert!(story.bound().is_none_or(|(_, confirmed)| confirmed));
        story.wait(1800);
        story.apply(Event::Lapse).unwrap();
        prop_assert_eq!(&story.standing, &Standing::default());
    }

    #[test]
    fn two_targets_are_never_confirmed_without_a_move_between(
        steps in prop::collection::vec(step(), 1..60)
    ) {
        let mut story = Story::new();
        let mut model = Model::default();
        let mut last: Option<String> = None;
        let mut follows = 0;
        for step in &steps {
            match take(step, &mut story, &mut model) {
                Some(Outcome::Moved | Outcome::Freed | Outcome::Expired | Outcome::Created) => {
                    last = None;
                    follows = 0;
                }
                Some(Outcome::Followed) => {
                    last = None;
                    follows += 1;
                }
                _ => {}
            }
            prop_assert!(follows <= 1);
            if let Some((here, true)) = story.bound() {
                prop_assert_eq!(last.get_or_insert_with(|| here.clone()), &here);
            }
        }
    }
}
