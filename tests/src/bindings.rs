//! What becomes of bindings: the changes of their table, as one who watches it sees them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use affinity::{Binding, BindingState};
use anyhow::Context as _;
use bus::{Bus, Change, Key};
use contracts::{Encoding as _, topics};
use futures::StreamExt as _;
use service_kit::CancellationToken;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

/// No change for so long, and the table is at rest.
const REST: Duration = Duration::from_millis(500);

/// Watches the table until it is told to stop.
pub(crate) struct Watch {
    stop: CancellationToken,
    task: JoinSet<anyhow::Result<History>>,
}

/// The changes of every binding, in their order.
#[derive(Default)]
pub(crate) struct History {
    bindings: BTreeMap<Key, Vec<Step>>,
    /// The revisions of the first and the last change, and how many changes were seen from the one to the other.
    first: Option<u64>,
    last: u64,
    seen: u64,
    seen_until_last: u64,
}

/// One change of a binding.
pub(crate) struct Step {
    pub(crate) at: Instant,
    /// None where it has ended.
    pub(crate) binding: Option<Binding>,
}

impl Watch {
    /// Begins to watch; what the table holds already is its first change.
    pub(crate) async fn begin(bus: &Arc<dyn Bus>) -> anyhow::Result<Self> {
        let mut changes = bus.watch(&topics::BINDINGS.table).await?;
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut history = History::default();
            loop {
                let change = tokio::select! {
                    change = changes.next() => change,
                    () = stopped.cancelled() => match timeout(REST, changes.next()).await {
                        Ok(change) => change,
                        Err(_) => return Ok(history),
                    },
                };
                history.take(change.context("the watch of bindings ended")??)?;
            }
        });
        Ok(Self { stop, task })
    }

    /// What was seen, once the table is at rest.
    pub(crate) async fn end(mut self) -> anyhow::Result<History> {
        self.stop.cancel();
        let ended = self.task.join_next().await;
        ended.context("nobody watches")?.context("join the watch")?
    }
}

impl History {
    fn take(&mut self, change: Change) -> anyhow::Result<()> {
        let (key, binding) = match change {
            Change::CaughtUp => return Ok(()),
            Change::Deleted(key) => (key, None),
            Change::Put(key, entry) => {
                self.first.get_or_insert(entry.revision.0);
                self.last = entry.revision.0;
                self.seen_until_last = self.seen + 1;
                (key, Some(Binding::from_bytes(&entry.value)?))
            }
        };
        self.seen += 1;
        let at = Instant::now();
        let steps = self.bindings.entry(key).or_default();
        steps.push(Step { at, binding });
        Ok(())
    }

    /// The changes of each conversation, by its name.
    pub(crate) fn by_conversation(&self) -> BTreeMap<&str, &[Step]> {
        let named = self.bindings.values().filter_map(|steps| {
            let binding = steps.iter().find_map(|it| it.binding.as_ref())?;
            Some((binding.key.conversation.as_str(), &steps[..]))
        });
        named.collect()
    }

    /// How many changes there were.
    pub(crate) const fn changes(&self) -> u64 {
        self.seen
    }

    /// How many were overtaken by later ones before they could be seen, where each change of the table has a revision
    /// that is higher by `step`.
    pub(crate) fn unseen(&self, step: u64) -> u64 {
        let all = self.first.map_or(0, |first| (self.last - first) / step + 1);
        all.saturating_sub(self.seen_until_last)
    }

    /// How often a conversation was confirmed at another target than before, and nobody had moved it there.
    pub(crate) fn double_bindings(&self) -> u64 {
        self.bindings.values().map(|it| doubled(it)).sum()
    }
}

fn doubled(steps: &[Step]) -> u64 {
    let mut confirmed = None;
    let mut doubled = 0;
    for step in steps {
        let Some(binding) = &step.binding else {
            // It may be bound anew anywhere.
            confirmed = None;
            continue;
        };
        if binding.state != BindingState::Confirmed {
            continue;
        }
        let elsewhere = confirmed.is_some_and(|it| it != &binding.target);
        doubled += u64::from(elsewhere && binding.moved.is_none());
        confirmed = Some(&binding.target);
    }
    doubled
}

#[cfg(test)]
mod tests {
    use affinity::{ConversationKey, Evidence, MoveReason, Owner};
    use domain::{Timestamp, Tokens};

    use super::*;

    fn step(target: &str, confirmed: bool, moved: Option<MoveReason>) -> Step {
        let state = match confirmed {
            true => BindingState::Confirmed,
            false => BindingState::Provisional {
                lease_until: Timestamp::ZERO,
            },
        };
        let binding = Binding {
            key: ConversationKey {
                tenant: "t".parse().unwrap(),
                model: "m".parse().unwrap(),
                conversation: "c".parse().unwrap(),
            },
            target: target.parse().unwrap(),
            owner: Owner::Router,
            state,
            evidence: Evidence::None,
            moved,
            since: Timestamp::ZERO,
            actor: "r1".parse().unwrap(),
            held: Tokens::ZERO,
            turns: 0,
            last_end: Timestamp::ZERO,
        };
        Step {
            at: Instant::now(),
            binding: Some(binding),
        }
    }

    fn ended() -> Step {
        Step {
            at: Instant::now(),
            binding: None,
        }
    }

    #[test]
    fn two_confirmed_targets_are_two_bindings_but_for_a_move_or_an_end_between() {
        let first = || step("w1#1/0", true, None);
        let moved = Some(MoveReason::Gone);
        let check = |steps: Vec<Step>, expected| assert_eq!(doubled(&steps), expected);
        check(vec![step("w1#1/0", false, None), first(), first()], 0);
        check(vec![first(), step("w1#1/1", true, None)], 1);
        check(vec![step("w1#1/1", false, None), first()], 0);
        check(vec![first(), step("w2#1/1", true, moved)], 0);
        check(vec![first(), ended(), step("w2#1/1", true, None)], 0);
        check(
            vec![
                first(),
                step("w1#1/1", false, None),
                step("w1#1/1", true, None),
                first(),
            ],
            2,
        );
    }
}
