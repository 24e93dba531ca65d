//! How far each rank was published, kept across restarts, with the pages that this brought where pages are
//! gathered. What is lost of the last moment costs duplicates in the log, which readers drop; it is never ahead
//! of the log.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use domain::{DpRank, Epoch, EventSeq, Timestamp, WorkerId};
use event_feed::Position;
use service_kit::Clock;
use tokio::sync::{mpsc, oneshot};

use crate::pages::Changes;
use crate::shelf::{Shelf, ShelfWriter};

/// Writes are gathered for so long: a rank publishes up to a hundred times a second.
const GATHER: Duration = Duration::from_millis(100);
/// Reports waiting to be written: more than all ranks of a large fleet send while one write lasts.
const QUEUE: usize = 4_096;
/// A rank that published nothing for so long is forgotten at the next start; if it is still there, its
/// worker begins a new incarnation.
const KEEP: Duration = Duration::from_secs(30 * 24 * 3600);
/// The store's page cache in bytes: it holds some fifty bytes a rank, and some thirty for each page of an engine
/// where pages are gathered.
const CACHE_BYTES: u64 = 16 << 20;

/// No position's key is before it: they begin with a letter of a worker's name.
const FIRST_POSITION: [u8; 1] = [1];

/// One rank of one worker.
pub(crate) type RankKey = (WorkerId, DpRank);

/// Why the store cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("keep positions in {path}")]
pub(crate) struct PositionsError {
    path: String,
    #[source]
    source: sled::Error,
}

/// The store of a service that is not running yet.
pub(crate) struct Positions {
    path: String,
    db: sled::Db,
    kept: BTreeMap<RankKey, Position>,
}

/// What a rank reports: how far it was published, and how its pages have changed, where they are gathered.
#[derive(Debug)]
struct Report {
    rank: RankKey,
    position: Position,
    pages: Option<Changes>,
}

#[derive(Debug)]
enum Entry {
    Report(Report),
    /// All before it is to be written, and then it is to be answered.
    Settle(oneshot::Sender<()>),
}

/// Where ranks report to.
#[derive(Clone)]
pub(crate) struct PositionReports(mpsc::Sender<Entry>);

impl PositionReports {
    /// Returns once the report is queued; it is dropped only when the service ends.
    pub(crate) async fn send(&self, rank: RankKey, position: Position, pages: Option<Changes>) {
        let report = Report {
            rank,
            position,
            pages,
        };
        let _ended = self.0.send(Entry::Report(report)).await;
    }

    /// Returns once all that was reported before is written, or the service ends.
    pub(crate) async fn settled(&self) {
        let (written, settled) = oneshot::channel();
        if self.0.send(Entry::Settle(written)).await.is_ok() {
            let _ended = settled.await;
        }
    }
}

impl Positions {
    /// Opens the store in `folder`, creating it if need be. A damaged one is moved aside: without positions
    /// the engines are asked for all they keep.
    pub(crate) fn open(folder: &Path, now: Timestamp) -> Result<Self, PositionsError> {
        match Self::read(folder, now) {
            Err(error) if matches!(error.source, sled::Error::Corruption { .. }) => {
                let aside = move_aside(folder).map_err(|source| PositionsError {
                    path: error.path,
                    source: source.into(),
                })?;
                tracing::error!(aside = %aside.display(), "the store of positions is damaged and was moved aside");
                Self::read(folder, now)
            }
            other => other,
        }
    }

