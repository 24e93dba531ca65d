//! The state of one rank's stream, and what live messages, incarnations and requests do to it.

use domain::{Epoch, EventSeq, ResetReason, Timestamp};

use crate::hold::{Held, Hold};
use crate::{Action, DropCause, Message, Position, RestartCause};

/// Whether the engine keeps a ring of what it published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayOffer {
    /// It can be asked for messages again.
    Offered,
    /// What is lost is lost.
    Absent,
}

/// The limits of a feed.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Whether lost messages can be asked for.
    pub replay: ReplayOffer,
    /// Messages held back at most, at least 1. Beyond it the newest are dropped, and asked for again once
    /// the replay has ended.
    pub hold_limit: usize,
    /// Replays in a row that may fail, or end without what is missing, before it is given up as lost.
    pub attempts: u32,
}

/// The stream of one rank.
///
/// Within an epoch it delivers what the rank published in order and without a hole; where something is
/// lost for good, a Reset stands in its place. A replay is asked from the newest message published, not
/// from the one after it, because only that message's timestamp shows that the engine is still the same.
#[derive(Clone, Debug)]
pub struct RankFeed<P> {
    pub(crate) rules: Rules,
    pub(crate) epoch: Epoch,
    /// The newest message published in this epoch; none until the rank has spoken in it.
    pub(crate) high: Option<Mark>,
    /// What is to be delivered next: behind `high` only while a resync runs.
    pub(crate) next: EventSeq,
    /// Whether anything of this rank was published in any epoch.
    pub(crate) known: bool,
    pub(crate) phase: Phase,
    pub(crate) hold: Hold<P>,
    /// Whether messages went unseen that the running replay may not bring.
    pub(crate) unseen: bool,
    /// Whether the engine's ring lacked the newest message published, so that another engine may be
    /// speaking, whose messages only seem to continue it.
    pub(crate) unanchored: bool,
    /// A resync that waits for the running replay.
    pub(crate) resync: Option<EventSeq>,
}

/// One published message, without its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) seq: EventSeq,
    pub(crate) engine_ts: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Live messages are delivered as they come.
    Following,
    /// Live messages are held back.
    Replaying(Replay),
    /// Live messages are held back until the worker's epoch is raised.
    AwaitingEpoch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Replay {
    pub(crate) asked: EventSeq,
    pub(crate) attempt: u32,
    pub(crate) answer: Answer,
}

/// What a replay has brought so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Answer {
    /// Nothing.
    Nothing,
    /// Only messages that were published before.
    Known,
    /// Something to publish.
    Progress,
}

impl<P> RankFeed<P> {
    /// A rank of which nothing has been published in `epoch`.
    pub fn attach(epoch: Epoch, rules: Rules) -> Self {
        Self {
            rules,
            epoch,
            high: None,
            next: EventSeq::new(0),
            known: false,
            phase: Phase::Following,
            hold: Hold::new(rules.hold_limit),
            unseen: false,
            unanchored: false,
            resync: None,
        }
    }

    /// A rank that was published up to `position`.
    pub fn resume(position: Position, rules: Rules) -> Self {
        let mut feed = Self::attach(position.epoch, rules);
        feed.high = Some(Mark {
            seq: position.seq,
            engine_ts: position.engine_ts,
        });
        feed.next = position.seq.next();
        feed.known = true;
        feed
    }

    /// The incarnation it publishes under.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// How far it has published in this epoch.
    pub fn position(&self) -> Option<Position> {
        self.high.map(|high| Position {
            epoch: self.epoch,
            seq: high.seq,
            engine_ts: high.engine_ts,
        })
    }

    /// Whether live messages are delivered as they come: no replay runs and no epoch is being raised.
    pub fn is_following(&self) -> bool {
        self.phase == Phase::Following
    }

    /// Messages may have gone unseen: the rank was just connected, a queue before the feed overflowed, or
    /// it has been silent for long. Asks the engine, if it keeps a ring.
    ///
    /// What is held back is forgotten: the engine may have begun anew in between, and a later replay brings
    /// what is of the present incarnation.
    pub fn verify(&mut self) -> Vec<Action<P>> {
        let mut out = Vec::new();
        match self.phase {
            Phase::Following => self.catch_up(&mut out),
            Phase::Replaying(_) => {
                self.discard_hold(DropCause::Refetched, &mut out);
                self.unseen = true;
            }
            Phase::AwaitingEpoch => {
                if self.rules.replay == ReplayOffer::Offered {
                    self.discard_hold(DropCause::Refetched, &mut out);
                }
            }
        }
        out
    }

