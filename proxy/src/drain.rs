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

/// Stops a server in named steps: `leaving` (not ready, clients are asked to leave, requests are
/// served for `drain_delay`), `closing` (nothing more is accepted, what is under way finishes, for
/// `drain_timeout` at most), `cutting` (what waits before the worker is told so, the rest is cut).
/// `again` skips to the last: whoever says once more that it ends (SIGTERM, SIGINT) need not wait.
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
