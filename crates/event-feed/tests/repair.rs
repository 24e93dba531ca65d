//! Gaps: seen on whichever rank they are, asked for once, and closed without moving anything back.

use domain::{Epoch, EventSeq, Timestamp};
use event_feed::{Action, Message, Position, RankFeed, ReplayOffer, Rules};
use proptest::prelude::*;

const RULES: Rules = Rules {
    replay: ReplayOffer::Offered,
    hold_limit: 1_024,
    attempts: 4,
};

fn message(seq: u64) -> Message<()> {
    Message {
        seq: EventSeq::new(seq),
        engine_ts: Timestamp::from_micros(10 * seq + 1),
        payload: (),
    }
}

fn position(seq: u64) -> Position {
    Position {
        epoch: Epoch::FIRST,
        seq: EventSeq::new(seq),
        engine_ts: message(seq).engine_ts,
    }
}

fn delivered(actions: &[Action<()>]) -> Vec<u64> {
    let seq = |action: &Action<()>| match action {
        Action::Deliver { message, .. } => Some(message.seq.get()),
        _ => None,
    };
    actions.iter().filter_map(seq).collect()
}

fn asked(actions: &[Action<()>]) -> Vec<u64> {
    let from = |action: &Action<()>| match action {
        Action::AskReplay { from, .. } => Some(from.get()),
        _ => None,
    };
    actions.iter().filter_map(from).collect()
}

fn gaps(actions: &[Action<()>]) -> Vec<(u64, u64)> {
    let gap = |action: &Action<()>| match action {
        Action::Gap { expected, found } => Some((expected.get(), found.get())),
        _ => None,
    };
    actions.iter().filter_map(gap).collect()
}

proptest! {
    /// <https://github.com/ai-dynamo/dynamo/pull/7463> (BC-34): whatever the first number is, nothing before it is
    /// taken for read.
    #[test]
    fn a_first_number_above_zero_is_a_gap_from_zero_until_it_is_filled(
        first in 1_u64..300,
        kept in 0_u64..300,
        more in 0_u64..20,
    ) {
        let mut feed = RankFeed::attach(Epoch::FIRST, RULES);
        let mut all = feed.live(message(first));
        prop_assert_eq!(gaps(&all), [(0, first)]);
        prop_assert_eq!(asked(&all), [0]);
        prop_assert!(delivered(&all).is_empty());
        for seq in first + 1..=first + more {
            all.extend(feed.live(message(seq)));
        }
        prop_assert!(delivered(&all).is_empty());
        // The ring holds the newest `kept` and what followed, at least the newest.
        let begin = (first + 1).saturating_sub(kept).min(first);
        for seq in begin..=first + more {
            all.extend(feed.replayed(message(seq)));
        }
        all.extend(feed.replay_ended());
        prop_assert_eq!(delivered(&all), (begin..=first + more).collect::<Vec<_>>());
        let lost = all.iter().find_map(|it| match it {
            Action::Reset { position, .. } => Some(position.seq.get()),
            _ => None,
        });
        prop_assert_eq!(lost, begin.checked_sub(1));
        prop_assert_eq!(asked(&all), [0]);
        prop_assert!(feed.is_following());
    }

    /// <https://github.com/ai-dynamo/dynamo/pull/7072> (BC-35): the answer to a gap, whether whole or cut, never
    /// moves the cursor back, and one repair closes it.
    #[test]
    fn one_replay_closes_a_gap_and_the_cursor_stands_at_the_last_live_message(
        before in 0_u64..200,
        missing in 1_u64..100,
        during in 0_u64..50,
        cut in 0_u64..100,
        after in 1_u64..50,
    ) {
        let mut feed = RankFeed::resume(position(before), RULES);
        let found = before + missing + 1;
        let mut all = feed.live(message(found));
        for seq in found + 1..=found + during {
            all.extend(feed.live(message(seq)));
        }
        // The ring has lost the first `cut` of what is missing; it was asked from the newest one published on.
        let lost = cut.min(missing);
        let begin = if lost == 0 { before } else { before + 1 + lost };
        // With the newest one published gone, the one after it must not be taken for its successor.
        prop_assume!(begin != before + 1);
        let last = found + during;
        for seq in begin..=last {
            all.extend(feed.replayed(message(seq)));
        }
        all.extend(feed.replay_ended());
        for seq in last + 1..=last + after {
            all.extend(feed.live(message(seq)));
        }
        prop_assert_eq!(gaps(&all), [(before + 1, found)]);
        prop_assert_eq!(asked(&all), [before]);
        let whole = begin.max(before + 1);
        prop_assert_eq!(delivered(&all), (whole..=last + after).collect::<Vec<_>>());
        prop_assert_eq!(feed.position(), Some(position(last + after)));
        prop_assert!(feed.is_following());
    }

    /// <https://github.com/ai-dynamo/dynamo/pull/5873> (BC-36): each rank is judged by its own numbers.
    #[test]
    fn a_gap_shows_on_the_rank_that_has_it_and_on_no_other(
        lost in prop::collection::vec(prop::collection::vec(any::<bool>(), 1..20), 1..8),
    ) {
        for lost in lost {
            let mut feed = RankFeed::attach(Epoch::FIRST, RULES);
            let mut all = Vec::new();
            for (seq, lost) in (0..).zip(&lost) {
                if !lost {
                    all.extend(feed.live(message(seq)));
                }
            }
            let has_gap = lost.windows(2).any(|it| it == [true, false]);
            prop_assert_eq!(!gaps(&all).is_empty(), has_gap);
            prop_assert_eq!(feed.is_following(), !has_gap);
        }
    }
}
