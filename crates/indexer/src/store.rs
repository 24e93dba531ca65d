//! The index on disk: a cache of the log that a restart takes up in place of reading everything again.
//!
//! Three kinds of files in one folder. The *journal* has what was applied, a frame a save, in parts of bounded
//! length. A *base* has all that one rank held at one moment; it takes the place of the rank's segments in the
//! frames before it, and when every rank is past a part of the journal the part goes. The *catalog*, in sled,
//! says what of these counts. A save appends its frame, waits until the disk has it, and then commits the
//! cursors of the log and the journal's length in one batch of the catalog, which sled applies whole or not at
//! all, and waits for that too: so after a crash the store stands at some earlier save, and the log from there
//! on leads to the present. Everything read is checked; a store that is not whole is moved aside and built anew.
//!
//! Ranks get their bases in turn, the one first whose segments lie furthest back, whenever the journal has
//! grown longer than all bases together. So each byte of operations is written once in the journal and about
//! once in a base, and the folder holds about two bytes for each byte that the ranks hold
//! (`tests/amplification.rs` measures both). Journal and bases are files of their own because sled, which moves
//! what lies beside something deleted, wrote each of their bytes twice again, and its file grew to eight times
//! what was in it.

mod base;
mod files;
mod folder;
mod ledger;
mod load;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::path::{Path, PathBuf};

use contracts::index_store::{Base, Commit, Fence, Frame, LogCursors, Segment, StoredRank};
use contracts::{DecodeError, Encoding};
use domain::{KvOp, WorkerId};

pub(crate) use base::write as write_base;
pub(crate) use folder::{begin_anew, move_aside};
use ledger::Ledger;
pub(crate) use ledger::RankNumber;
pub(crate) use load::Loaded;

/// Keys of the catalog.
const COMMIT: &[u8] = b"!commit";
const FENCES: u8 = b'f';
const BASES: u8 = b'b';

/// An open store. Every call blocks. After an error it is of no more use.
pub(crate) struct Store {
    folder: PathBuf,
    catalog: sled::Db,
    /// The last part of the journal.
    journal: File,
    ledger: Ledger,
    cursors: LogCursors,
    /// Whether a restart can begin with it.
    complete: bool,
}

/// What has changed since the last save.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// All of them, if any has moved.
    pub(crate) cursors: Option<LogCursors>,
    pub(crate) fences: Vec<Fence>,
    pub(crate) ranks: Vec<RankChange>,
    /// Ranks that are not there any more.
    pub(crate) gone: Vec<RankNumber>,
    /// Bases that have been written.
    pub(crate) bases: Vec<(RankNumber, Base)>,
    /// Whether every rank is in the store after this save.
    pub(crate) complete: bool,
}

/// What has changed of a rank.
#[derive(Debug)]
pub(crate) struct RankChange {
    pub(crate) number: RankNumber,
    pub(crate) rank: StoredRank,
    /// What was applied.
    pub(crate) ops: Vec<KvOp>,
}

impl Changes {
    /// Whether there is anything for the journal.
    pub(crate) fn has_frame(&self) -> bool {
        !self.ranks.is_empty()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.cursors.is_none()
            && self.fences.is_empty()
            && self.bases.is_empty()
            && self.gone.is_empty()
            && !self.has_frame()
    }
}

