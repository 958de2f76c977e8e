//! Notices an HTTP/2 client that does not read an answer. Its connection cannot tell: it may be busy with other streams.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use pin_project_lite::pin_project;
use tokio::time::Instant;

use super::connection::Connection;
use super::limits::Limits;
use crate::wire::Alarm;

/// How far an answer has been read.
#[derive(Default)]
pub(super) struct Unread {
    /// Since when a piece waits for the client's window.
    since: Cell<Option<Instant>>,
    /// How long earlier pieces have.
    waited: Cell<Duration>,
    bytes: Cell<u64>,
}

impl Unread {
    /// hyper has been given a piece, and asks for none before the client has room for it.
    pub(super) fn given(&self, bytes: usize) {
        self.bytes.set(self.bytes.get() + bytes as u64);
        self.since.set(Some(Instant::now()));
    }

    /// hyper asks for the next piece.
    pub(super) fn taken(&self) {
        if let Some(since) = self.since.take() {
            self.waited.set(self.waited.get() + since.elapsed());
        }
    }

    /// When the client has kept us waiting for too long, if it does.
    fn due(&self, limits: &Limits) -> Option<Instant> {
        let since = self.since.get()?;
        let left = limits.patience(self.bytes.get()).map(|patience| patience.saturating_sub(self.waited.get()));
        Some(since + left.map_or(limits.body_timeout, |left| left.min(limits.body_timeout)))
    }
}

/// Runs the streams of an HTTP/2 connection as tasks of this thread.
#[derive(Clone)]
pub(super) struct Streams(Rc<Connection>);

impl Streams {
    pub(super) fn of(connection: &Rc<Connection>) -> Streams {
        Streams(Rc::clone(connection))
    }
}

impl<F: Future + 'static> hyper::rt::Executor<F> for Streams {
    fn execute(&self, stream: F) {
        // hyper has just begun the request that this stream is for.
        let unread = self.0.newest.take().unwrap_or_default();
        let connection = Rc::clone(&self.0);
        tokio::task::spawn_local(InTime { stream: Some(stream), unread, connection, alarm: Alarm::new() });
    }
}

pin_project! {
    /// A stream that is reset, by being dropped, when its client does not read the answer.
    struct InTime<F> {
        #[pin]
        stream: Option<F>,
        unread: Rc<Unread>,
        connection: Rc<Connection>,
        alarm: Alarm,
    }
}

impl<F: Future> Future for InTime<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        let Some(stream) = this.stream.as_mut().as_pin_mut() else { return Poll::Ready(()) };
        if stream.poll(cx).is_ready() {
            return Poll::Ready(());
        }
        let Some(due) = this.unread.due(&this.connection.limits) else { return Poll::Pending };
        if this.alarm.poll(cx, due).is_ready() {
            this.stream.set(None);
            return Poll::Ready(());
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_given_up_after_a_silence_or_when_it_was_read_too_slowly_all_in_all() {
        let second = Duration::from_secs(1);
        let limits = Limits { body_timeout: 10 * second, body_rate_min: 100, ..Limits::default() };
        let unread = Unread::default();
        assert_eq!(unread.due(&limits), None);
        unread.given(500);
        assert_eq!(unread.due(&limits), Some(Instant::now() + 10 * second));
        tokio::time::advance(9 * second).await;
        unread.taken();
        assert_eq!(unread.due(&limits), None, "the worker's time is not the client's");
        tokio::time::advance(100 * second).await;
        unread.given(100);
        // 10 s, and 6 s for 600 bytes, of which 9 s are used up.
        assert_eq!(unread.due(&limits), Some(Instant::now() + 7 * second));
        let any_pace = Limits { body_rate_min: 0, ..limits };
        assert_eq!(unread.due(&any_pace), Some(Instant::now() + 10 * second));
    }
}
