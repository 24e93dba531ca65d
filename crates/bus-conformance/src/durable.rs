//! Promises of what outlives a process.

use std::ops::Deref;

use bus::{Bus, BusError, Expect, Record, Revision, Start, Tail};
use bytes::Bytes;

use crate::steps::{
    append, bytes_of, delete, get, key, put, read, records, snapshot, soon, try_put, watch,
};
use crate::{CAS, LOG, OTHER_LOG, OWN};

/// After a reopen every acknowledged record is there with its offset, under the same generation.
pub async fn acknowledged_records_survive_a_reopen<H>(mut bus: H, reopen: impl AsyncFn(H) -> H)
where
    H: Deref<Target: Bus + Sized>,
{
    const BATCH: usize = 100;
    let mut written = Vec::new();
    for round in 0..3 {
        let batch: Vec<Record> = (0..BATCH)
            .map(|n| Record(Bytes::from(format!("{round} {n}").repeat(n))))
            .collect();
        written.extend(batch.clone());
        let newest = append(&*bus, &LOG, batch).await;
        let before = tail(&*bus).await;
        let delivered = read(&*bus, &LOG, Start::Earliest, written.len()).await;
        assert_eq!(before.last, Some(newest));

        bus = reopen(bus).await;
        assert_eq!(tail(&*bus).await, before);
        let again = read(&*bus, &LOG, Start::Earliest, written.len()).await;
        assert!(again == delivered, "the same records and offsets");
        assert!(again.into_iter().map(|it| it.record).eq(written.clone()));
    }
}

/// A position taken before a reopen is good afterwards, and what is appended then comes behind it.
pub async fn a_reader_goes_on_after_a_reopen_where_it_stopped<H>(
    bus: H,
    reopen: impl AsyncFn(H) -> H,
) where
    H: Deref<Target: Bus + Sized>,
{
    append(&*bus, &LOG, records(&["a", "b", "c"])).await;
    append(&*bus, &OTHER_LOG, records(&["theirs"])).await;
    let applied = read(&*bus, &LOG, Start::Earliest, 2).await[1].offset;

    let bus = reopen(bus).await;
    append(&*bus, &LOG, records(&["d"])).await;
    let bus = reopen(bus).await;
    let newest = append(&*bus, &LOG, records(&["e"])).await;

    let rest = read(&*bus, &LOG, Start::After(applied), 3).await;
    assert_eq!(bytes_of(&rest), ["c", "d", "e"]);
    assert!(rest.windows(2).all(|it| it[0].offset < it[1].offset));
    assert_eq!(rest[2].offset, newest);
}

/// Also a log that nothing was ever appended to is the same log after a reopen.
pub async fn an_empty_log_keeps_its_generation_across_a_reopen<H>(
    bus: H,
    reopen: impl AsyncFn(H) -> H,
) where
    H: Deref<Target: Bus + Sized>,
{
    let before = tail(&*bus).await;
    let bus = reopen(bus).await;

    assert_eq!(tail(&*bus).await, before);
}

/// After a reopen every acknowledged write is there, and a conditional write against it succeeds.
pub async fn table_entries_survive_a_reopen_with_their_revisions<H>(
    bus: H,
    reopen: impl AsyncFn(H) -> H,
) where
    H: Deref<Target: Bus + Sized>,
{
    let mut revisions: Vec<Revision> = Vec::new();
    for name in 0..50 {
        put(&*bus, &CAS, key(name.to_string()), "former").await;
        revisions.push(put(&*bus, &CAS, key(name.to_string()), name.to_string()).await);
    }
    let own = put(&*bus, &OWN, key("w1"), "here").await;

    let bus = reopen(bus).await;
    for (name, revision) in revisions.iter().enumerate() {
        let entry = get(&*bus, &CAS, key(name.to_string())).await;
        let entry = entry.expect("it was acknowledged");
        assert_eq!(
            (entry.value, entry.revision),
            (name.to_string().into(), *revision)
        );
    }
    let entry = get(&*bus, &OWN, key("w1")).await.expect("acknowledged");
    assert_eq!((&*entry.value, entry.revision), (&b"here"[..], own));
    let replaced = try_put(&*bus, &CAS, key("0"), "new", Expect::At(revisions[0])).await;
    assert!(replaced.is_ok());
}

/// A deletion is a write like others.
pub async fn a_deleted_key_stays_deleted_across_a_reopen<H>(bus: H, reopen: impl AsyncFn(H) -> H)
where
    H: Deref<Target: Bus + Sized>,
{
    put(&*bus, &CAS, key("gone"), "1").await;
    put(&*bus, &CAS, key("kept"), "1").await;
    delete(&*bus, &CAS, key("gone")).await;

    let bus = reopen(bus).await;
    assert_eq!(get(&*bus, &CAS, key("gone")).await, None);
    let kept = try_put(&*bus, &CAS, key("kept"), "2", Expect::Absent).await;
    assert!(matches!(kept, Err(BusError::Conflict { .. })));
    let created = try_put(&*bus, &CAS, key("gone"), "2", Expect::Absent).await;
    assert!(created.is_ok());
}

/// No revision is given twice, also not after everything with a revision was deleted.
pub async fn revisions_grow_across_a_reopen<H>(mut bus: H, reopen: impl AsyncFn(H) -> H)
where
    H: Deref<Target: Bus + Sized>,
{
    let mut revisions = Vec::new();
    for _ in 0..3 {
        revisions.push(put(&*bus, &CAS, key("k"), "1").await);
        revisions.push(put(&*bus, &CAS, key("k"), "2").await);
        delete(&*bus, &CAS, key("k")).await;
        bus = reopen(bus).await;
    }

    assert!(revisions.is_sorted_by(|one, next| one < next));
}

/// A watcher that begins after a reopen is given what was written before it.
pub async fn a_watch_after_a_reopen_shows_the_whole_table<H>(bus: H, reopen: impl AsyncFn(H) -> H)
where
    H: Deref<Target: Bus + Sized>,
{
    for name in ["a", "b", "c"] {
        put(&*bus, &CAS, key(name), name).await;
    }
    delete(&*bus, &CAS, key("b")).await;
    let before = snapshot(&mut watch(&*bus, &CAS).await).await;

    let bus = reopen(bus).await;
    let after = snapshot(&mut watch(&*bus, &CAS).await).await;
    assert_eq!(after, before);
    assert_eq!(
        after.keys().cloned().collect::<Vec<_>>(),
        [key("a"), key("c")]
    );
}

async fn tail(bus: &dyn Bus) -> Tail {
    soon(bus.tail(&LOG)).await.expect("tail")
}
