//! Letting others go first.

use std::future::poll_fn;
use std::task::Poll;

/// Gives the other tasks that are ready on this thread one turn.
///
/// The upstream side uses it after it has asked for a piece of a response: the connection's task may have that piece already.
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
