//! What damage to the files costs: never more than it hit, and never unnoticed.

use std::fs;
use std::path::Path;

use bus::{Bus, BusError, Delivered, Offset, Record, Start, Tail};
use bus_local::{Limits, LocalBus};
use bytes::Bytes;
use futures::StreamExt;
use proptest::prelude::{ProptestConfig, any, prop, proptest};
use proptest::{prop_assert, prop_assert_eq};

use crate::steps::{
    LOG, append_each, damage, find, number, numbered, open, open_small, read_all, read_to,
    segments, soon,
};

/// A folder whose log has twenty records in one file, and what a reader saw of them.
async fn written(folder: &Path) -> (Tail, Vec<Delivered>) {
    let bus = open(folder).await;
    bus.append(&LOG, numbered(0..20)).await.unwrap();
    let tail = bus.tail(&LOG).await.unwrap();
    let records = read_all(&bus, &LOG, Start::Earliest).await.unwrap();
    bus.close().await;
    (tail, records)
}

async fn reopened(folder: &Path) -> (LocalBus, Tail, Vec<Delivered>) {
    let bus = open(folder).await;
    let tail = bus.tail(&LOG).await.unwrap();
    let records = read_all(&bus, &LOG, Start::Earliest).await.unwrap();
    (bus, tail, records)
}

#[test]
fn a_file_cut_at_any_byte_keeps_every_record_before_the_cut() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let (before, records) = written(folder.path()).await;
        let file = segments(folder.path(), &LOG)[0].clone();
        let whole = fs::read(&file).unwrap();
        let first = find(&file, "00000000 of");
        for cut in (0..whole.len()).rev().step_by(7) {
            for other in segments(folder.path(), &LOG) {
                fs::remove_file(other).unwrap();
            }
            fs::write(&file, &whole[..cut]).unwrap();
            let (bus, after, kept) = reopened(folder.path()).await;

            assert!(records.starts_with(&kept), "cut at {cut}");
            let ends = (0..20).map(|n| find_end(&whole, n));
            assert_eq!(kept.len(), ends.filter(|it| *it <= cut).count());
            if first <= cut {
                assert_eq!(after.generation, before.generation);
            }
            let next = bus.append(&LOG, numbered(20..21)).await.unwrap();
            assert!(before.last < Some(next));
            let again = read_all(&bus, &LOG, Start::Earliest).await.unwrap();
            assert_eq!(number(again.last().unwrap()), 20);
            bus.close().await;
        }
    });
}

/// Where the record `n` ends; each ends with the same text.
fn find_end(bytes: &[u8], n: u32) -> usize {
    let text = &numbered(n..n + 1)[0].0;
    let found = bytes.windows(text.len()).position(|it| it == &text[..]);
    found.unwrap() + text.len()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn garbage_behind_the_last_record_costs_nothing(
        garbage in prop::collection::vec(any::<u8>(), 1..2000),
        like_a_frame in any::<bool>(),
    ) {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let folder = tempfile::tempdir().unwrap();
            let (before, records) = written(folder.path()).await;
            let file = segments(folder.path(), &LOG)[0].clone();
            let mut bytes = fs::read(&file).unwrap();
            if like_a_frame {
                bytes.extend([0xf7, b'R', b'W', 0x1e]);
            }
            bytes.extend(garbage);
            fs::write(&file, bytes).unwrap();

            let (bus, after, kept) = reopened(folder.path()).await;
            prop_assert_eq!(after, before);
            prop_assert_eq!(kept, records);
            prop_assert_eq!(bus.counts().torn_tails, 1);
            prop_assert_eq!(bus.counts().damaged_files, 0);
            bus.close().await;
            Ok(())
        })?;
    }

    #[test]
    fn a_damaged_byte_anywhere_is_noticed_and_costs_only_what_follows(
        place in any::<prop::sample::Index>(),
        bits in 1..=u8::MAX,
    ) {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let folder = tempfile::tempdir().unwrap();
            let (before, records) = written(folder.path()).await;
            let file = segments(folder.path(), &LOG)[0].clone();
            let mut bytes = fs::read(&file).unwrap();
            let place = place.index(bytes.len());
            if (8..12).contains(&place) {
                // The version, which is a test of its own.
                return Ok(());
            }
            let (last_begins, last_ends) = (find_end(&bytes, 18), bytes.len());
            bytes[place] ^= bits;
            fs::write(&file, bytes).unwrap();

            let (bus, after, kept) = reopened(folder.path()).await;
            prop_assert!(records.starts_with(&kept));
            prop_assert!(kept.len() < records.len());
            if (last_begins..last_ends).contains(&place) {
                // Not to be told from a record that was cut short.
                prop_assert_eq!(bus.counts().torn_tails, 1);
            } else {
                prop_assert!(after.generation != before.generation);
                prop_assert_eq!(bus.counts().damaged_files, 1);
            }
            let next = bus.append(&LOG, numbered(20..21)).await.unwrap();
            prop_assert!(before.last < Some(next));
            bus.close().await;

            let (bus, again, more) = reopened(folder.path()).await;
            prop_assert_eq!(again.generation, after.generation, "damage is found once");
            prop_assert_eq!(more.len(), kept.len() + 1);
            prop_assert_eq!(bus.counts().damaged_files, 0);
            bus.close().await;
            Ok(())
        })?;
    }
}

