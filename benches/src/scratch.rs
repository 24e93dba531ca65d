//! A folder for files that nobody needs afterwards.

use std::path::{Path, PathBuf};

/// A folder that goes when this is dropped.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// A new one among the system's temporary files.
    pub fn new(purpose: &str) -> std::io::Result<Self> {
        let name = format!("rankway-benches-{purpose}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder)?;
        Ok(Self(folder))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // One that stays behind among temporary files harms nobody.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Bytes of the files in `folder` and below it.
pub fn bytes_in(folder: &Path) -> std::io::Result<u64> {
    let mut total = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let about = entry.metadata()?;
        total += if about.is_dir() {
            bytes_in(&entry.path())?
        } else {
            about.len()
        };
    }
    Ok(total)
}
