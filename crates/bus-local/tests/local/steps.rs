//! The steps that these tests are told in.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bus::{Bus, BusError, Delivered, Partition, Record, Records, Start, Table};
use bus_local::{Limits, LocalBus};
use bytes::Bytes;
use futures::StreamExt;

pub(crate) const LOG: Partition = Partition {
    topic: "conformance-log",
    index: 0,
};
pub(crate) const OTHER_LOG: Partition = Partition { index: 1, ..LOG };
pub(crate) const TABLE: Table = Table("conformance-cas");

/// Files and memory so small that a few records cross many of them.
pub(crate) const SMALL: Limits = Limits {
    segment_bytes: 1024,
    topic_bytes: 1024 * 1024,
    ring_bytes: 512,
};

pub(crate) async fn open(folder: &Path) -> LocalBus {
    let bus = LocalBus::open(folder, &bus_conformance::LAYOUT);
    bus.await.unwrap()
}

pub(crate) async fn open_small(folder: &Path) -> LocalBus {
    let bus = LocalBus::open_with(folder, &bus_conformance::LAYOUT, SMALL);
    bus.await.unwrap()
}

/// Resolves as `step` does, or panics when it takes too long.
pub(crate) async fn soon<T>(step: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), step)
        .await
        .expect("a step took too long")
}

/// Records of about 40 bytes, numbered.
pub(crate) fn numbered(numbers: std::ops::Range<u32>) -> Vec<Record> {
    let text = |n: u32| format!("{n:08} of a log that is to be kept");
    numbers.map(|n| Record(Bytes::from(text(n)))).collect()
}

pub(crate) fn number(delivered: &Delivered) -> u32 {
    let text = std::str::from_utf8(&delivered.record.0).unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

/// Appends one record at a time, so that each can begin a file.
pub(crate) async fn append_each(bus: &LocalBus, at: &Partition, numbers: std::ops::Range<u32>) {
    for record in numbered(numbers) {
        bus.append(at, vec![record]).await.unwrap();
    }
}

/// Everything after `start` up to the tail.
pub(crate) async fn read_all(
    bus: &LocalBus,
    at: &Partition,
    start: Start,
) -> Result<Vec<Delivered>, BusError> {
    let Some(last) = bus.tail(at).await?.last else {
        return Ok(Vec::new());
    };
    read_to(&mut bus.read(at, start).await?, last).await
}

/// What `records` yields up to the offset `last`.
pub(crate) async fn read_to(
    records: &mut Records,
    last: bus::Offset,
) -> Result<Vec<Delivered>, BusError> {
    let mut all = Vec::new();
    while all.last().is_none_or(|it: &Delivered| it.offset < last) {
        all.push(soon(records.next()).await.expect("a read never ends")?);
    }
    Ok(all)
}

/// The files of a log, the oldest first.
pub(crate) fn segments(folder: &Path, at: &Partition) -> Vec<PathBuf> {
    let folder = folder
        .join("logs")
        .join(at.topic)
        .join(at.index.to_string());
    let files = folder.read_dir().unwrap().map(|it| it.unwrap().path());
    let mut files: Vec<PathBuf> = files
        .filter(|it| it.extension().is_some_and(|it| it == "segment"))
        .collect();
    files.sort_unstable();
    files
}

pub(crate) fn table_file(folder: &Path, table: &Table) -> PathBuf {
    folder.join("tables").join(format!("{}.table", table.0))
}

/// Inverts the bits of the byte at `place`.
pub(crate) fn damage(path: &Path, place: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[place] ^= 0xff;
    std::fs::write(path, bytes).unwrap();
}

/// Where `text` stands in a file.
pub(crate) fn find(path: &Path, text: &str) -> usize {
    let bytes = std::fs::read(path).unwrap();
    let found = bytes
        .windows(text.len())
        .position(|it| it == text.as_bytes());
    found.expect("the file has the text")
}

/// Runs the test `name` of this executable in a process of its own, with `folder`, as `command` says: a
/// command line in which `$0` stands for the executable.
pub(crate) fn child(name: &str, folder: &Path, command: &str) -> std::process::Command {
    let mut child = std::process::Command::new("sh");
    child
        .args(["-c", command])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .arg(format!("folder={}", folder.display()))
        .stdout(std::process::Stdio::piped());
    child
}

/// The folder that [`child`] was given; nothing in an ordinary run of the tests.
pub(crate) fn folder_of_child() -> Option<PathBuf> {
    let folder = |it: String| it.strip_prefix("folder=").map(PathBuf::from);
    std::env::args().find_map(folder)
}

/// Tells the parent something. Not with `println!`, which the test harness would keep.
pub(crate) fn tell(line: &str) {
    use std::io::Write;
    let mut stdout = std::io::stdout().lock();
    stdout
        .write_all(format!("told {line}\n").as_bytes())
        .unwrap();
    stdout.flush().unwrap();
}
