//! Whatever happens on the way, what is delivered is what was published, or says that it is not.
//!
//! A model of an engine with a ring and of a wire that loses, repeats and reorders runs beside the feed.

use std::collections::{BTreeSet, VecDeque};

use domain::{Epoch, EventSeq, Timestamp};
use event_feed::{Action, Message, RankFeed, ReplayOffer, Rules};
use proptest::prelude::*;

const ATTEMPTS: u32 = 4;
/// Blocks the model's events are about: few, so that they are often stored and removed again.
const BLOCKS: u8 = 4;

/// What one message of the model says, and of which incarnation.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Event {
    incarnation: usize,
    block: u8,
    stored: bool,
}

#[derive(Clone, Debug)]
enum Step {
    Publish { block: u8, stored: bool },
    Receive,
    Lose,
    Repeat,
    Reorder,
    ServeReplay { first_dropped: Option<usize> },
    ReceiveReplayed,
    FailReplay,
    Restart,
    SiblingRestarts,
    RaiseEpoch,
    Verify,
}

/// What is on its way from the live socket.
#[derive(Clone, Debug)]
enum Live {
    Message(Message<Event>),
    Reconnected,
}

enum Replayed {
    Message(Message<Event>),
    End,
    Broken,
}

/// What came out of the feed under one epoch.
#[derive(Debug)]
enum Output {
    Delivered(Message<Event>),
    Reset(EventSeq),
}

struct World {
    feed: RankFeed<Event>,
    window: usize,
    /// Every message of every incarnation.
    published: Vec<Vec<Message<Event>>>,
    now: u64,
    live: VecDeque<Live>,
    asked: Option<(EventSeq, u32)>,
    replay: VecDeque<Replayed>,
    raising: bool,
    outputs: Vec<(Epoch, Output)>,
}

impl World {
    fn new(rules: Rules, window: usize) -> Self {
        let mut world = Self {
            feed: RankFeed::attach(Epoch::FIRST, rules),
            window,
            published: vec![Vec::new()],
            now: 0,
            live: VecDeque::new(),
            asked: None,
            replay: VecDeque::new(),
            raising: false,
            outputs: Vec::new(),
        };
        let actions = world.feed.verify();
        world.carry_out(actions);
        world
    }

