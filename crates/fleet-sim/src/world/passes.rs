//! Passes, and what comes of them: events, tokens, ends.

use affinity::TurnEnd;
use domain::{Target, Timestamp, Tokens, Usage};
use engine_model::Effect;
use routing::{Outcome, Status};

use super::engines::{removed, stored};
use super::feed::Message;
use super::sessions::Turn;
use super::turns::{Attempt, Open};
use super::{Due, World};

impl World<'_> {
    pub(super) fn end_pass(&mut self, worker: usize, now: Timestamp) {
        let Some(effects) = self.engines.end_pass(worker, now) else {
            return;
        };
        let mut message: Option<Message> = None;
        for effect in effects {
            let (rank, op) = match effect {
                Effect::Cleared { rank } => (rank, domain::KvOp::Cleared),
                Effect::Removed { rank, blocks } => (rank, removed(blocks)),
                Effect::Stored {
                    rank,
                    id,
                    first_block,
                    parent,
                    blocks,
                } => {
                    let Turn { session, turn } = self.open[&id.get()].attempt.turn;
                    let session = &self.workload.sessions[session];
                    let namespace = self.index.namespace(session.tenant);
                    let content = &session.turns[turn].content;
                    let op = stored(content, first_block, parent, &blocks, namespace);
                    (rank, op)
                }
                other => {
                    self.see(&other, now);
                    continue;
                }
            };
            match &mut message {
                Some(it) if it.target.dp_rank == rank => it.ops.push(op),
                _ => {
                    self.announce(message.take(), now);
                    message = Some(Message {
                        target: self.engines.target(worker, rank),
                        ops: vec![op],
                    });
                }
            }
        }
        self.announce(message, now);
        self.start_pass(worker, now);
    }

    fn announce(&mut self, message: Option<Message>, now: Timestamp) {
        let Some(message) = message else {
            return;
        };
        if self.feed.is_perfect() {
            for op in &message.ops {
                self.index.apply(&message.target, op);
            }
            return;
        }
        for arrival in self.feed.send(message, now) {
            self.at(arrival.at, Due::Announced(arrival.message));
        }
    }

    /// What became of a request in a pass.
    fn see(&mut self, effect: &Effect, now: Timestamp) {
        match effect {
            Effect::Cached { id, tokens } => {
                let open = self.open.get_mut(&id.get());
                open.expect("it runs").cached = *tokens;
            }
            Effect::FirstToken { id } => {
                let open = self.open.get_mut(&id.get()).expect("it runs");
                open.first_token = Some(now);
                self.measure.begun(open.place, open.uncached, now);
                let mind = &mut self.routers.of(open.attempt.router).mind;
                mind.first_token(open.decision, now);
                if self.routers.len() > 1 {
                    self.wake(now);
                }
            }
            Effect::Finished { id } => {
                let open = self.open.remove(&id.get()).expect("it runs");
                self.finish(open, now);
            }
            Effect::Cleared { .. }
            | Effect::Removed { .. }
            | Effect::Stored { .. }
            | Effect::Token { .. }
            | Effect::Preempted { .. } => {}
        }
    }

    fn finish(&mut self, open: Open, now: Timestamp) {
        self.measure.left(open.place, now);
        let Turn { session, turn } = open.attempt.turn;
        let asked = &self.workload.sessions[session].turns[turn];
        let first_token = open.first_token.unwrap_or(now);
        let usage = Usage {
            prompt: asked.isl,
            completion: asked.osl,
            cached: Some(open.cached),
        };
        let outcome = Outcome {
            status: Status::Served,
            ttft: Some(first_token.since(open.dispatched)),
            duration: Some(now.since(open.dispatched)),
            observed_rank: Some(open.place.1),
            usage: Some(usage),
        };
        let mind = &mut self.routers.of(open.attempt.router).mind;
        let row = mind.finish(open.decision, &outcome, now);
        if open.counts {
            let ttft = first_token.since(open.attempt.sent);
            self.measure.served(open.place, ttft, &usage, row.as_ref());
        }
        // The last token is computed no further.
        let left = (asked.isl + asked.osl).saturating_sub(Tokens::new(1)).get();
        let size = u64::from(self.workload.block_size.get());
        let held = Tokens::new(left / size * size);
        self.release(
            &open.attempt,
            &open.target,
            open.leased,
            TurnEnd::Served { held },
            now,
        );
        self.end_turn(open.attempt.turn, now);
    }

    pub(super) fn release(
        &mut self,
        attempt: &Attempt,
        target: &Target,
        leased: bool,
        end: TurnEnd,
        now: Timestamp,
    ) {
        if let Some(key) = attempt.key.as_ref().filter(|_| leased) {
            let actor = &self.routers.of(attempt.router).name;
            self.bindings
                .release(key, target, end, actor, attempt.router, now);
        }
    }

    /// Its engine has died.
    pub(super) fn break_off(&mut self, open: Open, now: Timestamp) {
        self.measure.left(open.place, now);
        let status = match open.first_token {
            Some(_) => Status::Failed,
            None => Status::Unreachable,
        };
        let mut attempt = open.attempt;
        if open.first_token.is_none() {
            self.measure.begun(open.place, open.uncached, now);
            self.fail(
                &mut attempt,
                (open.decision, &open.target),
                open.leased,
                status,
                now,
            );
            self.place(attempt, now);
            return;
        }
        let mind = &mut self.routers.of(attempt.router).mind;
        mind.finish(open.decision, &failed(status), now);
        let end = TurnEnd::Served { held: Tokens::ZERO };
        self.release(&attempt, &open.target, open.leased, end, now);
        self.measure.broken += u64::from(open.counts);
        self.end_turn(attempt.turn, now);
    }

    /// A turn is over, however.
    pub(super) fn end_turn(&mut self, turn: Turn, now: Timestamp) {
        self.done += 1;
        self.measure.ended(now);
        for next in self.sessions.ended(turn, now) {
            self.send(next);
        }
    }
}

/// How a request ends that was not served.
pub(super) fn failed(status: Status) -> Outcome {
    Outcome {
        status,
        ttft: None,
        duration: None,
        observed_rank: None,
        usage: None,
    }
}
