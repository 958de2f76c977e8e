//! Reads files on a thread of its own, so that a file system that does not answer holds nobody up.

use std::sync::Arc;

use tokio::sync::Mutex;
use tokio::task::{JoinError, spawn_blocking};

/// Reads on a thread for that, one look after the other: while a file system does not answer, one
/// thread waits for it and no more. Clones take turns.
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
