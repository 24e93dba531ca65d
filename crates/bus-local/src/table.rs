//! One table: a file of its changes, rewritten when most of it is obsolete, and the table itself in memory.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use bus::{BusError, Change, Expect, Key, LiveTable, Revision};
use bytes::Bytes;
use prost::Message;
use tokio::sync::mpsc;

use crate::disk::{Counters, Disk, synchronise_folder};
use crate::format::StoredEntry;
use crate::frame::{self, Behind, Found, FrameReader, Preamble};
use crate::recovery::set_aside;
use crate::writer::{Request, WriteFailed};
use crate::{OpenError, unavailable};

/// Less garbage than this is not worth a rewrite.
const LEAST_GARBAGE: u64 = 1024 * 1024;
/// About what a change costs in the file besides key and value.
const CHANGE_OVERHEAD: u64 = 24;

/// The writing side of a table.
pub(crate) struct TableWriter {
    pub(crate) table: Arc<LiveTable>,
    path: PathBuf,
    file: Arc<File>,
    /// How many bytes of the file are whole changes.
    bytes: u64,
    /// Whether the file may be longer than that, because a write failed.
    ragged: bool,
    /// About how many of the bytes are the latest of a key that has a value.
    live: u64,
    rewriting: Option<JoinHandle<()>>,
}

/// A table file with the entries of one moment.
pub(crate) struct Rewritten {
    file: File,
    bytes: u64,
    /// The newest revision in it.
    upto: Revision,
}

impl TableWriter {
    /// Opens the table at `path`, or creates it.
    pub(crate) fn open(path: PathBuf, disk: &Disk) -> Result<Self, OpenError> {
        let failed = |it| OpenError::io(&path, it);
        let table = LiveTable::new(Revision(0));
        let mut live = 0;
        let loaded = match File::open(&path) {
            Ok(file) => load(&path, file, &table, &mut live, disk)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Loaded::Rewrite,
            Err(error) => return Err(failed(error)),
        };
        if let Loaded::Whole { bytes } = loaded {
            let file = OpenOptions::new().append(true).open(&path);
            let file = file.map_err(failed)?;
            file.set_len(bytes).map_err(failed)?;
            table.raise(Revision(disk.floor));
            return Ok(Self::over(table, path, (file, bytes), live));
        }
        let Rewritten { file, bytes, .. } =
            rewrite(&rewrite_path(&path), &table).map_err(failed)?;
        take_place(&path).map_err(failed)?;
        table.raise(Revision(disk.floor));
        Ok(Self::over(table, path, (file, bytes), live))
    }

    fn over(table: LiveTable, path: PathBuf, (file, bytes): (File, u64), live: u64) -> Self {
        Self {
            table: Arc::new(table),
            path,
            file: Arc::new(file),
            bytes,
            ragged: false,
            live,
            rewriting: None,
        }
    }

    /// [`bus::Bus::put`].
    pub(crate) fn put(
        &mut self,
        key: Key,
        value: Option<Bytes>,
        expect: Expect,
        disk: &Disk,
    ) -> Result<Revision, BusError> {
        let revision = self.table.next(&key, expect)?;
        let value = value.map(|it| Bytes::copy_from_slice(&it));
        let key = Key(Bytes::copy_from_slice(&key.0));
        let written = self.write(&stored(&key, value.clone(), revision));
        written.map_err(|error| {
            Counters::add(&disk.counters.failed_writes);
            unavailable(WriteFailed::new(&self.path, error))
        })?;
        disk.written(&self.path, &self.file);
        account(&self.table, &key, value.as_ref(), &mut self.live);
        self.table.apply(key, value, revision);
        Ok(revision)
    }

    /// Begins to rewrite the file, on a thread of its own, if most of it is obsolete. The result comes as a
    /// request to the writer.
    pub(crate) fn rewrite_if_worthwhile(
        &mut self,
        index: usize,
        writer: &mpsc::WeakSender<Request>,
    ) {
        let garbage = self.bytes.saturating_sub(self.live);
        if self.rewriting.is_some() || garbage < LEAST_GARBAGE.max(self.live) {
            return;
        }
        let path = rewrite_path(&self.path);
        let table = self.table.clone();
        let writer = writer.clone();
        let rewrite = move || {
            let result = rewrite(&path, &table);
            let request = Request::Rewritten {
                table: index,
                result,
            };
            // Without a writer the bus is closed, and the next start removes the file.
            if let Some(writer) = writer.upgrade() {
                let _ = writer.blocking_send(request);
            }
        };
        let thread = std::thread::Builder::new().name("bus-local-rewrite".into());
        match thread.spawn(rewrite) {
            Ok(thread) => self.rewriting = Some(thread),
            Err(error) => {
                tracing::warn!(path = %self.path.display(), %error, "could not begin to rewrite a table; tried again at its next change");
            }
        }
    }

    /// Puts a rewritten file, with the changes since, in the place of the former.
    pub(crate) fn take_rewritten(&mut self, result: io::Result<Rewritten>, disk: &Disk) {
        self.rewriting = None;
        match result.and_then(|rewritten| self.replace(rewritten)) {
            Ok(()) => Counters::add(&disk.counters.compactions),
            Err(error) => {
                Counters::add(&disk.counters.failed_writes);
                tracing::warn!(path = %self.path.display(), %error, "rewriting a table failed; the former file stays");
            }
        }
    }

    /// Waits for a rewrite that has begun.
    pub(crate) fn finish(&mut self) {
        if let Some(thread) = self.rewriting.take() {
            // It has told of its failure where there was one.
            let _ = thread.join();
        }
    }

