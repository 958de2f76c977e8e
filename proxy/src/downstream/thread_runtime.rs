//! What a thread of the server runs on.

use std::io;

use tokio::runtime::{LocalOptions, LocalRuntime};

/// A runtime of one thread alone: what runs there need not be `Send`, and is woken without a lock.
///
/// It ends with its tasks, and what blocks on its account is left to itself: the lookup of a worker's name may take its server half a minute.
pub(super) struct ThreadRuntime(Option<LocalRuntime>);

impl ThreadRuntime {
    /// A new one, for the thread that calls.
    pub(super) fn new() -> io::Result<ThreadRuntime> {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build_local(LocalOptions::default()).map(|runtime| ThreadRuntime(Some(runtime)))
    }

    /// Does this work, and ends then.
    pub(super) fn run(self, work: impl Future<Output = ()>) {
        self.0.as_ref().expect("it is there until it ends").block_on(work);
    }
}

impl Drop for ThreadRuntime {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(LocalRuntime::shutdown_background);
    }
}
