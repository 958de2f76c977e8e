//! The steps in which a process stops.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fencepost_config::Limits;
use tokio::time::{sleep, timeout};

use crate::process::Process;
use crate::server::Server;

/// How long answers may take to be written that say that nothing was forwarded, before their
/// connections are cut.
const LAST_ANSWERS_MAX: Duration = Duration::from_secs(1);

/// Stops a server in three steps:
///
/// - `leaving`: The process is not ready, asks clients to leave, and serves requests for
///   `drain_delay`.
/// - `closing`: The process accepts nothing more. Requests under way finish, for `drain_timeout` at
///   most.
/// - `cutting`: Requests that wait to be forwarded get an error response. The rest is cut.
///
/// `again`, a second SIGTERM or SIGINT, skips to the last step.
pub async fn drain(
    mut server: Server,
    process: &Process,
    leaving: &AtomicBool,
    limits: &Limits,
    again: impl Future<Output = ()>,
) {
    let connections = server.connections();
    let mut again = std::pin::pin!(again);
    let under_way = || (connections.count(), process.metrics.in_flight());

    let (open, requests) = under_way();
    let drain_delay = limits.drain_delay;
    tracing::info!(
        step = "leaving",
        ?drain_delay,
        connections = open,
        requests,
        "draining: not ready, clients are asked to leave"
    );
    leaving.store(true, Ordering::Relaxed);
    server.leave();
    let hurried = tokio::select! {
        () = sleep(drain_delay) => false,
        () = &mut again => true,
    };

    let (open, requests) = under_way();
    let drain_timeout = limits.drain_timeout;
    tracing::info!(
        step = "closing",
        ?drain_timeout,
        connections = open,
        requests,
        "draining: nothing more is accepted"
    );
    process.drain();
    server.close();
    let patience = if hurried { Duration::ZERO } else { drain_timeout };
    let mut ended = tokio::select! {
        biased;
        () = server.ended() => true,
        () = sleep(patience) => false,
        () = again, if !hurried => false,
    };
    if !ended && process.end_waits() {
        ended = timeout(LAST_ANSWERS_MAX, server.ended()).await.is_ok();
    }
    let (open, requests) = under_way();
    let cut = if ended { 0 } else { server.cut().await };
    if cut > 0 {
        tracing::warn!(
            step = "cutting",
            connections = open,
            requests,
            cut,
            "drained: connections and requests were cut"
        );
    } else {
        tracing::info!(step = "ended", "drained: everything has ended");
    }
}
