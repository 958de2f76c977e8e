//! Letting others go first.

use std::future::poll_fn;
use std::task::Poll;

/// Lets the other tasks that are ready on this thread come as far as this.
///
/// For requests that go by HTTP/2, which are not left to the [`Outbox`](super::Outbox): they are written in a row then, and whoever is woken by
/// the first is still awake for the next. To wake a process costs more than to poll a task once more.
pub(crate) async fn give_way() {
    let mut has_given_way = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut has_given_way, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
