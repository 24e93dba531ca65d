//! Promises of tables, but for watching them.

use bus::{Bus, BusError, Expect, Key, MAX_KEY_BYTES, MAX_RECORD_BYTES, Revision, Table};
use bytes::Bytes;
use futures::future::join_all;

use crate::steps::{delete, get, key, put, soon, try_put};
use crate::{CAS, OTHER_CAS, OWN};

/// The latest value is what a get finds, in both kinds of tables.
pub async fn what_is_put_can_be_got_until_it_is_deleted(bus: &dyn Bus) {
    for table in [OWN, CAS] {
        assert_eq!(get(bus, &table, key("k")).await, None);
        put(bus, &table, key("k"), "1").await;
        let revision = put(bus, &table, key("k"), "2").await;

        let entry = get(bus, &table, key("k")).await.expect("it was put");
        assert_eq!((&*entry.value, entry.revision), (&b"2"[..], revision));
        delete(bus, &table, key("k")).await;
        assert_eq!(get(bus, &table, key("k")).await, None);
    }
}

/// Keys and values need not be text; an empty value is a value.
pub async fn any_bytes_make_a_key_and_a_value(bus: &dyn Bus) {
    let odd: [&'static [u8]; 8] = [
        b"",
        b"\0",
        b"\xff\xfe",
        b"a b",
        b"127.0.0.1:8000/*>",
        b".",
        b"=",
        b"\r\n",
    ];
    for bytes in odd {
        put(bus, &CAS, Key(Bytes::from_static(bytes)), bytes).await;
    }
    put(bus, &CAS, key("empty"), "").await;

    for bytes in odd {
        let entry = get(bus, &CAS, Key(Bytes::from_static(bytes))).await;
        assert_eq!(entry.expect("it was put").value, bytes);
    }
    let empty = get(bus, &CAS, key("empty")).await;
    assert_eq!(empty.expect("it was put").value, "");
}

/// A key in one table is nothing to another.
pub async fn tables_do_not_mix(bus: &dyn Bus) {
    put(bus, &CAS, key("k"), "1").await;

    assert_eq!(get(bus, &OTHER_CAS, key("k")).await, None);
    delete(bus, &OTHER_CAS, key("k")).await;
    assert!(get(bus, &CAS, key("k")).await.is_some());
}

/// Where each key has one writer there is nothing to compare with.
pub async fn a_table_of_own_keys_refuses_conditional_writes(bus: &dyn Bus) {
    let revision = put(bus, &OWN, key("k"), "1").await;
    for expect in [Expect::Absent, Expect::At(revision)] {
        let refused = try_put(bus, &OWN, key("k"), "2", expect).await;
        assert!(matches!(refused, Err(BusError::Unknown { .. })));
    }

    let entry = get(bus, &OWN, key("k")).await.expect("it was put");
    assert_eq!(entry.value, "1");
}

/// Two conditional writes against the same revision: one is applied, the other learns why not.
pub async fn of_two_writers_expecting_the_same_revision_one_wins(bus: &dyn Bus) {
    let won = try_put(bus, &CAS, key("k"), "first", Expect::Absent).await;
    let won = won.expect("nothing was there");
    let lost = try_put(bus, &CAS, key("k"), "second", Expect::Absent).await;

    assert_conflict(&lost, Some(won));
    let entry = get(bus, &CAS, key("k")).await.expect("it was put");
    assert_eq!((&*entry.value, entry.revision), (&b"first"[..], won));
}

/// However many race for a key, from nothing or from a revision, one gets it and all others learn of it.
pub async fn of_many_racing_writers_exactly_one_wins(bus: &dyn Bus) {
    let mut expect = Expect::Absent;
    for _ in 0..5 {
        let racers = (0..16).map(|_| try_put(bus, &CAS, key("k"), "v", expect));
        let results = join_all(racers).await;

        let current = get(bus, &CAS, key("k")).await.expect("one has won");
        let (won, lost): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
        assert_eq!(won.len(), 1);
        assert!(matches!(won[0], Ok(revision) if revision == current.revision));
        for result in &lost {
            assert_conflict(result, Some(current.revision));
        }
        expect = Expect::At(current.revision);
    }
}

