//! The secret of binding keys: configured, else made once in the data folder.

use std::fs::{self, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use affinity::{BindingSecret, SecretTooShort};

use crate::Config;

const FILE_NAME: &str = "binding-key";
/// Random bytes in a secret made here; written as hexadecimal digits.
const SECRET_BYTES: usize = 32;

/// Why there is no secret.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The configured one will not do.
    #[error("use the setting affinity.secret")]
    Configured(#[source] SecretTooShort),
    /// The file's content was not written here.
    #[error(
        "use {}: it is damaged; restore it, or delete it and lose the bindings",
        path.display()
    )]
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

/// The configured secret, else the one in the data folder, else a new one that is kept there.
pub(crate) fn obtain(config: &Config) -> Result<BindingSecret, SecretError> {
    if let Some(secret) = &config.secret {
        return BindingSecret::new(secret.reveal().as_bytes()).map_err(SecretError::Configured);
    }
    let path = config.data_dir.join(FILE_NAME);
    match read_or_create(&config.data_dir, &path) {
        Ok(text) if !is_whole(text.trim()) => Err(SecretError::Damaged { path }),
        Ok(text) => {
            BindingSecret::new(text.trim().as_bytes()).map_err(|_| SecretError::Damaged { path })
        }
        Err(source) => Err(SecretError::Io { path, source }),
    }
}

/// Whether `text` is what [`write_draft`] writes: a shorter secret would silently lose every binding.
fn is_whole(text: &str) -> bool {
    text.len() == 2 * SECRET_BYTES && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn read_or_create(folder: &Path, path: &Path) -> io::Result<String> {
    match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            create(folder, path)?;
            fs::read_to_string(path)
        }
        read => read,
    }
}

/// Leaves a whole secret at `path`, or none: it gets its name only once it is on disk, and never takes the
/// place of one that another process has put there meanwhile.
fn create(folder: &Path, path: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let draft = folder.join(format!("{FILE_NAME}.{}", std::process::id()));
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

    use affinity::{BindingKey, ConversationKey};

    use super::*;
    use crate::config::Secret;

    fn key_under(secret: &BindingSecret) -> BindingKey {
        let key = ConversationKey {
            tenant: "t".parse().unwrap(),
            model: "m".parse().unwrap(),
            conversation: "c".parse().unwrap(),
        };
        BindingKey::of(&key, secret)
    }

    fn config(data_dir: &Path) -> Config {
        Config {
            data_dir: data_dir.to_owned(),
            ..Config::default()
        }
    }

    #[test]
    fn a_secret_is_made_once_and_only_its_owner_can_read_it() {
        let folder = tempfile::tempdir().unwrap();
        let config = config(&folder.path().join("new"));
        let first = key_under(&obtain(&config).unwrap());
        let second = key_under(&obtain(&config).unwrap());
        assert_eq!(first, second);

        let file = config.data_dir.join(FILE_NAME);
        let mode = fs::metadata(file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_dir(&config.data_dir).unwrap().count(), 1);

        let elsewhere = tempfile::tempdir().unwrap();
        let other = obtain(&self::config(elsewhere.path())).unwrap();
        assert_ne!(key_under(&other), first);
    }

    #[test]
    fn a_configured_secret_touches_no_file_and_is_never_shown() {
        let config = Config {
            secret: Some(Secret::new("0123456789abcdef")),
            ..config(Path::new("/nonexistent"))
        };
        assert!(obtain(&config).is_ok());
        assert!(!format!("{config:?}").contains("0123"));
    }

    #[test]
    fn a_short_or_unreadable_secret_is_an_error_that_names_it() {
        let short = Config {
            secret: Some(Secret::new("short")),
            ..Config::default()
        };
        let error = obtain(&short).unwrap_err();
        assert!(error.to_string().contains("affinity.secret"));

        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(FILE_NAME), "").unwrap();
        let error = obtain(&config(folder.path())).unwrap_err();
        assert!(error.to_string().contains(FILE_NAME));
        fs::write(folder.path().join(FILE_NAME), "0123456789abcdef01").unwrap();
        let error = obtain(&config(folder.path())).unwrap_err();
        assert!(error.to_string().contains("damaged"));
        assert!(obtain(&config(Path::new("/proc/none"))).is_err());
    }
}
