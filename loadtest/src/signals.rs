//! Ctrl-C and SIGTERM: the end of a run.

use std::future::Future;

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};

/// Returns when somebody asks the program to end. From the call on, not from the first poll on, that ends nothing by itself.
///
/// # Errors
/// If signals can't be received.
pub(crate) fn asked_to_end() -> anyhow::Result<impl Future<Output = ()>> {
    let listen = |kind| signal(kind).context("signals cannot be received");
    let (mut interrupt, mut terminate) = (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?);
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}