    fn read(folder: &Path, now: Timestamp) -> Result<Self, PositionsError> {
        let path = folder.display().to_string();
        let failed = |source| PositionsError {
            path: path.clone(),
            source,
        };
        let db = sled::Config::new()
            .path(folder)
            .cache_capacity(CACHE_BYTES)
            // This store decides itself when it is flushed.
            .flush_every_ms(None)
            .open()
            .map_err(failed)?;
        let mut kept = BTreeMap::new();
        let shelf = Shelf::new(db.clone());
        for entry in db.range(FIRST_POSITION..) {
            let (key, value) = entry.map_err(failed)?;
            match (read_key(&key), read_value(&value)) {
                (Some(rank), Some((position, saved))) if now.since(saved) <= KEEP => {
                    kept.insert(rank, position);
                }
                (Some(rank), Some(_)) => {
                    db.remove(&key).map_err(failed)?;
                    shelf.forget(&rank).map_err(failed)?;
                }
                _ => {
                    tracing::error!(?key, "a kept position is unreadable and was removed");
                    db.remove(&key).map_err(failed)?;
                }
            }
        }
        Ok(Self { path, db, kept })
    }

    /// What was kept of `worker`.
    pub(crate) fn of(&self, worker: &WorkerId) -> BTreeMap<DpRank, Position> {
        let of_worker = self.kept.iter().filter(|((id, _), _)| id == worker);
        of_worker
            .map(|((_, rank), position)| (*rank, *position))
            .collect()
    }

    /// Where the pages are.
    pub(crate) fn shelf(&self) -> Shelf {
        Shelf::new(self.db.clone())
    }

    /// Takes note of what a writer has been told, for ranks that are taken up again.
    pub(crate) fn note(&mut self, written: BTreeMap<RankKey, Position>) {
        self.kept.extend(written);
    }

    /// A writer over the same store, and where to report to it. It ends when all reports are dropped.
    pub(crate) fn writer(&self, clock: Clock) -> (PositionReports, Writer) {
        let (sender, reports) = mpsc::channel(QUEUE);
        let writer = Writer {
            path: self.path.clone(),
            db: self.db.clone(),
            shelf: ShelfWriter::new(self.shelf()),
            reports,
            clock,
        };
        (PositionReports(sender), writer)
    }
}

/// Renames a store to `NAME.broken`, in the place of the one before.
fn move_aside(folder: &Path) -> std::io::Result<PathBuf> {
    let mut name = folder.file_name().unwrap_or_default().to_owned();
    name.push(".broken");
    let aside = folder.with_file_name(name);
    if aside.exists() {
        std::fs::remove_dir_all(&aside)?;
    }
    std::fs::rename(folder, &aside)?;
    Ok(aside)
}

/// Writes what ranks report.
pub(crate) struct Writer {
    path: String,
    db: sled::Db,
    shelf: ShelfWriter,
    reports: mpsc::Receiver<Entry>,
    clock: Clock,
}

/// What is written at a time: the newest of each rank.
#[derive(Default)]
struct Gathered {
    ranks: BTreeMap<RankKey, (Position, Option<Changes>)>,
    waiting: Vec<oneshot::Sender<()>>,
}

impl Gathered {
    fn add(&mut self, entry: Entry) {
        match entry {
            Entry::Settle(waiting) => self.waiting.push(waiting),
            Entry::Report(report) => {
                let known = self.ranks.remove(&report.rank).and_then(|it| it.1);
                let pages = match (known, report.pages) {
                    (Some(mut earlier), Some(later)) => {
                        earlier.merge(later);
                        Some(earlier)
                    }
                    (earlier, later) => later.or(earlier),
                };
                self.ranks.insert(report.rank, (report.position, pages));
            }
        }
    }
}

impl Writer {
    /// Writes until nobody can report any more.
    pub(crate) async fn run(mut self) -> Result<(), PositionsError> {
        while let Some(entry) = self.reports.recv().await {
            let mut gathered = Gathered::default();
            gathered.add(entry);
            let gathering = async {
                while gathered.waiting.is_empty()
                    && let Some(entry) = self.reports.recv().await
                {
                    gathered.add(entry);
                }
            };
            // The time is over, somebody waits, or nobody reports any more: each ends the gathering.
            let _over = tokio::time::timeout(GATHER, gathering).await;
            self.write(gathered)
                .await
                .map_err(|source| PositionsError {
                    path: self.path.clone(),
                    source,
                })?;
        }
        Ok(())
    }