    /// A message came from the publisher's live socket.
    pub fn live(&mut self, message: Message<P>) -> Vec<Action<P>> {
        let mut out = Vec::new();
        if self.phase == Phase::AwaitingEpoch {
            if self.hold.contradicts(&message) {
                self.discard_hold(DropCause::Stale, &mut out);
            }
            self.hold_back(message, &mut out);
        } else if self.is_of_later_incarnation(&message) {
            self.discard_hold(DropCause::Stale, &mut out);
            self.await_epoch(RestartCause::Sequence, &mut out);
            self.hold_back(message, &mut out);
        } else if self.high.is_some_and(|high| message.seq <= high.seq) {
            out.push(dropped(message.seq, DropCause::Duplicate));
        } else if self.phase != Phase::Following {
            self.live_during_replay(message, &mut out);
        } else if message.seq == self.next && !self.unanchored && !self.is_left_over(&message) {
            self.deliver(message, &mut out);
        } else {
            self.live_out_of_line(message, &mut out);
        }
        out
    }

    /// The worker's incarnation is `epoch`, because this rank or another one began anew.
    ///
    /// An epoch that is not above the feed's own is fenced: it does nothing.
    pub fn epoch_raised(&mut self, epoch: Epoch) -> Vec<Action<P>> {
        let mut out = Vec::new();
        if epoch <= self.epoch {
            return out;
        }
        let by_this_rank = self.phase == Phase::AwaitingEpoch;
        self.epoch = epoch;
        self.high = None;
        self.next = EventSeq::new(0);
        self.unseen = false;
        self.unanchored = false;
        self.resync = None;
        match self.rules.replay {
            ReplayOffer::Offered => {
                if !by_this_rank {
                    // It may be of either incarnation; the replay brings what is of the present one.
                    self.discard_hold(DropCause::Stale, &mut out);
                }
                self.ask(EventSeq::new(0), 1, &mut out);
            }
            ReplayOffer::Absent => self.settle_without_replay(&mut out),
        }
        out
    }

    /// A reader of the log misses what follows `from`, itself included, in `epoch`.
    ///
    /// What was never published in this epoch cannot be missed: such a request does nothing.
    pub fn resync(&mut self, epoch: Epoch, from: EventSeq) -> Vec<Action<P>> {
        let mut out = Vec::new();
        let published = self.high.is_some_and(|high| from <= high.seq);
        if epoch != self.epoch || !published {
            return out;
        }
        match (self.phase, self.rules.replay) {
            // Everything will be published anew.
            (Phase::AwaitingEpoch, _) => {}
            (_, ReplayOffer::Absent) => self.reset_at_high(&mut out),
            (Phase::Following, ReplayOffer::Offered) => self.begin_resync(from, &mut out),
            (Phase::Replaying(_), ReplayOffer::Offered) => {
                if from < self.next {
                    let earlier = self.resync.map_or(from, |waiting| waiting.min(from));
                    self.resync = Some(earlier);
                }
            }
        }
        out
    }

    fn live_during_replay(&mut self, message: Message<P>, out: &mut Vec<Action<P>>) {
        if self.hold.contradicts(&message) {
            self.discard_hold(DropCause::Stale, out);
            if self.high.is_some() {
                self.await_epoch(RestartCause::Sequence, out);
            }
        }
        self.hold_back(message, out);
    }

    fn live_out_of_line(&mut self, message: Message<P>, out: &mut Vec<Action<P>>) {
        if self.next < message.seq {
            out.push(Action::Gap {
                expected: self.next,
                found: message.seq,
            });
        }
        match self.rules.replay {
            ReplayOffer::Offered => {
                self.hold_back(message, out);
                self.catch_up(out);
            }
            ReplayOffer::Absent => {
                self.lose_before(&message, out);
                self.deliver(message, out);
            }
        }
    }

