//! Reading files: no more than there is room for, and where nobody else has to wait for a file system.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use tokio::sync::Mutex;
use tokio::task::{JoinError, spawn_blocking};

/// What is in a file, which may be a pipe, up to so many MiB.
///
/// # Errors
/// If it can't be read, or is larger: then no more of it was read than that.
pub(crate) fn read_up_to(mebibytes_max: u64, path: &Path) -> io::Result<Vec<u8>> {
    let bytes_max = mebibytes_max << 20;
    let mut bytes = Vec::new();
    File::open(path)?.take(bytes_max + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > bytes_max {
        true => Err(io::Error::other(format!("is larger than {mebibytes_max} MiB"))),
        false => Ok(bytes),
    }
}

/// Reads on a thread for that, one look after the other: while a file system does not answer, one thread waits for it and no more.
/// Clones take turns.
#[derive(Debug, Clone, Default)]
pub(crate) struct FileReader(Arc<Mutex<()>>);

impl FileReader {
    /// Looks, when whatever was begun before has ended.
    ///
    /// # Errors
    /// If it panicked, which the log has.
    ///
    /// # Cancel safety
    /// A look that has begun goes on to its end, and the next one waits for that.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        look: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, JoinError> {
        let turn = Arc::clone(&self.0).lock_owned().await;
        let look_in_turn = move || {
            let _turn = turn;
            look()
        };
        spawn_blocking(look_in_turn).await
    }
}
