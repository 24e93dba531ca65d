//! Why a folder could not be opened.

use std::io;
use std::path::{Path, PathBuf};

use crate::format::VERSION;

/// Why a folder could not be opened. Each message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process, or another bus of this one, has it open.
    #[error("the folder {} is in use by another process: stop that one, or name another folder", folder.display())]
    InUse {
        /// Which folder.
        folder: PathBuf,
    },
    /// A file was written by another version.
    #[error("{} has format {found} and this version reads format {supported}: run the version that wrote it, or move the folder away to start empty", path.display())]
    Format {
        /// Which file.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// The format that this version reads and writes.
        supported: u32,
    },
    /// The file that counts the openings is damaged.
    #[error("{} is damaged: move the folder away to start empty", path.display())]
    Damaged {
        /// Which file.
        path: PathBuf,
    },
    /// A topic or table cannot be the name of a file.
    #[error("the topic or table {name:?} is not of lower-case letters, digits and hyphens")]
    Name {
        /// Its name.
        name: &'static str,
    },
    /// The disk did not do what it was asked to.
    #[error("open {}", path.display())]
    Io {
        /// What was touched.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

impl OpenError {
    pub(crate) fn io(path: &Path, source: io::Error) -> Self {
        Self::Io {
            path: path.to_owned(),
            source,
        }
    }

    pub(crate) fn format(path: &Path, found: u32) -> Self {
        Self::Format {
            path: path.to_owned(),
            found,
            supported: VERSION,
        }
    }
}
