//! What a replay brings, and how the stream goes on when it ends.

use crate::feed::{Answer, Phase, Replay, dropped};
use crate::{Action, DropCause, Message, RankFeed, RestartCause};

/// What is known once live messages may be delivered again.
#[derive(Clone, Copy)]
struct Ending {
    /// Whether the engine has said all it keeps, so that what it left out and is older is not its own.
    complete: bool,
    /// The attempt a further replay would be; none when what is missing now is lost.
    again: Option<u32>,
}

impl<P> RankFeed<P> {
    /// A message came from the replay that was asked for last.
    pub fn replayed(&mut self, message: Message<P>) -> Vec<Action<P>> {
        let mut out = Vec::new();
        let Phase::Replaying(mut replay) = self.phase else {
            out.push(dropped(message.seq, DropCause::Unasked));
            return out;
        };
        // Without the newest message published, nothing shows that the same engine answers.
        let unanchored = replay.answer == Answer::Nothing && replay.asked < self.next;
        let restarted = self.is_of_later_incarnation(&message) || self.replaces_newest(&message);
        if restarted || (unanchored && message.seq == self.next) {
            let cause = if restarted {
                RestartCause::Timestamp
            } else {
                RestartCause::RingStart
            };
            self.discard_hold(DropCause::Refetched, &mut out);
            self.await_epoch(cause, &mut out);
            return out;
        }
        if message.seq < self.next {
            replay.answer = replay.answer.max(Answer::Known);
        } else if message.seq == self.next {
            replay.answer = Answer::Progress;
            self.deliver(message, &mut out);
        } else if replay.answer == Answer::Progress {
            // The engine had the missing one, or it was dropped by now: a replay that starts there tells.
            self.ask(self.anchor(), 1, &mut out);
            return out;
        } else {
            replay.answer = Answer::Progress;
            self.lose_before(&message, &mut out);
            self.deliver(message, &mut out);
        }
        self.phase = Phase::Replaying(replay);
        out
    }

    /// The replay that was asked for last has come to its end marker.
    pub fn replay_ended(&mut self) -> Vec<Action<P>> {
        let mut out = Vec::new();
        let Phase::Replaying(replay) = self.phase else {
            return out;
        };
        if replay.answer == Answer::Nothing && 0 < replay.asked.get() {
            // An engine keeps at least its newest message, so it has not come that far: it began anew.
            self.ask(domain::EventSeq::new(0), replay.attempt, &mut out);
            return out;
        }
        if replay.answer == Answer::Nothing && self.high.is_some() && self.hold.first().is_none() {
            // It keeps nothing at all, although this rank has spoken: it began anew and is silent yet.
            self.await_epoch(RestartCause::EmptyReplay, &mut out);
            return out;
        }
        let again = match replay.answer {
            Answer::Progress => Some(1),
            Answer::Nothing | Answer::Known => self.next_attempt(replay),
        };
        self.unanchored = replay.answer == Answer::Nothing && self.high.is_some();
        let ending = Ending {
            complete: true,
            again,
        };
        self.settle(ending, &mut out);
        out
    }

    /// The replay that was asked for last could not be had, broke off or fell silent.
    pub fn replay_failed(&mut self) -> Vec<Action<P>> {
        let mut out = Vec::new();
        let Phase::Replaying(replay) = self.phase else {
            return out;
        };
        if replay.answer == Answer::Progress {
            self.ask(self.anchor(), 1, &mut out);
        } else if let Some(attempt) = self.next_attempt(replay) {
            self.ask(replay.asked, attempt, &mut out);
        } else {
            self.unseen = false;
            self.settle_without_replay(&mut out);
        }
        out
    }

    pub(crate) fn settle_without_replay(&mut self, out: &mut Vec<Action<P>>) {
        let ending = Ending {
            complete: false,
            again: None,
        };
        self.settle(ending, out);
    }

    /// Merges what was held back, and follows, or asks for what is still missing.
    fn settle(&mut self, ending: Ending, out: &mut Vec<Action<P>>) {
        self.phase = Phase::Following;
        if self.high.is_some_and(|high| self.next <= high.seq) {
            self.reset_at_high(out);
        }
        self.merge(ending, out);
        if self.phase != Phase::Following {
            return;
        }
        if std::mem::take(&mut self.unseen) {
            self.catch_up(out);
        } else if let Some(from) = self.resync.take() {
            self.begin_resync(from, out);
        }
    }

    fn merge(&mut self, ending: Ending, out: &mut Vec<Action<P>>) {
        while let Some(first) = self.hold.first() {
            if self.is_of_later_incarnation(first) {
                self.await_epoch(RestartCause::Sequence, out);
                return;
            }
            let seq = first.seq;
            let missing = self.next < seq;
            let stale = ending.complete && self.is_left_over(first);
            let unsure = !stale && (missing || (self.unanchored && self.next == seq));
            if let (true, Some(attempt)) = (unsure, ending.again) {
                if missing && attempt == 1 {
                    let expected = self.next;
                    out.push(Action::Gap {
                        expected,
                        found: seq,
                    });
                }
                self.ask(self.anchor(), attempt, out);
                return;
            }
            if unsure && !missing {
                self.await_epoch(RestartCause::EmptyReplay, out);
                return;
            }
            let Some(message) = self.hold.pop_first() else {
                return;
            };
            if seq < self.next {
                out.push(dropped(seq, DropCause::Replayed));
            } else if stale {
                out.push(dropped(seq, DropCause::Stale));
            } else {
                if missing {
                    self.lose_before(&message, out);
                }
                self.deliver(message, out);
            }
        }
    }

    /// The newest message published, with another timestamp: only another engine can have it.
    fn replaces_newest(&self, message: &Message<P>) -> bool {
        self.high
            .is_some_and(|high| message.seq == high.seq && message.engine_ts != high.engine_ts)
    }

    fn next_attempt(&self, replay: Replay) -> Option<u32> {
        (replay.attempt < self.rules.attempts).then(|| replay.attempt.saturating_add(1))
    }
}
