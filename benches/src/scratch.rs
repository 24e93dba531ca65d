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

/// Copies the files in `folder` and below it to `to`, which it makes.
pub fn copy(folder: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.metadata()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), &target)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_has_the_same_bytes_below_it_and_goes_with_its_scratch() -> std::io::Result<()> {
        let scratch = Scratch::new("copied")?;
        let (from, to) = (scratch.path().join("from"), scratch.path().join("to"));
        std::fs::create_dir_all(from.join("below"))?;
        std::fs::write(from.join("below").join("file"), "seven b")?;

        copy(&from, &to)?;

        assert_eq!(bytes_in(&to)?, 7);
        let path = scratch.path().to_owned();
        drop(scratch);
        assert!(!path.exists());
        Ok(())
    }
}
