//! Over the bus that keeps its data in a folder.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use bus_local::LocalBus;
use contracts::topics;

use crate::rig::*;

/// What a process that is killed leaves: the files as they are, nothing closed.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &to),
            false => drop(fs::copy(entry.path(), to).unwrap()),
        }
    }
}

#[tokio::test]
async fn every_binding_outlives_a_process_that_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    for life in 0..3 {
        let home = folder.path().join(life.to_string());
        let bus = LocalBus::open(&home, &topics::LAYOUT).await.unwrap();
        let rig = Rig::start(Arc::new(bus)).await;
        for conversation in 0..200 {
            let proposed = format!("w1#1/{}", conversation % 8 + life);
            let ran = rig.turn(&format!("c{conversation}"), &proposed, 160).await;
            assert_eq!(ran.dp_rank.get(), conversation % 8, "life {life}");
        }
        assert_eq!(rig.metric("rankway_bindings", "confirmed"), 200.0);
        copy(&home, &folder.path().join((life + 1).to_string()));
    }
}
