//! How long records are kept, and what readers find of those that are gone.

use std::path::Path;
use std::process::Command;

use bus::{Bus, BusError, Start};
use futures::StreamExt;

use crate::steps::{
    LOG, OTHER_LOG, SMALL, append_each, number, open_small, read_all, segments, soon,
};

/// Makes a file look as if it was last written two hours ago; the retention of the suite's log is one.
fn make_old(path: &Path) {
    let touched = Command::new("touch")
        .args(["-d", "2 hours ago"])
        .arg(path)
        .status();
    assert!(touched.unwrap().success());
}

#[tokio::test]
async fn records_past_their_retention_are_trimmed_in_whole_files() {
    let folder = tempfile::tempdir().unwrap();
    let bus = open_small(folder.path()).await;
    append_each(&bus, &LOG, 0..100).await;
    let all = read_all(&bus, &LOG, Start::Earliest).await.unwrap();
    bus.close().await;
    let files = segments(folder.path(), &LOG);
    assert!(4 < files.len());
    for file in &files[..2] {
        make_old(file);
    }

    let bus = open_small(folder.path()).await;
    assert_eq!(segments(folder.path(), &LOG), files[2..]);
    assert_eq!(bus.counts().trimmed_segments, 2);
    let kept = read_all(&bus, &LOG, Start::Earliest).await.unwrap();
    assert!(0 < number(&kept[0]));
    assert!(all.ends_with(&kept));
    let trimmed = bus.read(&LOG, Start::After(all[0].offset)).await.err();
    assert!(
        matches!(trimmed, Some(BusError::Trimmed { oldest }) if oldest == Some(kept[0].offset))
    );
    let missed_none = all[all.len() - kept.len() - 1].offset;
    let rest = read_all(&bus, &LOG, Start::After(missed_none)).await;
    assert_eq!(rest.unwrap(), kept);
}

#[tokio::test]
async fn a_log_that_nobody_writes_is_trimmed_too_and_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let bus = open_small(folder.path()).await;
    append_each(&bus, &LOG, 0..3).await;
    let before = bus.tail(&LOG).await.unwrap();
    bus.close().await;
    for file in segments(folder.path(), &LOG) {
        make_old(&file);
    }

    let bus = open_small(folder.path()).await;
    let after = bus.tail(&LOG).await.unwrap();
    assert_eq!(after, before);
    let mut earliest = bus.read(&LOG, Start::Earliest).await.unwrap();
    append_each(&bus, &LOG, 3..4).await;
    assert_eq!(number(&soon(earliest.next()).await.unwrap().unwrap()), 3);
    let mut resumed = bus
        .read(&LOG, Start::After(before.last.unwrap()))
        .await
        .unwrap();
    assert_eq!(number(&soon(resumed.next()).await.unwrap().unwrap()), 3);
}

#[tokio::test]
async fn a_topic_over_its_limit_loses_its_oldest_records_whatever_their_partition() {
    let folder = tempfile::tempdir().unwrap();
    let limits = bus_local::Limits {
        topic_bytes: 16 * 1024,
        ..SMALL
    };
    let bus = bus_local::LocalBus::open_with(folder.path(), &bus_conformance::LAYOUT, limits);
    let bus = bus.await.unwrap();
    append_each(&bus, &OTHER_LOG, 0..100).await;
    append_each(&bus, &LOG, 0..1000).await;

    let files = [
        segments(folder.path(), &LOG),
        segments(folder.path(), &OTHER_LOG),
    ];
    let bytes: u64 = files
        .iter()
        .flatten()
        .map(|it| it.metadata().unwrap().len())
        .sum();
    assert!(bytes < 20 * 1024, "{bytes}");
    assert_eq!(files[1].len(), 1, "only what is being written is left");
    let kept = read_all(&bus, &LOG, Start::Earliest).await.unwrap();
    assert_eq!(number(kept.last().unwrap()), 999);
    assert!(0 < bus.counts().trimmed_segments);
}

#[tokio::test]
async fn a_slow_reader_whose_records_are_trimmed_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let limits = bus_local::Limits {
        topic_bytes: 8 * 1024,
        ..SMALL
    };
    let bus = bus_local::LocalBus::open_with(folder.path(), &bus_conformance::LAYOUT, limits);
    let bus = bus.await.unwrap();
    append_each(&bus, &LOG, 0..10).await;
    let mut slow = bus.read(&LOG, Start::Earliest).await.unwrap();
    assert_eq!(number(&soon(slow.next()).await.unwrap().unwrap()), 0);
    append_each(&bus, &LOG, 10..1000).await;

    let rest: Vec<_> = soon(slow.collect()).await;
    let (told, records) = rest.split_last().unwrap();
    assert!(matches!(told, Err(BusError::Trimmed { oldest: Some(_) })));
    let read = records.iter().map(|it| number(it.as_ref().unwrap()));
    assert!(
        read.eq(1..records.len() as u32 + 1),
        "no hole before it is told"
    );
}

#[tokio::test]
async fn a_reader_of_many_files_misses_nothing_while_others_append() {
    let folder = tempfile::tempdir().unwrap();
    let bus = open_small(folder.path()).await;
    append_each(&bus, &LOG, 0..500).await;
    let append = append_each(&bus, &LOG, 500..2000);
    let read = async {
        let records = bus.read(&LOG, Start::Earliest).await.unwrap();
        let numbers = records.map(|it| number(&it.unwrap())).take(2000);
        numbers.collect::<Vec<u32>>().await
    };

    let ((), numbers) = soon(futures::future::join(append, read)).await;
    assert!(numbers.into_iter().eq(0..2000));
}
