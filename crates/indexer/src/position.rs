//! Where one target's stream of batches stands: what comes next, what is a repeat, what is missing.

use bus::Offset;
use domain::{EventSeq, KvBatch, KvOp};

/// The most parts of one batch: far more than any engine's largest batch needs at 256 KiB a part, and few
/// enough that what is held of one target stays small.
pub(crate) const MAX_PARTS: u32 = 256;

/// One target's place in its stream.
#[derive(Debug, Default)]
pub(crate) struct Position {
    /// The last batch applied; none before the first.
    cursor: Option<EventSeq>,
    /// The newest batch known of, where earlier ones are missing.
    awaiting: Option<EventSeq>,
    pending: Option<Pending>,
}

/// A batch of which some parts are still to come.
#[derive(Debug)]
struct Pending {
    seq: EventSeq,
    parts: u32,
    next: u32,
    ops: Vec<KvOp>,
    /// The last record of the partition before the first part.
    before: Option<Offset>,
}

/// What is to be done with a batch, or a part of one.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is whole, and next: apply these operations.
    Apply(Vec<KvOp>),
    /// It is next, and other parts are still to come.
    Held,
    /// It was applied before.
    Duplicate,
    /// Something before it is missing; it will come again after that.
    Hole,
}

impl Position {
    /// Takes up where a store left off.
    pub(crate) fn at(cursor: Option<EventSeq>, awaiting: Option<EventSeq>) -> Self {
        Self {
            cursor,
            awaiting,
            pending: None,
        }
    }

    pub(crate) fn cursor(&self) -> Option<EventSeq> {
        self.cursor
    }

    pub(crate) fn awaiting(&self) -> Option<EventSeq> {
        self.awaiting
    }

    /// The next batch wanted.
    pub(crate) fn next(&self) -> EventSeq {
        self.cursor.map_or(EventSeq::new(0), EventSeq::next)
    }

    /// Whether batches are known to be missing.
    pub(crate) fn is_suspect(&self) -> bool {
        self.awaiting.is_some()
    }

    /// From where the partition must be read again to get the held parts: the record before them.
    pub(crate) fn held_since(&self) -> Option<Option<Offset>> {
        self.pending.as_ref().map(|it| it.before)
    }

    /// Forgets the cursor: what it stood for, the log or the target's blocks, is not there any more. What the
    /// target has is void as soon as its stream begins again, and all that it has said is missing till then.
    pub(crate) fn lose(&mut self) {
        self.pending = None;
        let newest = self.awaiting.max(self.cursor.take());
        self.awaiting = newest.or(Some(EventSeq::new(0)));
    }

    /// Judges a batch. `before` is the last record of the partition before it; `partial` whether the
    /// target's claims are: then a replay from 0 is welcome and begins everything anew.
    pub(crate) fn take(
        &mut self,
        batch: KvBatch,
        before: Option<Offset>,
        partial: bool,
    ) -> Verdict {
        let KvBatch {
            seq, part, parts, ..
        } = batch;
        if self.cursor.is_some_and(|cursor| seq <= cursor) {
            let begins_anew = partial && seq == EventSeq::new(0) && part == 0;
            if !begins_anew {
                return Verdict::Duplicate;
            }
            self.lose();
        }
        let mut pending = match self.pending.take() {
            Some(pending) if pending.seq == seq && pending.parts == parts => pending,
            other => {
                let is_next =
                    seq == self.next() || matches!(batch.ops[..], [KvOp::Reset { .. }, ..]);
                if part != 0 || !is_next {
                    self.pending = other;
                    return self.hole(seq);
                }
                Pending {
                    seq,
                    parts,
                    next: 0,
                    ops: self.opening(),
                    before,
                }
            }
        };
        if part != pending.next {
            let repeated = part < pending.next;
            self.pending = Some(pending);
            return if repeated {
                Verdict::Duplicate
            } else {
                self.hole(seq)
            };
        }
        pending.ops.extend(batch.ops);
        pending.next += 1;
        if pending.next < parts {
            self.pending = Some(pending);
            return Verdict::Held;
        }
        self.cursor = Some(seq);
        self.awaiting = self.awaiting.filter(|awaiting| seq < *awaiting);
        Verdict::Apply(pending.ops)
    }

    /// The first batch of a stream begins with nothing: what the target still has from a lost log is void.
    fn opening(&self) -> Vec<KvOp> {
        match self.cursor {
            None => vec![KvOp::Cleared],
            Some(_) => Vec::new(),
        }
    }

    fn hole(&mut self, seq: EventSeq) -> Verdict {
        self.awaiting = self.awaiting.max(Some(seq));
        Verdict::Hole
    }
}

