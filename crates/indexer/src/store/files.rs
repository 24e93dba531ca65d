//! Files of records: the length of each and its CRC-32, both as little-endian u32, and so many bytes.

use std::fs::File;
use std::io::{BufReader, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use super::StoreError;

const HEADER: u64 = 8;
/// How a journal's part and a base are named.
const JOURNAL: &str = "journal-";
const BASE: &str = "base-";

/// A part of the journal.
pub(super) fn journal(folder: &Path, part: u64) -> PathBuf {
    folder.join(format!("{JOURNAL}{part}"))
}

/// A rank's base.
pub(super) fn base(folder: &Path, number: u64, generation: u64) -> PathBuf {
    folder.join(format!("{BASE}{number}-{generation}"))
}

/// All parts and bases in `folder`.
pub(super) fn all(folder: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let entries = std::fs::read_dir(folder).map_err(StoreError::io("list", folder))?;
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(StoreError::io("list", folder))?.path();
        let name = path.file_name().and_then(|it| it.to_str()).unwrap_or("");
        if name.starts_with(JOURNAL) || name.starts_with(BASE) {
            found.push(path);
        }
    }
    Ok(found)
}

/// Appends one record. Answers how many bytes it takes.
pub(super) fn append(file: &mut impl Write, bytes: &[u8]) -> std::io::Result<u64> {
    let too_long = |_| std::io::Error::new(ErrorKind::InvalidInput, "a record of 4 GiB or more");
    let length = u32::try_from(bytes.len()).map_err(too_long)?;
    let mut record = Vec::with_capacity(bytes.len() + HEADER as usize);
    record.extend_from_slice(&length.to_le_bytes());
    record.extend_from_slice(&crc32fast::hash(bytes).to_le_bytes());
    record.extend_from_slice(bytes);
    file.write_all(&record)?;
    Ok(record.len() as u64)
}

/// Reads the records of a file.
pub(super) struct Records {
    path: PathBuf,
    reader: BufReader<File>,
    at: u64,
    end: u64,
}

impl Records {
    /// Those in the first `bytes` bytes, or in all of the file where none are given.
    pub(super) fn open(path: &Path, bytes: Option<u64>) -> Result<Self, StoreError> {
        let file = File::open(path).map_err(|error| match error.kind() {
            ErrorKind::NotFound => damaged(path, "is missing"),
            _ => StoreError::io("open", path)(error),
        })?;
        let length = file.metadata().map_err(StoreError::io("open", path))?.len();
        let end = bytes.unwrap_or(length);
        if length < end {
            let why = format!("has {length} bytes of {end}");
            return Err(damaged(path, &why));
        }
        Ok(Self {
            path: path.to_owned(),
            reader: BufReader::new(file),
            at: 0,
            end,
        })
    }

    /// The next one, whole as it was written; none at the end.
    pub(super) fn next(&mut self) -> Result<Option<Vec<u8>>, StoreError> {
        if self.at == self.end {
            return Ok(None);
        }
        let torn = |at: u64| damaged(&self.path, &format!("is torn at byte {at}"));
        let left = self.end - self.at;
        if left < HEADER {
            return Err(torn(self.at));
        }
        let mut header = [[0; 4]; 2];
        for word in &mut header {
            let read = self.reader.read_exact(word);
            read.map_err(StoreError::io("read", &self.path))?;
        }
        let [length, crc] = header.map(u32::from_le_bytes);
        if left - HEADER < u64::from(length) {
            return Err(torn(self.at));
        }
        let mut bytes = vec![0; length as usize];
        let read = self.reader.read_exact(&mut bytes);
        read.map_err(StoreError::io("read", &self.path))?;
        if crc32fast::hash(&bytes) != crc {
            let why = format!("is not what was written at byte {}", self.at);
            return Err(damaged(&self.path, &why));
        }
        self.at += HEADER + u64::from(length);
        Ok(Some(bytes))
    }

    /// How far has been read.
    pub(super) fn at(&self) -> u64 {
        self.at
    }
}

pub(super) fn damaged(path: &Path, why: &str) -> StoreError {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    StoreError::Damaged(format!("{name} {why}"))
}
