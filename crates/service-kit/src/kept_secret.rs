//! A secret that nobody has set: made once, and kept in a folder.

use std::fs::{self, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Random bytes in a secret; written as hexadecimal digits.
const SECRET_BYTES: usize = 32;

/// Why there is no secret.
#[derive(Debug, thiserror::Error)]
pub enum KeptSecretError {
    /// The file's content was not written here.
    #[error("use {}: it is damaged; restore it, or delete it and lose what it was for", path.display())]
    Damaged {
        /// Which file.
        path: PathBuf,
    },
    /// The file can be neither read nor made.
    #[error("read or create {}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// The secret in the file `name` of `folder`, 64 hexadecimal digits; made where there is none. Only its owner can read
/// the file.
pub fn kept_secret(folder: &Path, name: &str) -> Result<String, KeptSecretError> {
    let path = folder.join(name);
    match read_or_create(folder, name, &path) {
        Ok(text) if is_whole(text.trim()) => Ok(text.trim().to_owned()),
        Ok(_) => Err(KeptSecretError::Damaged { path }),
        Err(source) => Err(KeptSecretError::Io { path, source }),
    }
}

/// Whether `text` is what [`write_draft`] writes: a shorter secret would silently lose what was made under it.
fn is_whole(text: &str) -> bool {
    text.len() == 2 * SECRET_BYTES && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn read_or_create(folder: &Path, name: &str, path: &Path) -> io::Result<String> {
    match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            create(folder, name, path)?;
            fs::read_to_string(path)
        }
        read => read,
    }
}

/// Leaves a whole secret at `path`, or none: it gets its name only once it is on disk, and never takes the
/// place of one that another process has put there meanwhile.
fn create(folder: &Path, name: &str, path: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let draft = folder.join(format!("{name}.{}", std::process::id()));
    let written = write_draft(&draft).and_then(|()| match fs::hard_link(&draft, path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => fs::File::open(folder)?.sync_all(),
    });
    let removed = fs::remove_file(&draft);
    written.and(removed)
}

fn write_draft(draft: &Path) -> io::Result<()> {
    let mut secret = [0; SECRET_BYTES];
    fs::File::open("/dev/urandom")?.read_exact(&mut secret)?;
    let text: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(draft)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_secret_is_made_once_and_only_its_owner_can_read_it() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("new");
        let first = kept_secret(&folder, "key").unwrap();
        assert_eq!(kept_secret(&folder, "key").unwrap(), first);
        assert_ne!(kept_secret(&folder, "other").unwrap(), first);

        let mode = fs::metadata(folder.join("key"))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 2);
    }

    #[test]
    fn a_damaged_or_unreadable_file_is_an_error_that_names_it() {
        let folder = tempfile::tempdir().unwrap();
        for damaged in ["", "0123456789abcdef01"] {
            fs::write(folder.path().join("key"), damaged).unwrap();
            let error = kept_secret(folder.path(), "key").unwrap_err().to_string();
            assert!(
                error.contains("damaged") && error.contains("key"),
                "{error}"
            );
        }
        assert!(kept_secret(Path::new("/proc/none"), "key").is_err());
    }
}