    async fn write(&mut self, gathered: Gathered) -> Result<(), sled::Error> {
        let now = self.clock.now();
        let mut batch = sled::Batch::default();
        for (rank, (position, pages)) in gathered.ranks {
            batch.insert(key(&rank), &value(position, now)[..]);
            if let Some(pages) = pages {
                self.shelf.add(&mut batch, &rank, pages)?;
            }
        }
        self.db.apply_batch(batch)?;
        self.shelf.sweep()?;
        self.db.flush_async().await?;
        for waiting in gathered.waiting {
            // Who waited may have ended.
            let _ended = waiting.send(());
        }
        Ok(())
    }
}

/// The worker's name and the rank in big endian.
fn key((worker, rank): &RankKey) -> Vec<u8> {
    let mut key = worker.as_str().as_bytes().to_vec();
    key.extend(rank.get().to_be_bytes());
    key
}

fn read_key(key: &[u8]) -> Option<RankKey> {
    let (worker, rank) = key.split_last_chunk::<4>()?;
    let worker = std::str::from_utf8(worker).ok()?;
    Some((
        WorkerId::new(worker).ok()?,
        DpRank::new(u32::from_be_bytes(*rank)),
    ))
}

/// Epoch, number, engine time and time of writing, each a big-endian u64.
fn value(position: Position, now: Timestamp) -> [u8; 32] {
    let words = [
        position.epoch.get(),
        position.seq.get(),
        position.engine_ts.as_micros(),
        now.as_micros(),
    ];
    let mut value = [0; 32];
    for (bytes, word) in value.chunks_exact_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_be_bytes());
    }
    value
}

fn read_value(value: &[u8]) -> Option<(Position, Timestamp)> {
    let value: &[u8; 32] = value.try_into().ok()?;
    let word = |index: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&value[index * 8..][..8]);
        u64::from_be_bytes(bytes)
    };
    let position = Position {
        epoch: Epoch::new(word(0)),
        seq: EventSeq::new(word(1)),
        engine_ts: Timestamp::from_micros(word(2)),
    };
    Some((position, Timestamp::from_micros(word(3))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_was_reported_is_there_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let clock = Clock::system();
        let worker: WorkerId = "10.0.0.1:8000".parse().unwrap();
        let position = |seq| Position {
            epoch: Epoch::new(3),
            seq: EventSeq::new(seq),
            engine_ts: Timestamp::from_micros(77),
        };
        let positions = Positions::open(folder.path(), clock.now()).unwrap();
        let (reports, writer) = positions.writer(clock);
        let rank = |rank| (worker.clone(), DpRank::new(rank));
        for seq in 0..100 {
            reports.send(rank(0), position(seq), None).await;
        }
        reports.send(rank(1), position(7), None).await;
        drop((reports, positions));
        writer.run().await.unwrap();
        let positions = Positions::open(folder.path(), clock.now()).unwrap();
        let kept = [
            (DpRank::new(0), position(99)),
            (DpRank::new(1), position(7)),
        ];
        assert_eq!(positions.of(&worker), BTreeMap::from(kept));
        drop(positions);
        let much_later = clock.now() + KEEP + KEEP;
        let positions = Positions::open(folder.path(), much_later).unwrap();
        assert_eq!(positions.of(&worker), BTreeMap::new());
    }

    #[test]
    fn a_damaged_store_is_moved_aside_and_begun_anew() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("positions");
        let now = Clock::system().now();
        for _ in 0..2 {
            drop(Positions::open(&folder, now).unwrap());
            std::fs::write(folder.join("conf"), "no store's settings").unwrap();

            let positions = Positions::open(&folder, now).unwrap();

            assert!(positions.kept.is_empty());
            assert!(parent.path().join("positions.broken").exists());
        }
    }
}
