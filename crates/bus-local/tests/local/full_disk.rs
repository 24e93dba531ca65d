//! A disk that takes no more, played by the largest file that the system lets a process write.

use bus::{Bus, BusError, Expect, Key, Start};
use bytes::Bytes;

use crate::steps::{
    LOG, TABLE, append_each, child, folder_of_child, number, numbered, open, read_all,
};

#[test]
fn a_full_disk_refuses_writes_and_loses_nothing_that_was_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    // 16 KiB a file, to be raised later; without the trap the process would be ended instead of told.
    let command = "trap '' XFSZ; ulimit -S -f 32; exec \"$0\" \"$@\"";
    let name = "full_disk::child_with_a_full_disk";
    let output = child(name, folder.path(), command).output().unwrap();

    let output = String::from_utf8(output.stdout).unwrap();
    let told = output.lines().find_map(|it| it.strip_prefix("told "));
    let told = told.unwrap_or_else(|| panic!("the child failed: {output}"));
    let acknowledged: u32 = told.parse().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let bus = open(folder.path()).await;
        assert_eq!(bus.counts().torn_tails, 0, "no half record is left");
        let records = read_all(&bus, &LOG, Start::Earliest).await.unwrap();
        assert!(records.iter().map(number).eq(0..acknowledged));
        let entry = bus.get(&TABLE, &Key("after".into())).await.unwrap();
        assert!(entry.is_some());
        bus.close().await;
    });
}

/// Not a test: does nothing unless the one above starts it with a folder.
#[test]
fn child_with_a_full_disk() {
    let Some(folder) = folder_of_child() else {
        return;
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let acknowledged = runtime.block_on(async {
        let bus = open(&folder).await;
        let mut acknowledged = 0;
        let refused = loop {
            let batch = numbered(acknowledged..acknowledged + 7);
            match bus.append(&LOG, batch).await {
                Ok(_) => acknowledged += 7,
                Err(error) => break error,
            }
        };
        let BusError::Unavailable(cause) = &refused else {
            panic!("a full disk is a passing state, not {refused}");
        };
        assert!(cause.to_string().contains(&folder.display().to_string()));
        assert!(cause.source().is_some(), "the system's own words");
        assert_eq!(bus.counts().failed_writes, 1);
        let shown = read_all(&bus, &LOG, Start::Earliest).await.unwrap();
        assert!(shown.iter().map(number).eq(0..acknowledged));
        let mut value = Bytes::from(vec![0; 1000]);
        let mut puts = 0;
        let refused = loop {
            let key = Key(Bytes::from(format!("{puts}")));
            match bus
                .put(&TABLE, key.clone(), Some(value.clone()), Expect::Absent)
                .await
            {
                Ok(_) => puts += 1,
                Err(error) => break (error, key),
            }
        };
        assert!(refused.0.is_retryable());
        assert_eq!(bus.get(&TABLE, &refused.1).await.unwrap(), None);

        let raise = format!("--pid={}", std::process::id());
        let mut prlimit = std::process::Command::new("prlimit");
        let raised = prlimit.args([&raise, "--fsize=unlimited:"]).status();
        assert!(raised.unwrap().success());
        append_each(&bus, &LOG, acknowledged..acknowledged + 10).await;
        value.truncate(10);
        let put = bus.put(&TABLE, Key("after".into()), Some(value), Expect::Absent);
        put.await.unwrap();
        bus.close().await;
        acknowledged + 10
    });
    crate::steps::tell(&acknowledged.to_string());
}
