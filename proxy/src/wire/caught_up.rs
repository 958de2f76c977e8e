//! Reading first what has come.

use tokio::task::yield_now;

/// How often this thread looks at its sockets: what one task reads may be for another, and one look tells of a thousand sockets.
const LOOKS: usize = 16;

/// Completes when this thread has looked at its sockets and whoever waited for them has had their turn.
///
/// Whoever says that a peer was silent for too long waits for this first. To a process that stood still (SIGSTOP, a frozen
/// container) all times come at once when it goes on, and the runtime may tell of them before it has looked at any socket.
pub(crate) async fn caught_up() {
    for _ in 0..LOOKS {
        yield_now().await; // Comes back behind those whom the next look wakes.
    }
}
