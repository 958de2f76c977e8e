//! Directories for the time of a test.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use rustix::process::getuid;
use tempfile::TempDir;

/// A directory that is removed with this value, in memory where the system has such a place: etcd
/// waits for its disk.
///
/// What a killed test run left behind is removed by the next one.
#[derive(Debug)]
pub struct Scratch {
    directory: TempDir,
    /// Locked as long as this process lives. A process that can lock it knows that the directory
    /// has no owner any more.
    _alive: File,
}

impl Scratch {
    /// An empty directory.
    pub fn new() -> Scratch {
        let base = base();
        let prefix = format!("fencepost-test-{}-", getuid().as_raw());
        // One at a time: a directory whose lock is about to be taken must not look abandoned.
        let order = open(&base.join(format!("{prefix}lock")));
        order.lock().expect("the scratch directories can be locked");
        remove_abandoned(&base, &prefix);
        let directory =
            TempDir::with_prefix_in(&prefix, &base).expect("a temporary directory can be made");
        let alive = open(&directory.path().join(ALIVE));
        alive.lock().expect("nobody else knows this directory yet");
        Scratch { directory, _alive: alive }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }
}

impl Default for Scratch {
    fn default() -> Scratch {
        Scratch::new()
    }
}

/// The lock file in each directory.
const ALIVE: &str = ".alive";

fn base() -> PathBuf {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() }
}

fn open(path: &Path) -> File {
    File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .unwrap_or_else(|error| panic!("{} cannot be opened: {error}", path.display()))
}

fn remove_abandoned(base: &Path, prefix: &str) {
    for entry in fs::read_dir(base).expect("the temporary directory can be listed").flatten() {
        if !entry.file_name().to_string_lossy().starts_with(prefix) {
            continue;
        }
        // A directory without the file is being removed by its owner just now.
        let Ok(alive) = File::options().write(true).open(entry.path().join(ALIVE)) else {
            continue;
        };
        if alive.try_lock().is_ok() {
            // The owner may be removing it too: then there is nothing left to do.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
