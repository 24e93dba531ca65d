//! The last turns, when all is back: does each run where its conversation is bound?

use std::collections::BTreeSet;

use domain::Target;

use super::traffic::{Traffic, Turns, conversation};
use crate::bindings::{History, Watch};
use crate::world::{Served, World};

/// How often a conversation is given a last turn: one that is sent elsewhere for once, as where a store of bindings was
/// asked in vain on a busy machine, has a successor that comes back.
const ROUNDS: usize = 3;
/// What counts turns that routers send elsewhere for once.
const EXCURSIONS: &str = "rankway_excursions_total";

/// What came of them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Last {
    pub(super) turns: Turns,
    /// Conversations of which one ran where it is bound.
    pub(super) kept: u64,
    /// Turns that ran elsewhere, and those that routers say to have sent elsewhere for once.
    pub(super) beside: u64,
    pub(super) beside_said: u64,
}

impl Last {
    pub(super) async fn run(traffic: &Traffic, world: &World) -> anyhow::Result<Self> {
        let mut last = Self::default();
        let before = world.counted(EXCURSIONS).await?;
        let mut left: Vec<u32> = traffic.all().collect();
        for round in 1..=ROUNDS {
            let name = format!("last{round}");
            last.turns = last.turns.and(traffic.more(&left, &name).await);
            let table = Watch::begin(&world.bus()).await?.end().await?;
            let kept = kept(&table, &world.served().await?, &name);
            let sent = left.len();
            left.retain(|it| !kept.contains(&conversation(*it)));
            last.kept += (sent - left.len()) as u64;
            last.beside += left.len() as u64;
            if left.is_empty() {
                break;
            }
        }
        // Counters count whole things.
        last.beside_said = (world.counted(EXCURSIONS).await? - before) as u64;
        Ok(last)
    }
}

/// The conversations whose turn of that name ran where they are bound.
fn kept(table: &History, served: &[Vec<Served>], name: &str) -> BTreeSet<String> {
    let bound = table.by_conversation();
    let mut kept = BTreeSet::new();
    for (worker, requests) in (1..).zip(served) {
        let worker = format!("w{worker}");
        for request in requests {
            let id = request.request_id.as_deref();
            let Some((conversation, turn)) = id.and_then(|it| it.rsplit_once('.')) else {
                continue;
            };
            let last = bound.get(conversation).and_then(|it| it.last());
            let target = last.and_then(|it| Some(&it.binding.as_ref()?.target));
            let is_here =
                |it: &Target| it.worker.as_str() == worker && it.dp_rank.get() == request.dp_rank;
            if turn == name && target.is_some_and(is_here) {
                kept.insert(conversation.to_owned());
            }
        }
    }
    kept
}
