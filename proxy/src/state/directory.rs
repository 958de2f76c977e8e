//! The directory of the state: made durably, and taken by one process at a time.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::error::StateError;

/// A `state_dir` that this process alone uses, until it drops this or ends.
pub(super) struct Directory {
    path: PathBuf,
    /// The names in it.
    names: File,
    /// Locked. The file stays when the process ends: to remove it is to let two processes lock two
    /// files of that name.
    lock: File,
}

impl Directory {
    /// Makes the directory if it is missing, and takes it.
    pub(super) fn claim(path: &Path) -> Result<Directory, StateError> {
        let unusable = StateError::unusable(path);
        make(path).map_err(&unusable)?;
        let names = File::open(path).map_err(&unusable)?;
        let options =
            File::options().read(true).write(true).create(true).truncate(false).to_owned();
        let lock = options.open(path.join(LOCK)).map_err(&unusable)?;
        match lock.try_lock() {
            Ok(()) => Ok(Directory { path: path.to_owned(), names, lock }),
            Err(TryLockError::WouldBlock) => Err(StateError::InUse { directory: path.to_owned() }),
            Err(TryLockError::Error(error)) => Err(unusable(error)),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Fails if the directory of this name is not the one that was taken: another process may have
    /// it.
    pub(super) fn check_claim(&self) -> io::Result<()> {
        match is_at(&self.lock, &self.path.join(LOCK))? {
            true => Ok(()),
            false => {
                Err(io::Error::other("the directory was removed or replaced while it was in use"))
            }
        }
    }

    /// Makes the names in the directory durable.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.names.sync_all()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // Closing is not enough: a child that was forked just now has the open file too, until it
        // runs its program. If this fails, the lock goes when that happens.
        let _ = self.lock.unlock();
    }
}

const LOCK: &str = "lock";

/// Whether this open file is the one of that name.
pub(super) fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let open = file.metadata()?;
    match fs::metadata(path) {
        Ok(named) => Ok((named.dev(), named.ino()) == (open.dev(), open.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Makes a directory and those above it, each durably.
fn make(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let Some(above) = path.parent() else {
        return Ok(());
    };
    make(above)?;
    match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        made => made.and_then(|()| File::open(above)?.sync_all()),
    }
}

#[cfg(test)]
mod tests {
    use tempfile::tempdir;

    use super::super::journal::tests::{NOT_SYNCED, pipe};
    use super::super::journal::{self, Journal};
    use super::super::remembered::Remembered;
    use super::*;

    #[test]
    fn a_journal_counts_only_once_its_name_is_durable() {
        let folder = tempdir().unwrap();
        let claimed = Directory::claim(folder.path()).unwrap();
        let names = pipe(&folder.path().join("in the place of the directory"));
        let directory = Directory {
            names: names.try_clone().unwrap(),
            path: folder.path().to_owned(),
            lock: names,
        };
        let begun = Journal::begin(directory, &Remembered::default());
        assert_eq!(begun.err().map(|error| error.kind()), Some(NOT_SYNCED));
        // It had the name before that was to be made durable.
        assert_eq!(journal::read(&claimed).unwrap(), Remembered::default());
    }
}
