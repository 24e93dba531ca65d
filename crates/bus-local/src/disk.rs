//! What all writers share: limits, counters, and the files that wait to be synchronised.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::{Counts, Limits};

/// The low bits of offsets and revisions count within one opening of the folder (10^12 of them), the high bits
/// are its epoch. Running over into the next epoch does no harm while the folder is open.
const EPOCH_SHIFT: u32 = 40;

/// What all writers share.
pub(crate) struct Disk {
    pub(crate) limits: Limits,
    pub(crate) counters: Counters,
    /// Offsets and revisions given from now on are above this.
    pub(crate) floor: u64,
    /// Files and folders written since they were last synchronised. The lock is held to take or add one.
    unsynced: Mutex<HashMap<PathBuf, Arc<File>>>,
}

/// See [`Counts`].
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) torn_tails: AtomicU64,
    pub(crate) damaged_files: AtomicU64,
    pub(crate) failed_writes: AtomicU64,
    pub(crate) failed_syncs: AtomicU64,
    pub(crate) trimmed_segments: AtomicU64,
    pub(crate) compactions: AtomicU64,
}

impl Disk {
    pub(crate) fn new(limits: Limits, epoch: u64) -> Self {
        Self {
            limits,
            counters: Counters::default(),
            floor: epoch << EPOCH_SHIFT,
            unsynced: Mutex::default(),
        }
    }

    /// Notes that `file` at `path` has been written.
    pub(crate) fn written(&self, path: &Path, file: &Arc<File>) {
        let mut unsynced = self.unsynced.lock().unwrap_or_else(PoisonError::into_inner);
        if !unsynced.contains_key(path) {
            unsynced.insert(path.to_owned(), file.clone());
        }
    }

    /// Notes that files were created in, or removed from, `folder`.
    pub(crate) fn folder_changed(&self, folder: &Path) -> io::Result<()> {
        self.written(folder, &Arc::new(File::open(folder)?));
        Ok(())
    }

    /// Brings everything written so far to the disk.
    pub(crate) fn synchronise(&self) {
        let unsynced = {
            let mut unsynced = self.unsynced.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *unsynced)
        };
        for (path, file) in unsynced {
            if let Err(error) = file.sync_data() {
                Counters::add(&self.counters.failed_syncs);
                tracing::error!(path = %path.display(), %error, "synchronising failed; a power cut may lose what was written");
            }
        }
    }
}

/// Brings the list of files in `folder` to the disk, at once.
pub(crate) fn synchronise_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_data()
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn read(&self, lost_ephemeral_records: u64) -> Counts {
        let read = |it: &AtomicU64| it.load(Ordering::Relaxed);
        Counts {
            lost_ephemeral_records,
            torn_tails: read(&self.torn_tails),
            damaged_files: read(&self.damaged_files),
            failed_writes: read(&self.failed_writes),
            failed_syncs: read(&self.failed_syncs),
            trimmed_segments: read(&self.trimmed_segments),
            compactions: read(&self.compactions),
        }
    }
}