/// Writers that each read, add one and write against what they read end at the sum.
pub async fn counting_writers_lose_no_step(bus: &dyn Bus) {
    const WRITERS: u32 = 4;
    const STEPS: u32 = 10;
    let count = async |_| {
        let mut done = 0;
        while done < STEPS {
            let current = get(bus, &CAS, key("counter")).await;
            let (number, expect) = match &current {
                Some(entry) => (number(&entry.value), Expect::At(entry.revision)),
                None => (0, Expect::Absent),
            };
            let next = Bytes::copy_from_slice(&(number + 1).to_be_bytes());
            match soon(bus.put(&CAS, key("counter"), Some(next), expect)).await {
                Ok(_) => done += 1,
                Err(BusError::Conflict { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
    };
    join_all((0..WRITERS).map(count)).await;

    let entry = get(bus, &CAS, key("counter")).await.expect("counted");
    assert_eq!(number(&entry.value), WRITERS * STEPS);
}

/// A deletion leaves nothing behind that `Absent` would trip over.
pub async fn a_deleted_key_is_absent_and_can_be_created_again(bus: &dyn Bus) {
    let first = put(bus, &CAS, key("k"), "1").await;
    let deleted = soon(bus.put(&CAS, key("k"), None, Expect::At(first))).await;
    deleted.expect("it is at this revision");

    let again = try_put(bus, &CAS, key("k"), "2", Expect::Absent).await;
    let again = again.expect("it was deleted");
    assert_conflict(
        &try_put(bus, &CAS, key("k"), "3", Expect::Absent).await,
        Some(again),
    );
}

/// A write against what is no longer there loses, also when nothing is there.
pub async fn a_revision_is_expected_in_vain_once_it_is_replaced_or_deleted(bus: &dyn Bus) {
    let first = put(bus, &CAS, key("k"), "1").await;
    let second = put(bus, &CAS, key("k"), "2").await;
    assert_conflict(
        &try_put(bus, &CAS, key("k"), "3", Expect::At(first)).await,
        Some(second),
    );

    let deleted = delete(bus, &CAS, key("k")).await;
    for stale in [first, second, deleted, Revision(0)] {
        let lost = try_put(bus, &CAS, key("k"), "3", Expect::At(stale)).await;
        assert_conflict(&lost, None);
    }
    assert_eq!(get(bus, &CAS, key("k")).await, None);
    let lost = try_put(bus, &CAS, key("never"), "1", Expect::At(Revision(0))).await;
    assert_conflict(&lost, None);
}

/// Losing writes nothing, not even a deletion.
pub async fn a_conflict_leaves_the_table_as_it_was(bus: &dyn Bus) {
    let first = put(bus, &CAS, key("k"), "1").await;
    let second = put(bus, &CAS, key("k"), "2").await;
    let lost = soon(bus.put(&CAS, key("k"), None, Expect::At(first))).await;

    assert_conflict(&lost, Some(second));
    let entry = get(bus, &CAS, key("k")).await.expect("still there");
    assert_eq!((&*entry.value, entry.revision), (&b"2"[..], second));
}

/// A revision never comes back.
pub async fn revisions_of_a_key_grow_also_across_its_deletion(bus: &dyn Bus) {
    let mut revisions = Vec::new();
    for _ in 0..3 {
        revisions.push(put(bus, &CAS, key("k"), "1").await);
        put(bus, &CAS, key("another"), "1").await;
        revisions.push(put(bus, &CAS, key("k"), "2").await);
        delete(bus, &CAS, key("k")).await;
    }

    assert!(revisions.is_sorted_by(|one, next| one < next));
}

/// No bus takes what another could not carry.
pub async fn a_value_over_the_limit_is_refused(bus: &dyn Bus) {
    let value = Bytes::from(vec![0; MAX_RECORD_BYTES]);
    let refused = soon(bus.put(&CAS, key("k"), Some(value), Expect::Any)).await;

    assert!(matches!(refused, Err(BusError::TooLarge { .. })));
    assert_eq!(get(bus, &CAS, key("k")).await, None);
    for size in [256 * 1024, MAX_RECORD_BYTES - 1] {
        let value = Bytes::from(vec![7; size]);
        put(bus, &CAS, key("k"), value.clone()).await;
        let entry = get(bus, &CAS, key("k")).await.expect("it was put");
        assert!(entry.value == value);
    }
}

/// The longest key is one like others, whatever its bytes; a longer one is refused.
pub async fn a_key_over_the_limit_is_refused(bus: &dyn Bus) {
    let longest = Key(Bytes::from(vec![b'*'; MAX_KEY_BYTES]));
    let longer = Key(Bytes::from(vec![b'*'; MAX_KEY_BYTES + 1]));
    let refused = try_put(bus, &CAS, longer, "v", Expect::Any).await;

    assert!(matches!(refused, Err(BusError::KeyTooLong { .. })));
    let revision = put(bus, &CAS, longest.clone(), "v").await;
    let entry = get(bus, &CAS, longest).await.expect("it was put");
    assert_eq!(entry.revision, revision);
}

/// What the layout does not name does not exist.
pub async fn an_unknown_table_is_an_error(bus: &dyn Bus) {
    let table = Table("conformance-nowhere");
    let put = try_put(bus, &table, key("k"), "v", Expect::Any).await;
    let get = soon(bus.get(&table, &key("k"))).await;
    let watch = soon(bus.watch(&table)).await;

    assert!(matches!(put, Err(BusError::Unknown { .. })));
    assert!(matches!(get, Err(BusError::Unknown { .. })));
    assert!(matches!(watch, Err(BusError::Unknown { .. })));
}

fn assert_conflict(result: &Result<Revision, BusError>, expected: Option<Revision>) {
    assert!(
        matches!(result, Err(BusError::Conflict { current }) if *current == expected),
        "{result:?} is no conflict with {expected:?}"
    );
}

fn number(value: &[u8]) -> u32 {
    u32::from_be_bytes(value.try_into().expect("four bytes"))
}
