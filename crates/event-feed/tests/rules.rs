//! The rules of one rank's stream, one case each.

use domain::{Epoch, EventSeq, ResetReason, Timestamp};
use event_feed::{
    Action, DropCause, Message, Position, RankFeed, ReplayOffer, RestartCause, Rules,
};

const RULES: Rules = Rules {
    replay: ReplayOffer::Offered,
    hold_limit: 4,
    attempts: 3,
};
const WITHOUT_REPLAY: Rules = Rules {
    replay: ReplayOffer::Absent,
    ..RULES
};

fn message(seq: u64, at: u64) -> Message<()> {
    Message {
        seq: EventSeq::new(seq),
        engine_ts: Timestamp::from_micros(at),
        payload: (),
    }
}

fn deliver(epoch: u64, seq: u64, at: u64) -> Action<()> {
    Action::Deliver {
        epoch: Epoch::new(epoch),
        message: message(seq, at),
    }
}

fn reset(epoch: u64, seq: u64, at: u64, reason: ResetReason) -> Action<()> {
    Action::Reset {
        position: position(epoch, seq, at),
        reason,
    }
}

fn position(epoch: u64, seq: u64, at: u64) -> Position {
    Position {
        epoch: Epoch::new(epoch),
        seq: EventSeq::new(seq),
        engine_ts: Timestamp::from_micros(at),
    }
}

fn ask(from: u64, attempt: u32) -> Action<()> {
    Action::AskReplay {
        from: EventSeq::new(from),
        attempt,
    }
}

fn raise(cause: RestartCause) -> Action<()> {
    Action::RaiseEpoch {
        above: Epoch::FIRST,
        cause,
    }
}

fn gap(expected: u64, found: u64) -> Action<()> {
    Action::Gap {
        expected: EventSeq::new(expected),
        found: EventSeq::new(found),
    }
}

fn dropped(seq: u64, cause: DropCause) -> Action<()> {
    Action::Drop {
        seq: EventSeq::new(seq),
        cause,
    }
}

/// A feed that has published 0 to `seq` in epoch 1, message n at time 10 n.
fn following(seq: u64, rules: Rules) -> RankFeed<()> {
    RankFeed::resume(position(1, seq, 10 * seq), rules)
}

#[test]
fn attaching_asks_for_everything_and_then_follows() {
    let mut feed = RankFeed::attach(Epoch::FIRST, RULES);
    assert_eq!(feed.verify(), [ask(0, 1)]);
    assert_eq!(feed.replayed(message(0, 5)), [deliver(1, 0, 5)]);
    assert_eq!(feed.replayed(message(1, 6)), [deliver(1, 1, 6)]);
    assert_eq!(feed.replay_ended(), []);
    assert_eq!(feed.live(message(2, 7)), [deliver(1, 2, 7)]);
    assert_eq!(feed.position(), Some(position(1, 2, 7)));
}

#[test]
fn attaching_late_to_a_truncated_ring_resets_before_the_first_that_is_left() {
    let mut feed = RankFeed::attach(Epoch::FIRST, RULES);
    feed.verify();
    assert_eq!(
        feed.replayed(message(17, 170)),
        [
            reset(1, 16, 170, ResetReason::AttachedLate),
            deliver(1, 17, 170)
        ]
    );
}

#[test]
fn a_first_number_above_zero_is_a_gap_from_zero() {
    let mut feed = RankFeed::attach(Epoch::FIRST, RULES);
    assert_eq!(feed.live(message(17, 170)), [gap(0, 17), ask(0, 1)]);
    let mut deaf = RankFeed::attach(Epoch::FIRST, WITHOUT_REPLAY);
    assert_eq!(
        deaf.live(message(17, 170)),
        [
            gap(0, 17),
            reset(1, 16, 170, ResetReason::AttachedLate),
            deliver(1, 17, 170)
        ]
    );
}

