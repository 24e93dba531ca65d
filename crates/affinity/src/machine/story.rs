//! What the tests of the machine tell their cases with.

use super::*;

pub(super) const TERMS: Terms = Terms {
    lease: Duration::from_secs(15),
    idle_ttl: Duration::from_secs(1800),
};

pub(super) fn at(seconds: u64) -> Timestamp {
    Timestamp::from_micros(seconds * 1_000_000)
}

pub(super) fn target(text: &str) -> Target {
    text.parse().unwrap()
}

pub(super) fn key() -> ConversationKey {
    ConversationKey {
        tenant: "t".parse().unwrap(),
        model: "m".parse().unwrap(),
        conversation: "c".parse().unwrap(),
    }
}

/// One conversation and a clock, told what happens in few words.
pub(super) struct Story {
    pub(super) standing: Standing,
    pub(super) now: Timestamp,
    /// What the table holds.
    pub(super) written: Option<Binding>,
    pub(super) puts: Vec<Binding>,
}

impl Story {
    pub(super) fn new() -> Self {
        Self {
            standing: Standing::default(),
            now: at(1000),
            written: None,
            puts: Vec::new(),
        }
    }

    pub(super) fn apply(&mut self, event: Event<'_>) -> Result<Outcome, NotBound> {
        let transition = self.standing.apply(&event, self.now, &TERMS)?;
        match transition.write {
            Write::Put(binding) => {
                self.written = Some(binding.clone());
                self.puts.push(binding);
            }
            Write::Delete => self.written = None,
            Write::Nothing => {}
        }
        self.standing = transition.next;
        Ok(transition.outcome)
    }

    pub(super) fn acquire(&mut self, router: &str, proposed: &str) -> Outcome {
        self.acquire_for(Owner::Router, router, proposed)
    }

    pub(super) fn acquire_for(&mut self, owner: Owner, router: &str, proposed: &str) -> Outcome {
        let event = Event::Acquire {
            key: &key(),
            proposed: &target(proposed),
            owner,
            actor: &router.parse().unwrap(),
        };
        self.apply(event).unwrap()
    }

    pub(super) fn confirm(&mut self, asked: &str, observed: &str, evidence: Evidence) -> Outcome {
        let event = Event::Confirm {
            asked: &target(asked),
            observed: &target(observed),
            evidence,
            actor: &"r1".parse().unwrap(),
        };
        self.apply(event).unwrap()
    }

    pub(super) fn rebind(&mut self, router: &str, to: &str, reason: MoveReason) -> Outcome {
        let event = Event::Rebind {
            to: &target(to),
            reason,
            actor: &router.parse().unwrap(),
        };
        self.apply(event).unwrap()
    }

    pub(super) fn release(&mut self, router: &str, ran: &str, end: TurnEnd) -> Outcome {
        let event = Event::Release {
            target: &target(ran),
            end,
            actor: &router.parse().unwrap(),
        };
        self.apply(event).unwrap()
    }

    pub(super) fn renew(&mut self, router: &str) {
        let actor = &router.parse().unwrap();
        self.apply(Event::Renew { actor }).unwrap();
    }

    pub(super) fn wait(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
    }

    pub(super) fn bound(&self) -> Option<(String, bool)> {
        let binding = self.standing.binding(self.now, &TERMS)?;
        let confirmed = binding.state == BindingState::Confirmed;
        Some((binding.target.to_string(), confirmed))
    }

    pub(super) fn turn(&mut self, held: u64) -> Outcome {
        let held = Tokens::new(held);
        self.acquire("r1", "w9#1/9");
        let bound = self.bound().unwrap().0;
        self.confirm(&bound, &bound, Evidence::Asked);
        self.release("r1", &bound, TurnEnd::Served { held })
    }
}

pub(super) fn provisional(target: &str) -> Option<(String, bool)> {
    Some((target.to_owned(), false))
}

pub(super) fn confirmed(target: &str) -> Option<(String, bool)> {
    Some((target.to_owned(), true))
}
