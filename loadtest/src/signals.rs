//! Ctrl-C and SIGTERM: the end of a run.

use std::future::Future;
use std::sync::Arc;

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::drive::Stop;
use crate::output::tell;

/// As shells say it of who was ended by Ctrl-C.
const INTERRUPTED: i32 = 130;

/// Returns when somebody asks the program to end. From the call on, not from the first poll on, that ends nothing by itself. Who asks once
/// more does not want to wait for what is left to be done: the program is over.
///
/// # Errors
/// If signals can't be received.
pub(crate) fn asked_to_end() -> anyhow::Result<impl Future<Output = ()>> {
    let listen = |kind| signal(kind).context("signals cannot be received");
    let mut signals = [listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?];
    Ok(async move {
        next(&mut signals).await;
        // On a task of its own: whoever was asked hears of it first.
        tokio::spawn(async move {
            tell("fencepost-loadtest: ending early; asked once more, it ends at once\n");
            next(&mut signals).await;
            std::process::exit(INTERRUPTED);
        });
    })
}

/// What is stopped when somebody asks the program to end.
///
/// # Errors
/// As for [`asked_to_end`].
pub(crate) fn stop_when_asked() -> anyhow::Result<Arc<Stop>> {
    let (stop, asked) = (Arc::<Stop>::default(), asked_to_end()?);
    let stopping = Arc::clone(&stop);
    tokio::spawn(async move {
        asked.await;
        stopping.stop();
    });
    Ok(stop)
}

async fn next([interrupt, terminate]: &mut [Signal; 2]) {
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}