#[test]
fn a_gap_is_filled_before_what_showed_it() {
    let mut feed = following(10, RULES);
    assert_eq!(feed.live(message(13, 130)), [gap(11, 13), ask(10, 1)]);
    assert_eq!(feed.live(message(14, 140)), []);
    assert_eq!(feed.replayed(message(10, 100)), []);
    assert_eq!(feed.replayed(message(11, 110)), [deliver(1, 11, 110)]);
    assert_eq!(feed.replayed(message(12, 120)), [deliver(1, 12, 120)]);
    assert_eq!(feed.replayed(message(13, 130)), [deliver(1, 13, 130)]);
    assert_eq!(
        feed.replay_ended(),
        [dropped(13, DropCause::Replayed), deliver(1, 14, 140)]
    );
    assert!(feed.is_following());
}

#[test]
fn a_replay_that_starts_later_than_asked_resets() {
    let mut feed = following(10, RULES);
    feed.live(message(20, 200));
    assert_eq!(
        feed.replayed(message(15, 150)),
        [
            reset(1, 14, 150, ResetReason::ReplayGone),
            deliver(1, 15, 150)
        ]
    );
}

#[test]
fn a_ring_that_lacks_the_last_message_published_is_taken_for_another_engines() {
    let mut feed = following(10, RULES);
    feed.verify();
    assert_eq!(
        feed.replayed(message(11, 110)),
        [raise(RestartCause::RingStart)]
    );
}

#[test]
fn a_restart_that_is_silent_yet_shows_in_a_ring_that_is_empty() {
    let mut feed = following(10, RULES);
    feed.verify();
    assert_eq!(feed.replay_ended(), [ask(0, 1)]);
    assert_eq!(feed.replay_ended(), [raise(RestartCause::EmptyReplay)]);
    assert_eq!(feed.epoch_raised(Epoch::new(2)), [ask(0, 1)]);
    assert_eq!(feed.replay_ended(), []);
    assert_eq!(feed.live(message(0, 500)), [deliver(2, 0, 500)]);
}

#[test]
fn a_ring_that_lacks_the_newest_message_while_the_engine_speaks_is_asked_again() {
    let mut feed = following(10, RULES);
    feed.verify();
    assert_eq!(feed.replay_ended(), [ask(0, 1)]);
    assert_eq!(feed.live(message(11, 500)), []);
    assert_eq!(feed.replay_ended(), [ask(10, 2)]);
    assert_eq!(
        feed.replayed(message(10, 490)),
        [
            dropped(11, DropCause::Refetched),
            raise(RestartCause::Timestamp)
        ]
    );
}

#[test]
fn an_empty_ring_of_a_rank_that_has_not_spoken_shows_nothing() {
    let mut feed = RankFeed::<()>::attach(Epoch::FIRST, RULES);
    assert_eq!(feed.verify(), [ask(0, 1)]);
    assert_eq!(feed.replay_ended(), []);
    assert!(feed.is_following());
}

#[test]
fn a_gap_without_a_replay_endpoint_resets_at_once() {
    let mut feed = following(10, WITHOUT_REPLAY);
    assert_eq!(
        feed.live(message(13, 130)),
        [
            gap(11, 13),
            reset(1, 12, 130, ResetReason::NoReplay),
            deliver(1, 13, 130)
        ]
    );
}

#[test]
fn an_older_or_equal_timestamp_makes_a_repeated_number_a_duplicate() {
    let mut feed = following(10, RULES);
    assert_eq!(
        feed.live(message(10, 100)),
        [dropped(10, DropCause::Duplicate)]
    );
    assert_eq!(
        feed.live(message(3, 30)),
        [dropped(3, DropCause::Duplicate)]
    );
}

#[test]
fn a_newer_timestamp_makes_a_repeated_number_a_restart() {
    let mut feed = following(10, RULES);
    assert_eq!(feed.live(message(0, 500)), [raise(RestartCause::Sequence)]);
    assert_eq!(feed.live(message(1, 510)), []);
    assert_eq!(feed.epoch_raised(Epoch::new(2)), [ask(0, 1)]);
    assert_eq!(feed.replayed(message(0, 500)), [deliver(2, 0, 500)]);
    assert_eq!(
        feed.replay_ended(),
        [dropped(0, DropCause::Replayed), deliver(2, 1, 510)]
    );
}

