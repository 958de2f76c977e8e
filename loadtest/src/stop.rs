//! Ends a run early at Ctrl-C or SIGTERM.

use std::future::pending;
use std::time::Instant;

use anyhow::{Context, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::report::tell;

/// The exit code that shells give to a program that Ctrl-C ended.
const INTERRUPTED: i32 = 130;

/// Since when a run is to end, if it is.
#[derive(Clone, Debug)]
pub(crate) struct Stop(watch::Receiver<Option<Instant>>);

impl Stop {
    /// Stops at the first signal. The second one ends the program at once.
    pub(crate) fn when_asked() -> Result<Stop> {
        let listen = |kind| signal(kind).context("signals cannot be received");
        let mut signals = [listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?];
        let (stop, stopped) = watch::channel(None);
        tokio::spawn(async move {
            next(&mut signals).await;
            stop.send_replace(Some(Instant::now()));
            tell("fencepost-loadtest: ending early; a second signal ends it at once\n");
            next(&mut signals).await;
            std::process::exit(INTERRUPTED);
        });
        Ok(Stop(stopped))
    }

    pub(crate) fn never() -> Stop {
        Stop::when_told(watch::channel(None).1)
    }

    pub(crate) fn when_told(stopped: watch::Receiver<Option<Instant>>) -> Stop {
        Stop(stopped)
    }

    pub(crate) fn at(&self) -> Option<Instant> {
        *self.0.borrow()
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.at().is_some()
    }

    pub(crate) async fn stopped(&self) {
        if self.0.clone().wait_for(Option::is_some).await.is_err() {
            pending::<()>().await;
        }
    }
}

async fn next([interrupt, terminate]: &mut [Signal; 2]) {
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}