    fn incarnation(&self) -> usize {
        self.published.len() - 1
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Publish { block, stored } => self.publish(block, stored),
            Step::Receive => self.receive(),
            Step::Lose => {
                if let Some(Live::Message(_)) = self.live.front() {
                    self.live.pop_front();
                }
            }
            Step::Repeat => {
                if let Some(Live::Message(message)) = self.live.front().cloned() {
                    self.live.push_front(Live::Message(message));
                }
            }
            Step::Reorder => {
                if let (Some(Live::Message(_)), Some(Live::Message(_))) =
                    (self.live.front(), self.live.get(1))
                {
                    self.live.swap(0, 1);
                }
            }
            Step::ServeReplay { first_dropped } => self.serve_replay(first_dropped),
            Step::ReceiveReplayed => self.receive_replayed(),
            Step::FailReplay => self.fail_replay(),
            Step::Restart => self.restart(),
            Step::SiblingRestarts | Step::RaiseEpoch => {
                if self.raising == matches!(step, Step::RaiseEpoch) {
                    self.raise_epoch();
                }
            }
            Step::Verify => {
                let actions = self.feed.verify();
                self.carry_out(actions);
            }
        }
    }

    fn publish(&mut self, block: u8, stored: bool) {
        self.now += 1;
        let incarnation = self.incarnation();
        let message = Message {
            seq: EventSeq::new(self.published[incarnation].len() as u64),
            engine_ts: Timestamp::from_micros(self.now),
            payload: Event {
                incarnation,
                block: block % BLOCKS,
                stored,
            },
        };
        self.published[incarnation].push(message.clone());
        self.live.push_back(Live::Message(message));
    }

    fn receive(&mut self) {
        let actions = match self.live.pop_front() {
            Some(Live::Message(message)) => self.feed.live(message),
            Some(Live::Reconnected) => self.feed.verify(),
            None => return,
        };
        self.carry_out(actions);
    }

    /// Answers as an engine does: what its ring keeps, in order. One that is slow to be read drops what
    /// follows `first_dropped`, the end marker too.
    fn serve_replay(&mut self, first_dropped: Option<usize>) {
        let Some((from, attempt)) = self.asked.take() else {
            return;
        };
        let all = &self.published[self.incarnation()];
        let ring = &all[all.len().saturating_sub(self.window)..];
        let wanted = ring.iter().filter(|it| from <= it.seq).cloned();
        self.replay = wanted.map(Replayed::Message).collect();
        match first_dropped {
            Some(kept) if attempt < ATTEMPTS && kept < self.replay.len() => {
                self.replay.truncate(kept);
                self.replay.push_back(Replayed::Broken);
            }
            _ => self.replay.push_back(Replayed::End),
        }
    }

    fn receive_replayed(&mut self) {
        let actions = match self.replay.pop_front() {
            Some(Replayed::Message(message)) => self.feed.replayed(message),
            Some(Replayed::End) => self.feed.replay_ended(),
            Some(Replayed::Broken) => self.feed.replay_failed(),
            None => return,
        };
        self.carry_out(actions);
    }

    fn fail_replay(&mut self) {
        // With the last attempt the feed gives up, and then nothing is promised.
        if self.asked.is_some_and(|(_, attempt)| attempt < ATTEMPTS) {
            self.asked = None;
            let actions = self.feed.replay_failed();
            self.carry_out(actions);
        }
    }

    fn restart(&mut self) {
        self.now += 1;
        self.published.push(Vec::new());
        self.live.push_back(Live::Reconnected);
        if self.replay.pop_back().is_some() {
            self.replay.push_back(Replayed::Broken);
        }
    }

    fn raise_epoch(&mut self) {
        self.raising = false;
        let actions = self.feed.epoch_raised(self.feed.epoch().next());
        self.carry_out(actions);
    }

    fn carry_out(&mut self, actions: Vec<Action<Event>>) {
        for action in actions {
            match action {
                Action::Deliver { epoch, message } => {
                    self.outputs.push((epoch, Output::Delivered(message)));
                }
                Action::Reset { position, .. } => {
                    self.outputs
                        .push((position.epoch, Output::Reset(position.seq)));
                }
                Action::AskReplay { from, attempt } => {
                    self.replay.clear();
                    self.asked = Some((from, attempt));
                }
                Action::RaiseEpoch { above, .. } => {
                    assert_eq!(above, self.feed.epoch());
                    self.replay.clear();
                    self.asked = None;
                    self.raising = true;
                }
                Action::Gap { expected, found } => assert!(expected < found),
                Action::Drop { .. } => {}
            }
        }
    }

    /// Nothing goes wrong any more: everything on its way arrives.
    fn come_to_rest(&mut self) {
        self.publish(0, true);
        for _ in 0..10_000 {
            if self.raising {
                self.raise_epoch();
            } else if self.asked.is_some() {
                self.serve_replay(None);
            } else if !self.replay.is_empty() {
                self.receive_replayed();
            } else if !self.live.is_empty() {
                self.receive();
            } else {
                return;
            }
        }
        panic!("the feed does not come to rest");
    }

    fn check(&self) {
        self.check_each_epoch_is_whole_or_says_so();
        let last_published = self.published.last().and_then(|all| all.last());
        let last_output = self.outputs.last().map(|(_, output)| output);
        let Some(Output::Delivered(last)) = last_output else {
            panic!("the last output is {last_output:?}");
        };
        assert_eq!(Some(last), last_published);
        assert!(self.feed.is_following());
        self.check_held_blocks();
    }

    fn check_each_epoch_is_whole_or_says_so(&self) {
        let mut now = Epoch::new(0);
        let mut speaker = None;
        let mut next = 0;
        for (epoch, output) in &self.outputs {
            if *epoch != now {
                assert!(now < *epoch, "epochs rise");
                (now, speaker, next) = (*epoch, None, 0);
            }
            match output {
                Output::Reset(seq) => {
                    assert!(next <= seq.get(), "a reset takes nothing back");
                    // With the newest message published gone from the ring, nobody can tell whether
                    // another engine answers: what follows stands for itself.
                    (speaker, next) = (None, seq.get() + 1);
                }
                Output::Delivered(message) => {
                    let of = message.payload.incarnation;
                    assert_eq!(message.seq.get(), next, "in {epoch}");
                    assert_eq!(*message, self.published[of][next as usize]);
                    assert!(speaker.is_none_or(|it| it == of), "two in {epoch}");
                    speaker = Some(of);
                    next += 1;
                }
            }
        }
    }

    /// An index that follows the outputs claims no block that the engine does not hold.
    fn check_held_blocks(&self) {
        let mut truth = BTreeSet::new();
        for message in self.published.last().into_iter().flatten() {
            apply(&mut truth, &message.payload);
        }
        let mut claimed = BTreeSet::new();
        for (epoch, output) in &self.outputs {
            match output {
                _ if *epoch < self.feed.epoch() => {}
                Output::Reset(_) => claimed.clear(),
                Output::Delivered(message) => apply(&mut claimed, &message.payload),
            }
        }
        assert!(claimed.is_subset(&truth), "{claimed:?} of {truth:?}");
    }

    fn has_reset_in_the_last_epoch(&self) -> bool {
        let is_reset = |output: &Output| matches!(output, Output::Reset(_));
        let last = self.feed.epoch();
        self.outputs
            .iter()
            .any(|(epoch, output)| *epoch == last && is_reset(output))
    }
}