#[test]
fn a_rank_that_has_not_spoken_in_the_epoch_joins_it_when_it_restarts() {
    let mut feed = following(10, RULES);
    assert_eq!(feed.epoch_raised(Epoch::new(2)), [ask(0, 1)]);
    assert_eq!(feed.replay_ended(), []);
    assert_eq!(feed.live(message(0, 500)), [deliver(2, 0, 500)]);
}

#[test]
fn a_lower_or_equal_epoch_is_fenced() {
    let mut feed = following(10, RULES);
    assert_eq!(feed.epoch_raised(Epoch::FIRST), []);
    assert_eq!(feed.live(message(11, 110)), [deliver(1, 11, 110)]);
}

#[test]
fn a_restart_while_nobody_listened_shows_in_the_timestamp_of_the_last_message() {
    let mut feed = following(10, RULES);
    assert_eq!(feed.verify(), [ask(10, 1)]);
    assert_eq!(
        feed.replayed(message(10, 900)),
        [raise(RestartCause::Timestamp)]
    );
}

#[test]
fn a_restart_that_has_not_come_as_far_shows_in_an_empty_replay() {
    let mut feed = following(10, RULES);
    feed.verify();
    assert_eq!(feed.replay_ended(), [ask(0, 1)]);
    assert_eq!(
        feed.replayed(message(0, 900)),
        [raise(RestartCause::Timestamp)]
    );
}

#[test]
fn a_restart_without_a_replay_endpoint_goes_on_with_what_came() {
    let mut feed = following(10, WITHOUT_REPLAY);
    feed.live(message(2, 500));
    assert_eq!(
        feed.epoch_raised(Epoch::new(2)),
        [reset(2, 1, 500, ResetReason::NoReplay), deliver(2, 2, 500)]
    );
}

#[test]
fn beyond_the_hold_the_newest_are_dropped_and_asked_for_afterwards() {
    let mut feed = following(10, RULES);
    feed.live(message(12, 120));
    for seq in 13..=15 {
        assert_eq!(feed.live(message(seq, 10 * seq)), []);
    }
    assert_eq!(
        feed.live(message(16, 160)),
        [dropped(16, DropCause::HoldFull)]
    );
    feed.replayed(message(10, 100));
    feed.replayed(message(11, 110));
    let actions = feed.replay_ended();
    assert_eq!(actions.last(), Some(&ask(15, 1)));
    feed.replayed(message(15, 150));
    assert_eq!(feed.replayed(message(16, 160)), [deliver(1, 16, 160)]);
}

#[test]
fn failed_replays_are_asked_again_and_then_given_up() {
    let mut feed = following(10, RULES);
    feed.live(message(13, 130));
    assert_eq!(feed.replay_failed(), [ask(10, 2)]);
    assert_eq!(feed.replay_failed(), [ask(10, 3)]);
    assert_eq!(
        feed.replay_failed(),
        [
            reset(1, 12, 130, ResetReason::ReplayGone),
            deliver(1, 13, 130)
        ]
    );
}

#[test]
fn a_replay_that_broke_off_goes_on_where_it_was() {
    let mut feed = following(10, RULES);
    feed.live(message(20, 200));
    feed.replayed(message(10, 100));
    feed.replayed(message(11, 110));
    assert_eq!(feed.replay_failed(), [ask(11, 1)]);
}

#[test]
fn a_hole_within_a_replay_is_asked_for_and_not_given_up() {
    let mut feed = following(10, RULES);
    feed.live(message(20, 200));
    feed.replayed(message(10, 100));
    feed.replayed(message(11, 110));
    assert_eq!(feed.replayed(message(13, 130)), [ask(11, 1)]);
    feed.replayed(message(11, 110));
    assert_eq!(feed.replayed(message(12, 120)), [deliver(1, 12, 120)]);
}

