//! A thread with a runtime of its own.

use std::future::Future;
use std::thread::JoinHandle;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// A thread that runs tasks, so that a test that blocks its own thread blocks nobody else. All
/// tasks on it take turns: what one does between two awaits, no other sees half done. It ends, with
/// all its tasks, when this value goes.
#[derive(Debug)]
pub(crate) struct TaskThread {
    tasks: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl TaskThread {
    /// Starts an idle one.
    pub(crate) fn start(name: &str) -> TaskThread {
        let runtime =
            Builder::new_current_thread().enable_all().build().expect("a runtime can be built");
        let tasks = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                // An error means that the other end is gone: the same message.
                let _ = runtime.block_on(stopped);
            })
            .expect("a thread can be started");
        TaskThread { tasks, stop: Some(stop), thread: Some(thread) }
    }

    /// Runs a task there, with a runtime around it from the first line.
    pub(crate) fn spawn<F>(&self, task: F) -> tokio::task::JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.tasks.spawn(task)
    }

    /// For tasks that start tasks.
    pub(crate) fn enter(&self) -> tokio::runtime::EnterGuard<'_> {
        self.tasks.enter()
    }
}

impl Drop for TaskThread {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            // A panic of that thread has been printed; a second one, in a drop, would hide it.
            let _ = thread.join();
        }
    }
}