#[tokio::test]
async fn who_reads_into_damage_of_an_older_file_is_told_and_the_log_gets_a_new_generation() {
    let folder = tempfile::tempdir().unwrap();
    let bus = open_small(folder.path()).await;
    append_each(&bus, &LOG, 0..100).await;
    let before = bus.tail(&LOG).await.unwrap();
    let all = read_all(&bus, &LOG, Start::Earliest).await.unwrap();
    let file = segments(folder.path(), &LOG)[1].clone();
    let hit = (0..100).find(|n| {
        fs::read(&file)
            .unwrap()
            .windows(8)
            .any(|it| it == format!("{:08}", n + 2).as_bytes())
    });
    let hit = hit.unwrap() + 2;
    let mut reading = bus.read(&LOG, Start::Earliest).await.unwrap();
    damage(&file, find(&file, &format!("{hit:08}")));

    let told = read_to(&mut reading, before.last.unwrap())
        .await
        .unwrap_err();
    assert!(matches!(told, BusError::Trimmed { oldest } if oldest == Some(all[0].offset)));
    assert!(soon(reading.next()).await.is_none());
    let after = bus.tail(&LOG).await.unwrap();
    assert_ne!(after.generation, before.generation);
    assert_eq!(after.last, before.last);
    assert_eq!(bus.counts().damaged_files, 1);
    append_each(&bus, &LOG, 100..110).await;
    let numbers = |all: Vec<Delivered>| all.iter().map(number).collect::<Vec<u32>>();
    let rest = numbers(read_all(&bus, &LOG, Start::Earliest).await.unwrap());
    assert!(rest.starts_with(&(0..hit).collect::<Vec<u32>>()));
    assert!(rest.ends_with(&(hit + 30..110).collect::<Vec<u32>>()));
    bus.close().await;

    let bus = open_small(folder.path()).await;
    assert_eq!(bus.tail(&LOG).await.unwrap().generation, after.generation);
    assert_eq!(
        numbers(read_all(&bus, &LOG, Start::Earliest).await.unwrap()),
        rest
    );
    let after_the_hole = read_all(&bus, &LOG, Start::After(all[99].offset)).await;
    assert_eq!(
        numbers(after_the_hole.unwrap()),
        (100..110).collect::<Vec<u32>>()
    );
    assert_eq!(bus.counts().damaged_files, 0);
}

#[tokio::test]
async fn a_file_whose_beginning_is_damaged_is_set_aside_and_the_others_stay() {
    let folder = tempfile::tempdir().unwrap();
    let bus = open_small(folder.path()).await;
    append_each(&bus, &LOG, 0..100).await;
    let before = bus.tail(&LOG).await.unwrap();
    bus.close().await;
    let files = segments(folder.path(), &LOG);
    for file in [&files[1], files.last().unwrap()] {
        damage(file, 0);
    }

    let bus = open_small(folder.path()).await;
    assert_eq!(bus.counts().damaged_files, 2);
    let after = bus.tail(&LOG).await.unwrap();
    assert_ne!(after.generation, before.generation);
    let records = read_all(&bus, &LOG, Start::Earliest).await.unwrap();
    assert_eq!(number(&records[0]), 0);
    assert!(records.windows(2).all(|it| it[0].offset < it[1].offset));
    assert!(40 < records.len() && records.len() < 100);
    let next: Offset = bus.append(&LOG, numbered(100..101)).await.unwrap();
    assert!(before.last < Some(next));
}

#[tokio::test]
async fn one_unreadable_older_file_is_enough_for_a_new_generation() {
    let folder = tempfile::tempdir().unwrap();
    let bus = open_small(folder.path()).await;
    append_each(&bus, &LOG, 0..100).await;
    let before = bus.tail(&LOG).await.unwrap();
    bus.close().await;
    damage(&segments(folder.path(), &LOG)[1], 0);

    let bus = open_small(folder.path()).await;
    let after = bus.tail(&LOG).await.unwrap();
    assert_ne!(after.generation, before.generation);
    assert_eq!(after.last, before.last);
}

#[tokio::test]
async fn a_slow_reader_is_told_of_damage_that_another_has_found() {
    let folder = tempfile::tempdir().unwrap();
    let limits = Limits {
        ring_bytes: 512,
        ..Limits::default()
    };
    let bus = LocalBus::open_with(folder.path(), &bus_conformance::LAYOUT, limits);
    let bus = bus.await.unwrap();
    for n in 0..8_u8 {
        let record = Record(Bytes::from(format!("{n} ").repeat(50_000)));
        bus.append(&LOG, vec![record]).await.unwrap();
    }
    let last = bus.tail(&LOG).await.unwrap().last.unwrap();
    let mut slow = bus.read(&LOG, Start::Earliest).await.unwrap();
    soon(slow.next()).await.unwrap().unwrap();
    let file = segments(folder.path(), &LOG)[0].clone();
    damage(&file, find(&file, "6 6 6 6"));
    let mut first = bus.read(&LOG, Start::Earliest).await.unwrap();

    for reader in [&mut first, &mut slow] {
        let told = read_to(reader, last).await.unwrap_err();
        assert!(matches!(told, BusError::Trimmed { .. }), "{told}");
    }
    assert_eq!(bus.counts().damaged_files, 1);
}
