//! The rows.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::load::Load;
use crate::service::Blow::{self, Cut, Freeze, Kill};
use crate::world::World;

/// What happens to whom, and what may be seen of it.
struct Row {
    victim: &'static str,
    blow: Blow,
    seconds: u64,
    /// What decisions had to do without. A busy machine may be late with anything else.
    degraded: Option<&'static str>,
    stays: Stays,
    /// Whether turns of all conversations go on meanwhile.
    goes_on: bool,
}

/// Where conversations are meanwhile.
#[derive(PartialEq, Eq)]
enum Stays {
    /// Each where it was.
    All,
    /// They may go elsewhere.
    Any,
}

const fn row(victim: &'static str, blow: Blow, seconds: u64) -> Row {
    Row {
        victim,
        blow,
        seconds,
        degraded: None,
        stays: Stays::All,
        goes_on: true,
    }
}

impl Row {
    const fn without(self, missing: &'static str) -> Self {
        let degraded = Some(missing);
        Self { degraded, ..self }
    }

    const fn moves(self) -> Self {
        let stays = Stays::Any;
        Self { stays, ..self }
    }

    const fn halts(self) -> Self {
        let goes_on = false;
        Self { goes_on, ..self }
    }
}

/// With one adapter.
const ROWS: &[Row] = &[
    row("indexer", Kill, 2).without("no_index"),
    row("indexer", Freeze, 3).without("no_index"),
    row("indexer", Cut, 3).without("no_index"),
    row("affinity", Kill, 2).without("no_affinity"),
    row("affinity", Freeze, 3).without("no_affinity"),
    row("affinity", Cut, 3).without("no_affinity"),
    row("ingest", Kill, 2),
    row("ingest", Freeze, 2),
    row("ingest", Cut, 2),
    row("nats", Kill, 2),
    row("nats", Freeze, 3),
    row("nats", Cut, 3),
    row("router-1", Kill, 2),
    row("router-1", Freeze, 3).halts(),
    row("router-1", Cut, 3).halts(),
    row("adapter", Kill, 1).halts(),
    row("adapter", Freeze, 3).halts(),
    // It does not reach its engines either, and says so.
    row("adapter", Cut, 3).moves().halts(),
    row("engine-1", Kill, 3).moves(),
    row("engine-1", Freeze, 10).moves().halts(),
    row("engine-1", Cut, 10).moves().halts(),
];

/// With another adapter beside it.
const BESIDE: &[Row] = &[
    row("adapter", Kill, 3),
    row("adapter", Freeze, 10).halts(),
    row("adapter-2", Kill, 3),
    row("adapter-2", Cut, 10).moves().halts(),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_dies_no_request_fails_that_had_no_byte_and_all_is_as_before_when_it_is_back() {
    let mut world = World::start().await;
    let mut load = Load::start(&world.apis);
    load.turns(3).await.unwrap();
    let mut born = 1_000;
    for row in ROWS {
        survive(&mut world, &mut load, row, &mut born).await;
    }
    world.add_adapter().await;
    for row in BESIDE {
        survive(&mut world, &mut load, row, &mut born).await;
    }
}

async fn survive(world: &mut World, load: &mut Load, row: &Row, born: &mut u32) {
    let Row { victim, blow, .. } = *row;
    if blow == Cut && !world.network.cuts() {
        return;
    }
    let name = format!("{blow:?} {victim}");
    load.take();
    // Where each is now.
    if let Err(seen) = load.bound().await {
        panic!("before {name}: {seen:?}\n{}", world.logs());
    }
    let before = load.take().bound;
    let began = Instant::now();
    world.of(victim).strike(blow).await;
    // What begins meanwhile is to be bound nowhere else later.
    if matches!(victim, "affinity" | "nats") {
        *born += 1;
        load.converse(*born);
    }
    sleep(Duration::from_secs(row.seconds)).await;
    let during = load.take();
    world.of(victim).revive(blow).await;
    world.ready().await;
    let back = began.elapsed();
    // What was on its way may still tell of it.
    let mut healed = false;
    for _ in 0..20 {
        let after = load.take();
        let whole = load.turns(2).await.is_ok() && load.look().is_whole();
        let failures = &after.failures;
        assert!(failures.is_empty(), "after {name}: {failures:?}");
        healed |= whole;
        if healed {
            break;
        }
    }
    let after = load.take();
    eprintln!(
        "{name}: {} served meanwhile, longest {:?}, {:?} degraded, {} sent again; all ready after {back:?}",
        during.served, during.longest, during.degraded, during.sent_again
    );
    let logs = || world.logs();
    let failures = [during.failures.clone(), after.failures.clone()].concat();
    assert!(failures.is_empty(), "{name}: {failures:?}\n{}", logs());
    assert!(healed, "after {name}: {after:?}\n{}", logs());
    if let Some(missing) = row.degraded {
        assert!(during.degraded.contains_key(missing), "{name}: {during:?}");
    }
    if row.goes_on {
        for number in before.keys() {
            assert!(
                during.targets.contains_key(number),
                "{name}: {number} of {during:?}\n{}",
                logs()
            );
        }
    }
    if row.stays == Stays::All {
        let moved = during.targets.iter().chain(&after.targets);
        let moved = moved.filter(|(number, at)| {
            1 < at.len() || before.get(number).is_some_and(|it| !at.contains(it))
        });
        let moved: Vec<_> = moved.collect();
        assert!(
            moved.is_empty(),
            "{name}: {moved:?}, before {before:?}\n{}",
            logs()
        );
    }
}
