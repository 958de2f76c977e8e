//! The worker's log.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use http::{HeaderMap, Version};
use tokio::sync::watch;

use crate::patience::PATIENCE;

/// A request as the worker saw it, so far.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Its place in the log, from 0: the order in which the heads arrived.
    pub order: usize,
    /// The connection on which it came, from 0 in the order in which they were accepted.
    pub connection: usize,
    /// The protocol's version.
    pub version: Version,
    /// The method.
    pub method: String,
    /// The path, without the query.
    pub path: String,
    /// What follows the path's `?`.
    pub query: Option<String>,
    /// The authority that HTTP/2's pseudo-header, or an absolute target, names.
    pub authority: Option<String>,
    /// The headers.
    pub headers: HeaderMap,
    /// The body, as much as has arrived, but no more than 64 KiB of it.
    pub body: Vec<u8>,
    /// How many bytes of the body have arrived.
    pub body_bytes: u64,
    /// How the body ended, if it has.
    pub body_end: Option<BodyEnd>,
    /// What came after the body.
    pub trailers: HeaderMap,
    /// When the head was here.
    pub began: Instant,
    /// When the worker was done with it: its whole answer had been handed to the connection, or the
    /// connection was gone.
    pub ended: Option<Instant>,
    /// Whether the whole answer was handed to the connection.
    pub answered: bool,
}

/// How a request's body ended at the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyEnd {
    /// Properly: the worker has all of it.
    Whole,
    /// The connection broke, or the stream was reset, before its end.
    Cut,
}

impl Seen {
    /// The only value of a header; `None` without the header.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.headers.get_all(name).iter();
        let value = values.next()?;
        assert!(values.next().is_none(), "{name} came twice: {self:?}");
        Some(value.to_str().expect("the header's value is text"))
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(super) fn add_body(&mut self, bytes: &[u8]) {
        let room = BODY_KEPT_MAX.saturating_sub(self.body.len());
        self.body.extend(&bytes[..bytes.len().min(room)]);
        self.body_bytes += bytes.len() as u64;
    }
}

/// How much of a body is kept, in bytes.
const BODY_KEPT_MAX: usize = 64 * 1024;

/// The log, and a bell that rings with each change.
#[derive(Debug, Default)]
pub(super) struct Log {
    seen: Mutex<Vec<Seen>>,
    changes: watch::Sender<()>,
}

impl Log {
    /// Adds a request, which gets its place in the order here.
    pub(super) fn add(&self, mut request: Seen) -> usize {
        let mut seen = self.lock();
        request.order = seen.len();
        let order = request.order;
        seen.push(request);
        drop(seen);
        self.changes.send_replace(());
        order
    }

    pub(super) fn change<T>(&self, order: usize, change: impl FnOnce(&mut Seen) -> T) -> T {
        let result = change(&mut self.lock()[order]);
        self.changes.send_replace(());
        result
    }

    pub(super) fn seen(&self) -> Vec<Seen> {
        self.lock().clone()
    }

    pub(super) async fn wait_until(
        &self,
        what: &str,
        mut condition: impl FnMut(&[Seen]) -> bool,
    ) -> Vec<Seen> {
        let mut changes = self.changes.subscribe();
        let fulfilled =
            tokio::time::timeout(PATIENCE, changes.wait_for(|()| condition(&self.lock())))
                .await
                .is_ok();
        let seen = self.seen();
        assert!(fulfilled, "not within {PATIENCE:?}: {what}. The worker has seen: {seen:#?}");
        seen
    }

    /// A test's rule or condition that panicked has left nothing half done here.
    fn lock(&self) -> MutexGuard<'_, Vec<Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
