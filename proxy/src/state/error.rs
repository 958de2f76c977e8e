//! What can go wrong with a `state_dir`.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fencepost_policy::Revision;

/// Why the state could not be read or kept.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StateError {
    /// Another process has it.
    #[error(
        "another fencepost process uses the state_dir {}: stop it; or, if this process stands before another worker, give it a state_dir of its own",
        directory.display()
    )]
    InUse {
        /// The `state_dir`.
        directory: PathBuf,
    },
    /// What the last process left cannot be trusted.
    #[error(
        "{} is damaged ({damage}), so it is not known what an earlier process left at the worker: restore the file; or wait until the longest orphan_timeout has passed since that process ended, and remove the file",
        file.display()
    )]
    Damaged {
        /// The damaged file.
        file: PathBuf,
        /// Where and how.
        damage: String,
    },
    /// The directory could not be made, read or written at the start.
    #[error("cannot use {} as the state_dir", directory.display())]
    Unusable {
        /// The `state_dir`.
        directory: PathBuf,
        /// What the system said.
        source: Arc<io::Error>,
    },
    /// The disk did not take it.
    #[error("cannot write to the state_dir {}", directory.display())]
    NotWritten {
        /// The `state_dir`.
        directory: PathBuf,
        /// What the system said.
        source: Arc<io::Error>,
    },
    /// The disk does not say whether it takes it.
    #[error(
        "the disk does not answer: a write to the state_dir {} has taken {busy_for:.1?} and has not ended",
        directory.display()
    )]
    Hangs {
        /// The `state_dir`.
        directory: PathBuf,
        /// For how long it has been at it.
        busy_for: Duration,
    },
    /// It cannot be remembered that this tenure is let in.
    #[error("the state_dir has a later tenure of the lock, which began at revision {known}")]
    Later {
        /// Its first revision.
        known: Revision,
    },
    /// The thread that writes has ended.
    #[error("the thread that writes the state_dir has ended")]
    Stopped,
}

impl StateError {
    pub(super) fn unusable(directory: &Path) -> impl Fn(io::Error) -> StateError + use<> {
        let directory = directory.to_owned();
        move |error| StateError::Unusable { directory: directory.clone(), source: Arc::new(error) }
    }
}