/// Why a store cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    /// Somebody else has it open.
    #[error("the index store is in use by another process")]
    InUse,
    /// An older or a newer version has written it.
    #[error(
        "the index store has format {found}, and this version reads format {}",
        folder::FORMAT
    )]
    Format {
        /// What it says of itself.
        found: String,
    },
    /// A file cannot be read or written: a full disk is one cause.
    #[error("{doing} {}", path.display())]
    Io {
        /// What was being done.
        doing: &'static str,
        /// With which file or folder.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// sled says so.
    #[error("use the index store's catalog")]
    Sled(#[source] sled::Error),
    /// A value does not decode.
    #[error("read the index store")]
    Decode(#[from] DecodeError),
    /// Something is missing or contradicts itself.
    #[error("the index store is damaged: {0}")]
    Damaged(String),
}

impl From<sled::Error> for StoreError {
    fn from(error: sled::Error) -> Self {
        match error {
            // The only sign that sled gives of a lock that is held.
            sled::Error::Io(io) if io.to_string().contains("could not acquire lock") => Self::InUse,
            other => Self::Sled(other),
        }
    }
}

impl StoreError {
    fn io(doing: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io {
            doing,
            path,
            source,
        }
    }
}

impl Store {
    /// Writes all changes, or none, and returns when the disk has them. Answers how many bytes went into the
    /// journal.
    pub(crate) fn save(&mut self, changes: &Changes) -> Result<u64, StoreError> {
        let written = match changes.has_frame() {
            true => self.append(changes)?,
            false => 0,
        };
        let mut batch = sled::Batch::default();
        let mut obsolete = Vec::new();
        for fence in &changes.fences {
            batch.insert(fence_key(&fence.worker), &fence.to_bytes()[..]);
        }
        for (number, base) in &changes.bases {
            batch.insert(base_key(*number), &base.to_bytes()[..]);
            let old = self.ledger.based(*number, base);
            obsolete.extend(old.map(|it| self.base_file(*number, it)));
        }
        for number in &changes.gone {
            batch.remove(base_key(*number));
            let old = self.ledger.gone(*number);
            obsolete.extend(old.map(|it| self.base_file(*number, it)));
        }
        for part in self.ledger.pass() {
            obsolete.push(files::journal(&self.folder, part));
        }
        if let Some(cursors) = &changes.cursors {
            self.cursors = cursors.clone();
        }
        batch.insert(COMMIT, &self.commit().to_bytes()[..]);
        self.catalog.apply_batch(batch)?;
        self.catalog.flush()?;
        if changes.complete && !self.complete {
            folder::complete(&self.folder)?;
            self.complete = true;
        }
        // What is left over by a crash here is removed at the next start.
        obsolete
            .iter()
            .for_each(|path| drop(std::fs::remove_file(path)));
        Ok(written)
    }

    /// The rank whose base is to be written next, if it is time for one.
    pub(crate) fn due(&self) -> Option<RankNumber> {
        self.ledger.due()
    }

    /// The number that the next frame will have.
    pub(crate) fn next_frame(&self) -> u64 {
        self.ledger.next_frame()
    }

    /// The generation that the next base of a rank will have.
    pub(crate) fn next_generation(&self, number: RankNumber) -> u64 {
        self.ledger.next_generation(number)
    }

    /// Whether a restart can begin with it.
    pub(crate) fn is_complete(&self) -> bool {
        self.complete
    }

    fn append(&mut self, changes: &Changes) -> Result<u64, StoreError> {
        if self.ledger.part_is_full() {
            let path = files::journal(&self.folder, self.ledger.roll());
            self.journal = File::create(&path).map_err(StoreError::io("create", &path))?;
        }
        let segment = |change: &RankChange| Segment {
            number: change.number.0,
            rank: change.rank.clone(),
            ops: change.ops.clone(),
        };
        let frame = Frame {
            number: self.ledger.next_frame(),
            segments: changes.ranks.iter().map(segment).collect(),
        };
        let path = files::journal(&self.folder, self.ledger.last_part());
        let appended = files::append(&mut self.journal, &frame.to_bytes());
        let bytes = appended.map_err(StoreError::io("append to", &path))?;
        let synced = self.journal.sync_data();
        synced.map_err(StoreError::io("sync", &path))?;
        let ranks = changes.ranks.iter().map(|it| it.number);
        self.ledger.appended(bytes, ranks);
        Ok(bytes)
    }

    fn commit(&self) -> Commit {
        Commit {
            cursors: self.cursors.clone(),
            ..self.ledger.commit()
        }
    }

    fn base_file(&self, number: RankNumber, generation: u64) -> PathBuf {
        files::base(&self.folder, number.0, generation)
    }
}

fn fence_key(worker: &WorkerId) -> Vec<u8> {
    [&[FENCES], worker.as_str().as_bytes()].concat()
}

fn base_key(number: RankNumber) -> Vec<u8> {
    [&[BASES][..], &number.0.to_be_bytes()].concat()
}
