//! `tokio::sync::watch`, as far as the cache uses it.

use std::convert::Infallible;
use std::ops::Deref;
use std::sync::Arc;

use loom::sync::{Mutex, MutexGuard};

use super::Notify;

#[derive(Debug)]
pub(crate) struct Sender<T>(Arc<Shared<T>>);

#[derive(Debug)]
pub(crate) struct Receiver<T> {
    shared: Arc<Shared<T>>,
    seen: u64,
}

#[derive(Debug)]
struct Shared<T> {
    current: Mutex<Versioned<T>>,
    changes: Notify,
}

#[derive(Debug)]
struct Versioned<T> {
    value: T,
    version: u64,
}

pub(crate) struct Ref<'a, T>(MutexGuard<'a, Versioned<T>>);

impl<T> Deref for Ref<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.value
    }
}

impl<T> Sender<T> {
    pub(crate) fn new(value: T) -> Sender<T> {
        let current = Mutex::new(Versioned { value, version: 0 });
        Sender(Arc::new(Shared { current, changes: Notify::new() }))
    }

    pub(crate) fn send_modify(&self, change: impl FnOnce(&mut T)) {
        self.send_if_modified(|value| {
            change(value);
            true
        });
    }

    pub(crate) fn send_if_modified(&self, change: impl FnOnce(&mut T) -> bool) -> bool {
        let mut current = self.0.current.lock().unwrap();
        let modified = change(&mut current.value);
        current.version += u64::from(modified);
        drop(current);
        if modified {
            self.0.changes.notify_waiters();
        }
        modified
    }

    pub(crate) fn borrow(&self) -> Ref<'_, T> {
        Ref(self.0.current.lock().unwrap())
    }

    pub(crate) fn subscribe(&self) -> Receiver<T> {
        let seen = self.borrow().0.version;
        Receiver { shared: Arc::clone(&self.0), seen }
    }
}

impl<T> Receiver<T> {
    /// Nobody waits at a sender that is gone: whoever waits holds its lock.
    pub(crate) async fn changed(&mut self) -> Result<(), Infallible> {
        loop {
            let notified = self.shared.changes.notified();
            let version = self.shared.current.lock().unwrap().version;
            if version != self.seen {
                self.seen = version;
                return Ok(());
            }
            notified.await;
        }
    }
}