#[cfg(test)]
mod tests {
    use domain::{ResetReason, Timestamp};

    use super::*;

    fn part(seq: u64, part: u32, parts: u32) -> KvBatch {
        KvBatch {
            target: "w#1/0".parse().unwrap(),
            seq: EventSeq::new(seq),
            part,
            parts,
            engine_ts: Timestamp::ZERO,
            ops: vec![KvOp::Cleared],
        }
    }

    fn reset(seq: u64) -> KvBatch {
        let reason = ResetReason::ReplayGone;
        KvBatch {
            ops: vec![KvOp::Reset { reason }],
            ..part(seq, 0, 1)
        }
    }

    /// Feeds `(seq, part, parts)`, and compares a letter for each verdict.
    fn check(position: &mut Position, batches: &[(u64, u32, u32)], expected: &str) {
        let letter = |&(seq, number, parts): &(u64, u32, u32)| match position.take(
            part(seq, number, parts),
            None,
            false,
        ) {
            Verdict::Apply(_) => 'A',
            Verdict::Held => 'h',
            Verdict::Duplicate => 'd',
            Verdict::Hole => 'x',
        };
        let verdicts: String = batches.iter().map(letter).collect();
        assert_eq!(verdicts, expected);
    }

    #[test]
    fn each_batch_is_applied_once_and_in_order() {
        let mut position = Position::default();
        let batches = [(0, 0, 1), (1, 0, 1), (1, 0, 1), (0, 0, 1), (2, 0, 1)];
        check(&mut position, &batches, "AAddA");
        assert!(!position.is_suspect());
    }

    #[test]
    fn a_first_batch_above_zero_and_a_gap_are_holes_until_filled() {
        let mut position = Position::default();
        check(&mut position, &[(17, 0, 1)], "x");
        assert_eq!(position.next(), EventSeq::new(0));

        let mut position = Position::at(Some(EventSeq::new(4)), None);
        check(&mut position, &[(6, 0, 1), (7, 0, 1), (5, 0, 1)], "xxA");
        assert!(position.is_suspect());
        check(&mut position, &[(6, 0, 1), (7, 0, 1)], "AA");
        assert!(!position.is_suspect());
    }

    #[test]
    fn the_cursor_moves_when_all_parts_are_in() {
        let mut position = Position::at(Some(EventSeq::new(4)), None);
        let batches = [(5, 0, 3), (5, 0, 3), (5, 1, 3)];
        check(&mut position, &batches, "hdh");
        assert_eq!(position.cursor(), Some(EventSeq::new(4)));
        check(&mut position, &[(5, 2, 3), (5, 2, 3)], "Ad");
        assert_eq!(position.cursor(), Some(EventSeq::new(5)));
    }

    #[test]
    fn a_batch_cut_anew_replaces_the_parts_held() {
        let mut position = Position::at(Some(EventSeq::new(4)), None);
        let batches = [(5, 1, 2), (5, 0, 3), (5, 2, 3), (5, 0, 2), (5, 1, 2)];
        check(&mut position, &batches, "xhxhA");
    }

    #[test]
    fn a_reset_stands_wherever_it_says_and_what_follows_it_is_next() {
        let mut position = Position::default();
        check(&mut position, &[(17, 0, 1)], "x");
        let verdict = position.take(reset(16), None, false);
        assert!(matches!(verdict, Verdict::Apply(_)));
        assert!(position.is_suspect());
        check(&mut position, &[(17, 0, 1)], "A");
        assert!(!position.is_suspect());
        assert_eq!(position.take(reset(16), None, false), Verdict::Duplicate);
    }

    #[test]
    fn a_lost_cursor_awaits_what_it_had_and_begins_with_nothing() {
        let mut position = Position::at(Some(EventSeq::new(1)), None);
        position.lose();
        assert!(position.is_suspect());
        let Verdict::Apply(ops) = position.take(reset(0), None, false) else {
            panic!("a reset is next");
        };
        assert_eq!(ops[0], KvOp::Cleared);
        check(&mut position, &[(1, 0, 1)], "A");
        assert!(!position.is_suspect());
    }

    #[test]
    fn a_replay_from_zero_is_a_repeat_unless_the_claims_are_partial() {
        let mut position = Position::at(Some(EventSeq::new(9)), None);
        assert_eq!(
            position.take(part(0, 0, 1), None, false),
            Verdict::Duplicate
        );
        let verdict = position.take(part(0, 0, 1), None, true);
        assert!(matches!(verdict, Verdict::Apply(_)));
        assert_eq!(position.awaiting(), Some(EventSeq::new(9)));
        check(&mut position, &[(1, 0, 1)], "A");
    }
}
