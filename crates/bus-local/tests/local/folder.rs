//! One process at a time, one format, and an end.

use bus::{Bus, BusError, Expect, Key, Layout, LogKind, Offset, Start, TopicSpec};
use bus_local::{LocalBus, OpenError};
use futures::StreamExt;

use crate::steps::{
    LOG, TABLE, append_each, damage, numbered, open, read_all, segments, soon, table_file,
};

#[tokio::test]
async fn a_folder_that_is_in_use_is_refused_by_name_until_it_is_closed() {
    let folder = tempfile::tempdir().unwrap();
    let bus = open(folder.path()).await;
    let refused = LocalBus::open(folder.path(), &bus_conformance::LAYOUT).await;

    let message = refused.err().unwrap().to_string();
    assert!(message.contains(&folder.path().display().to_string()));
    assert!(message.contains("in use"));
    bus.close().await;
    open(folder.path()).await;
}

#[tokio::test]
async fn a_bus_that_is_dropped_frees_its_folder_and_keeps_what_it_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let bus = open(folder.path()).await;
    append_each(&bus, &LOG, 0..10).await;
    drop(bus);

    let again = soon(async {
        loop {
            let opened = LocalBus::open(folder.path(), &bus_conformance::LAYOUT).await;
            match opened {
                Ok(bus) => return bus,
                Err(OpenError::InUse { .. }) => tokio::task::yield_now().await,
                Err(error) => panic!("{error}"),
            }
        }
    });
    let again = again.await;
    let records = read_all(&again, &LOG, Start::Earliest).await.unwrap();
    assert_eq!(records.len(), 10);
}

#[tokio::test]
async fn after_a_close_streams_end_and_calls_find_the_bus_unavailable() {
    let folder = tempfile::tempdir().unwrap();
    let bus = open(folder.path()).await;
    append_each(&bus, &LOG, 0..3).await;
    let records = bus.read(&LOG, Start::Earliest).await.unwrap();
    let changes = bus.watch(&TABLE).await.unwrap();
    bus.close().await;
    bus.close().await;

    let records: Vec<_> = soon(records.collect()).await;
    assert!(matches!(
        records[..],
        [Ok(_), Ok(_), Ok(_), Err(BusError::Unavailable(_))]
    ));
    let changes: Vec<_> = soon(changes.collect()).await;
    assert!(matches!(
        changes[..],
        [Ok(bus::Change::CaughtUp), Err(BusError::Unavailable(_))]
    ));
    let key = Key("k".into());
    let put = bus.put(&TABLE, key.clone(), None, Expect::Any).await;
    assert!(put.is_err_and(|it| it.is_retryable()));
    let append = bus.append(&LOG, numbered(0..1)).await;
    assert!(append.is_err_and(|it| it.is_retryable()));
    assert!(bus.read(&LOG, Start::Earliest).await.is_err());
    assert!(bus.get(&TABLE, &key).await.is_err());
}

#[tokio::test]
async fn a_file_of_another_format_is_named_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let bus = open(folder.path()).await;
    append_each(&bus, &LOG, 0..3).await;
    bus.close().await;
    let files = [
        folder.path().join("epoch"),
        segments(folder.path(), &LOG)[0].clone(),
        table_file(folder.path(), &TABLE),
    ];
    for file in files {
        // The version stands behind a magic of eight bytes.
        damage(&file, 8);
        let before = std::fs::read(&file).unwrap();
        let refused = LocalBus::open(folder.path(), &bus_conformance::LAYOUT).await;

        let error = refused.err().unwrap();
        assert!(matches!(
            &error,
            OpenError::Format { path, found: 0xfe, supported: 1 } if *path == file
        ));
        assert!(error.to_string().contains("move the folder away"));
        assert_eq!(std::fs::read(&file).unwrap(), before);
        damage(&file, 8);
    }

    let bus = open(folder.path()).await;
    let records = read_all(&bus, &LOG, Start::Earliest).await.unwrap();
    assert_eq!(records.len(), 3);
}

#[tokio::test]
async fn a_damaged_count_of_openings_is_named() {
    let folder = tempfile::tempdir().unwrap();
    open(folder.path()).await.close().await;
    let file = folder.path().join("epoch");
    for place in 0..std::fs::read(&file).unwrap().len() {
        if (8..12).contains(&place) {
            continue;
        }
        damage(&file, place);
        let refused = LocalBus::open(folder.path(), &bus_conformance::LAYOUT).await;
        assert!(matches!(refused, Err(OpenError::Damaged { path }) if path == file));
        damage(&file, place);
    }
}

#[tokio::test]
async fn a_topic_that_cannot_name_a_folder_is_refused() {
    const LAYOUT: Layout = Layout {
        topics: &[TopicSpec {
            name: "../elsewhere",
            partitions: 1,
            kind: LogKind::Durable {
                retention: std::time::Duration::from_secs(1),
            },
        }],
        tables: &[],
    };
    let folder = tempfile::tempdir().unwrap();
    let refused = LocalBus::open(folder.path(), &LAYOUT).await;

    assert!(matches!(refused, Err(OpenError::Name { .. })));
}

#[tokio::test]
async fn a_folder_that_cannot_be_made_is_named_with_the_cause() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let refused = LocalBus::open(&file.path().join("bus"), &bus_conformance::LAYOUT).await;

    let error = refused.err().unwrap();
    assert!(matches!(&error, OpenError::Io { path, .. } if path.starts_with(file.path())));
    assert!(std::error::Error::source(&error).is_some());
}

#[tokio::test]
async fn an_offset_is_not_given_twice_even_if_a_power_cut_took_its_record() {
    let folder = tempfile::tempdir().unwrap();
    let bus = open(folder.path()).await;
    append_each(&bus, &LOG, 0..3).await;
    let kept = bus.tail(&LOG).await.unwrap();
    let file = segments(folder.path(), &LOG)[0].clone();
    let synchronised = std::fs::read(&file).unwrap();
    append_each(&bus, &LOG, 3..6).await;
    let taken: Offset = bus.tail(&LOG).await.unwrap().last.unwrap();
    bus.close().await;
    std::fs::write(&file, synchronised).unwrap();

    let bus = open(folder.path()).await;
    assert_eq!(bus.tail(&LOG).await.unwrap(), kept);
    let next = bus.append(&LOG, numbered(6..7)).await.unwrap();
    assert!(taken < next);
    let rest = read_all(&bus, &LOG, Start::After(taken)).await.unwrap();
    assert_eq!(rest.len(), 1, "who had read the lost ones goes on");
}

#[tokio::test]
async fn a_revision_is_not_given_twice_even_if_a_power_cut_took_its_change() {
    let folder = tempfile::tempdir().unwrap();
    let bus = open(folder.path()).await;
    let put = async |bus: &LocalBus, value: &'static str, expect| {
        let put = bus.put(&TABLE, Key("k".into()), Some(value.into()), expect);
        put.await
    };
    put(&bus, "synchronised", Expect::Any).await.unwrap();
    let file = table_file(folder.path(), &TABLE);
    let synchronised = std::fs::read(&file).unwrap();
    let taken = put(&bus, "lost", Expect::Any).await.unwrap();
    bus.close().await;
    std::fs::write(&file, synchronised).unwrap();

    let bus = open(folder.path()).await;
    let next = put(&bus, "other", Expect::Any).await.unwrap();
    assert!(taken < next);
    let stale = put(&bus, "stale", Expect::At(taken)).await;
    assert!(matches!(stale, Err(BusError::Conflict { .. })));
}