#[test]
fn a_number_that_the_engine_never_had_does_not_stop_the_stream() {
    let mut feed = following(10, RULES);
    feed.live(message(900, 110));
    assert_eq!(feed.replay_ended(), [ask(0, 1)]);
    assert_eq!(feed.replay_ended(), [ask(10, 2)]);
    feed.replayed(message(10, 100));
    assert_eq!(feed.replay_ended(), [ask(10, 3)]);
    feed.replayed(message(10, 100));
    assert_eq!(
        feed.replay_ended(),
        [
            reset(1, 899, 110, ResetReason::ReplayGone),
            deliver(1, 900, 110)
        ]
    );
}

#[test]
fn a_resync_publishes_again_what_is_still_kept() {
    let mut feed = following(10, RULES);
    assert_eq!(feed.resync(Epoch::FIRST, EventSeq::new(8)), [ask(8, 1)]);
    assert_eq!(feed.live(message(11, 110)), []);
    for seq in 8..=10 {
        let delivered = [deliver(1, seq, 10 * seq)];
        assert_eq!(feed.replayed(message(seq, 10 * seq)), delivered);
    }
    assert_eq!(feed.replay_ended(), [deliver(1, 11, 110)]);
    assert_eq!(feed.position(), Some(position(1, 11, 110)));
}

#[test]
fn a_resync_of_what_is_gone_resets_before_the_first_that_is_left() {
    let mut feed = following(10, RULES);
    feed.resync(Epoch::FIRST, EventSeq::new(3));
    assert_eq!(
        feed.replayed(message(6, 60)),
        [reset(1, 5, 60, ResetReason::ReplayGone), deliver(1, 6, 60)]
    );
    let mut deaf = following(10, WITHOUT_REPLAY);
    assert_eq!(
        deaf.resync(Epoch::FIRST, EventSeq::new(3)),
        [reset(1, 10, 100, ResetReason::NoReplay)]
    );
    assert_eq!(deaf.live(message(11, 110)), [deliver(1, 11, 110)]);
}

#[test]
fn a_resync_during_a_replay_waits_for_its_end() {
    let mut feed = following(10, RULES);
    feed.verify();
    assert_eq!(feed.resync(Epoch::FIRST, EventSeq::new(4)), []);
    feed.replayed(message(10, 100));
    assert_eq!(feed.replay_ended(), [ask(4, 1)]);
}

#[test]
fn a_resync_of_another_epoch_or_of_what_was_never_published_does_nothing() {
    let mut feed = following(10, RULES);
    assert_eq!(feed.resync(Epoch::new(2), EventSeq::new(3)), []);
    assert_eq!(feed.resync(Epoch::FIRST, EventSeq::new(11)), []);
    assert!(feed.is_following());
}

#[test]
fn what_was_left_of_an_earlier_incarnation_is_dropped_as_stale() {
    let mut feed = following(10, RULES);
    feed.epoch_raised(Epoch::new(2));
    assert_eq!(feed.live(message(11, 110)), []);
    assert_eq!(feed.replayed(message(0, 500)), [deliver(2, 0, 500)]);
    assert_eq!(feed.replay_ended(), [dropped(11, DropCause::Stale)]);
}

#[test]
fn a_number_that_fits_under_an_older_timestamp_is_checked_before_it_is_believed() {
    let mut feed = following(10, RULES);
    assert_eq!(feed.live(message(11, 40)), [ask(10, 1)]);
    feed.replayed(message(10, 100));
    assert_eq!(feed.replay_ended(), [dropped(11, DropCause::Stale)]);
    assert_eq!(feed.live(message(11, 50)), [ask(10, 1)]);
    feed.replayed(message(10, 100));
    assert_eq!(feed.replayed(message(11, 50)), [deliver(1, 11, 50)]);
}
