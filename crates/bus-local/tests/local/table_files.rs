//! The files of tables: rewritten when most of them is obsolete, and as hardy as those of logs.

use std::fs;
use std::path::Path;

use bus::{Bus, Expect, Key, Revision};
use bus_local::LocalBus;
use bytes::Bytes;

use crate::steps::{TABLE, damage, find, open, soon, table_file};

fn key(name: impl ToString) -> Key {
    Key(Bytes::from(name.to_string()))
}

async fn put(bus: &LocalBus, name: impl ToString, value: impl Into<Bytes>) -> Revision {
    let put = bus.put(&TABLE, key(name), Some(value.into()), Expect::Any);
    put.await.unwrap()
}

async fn value(bus: &LocalBus, name: impl ToString) -> Option<Bytes> {
    let entry = bus.get(&TABLE, &key(name)).await.unwrap();
    entry.map(|it| it.value)
}

/// Twenty keys, each written twice, one at a time.
async fn written(folder: &Path) {
    let bus = open(folder).await;
    for round in ["former", "latest"] {
        for name in 0..20 {
            put(&bus, format!("key {name:02}"), format!("{round} {name:02}")).await;
        }
    }
    bus.close().await;
}

#[tokio::test]
async fn a_table_that_is_written_for_ever_stays_small_on_disk_and_keeps_its_content() {
    let folder = tempfile::tempdir().unwrap();
    let bus = open(folder.path()).await;
    let mut last = Revision(0);
    put(&bus, "gone", "soon").await;
    bus.put(&TABLE, key("gone"), None, Expect::Any)
        .await
        .unwrap();
    for n in 0..20_000_u32 {
        let mut content = vec![0; 500];
        content[..4].copy_from_slice(&n.to_be_bytes());
        last = put(&bus, n % 10, content).await;
    }
    soon(async {
        while bus.counts().compactions == 0 {
            put(&bus, "tick", "tock").await;
        }
    })
    .await;
    bus.close().await;
    assert!(table_file(folder.path(), &TABLE).metadata().unwrap().len() < 9_000_000);

    let bus = open(folder.path()).await;
    for n in 19_990..20_000_u32 {
        let content = value(&bus, n % 10).await.unwrap();
        assert_eq!(content[..4], n.to_be_bytes());
    }
    assert_eq!(value(&bus, "gone").await, None);
    let entry = bus.get(&TABLE, &key(9)).await.unwrap().unwrap();
    assert_eq!(entry.revision, last);
}

#[tokio::test]
async fn what_is_written_during_a_rewrite_is_in_the_new_file_too() {
    let folder = tempfile::tempdir().unwrap();
    let bus = open(folder.path()).await;
    let mut n = 0_u32;
    soon(async {
        while bus.counts().compactions < 3 {
            let mut content = vec![0; 20_000];
            content[..4].copy_from_slice(&n.to_be_bytes());
            put(&bus, n % 7, content).await;
            put(&bus, format!("once {n}"), n.to_string()).await;
            put(&bus, format!("short-lived {n}"), "x").await;
            let delete = bus.put(&TABLE, key(format!("short-lived {n}")), None, Expect::Any);
            delete.await.unwrap();
            n += 1;
        }
    })
    .await;
    bus.close().await;

    let bus = open(folder.path()).await;
    for n in 0..n {
        let once = value(&bus, format!("once {n}")).await;
        assert_eq!(once.unwrap(), n.to_string());
    }
    for n in n - 7..n {
        let content = value(&bus, n % 7).await.unwrap();
        assert_eq!(content[..4], n.to_be_bytes());
        assert_eq!(value(&bus, format!("short-lived {n}")).await, None);
    }
}

#[tokio::test]
async fn a_table_cut_at_any_byte_keeps_every_change_before_the_cut() {
    let folder = tempfile::tempdir().unwrap();
    written(folder.path()).await;
    let file = table_file(folder.path(), &TABLE);
    let whole = fs::read(&file).unwrap();
    for cut in (0..whole.len()).step_by(11) {
        fs::write(&file, &whole[..cut]).unwrap();
        let bus = open(folder.path()).await;

        for name in 0..20 {
            let there = |round: &str| {
                let text = format!("{round} {name:02}");
                let found = whole[..cut]
                    .windows(text.len())
                    .any(|it| it == text.as_bytes());
                found.then(|| Bytes::from(text))
            };
            let expected = there("latest").or_else(|| there("former"));
            assert_eq!(
                value(&bus, format!("key {name:02}")).await,
                expected,
                "cut at {cut}"
            );
        }
        bus.close().await;
    }
}

#[tokio::test]
async fn a_damaged_change_costs_itself_alone_and_is_found_once() {
    let folder = tempfile::tempdir().unwrap();
    written(folder.path()).await;
    let file = table_file(folder.path(), &TABLE);
    damage(&file, find(&file, "latest 07"));

    let bus = open(folder.path()).await;
    assert_eq!(bus.counts().damaged_files, 1);
    for name in 0..20 {
        let round = if name == 7 { "former" } else { "latest" };
        let found = value(&bus, format!("key {name:02}")).await.unwrap();
        assert_eq!(found, format!("{round} {name:02}"));
    }
    bus.close().await;
    let bus = open(folder.path()).await;
    assert_eq!(bus.counts().damaged_files, 0);
    assert_eq!(value(&bus, "key 19").await.unwrap(), "latest 19");
}

#[tokio::test]
async fn a_table_whose_beginning_is_damaged_is_set_aside() {
    let folder = tempfile::tempdir().unwrap();
    written(folder.path()).await;
    let file = table_file(folder.path(), &TABLE);
    damage(&file, 0);

    let bus = open(folder.path()).await;
    assert_eq!(bus.counts().damaged_files, 1);
    assert_eq!(value(&bus, "key 07").await, None);
    let aside = file.with_extension("table.damaged");
    assert!(aside.exists());
    let revision = put(&bus, "key 07", "again").await;
    bus.close().await;
    let bus = open(folder.path()).await;
    let entry = bus.get(&TABLE, &key("key 07")).await.unwrap().unwrap();
    assert_eq!(entry.revision, revision);
}