    fn write(&mut self, entry: &StoredEntry) -> io::Result<()> {
        if self.ragged {
            self.file.set_len(self.bytes)?;
            self.ragged = false;
        }
        let mut bytes = Vec::new();
        frame::encode(entry, &mut bytes);
        if let Err(error) = (&*self.file).write_all(&bytes) {
            self.ragged = self.file.set_len(self.bytes).is_err();
            return Err(error);
        }
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    fn replace(&mut self, rewritten: Rewritten) -> io::Result<()> {
        let Rewritten {
            file,
            mut bytes,
            mut upto,
        } = rewritten;
        let mut output = BufWriter::new(&file);
        loop {
            let changes = self.table.changes_after(upto);
            let changes =
                changes.ok_or_else(|| io::Error::other("too many deletions meanwhile"))?;
            let Some((newest, _)) = changes.last() else {
                break;
            };
            upto = *newest;
            for (revision, change) in changes {
                let change = match change {
                    Change::Put(key, entry) => stored(&key, Some(entry.value), revision),
                    Change::Deleted(key) => stored(&key, None, revision),
                    Change::CaughtUp => continue,
                };
                bytes += write_change(&mut output, &change)?;
            }
        }
        output.flush()?;
        drop(output);
        file.sync_data()?;
        take_place(&self.path)?;
        self.file = Arc::new(file);
        self.bytes = bytes;
        self.ragged = false;
        Ok(())
    }
}

/// What a table file holds.
enum Loaded {
    /// Whole changes up to here.
    Whole { bytes: u64 },
    /// Nothing, or damage besides: it must be written anew from what could be read.
    Rewrite,
}

/// Reads the changes of `file` into `table`, whatever could be damaged between them.
fn load(
    path: &Path,
    file: File,
    table: &LiveTable,
    live: &mut u64,
    disk: &Disk,
) -> Result<Loaded, OpenError> {
    let failed = |it| OpenError::io(path, it);
    let limit = file.metadata().map_err(failed)?.len();
    let mut frames = FrameReader::new(file, limit);
    match frames.preamble().map_err(failed)? {
        Preamble::Version(found) => return Err(OpenError::format(path, found)),
        Preamble::Foreign => {
            if frames.pass_broken().map_err(failed)? != Behind::Nothing {
                set_aside(path, disk).map_err(failed)?;
            }
            return Ok(Loaded::Rewrite);
        }
        Preamble::Ours => {}
    }
    let mut damaged = false;
    loop {
        let bytes = frames.place();
        match frames.next().map_err(failed)? {
            Found::Frame(payload) => damaged |= !load_change(payload, table, live),
            Found::End if !damaged => return Ok(Loaded::Whole { bytes }),
            Found::End => break,
            Found::Broken => match frames.pass_broken().map_err(failed)? {
                Behind::Frame => damaged = true,
                Behind::Nothing if !damaged => {
                    Counters::add(&disk.counters.torn_tails);
                    tracing::warn!(path = %path.display(), at = bytes, "removed a change that was cut short while it was written");
                    return Ok(Loaded::Whole { bytes });
                }
                Behind::Nothing | Behind::Unclear => break,
            },
        }
    }
    Counters::add(&disk.counters.damaged_files);
    tracing::error!(path = %path.display(), "damaged changes of a table are lost; the table is written anew without them");
    Ok(Loaded::Rewrite)
}

/// Applies a stored change; says whether it is one that can follow what is there.
fn load_change(payload: &[u8], table: &LiveTable, live: &mut u64) -> bool {
    let Ok(stored) = StoredEntry::decode(payload) else {
        return false;
    };
    let (key, revision) = (Key(stored.key), Revision(stored.revision));
    if revision <= table.last() {
        return false;
    }
    account(table, &key, stored.value.as_ref(), live);
    table.apply(key, stored.value, revision);
    true
}

/// Moves `live` on as `key` is about to take `value`.
fn account(table: &LiveTable, key: &Key, value: Option<&Bytes>, live: &mut u64) {
    let weight = |value: &Bytes| (key.0.len() + value.len()) as u64 + CHANGE_OVERHEAD;
    if let Some(former) = table.get(key) {
        *live = live.saturating_sub(weight(&former.value));
    }
    *live += value.map_or(0, weight);
}

/// Writes a table file that holds only what `table` holds, beside the one in use.
fn rewrite(path: &Path, table: &LiveTable) -> io::Result<Rewritten> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        // A rewrite that a stop or a failure has left.
        Ok(()) | Err(_) => {}
    }
    let (entries, upto) = table.snapshot();
    let file = OpenOptions::new()
        .append(true)
        .create_new(true)
        .open(path)?;
    let mut bytes = frame::PREAMBLE as u64;
    let mut output = BufWriter::new(&file);
    output.write_all(&frame::preamble())?;
    for (key, entry) in entries {
        let change = stored(&key, Some(entry.value), entry.revision);
        bytes += write_change(&mut output, &change)?;
    }
    output.flush()?;
    drop(output);
    file.sync_data()?;
    Ok(Rewritten { file, bytes, upto })
}

fn write_change(output: &mut impl Write, change: &StoredEntry) -> io::Result<u64> {
    let mut bytes = Vec::new();
    frame::encode(change, &mut bytes);
    output.write_all(&bytes)?;
    Ok(bytes.len() as u64)
}

/// Puts the file written beside `path` in its place, before anything is acknowledged that only it has.
fn take_place(path: &Path) -> io::Result<()> {
    fs::rename(rewrite_path(path), path)?;
    path.parent().map_or(Ok(()), synchronise_folder)
}

fn rewrite_path(path: &Path) -> PathBuf {
    path.with_extension("new")
}

fn stored(key: &Key, value: Option<Bytes>, revision: Revision) -> StoredEntry {
    StoredEntry {
        revision: revision.0,
        key: key.0.clone(),
        value,
    }
}