    /// Asks for what follows the newest message delivered.
    pub(crate) fn catch_up(&mut self, out: &mut Vec<Action<P>>) {
        if self.rules.replay == ReplayOffer::Offered {
            self.ask(self.anchor(), 1, out);
        }
    }

    pub(crate) fn begin_resync(&mut self, from: EventSeq, out: &mut Vec<Action<P>>) {
        self.next = from;
        self.ask(from, 1, out);
    }

    pub(crate) fn ask(&mut self, from: EventSeq, attempt: u32, out: &mut Vec<Action<P>>) {
        self.phase = Phase::Replaying(Replay {
            asked: from,
            attempt,
            answer: Answer::Nothing,
        });
        out.push(Action::AskReplay { from, attempt });
    }

    /// The newest message delivered, else the first one.
    pub(crate) fn anchor(&self) -> EventSeq {
        EventSeq::new(self.next.get().saturating_sub(1))
    }

    /// A lower-or-equal number with a newer timestamp than the newest one published.
    pub(crate) fn is_of_later_incarnation(&self, message: &Message<P>) -> bool {
        self.high
            .is_some_and(|high| message.seq <= high.seq && high.engine_ts < message.engine_ts)
    }

    /// Older than the newest one published: left over from an earlier incarnation, or the engine's clock
    /// was set back. The engine's ring tells which; without one it is believed.
    pub(crate) fn is_left_over(&self, message: &Message<P>) -> bool {
        self.rules.replay == ReplayOffer::Offered
            && self
                .high
                .is_some_and(|high| message.engine_ts < high.engine_ts)
    }

    pub(crate) fn await_epoch(&mut self, cause: RestartCause, out: &mut Vec<Action<P>>) {
        self.phase = Phase::AwaitingEpoch;
        self.unseen = false;
        self.resync = None;
        let above = self.epoch;
        out.push(Action::RaiseEpoch { above, cause });
    }

    pub(crate) fn deliver(&mut self, message: Message<P>, out: &mut Vec<Action<P>>) {
        self.advance_high(message.seq, message.engine_ts);
        self.next = message.seq.next();
        self.known = true;
        self.unanchored = false;
        out.push(Action::Deliver {
            epoch: self.epoch,
            message,
        });
    }

    /// Gives up what is missing before `message`, which must not be the first there can be.
    pub(crate) fn lose_before(&mut self, message: &Message<P>, out: &mut Vec<Action<P>>) {
        let seq = EventSeq::new(message.seq.get().saturating_sub(1));
        out.push(Action::Reset {
            position: Position {
                epoch: self.epoch,
                seq,
                engine_ts: message.engine_ts,
            },
            reason: self.loss(),
        });
        self.advance_high(seq, message.engine_ts);
        self.next = message.seq;
        self.known = true;
    }

    /// Gives up what a resync asked for.
    pub(crate) fn reset_at_high(&mut self, out: &mut Vec<Action<P>>) {
        if let Some(position) = self.position() {
            out.push(Action::Reset {
                position,
                reason: self.loss(),
            });
            self.next = position.seq.next();
        }
    }

    pub(crate) fn discard_hold(&mut self, cause: DropCause, out: &mut Vec<Action<P>>) {
        for seq in self.hold.clear() {
            out.push(dropped(seq, cause));
        }
    }

    fn loss(&self) -> ResetReason {
        match self.rules.replay {
            _ if !self.known => ResetReason::AttachedLate,
            ReplayOffer::Offered => ResetReason::ReplayGone,
            ReplayOffer::Absent => ResetReason::NoReplay,
        }
    }

    fn advance_high(&mut self, seq: EventSeq, engine_ts: Timestamp) {
        if self.high.is_none_or(|high| high.seq < seq) {
            self.high = Some(Mark { seq, engine_ts });
        }
    }

    fn hold_back(&mut self, message: Message<P>, out: &mut Vec<Action<P>>) {
        let seq = message.seq;
        match self.hold.offer(message) {
            Held::Kept => {}
            Held::Known => out.push(dropped(seq, DropCause::Duplicate)),
            Held::Full => {
                self.unseen = true;
                out.push(dropped(seq, DropCause::HoldFull));
            }
        }
    }
}

pub(crate) fn dropped<P>(seq: EventSeq, cause: DropCause) -> Action<P> {
    Action::Drop { seq, cause }
}
