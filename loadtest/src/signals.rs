//! Being asked to end.

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};

/// Completes when somebody presses Ctrl-C or sends SIGTERM. From the first call on, neither ends the process by itself.
pub(crate) async fn asked_to_end() -> anyhow::Result<()> {
    let listen = |kind| signal(kind).context("signals cannot be received");
    let (mut interrupt, mut terminate) = (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?);
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    Ok(())
}
