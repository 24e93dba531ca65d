//! The folder: one process at a time, and a number for each time that it is opened.
//!
//! ```text
//! lock                                    locked while a process has the folder open
//! epoch                                   how often it was opened
//! logs/<topic>/<partition>/<number>.segment
//! tables/<table>.table
//! tables/<table>.new                      being written to take the place of the one above
//! *.damaged                               unreadable, set aside for a person to look at
//! ```

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use bus::{Partition, Table};
use prost::Message;

use crate::OpenError;
use crate::disk::synchronise_folder;
use crate::format::FolderHeader;
use crate::frame::{self, Found, FrameReader, Preamble};

/// Creates `folder` where it is missing and takes it for this process. The lock ends with the file, also when
/// the process is killed.
pub(crate) fn lock(folder: &Path) -> Result<File, OpenError> {
    fs::create_dir_all(folder).map_err(|it| OpenError::io(folder, it))?;
    let path = folder.join("lock");
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .map_err(|it| OpenError::io(&path, it))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenError::InUse {
            folder: folder.to_owned(),
        }),
        Err(TryLockError::Error(error)) => Err(OpenError::io(&path, error)),
    }
}

/// Counts this opening, on the disk before this returns.
pub(crate) fn next_epoch(folder: &Path) -> Result<u64, OpenError> {
    let path = folder.join("epoch");
    let epoch = read_epoch(&path)? + 1;
    let write = || -> io::Result<()> {
        let beside = folder.join("epoch.new");
        let mut file = File::create(&beside)?;
        file.write_all(&frame::begin(&FolderHeader { epoch }))?;
        file.sync_data()?;
        fs::rename(&beside, &path)?;
        synchronise_folder(folder)
    };
    write().map_err(|it| OpenError::io(&path, it))?;
    Ok(epoch)
}

/// The folder of a partition. `OpenError::Name` for a topic that cannot be the name of a folder.
pub(crate) fn of_log(folder: &Path, at: &Partition) -> Result<PathBuf, OpenError> {
    let topic = folder.join("logs").join(checked(at.topic)?);
    Ok(topic.join(at.index.to_string()))
}

/// The file of a table.
pub(crate) fn of_table(folder: &Path, table: &Table) -> Result<PathBuf, OpenError> {
    let tables = folder.join("tables");
    fs::create_dir_all(&tables).map_err(|it| OpenError::io(&tables, it))?;
    Ok(tables.join(format!("{}.table", checked(table.0)?)))
}

fn read_epoch(path: &Path) -> Result<u64, OpenError> {
    let failed = |it| OpenError::io(path, it);
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(failed(error)),
    };
    let limit = file.metadata().map_err(failed)?.len();
    let mut frames = FrameReader::new(file, limit);
    let damaged = || OpenError::Damaged {
        path: path.to_owned(),
    };
    match frames.preamble().map_err(failed)? {
        Preamble::Ours => {}
        Preamble::Version(found) => return Err(OpenError::format(path, found)),
        Preamble::Foreign => return Err(damaged()),
    }
    match frames.next().map_err(failed)? {
        Found::Frame(payload) => FolderHeader::decode(payload)
            .map(|it| it.epoch)
            .map_err(|_| damaged()),
        Found::End | Found::Broken => Err(damaged()),
    }
}

fn checked(name: &'static str) -> Result<&'static str, OpenError> {
    let plain = |it: char| it.is_ascii_lowercase() || it.is_ascii_digit() || it == '-';
    if name.is_empty() || !name.chars().all(plain) {
        return Err(OpenError::Name { name });
    }
    Ok(name)
}
