//! The store's folder: opening it, what is beside it, and which format it has.
//!
//! A store that is being built anew has no file `format` yet, and a restart does not begin with it. The one
//! that it will take the place of lies beside it meanwhile.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use contracts::index_store::LogCursors;
use prefix_index::PrefixIndex;

use super::ledger::Ledger;
use super::load::load;
use super::{Loaded, Store, StoreError, files};

/// The version of the layout. Another one is not read: the store is rebuilt.
pub(super) const FORMAT: u32 = 2;
/// How many unusable stores are kept beside the new one.
const MAX_BROKEN: u32 = 4;

impl Store {
    /// Opens what is at `path` and puts it into `index`, which is empty; an empty store where there is nothing
    /// to begin with.
    pub(crate) fn open(
        path: &Path,
        cache_mib: u64,
        index: &mut PrefixIndex,
    ) -> Result<(Self, Loaded), StoreError> {
        let old = beside(path, "old");
        let mut complete = check_format(path)?;
        let mut catalog = open_catalog(path, cache_mib)?;
        if complete {
            remove_folder(&old)?;
        } else if old.exists() {
            // It was being built anew and is not whole: the one before it is.
            drop(catalog);
            remove_folder(path)?;
            fs::rename(&old, path).map_err(StoreError::io("rename", &old))?;
            complete = check_format(path)?;
            catalog = open_catalog(path, cache_mib)?;
        }
        if complete {
            return load(path, catalog, index);
        }
        Ok((Self::empty(path, catalog)?, Loaded::default()))
    }

    fn empty(path: &Path, catalog: sled::Db) -> Result<Self, StoreError> {
        catalog.clear()?;
        for file in files::all(path)? {
            fs::remove_file(&file).map_err(StoreError::io("remove", &file))?;
        }
        let journal = files::journal(path, 0);
        Ok(Self {
            folder: path.to_owned(),
            catalog,
            journal: File::create(&journal).map_err(StoreError::io("create", &journal))?,
            ledger: Ledger::new(0, 0),
            cursors: LogCursors::default(),
            complete: false,
        })
    }
}

/// Puts what is at `path` beside it, and begins an empty store there. With `make_room` what lies beside it
/// goes too: on a full disk two stores may not fit.
pub(crate) fn begin_anew(
    path: &Path,
    cache_mib: u64,
    make_room: bool,
) -> Result<Store, StoreError> {
    let old = beside(path, "old");
    if path.join("format").exists() {
        remove_folder(&old)?;
        fs::rename(path, &old).map_err(StoreError::io("rename", path))?;
    } else {
        remove_folder(path)?;
    }
    if make_room {
        remove_folder(&old)?;
    }
    let catalog = open_catalog(path, cache_mib)?;
    Store::empty(path, catalog)
}

/// Says that a restart can begin with the store.
pub(super) fn complete(path: &Path) -> Result<(), StoreError> {
    let format = path.join("format");
    let written = File::create(&format).and_then(|mut file| {
        writeln!(file, "{FORMAT}")?;
        file.sync_all()
    });
    written.map_err(StoreError::io("write", &format))?;
    remove_folder(&beside(path, "old"))
}

/// Moves an unusable store to the next free `NAME.broken-N`, or over the last of them.
pub(crate) fn move_aside(path: &Path) -> std::io::Result<PathBuf> {
    let numbered = |number: u32| beside(path, &format!("broken-{number}"));
    let free = (1..MAX_BROKEN).map(numbered).find(|it| !it.exists());
    let aside = free.unwrap_or_else(|| numbered(MAX_BROKEN));
    if aside.exists() {
        fs::remove_dir_all(&aside)?;
    }
    fs::rename(path, &aside)?;
    Ok(aside)
}

/// Whether there is a store that a restart can begin with.
fn check_format(path: &Path) -> Result<bool, StoreError> {
    // The first format had the catalog in the folder itself.
    if path.join("db").exists() {
        let found = "1".to_owned();
        return Err(StoreError::Format { found });
    }
    let format = path.join("format");
    let found = match fs::read(&format) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).trim().to_owned(),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(StoreError::io("read", &format)(error)),
    };
    match found.parse::<u32>() {
        Ok(FORMAT) => Ok(true),
        _ => Err(StoreError::Format {
            found: format!("`{}`", found.escape_debug()),
        }),
    }
}

fn open_catalog(path: &Path, cache_mib: u64) -> Result<sled::Db, StoreError> {
    fs::create_dir_all(path).map_err(StoreError::io("create", path))?;
    let config = sled::Config::new()
        .path(path.join("catalog"))
        .cache_capacity(cache_mib.saturating_mul(1024 * 1024))
        .flush_every_ms(Some(500));
    Ok(config.open()?)
}

fn remove_folder(path: &Path) -> Result<(), StoreError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(StoreError::io("remove", path)(error))
        }
        _ => Ok(()),
    }
}

fn beside(path: &Path, what: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{what}"));
    path.with_file_name(name)
}