fn apply(blocks: &mut BTreeSet<u8>, event: &Event) {
    if event.stored {
        blocks.insert(event.block);
    } else {
        blocks.remove(&event.block);
    }
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (any::<u8>(), any::<bool>()).prop_map(|(block, stored)| Step::Publish { block, stored }),
        8 => Just(Step::Receive),
        2 => Just(Step::Lose),
        1 => Just(Step::Repeat),
        1 => Just(Step::Reorder),
        4 => prop::option::weighted(0.2, 0_usize..6)
            .prop_map(|first_dropped| Step::ServeReplay { first_dropped }),
        8 => Just(Step::ReceiveReplayed),
        1 => Just(Step::FailReplay),
        1 => Just(Step::Restart),
        1 => Just(Step::SiblingRestarts),
        4 => Just(Step::RaiseEpoch),
        1 => Just(Step::Verify),
    ]
}

fn rules(hold_limit: usize) -> Rules {
    Rules {
        replay: ReplayOffer::Offered,
        hold_limit,
        attempts: ATTEMPTS,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn with_a_ring_of_any_size_the_stream_is_whole_or_says_where_it_is_not(
        steps in prop::collection::vec(step(), 0..120),
        window in 1_usize..12,
        hold_limit in 1_usize..8,
    ) {
        let mut world = World::new(rules(hold_limit), window);
        steps.into_iter().for_each(|step| world.step(step));
        world.come_to_rest();
        world.check();
    }

    #[test]
    fn with_a_ring_that_keeps_everything_the_present_incarnation_is_whole(
        steps in prop::collection::vec(step(), 0..120),
        hold_limit in 1_usize..8,
    ) {
        let mut world = World::new(rules(hold_limit), usize::MAX);
        steps.into_iter().for_each(|step| world.step(step));
        world.come_to_rest();
        world.check();
        prop_assert!(!world.has_reset_in_the_last_epoch());
    }
}
