//! Finds out what a stop, a power cut or damage has left of a log, and makes it whole.
//!
//! Only the newest segment is read to its end: the others were complete and synchronised before it was begun, and
//! a reader checks every record that it takes from them.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bus::{Generation, Offset};

use crate::OpenError;
use crate::disk::{Counters, Disk, synchronise_folder};
use crate::segment::{self, Ending, Opened, Scan, Segment};

/// A log that can be appended to.
pub(crate) struct Recovered {
    pub(crate) generation: Generation,
    /// The last is to be written.
    pub(crate) segments: VecDeque<Segment>,
    pub(crate) last: Offset,
}

/// Recovers the log in `folder`, or begins one.
pub(crate) fn recover(folder: &Path, disk: &Disk) -> Result<Recovered, OpenError> {
    let failed = |it| OpenError::io(folder, it);
    if !folder.try_exists().map_err(failed)? {
        return begin_first(folder, disk).map_err(failed);
    }
    let mut files = segment::list(folder).map_err(failed)?;
    let number = files.last().map_or(1, |(number, _)| number + 1);
    let mut lost = false;
    let newest = newest(&mut files, &mut lost, disk)?;
    let mut segments = earlier(&files, &mut lost, disk)?;

    let Some(newest) = newest else {
        // Whatever a reader knows of an earlier log, nothing of it is left.
        let last = Offset(0);
        let (generation, first) = begin(folder, number, last, disk).map_err(failed)?;
        return Ok(Recovered {
            generation,
            segments: VecDeque::from([first]),
            last,
        });
    };
    let last = newest.last;
    let mut generation = newest.generation;
    segments.push_back(newest.segment.clone());
    if newest.ending == Ending::Damaged {
        lost = true;
    }
    if lost {
        // First the new generation, then the cut: a stop in between finds the damage again.
        let (new, first) = begin(folder, number, last, disk).map_err(failed)?;
        generation = new;
        segments.push_back(first);
    }
    let cut = match newest.ending {
        Ending::Whole => Ok(()),
        Ending::Torn => cut_torn(&newest.segment, disk),
        Ending::Damaged => cut_damage(&newest.segment, disk),
    };
    cut.map_err(|it| OpenError::io(&newest.segment.path, it))?;
    Ok(Recovered {
        generation,
        segments,
        last,
    })
}

/// Begins a log that never was. It is on the disk as soon as what is appended to it.
fn begin_first(folder: &Path, disk: &Disk) -> io::Result<Recovered> {
    fs::create_dir_all(folder)?;
    let (generation, last) = (new_generation(disk), Offset(0));
    let (segment, file) = segment::create(folder, 1, generation, last)?;
    disk.written(&segment.path, &Arc::new(file));
    // The partition's folder, its topic's, that of all logs, and the one that is open.
    for created in folder.ancestors().take(4) {
        disk.folder_changed(created)?;
    }
    Ok(Recovered {
        generation,
        segments: VecDeque::from([segment]),
        last,
    })
}

/// Begins a segment with a new generation, on the disk before this returns.
pub(crate) fn begin(
    folder: &Path,
    number: u64,
    base: Offset,
    disk: &Disk,
) -> io::Result<(Generation, Segment)> {
    let generation = new_generation(disk);
    let (segment, file) = segment::create(folder, number, generation, base)?;
    file.sync_data()?;
    synchronise_folder(folder)?;
    Ok((generation, segment))
}

/// Any number that no other log has had will do.
fn new_generation(disk: &Disk) -> Generation {
    Generation(RandomState::new().hash_one(disk.floor))
}

/// Cuts off a broken record and what follows it. The log must already have a new generation.
pub(crate) fn cut_damage(segment: &Segment, disk: &Disk) -> io::Result<()> {
    Counters::add(&disk.counters.damaged_files);
    tracing::error!(path = %segment.path.display(), at = segment.bytes, "damaged record; what follows it in this file is lost, and readers will resynchronise");
    cut(segment)
}

/// Cuts off a record that was never acknowledged.
fn cut_torn(segment: &Segment, disk: &Disk) -> io::Result<()> {
    Counters::add(&disk.counters.torn_tails);
    tracing::warn!(path = %segment.path.display(), at = segment.bytes, "removed a record that was cut short while it was written");
    cut(segment)
}

/// Shortens a segment's file to what is whole.
fn cut(segment: &Segment) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(&segment.path)?;
    file.set_len(segment.bytes)?;
    file.sync_data()
}

/// Puts a file that cannot be used out of the way, for a person to look at.
pub(crate) fn set_aside(path: &Path, disk: &Disk) -> io::Result<()> {
    Counters::add(&disk.counters.damaged_files);
    let mut aside = path.as_os_str().to_owned();
    aside.push(".damaged");
    tracing::error!(path = %path.display(), aside = %Path::new(&aside).display(), "unreadable file set aside");
    fs::rename(path, aside)
}

/// Takes the newest readable segment out of `files`.
fn newest(
    files: &mut Vec<(u64, PathBuf)>,
    lost: &mut bool,
    disk: &Disk,
) -> Result<Option<Scan>, OpenError> {
    while let Some((number, path)) = files.pop() {
        let failed = |it| OpenError::io(&path, it);
        match segment::scan(number, &path)? {
            Opened::Readable(scan) => return Ok(Some(scan)),
            Opened::Unborn => fs::remove_file(&path).map_err(failed)?,
            Opened::Unreadable => {
                *lost = true;
                set_aside(&path, disk).map_err(failed)?;
            }
        }
    }
    Ok(None)
}

fn earlier(
    files: &[(u64, PathBuf)],
    lost: &mut bool,
    disk: &Disk,
) -> Result<VecDeque<Segment>, OpenError> {
    let mut segments = VecDeque::new();
    for (number, path) in files {
        match segment::glance(*number, path)? {
            Opened::Readable(segment) => segments.push_back(segment),
            Opened::Unborn | Opened::Unreadable => {
                *lost = true;
                set_aside(path, disk).map_err(|it| OpenError::io(path, it))?;
            }
        }
    }
    Ok(segments)
}

/// Opens the file of `segment` to append to it.
pub(crate) fn open_to_append(segment: &Segment) -> io::Result<File> {
    OpenOptions::new().append(true).open(&segment.path)
}
