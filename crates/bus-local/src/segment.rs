//! One file of a log: its records in order, from one offset on.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bus::{Delivered, Generation, Offset, Record};
use prost::Message;

use crate::OpenError;
use crate::format::{SegmentHeader, StoredRecord};
use crate::frame::{self, Behind, Found, FrameReader, Preamble};

const EXTENSION: &str = "segment";

/// What is known of a segment without reading it.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) path: PathBuf,
    /// Its place among the segments of its log.
    pub(crate) number: u64,
    /// The newest offset of the log before it.
    pub(crate) base: Offset,
    /// Its oldest record, if it has a readable one.
    pub(crate) first: Option<Offset>,
    /// How many of the file's bytes are written and whole, as far as known.
    pub(crate) bytes: u64,
}

/// How the content of a segment ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// With a record.
    Whole,
    /// With a record that was cut short while it was written, and so never acknowledged.
    Torn,
    /// With a broken record before others.
    Damaged,
}

/// What reading a whole segment finds.
pub(crate) struct Scan {
    pub(crate) segment: Segment,
    pub(crate) generation: Generation,
    pub(crate) last: Offset,
    pub(crate) ending: Ending,
}

/// A segment's file as found at a start.
pub(crate) enum Opened<T> {
    /// It begins as it should.
    Readable(T),
    /// It was cut short before its first record.
    Unborn,
    /// Its beginning is damaged, so nothing in it can be used.
    Unreadable,
}

/// The segment files in `folder`, by number.
pub(crate) fn list(folder: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut found = Vec::new();
    for entry in folder.read_dir()? {
        let path = entry?.path();
        let stem = path.file_stem().and_then(|it| it.to_str());
        let number = stem.and_then(|it| u64::from_str_radix(it, 16).ok());
        if let Some(number) = number
            && path.extension().is_some_and(|it| it == EXTENSION)
        {
            found.push((number, path));
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// Creates the segment `number` in `folder`; a failure leaves none.
pub(crate) fn create(
    folder: &Path,
    number: u64,
    generation: Generation,
    base: Offset,
) -> io::Result<(Segment, File)> {
    let path = folder.join(format!("{number:016x}.{EXTENSION}"));
    let mut file = OpenOptions::new()
        .append(true)
        .create_new(true)
        .open(&path)?;
    let header = frame::begin(&SegmentHeader {
        generation: generation.0,
        base: base.0,
    });
    if let Err(error) = file.write_all(&header) {
        // Left behind, it counts as unborn at the next start; the cause is what the caller needs.
        let _ = std::fs::remove_file(&path);
        return Err(error);
    }
    let segment = Segment {
        path,
        number,
        base,
        first: None,
        bytes: header.len() as u64,
    };
    Ok((segment, file))
}

/// Reads the beginning of a segment that was complete when a later one was begun.
pub(crate) fn glance(number: u64, path: &Path) -> Result<Opened<Segment>, OpenError> {
    let opened = begin(number, path)?;
    let (mut reader, mut segment, _) = match opened {
        Opened::Readable(begun) => begun,
        Opened::Unborn => return Ok(Opened::Unborn),
        Opened::Unreadable => return Ok(Opened::Unreadable),
    };
    let record = next_record(&mut reader).map_err(|it| OpenError::io(path, it))?;
    if let Next::Record(delivered) = record {
        segment.first = Some(delivered.offset);
    }
    segment.bytes = reader.limit();
    Ok(Opened::Readable(segment))
}

/// Reads and checks a whole segment.
pub(crate) fn scan(number: u64, path: &Path) -> Result<Opened<Scan>, OpenError> {
    let failed = |it| OpenError::io(path, it);
    let (mut reader, mut segment, generation) = match begin(number, path)? {
        Opened::Readable(begun) => begun,
        Opened::Unborn => return Ok(Opened::Unborn),
        Opened::Unreadable => return Ok(Opened::Unreadable),
    };
    let mut last = segment.base;
    let ending = loop {
        segment.bytes = reader.place();
        match next_record(&mut reader).map_err(failed)? {
            Next::Record(delivered) => {
                segment.first = segment.first.or(Some(delivered.offset));
                last = delivered.offset;
            }
            Next::End => break Ending::Whole,
            Next::Broken => match reader.pass_broken().map_err(failed)? {
                Behind::Nothing => break Ending::Torn,
                Behind::Frame | Behind::Unclear => break Ending::Damaged,
            },
        }
    };
    Ok(Opened::Readable(Scan {
        segment,
        generation,
        last,
        ending,
    }))
}

/// A reader that stands before the first record of a segment.
pub(crate) fn reader(segment: &Segment) -> io::Result<FrameReader> {
    let mut reader = FrameReader::new(File::open(&segment.path)?, segment.bytes);
    // Whoever made this `Segment` has seen that it begins as it should; if that has changed, what comes next
    // is broken.
    if let Preamble::Ours = reader.preamble()? {
        reader.next()?;
    }
    Ok(reader)
}

/// What comes next in a segment.
pub(crate) enum Next {
    Record(Delivered),
    End,
    Broken,
}

/// Takes the next record.
pub(crate) fn next_record(reader: &mut FrameReader) -> io::Result<Next> {
    Ok(match reader.next()? {
        Found::End => Next::End,
        Found::Broken => Next::Broken,
        Found::Frame(payload) => match StoredRecord::decode(payload) {
            Ok(stored) => Next::Record(Delivered {
                offset: Offset(stored.offset),
                record: Record(stored.bytes),
            }),
            Err(_) => Next::Broken,
        },
    })
}

/// How long ago a file was last written; nothing if the clock says that this is yet to come.
pub(crate) fn age(path: &Path) -> io::Result<Duration> {
    let modified = path.metadata()?.modified()?;
    Ok(modified.elapsed().unwrap_or(Duration::ZERO))
}

fn begin(
    number: u64,
    path: &Path,
) -> Result<Opened<(FrameReader, Segment, Generation)>, OpenError> {
    let failed = |it| OpenError::io(path, it);
    let file = File::open(path).map_err(failed)?;
    let bytes = file.metadata().map_err(failed)?.len();
    let mut reader = FrameReader::new(file, bytes);
    match reader.preamble().map_err(failed)? {
        Preamble::Ours => {}
        Preamble::Version(found) => return Err(OpenError::format(path, found)),
        Preamble::Foreign => return unreadable(&mut reader).map_err(failed),
    }
    let header = match reader.next().map_err(failed)? {
        Found::Frame(payload) => SegmentHeader::decode(payload).ok(),
        Found::End | Found::Broken => None,
    };
    let Some(header) = header else {
        return unreadable(&mut reader).map_err(failed);
    };
    let segment = Segment {
        path: path.to_owned(),
        number,
        base: Offset(header.base),
        first: None,
        bytes: reader.place(),
    };
    Ok(Opened::Readable((
        reader,
        segment,
        Generation(header.generation),
    )))
}

fn unreadable<T>(reader: &mut FrameReader) -> io::Result<Opened<T>> {
    Ok(match reader.pass_broken()? {
        Behind::Nothing => Opened::Unborn,
        Behind::Frame | Behind::Unclear => Opened::Unreadable,
    })
}
