//! The signals that a service gets: SIGTERM, SIGINT and SIGHUP, and those that are meant for other
//! services.
//!
//! Each function listens from its call on, not from the first poll on. From then on the signal does
//! not end the process by default, and none is lost.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Completes on the next SIGTERM or SIGINT.
pub fn terminated() -> impl Future<Output = ()> {
    let (mut terminations, mut interruptions) =
        (Signals::listen(SignalKind::terminate()), Signals::listen(SignalKind::interrupt()));
    async move {
        tokio::select! {
            () = terminations.next() => {}
            () = interruptions.next() => {}
        }
    }
}

/// Those of one kind; none where they cannot be listened for.
pub(crate) struct Signals(Option<Signal>);

impl Signals {
    /// None ever comes.
    pub(crate) fn none() -> Signals {
        Signals(None)
    }

    pub(crate) fn listen(kind: SignalKind) -> Signals {
        let warn = |error: &_| tracing::warn!(%error, signal = kind.as_raw_value(), "a signal cannot be listened for");
        Signals(signal(kind).inspect_err(warn).ok())
    }

    /// Completes on the next one. Several may show as one. None is lost if this is given up.
    pub(crate) async fn next(&mut self) {
        match &mut self.0 {
            Some(signals) => drop(signals.recv().await),
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustix::process::{Signal, getpid, kill_process};
    use tokio::time::timeout;

    use super::*;

    /// A second SIGTERM that follows the effect of the first one arrives even if nobody waits for
    /// it yet.
    #[tokio::test]
    async fn what_comes_before_anybody_waits_is_heard() {
        let mut earlier = Signals::listen(SignalKind::terminate());
        let asked = terminated();
        kill_process(getpid(), Signal::TERM).unwrap();
        earlier.next().await;
        assert!(timeout(Duration::from_secs(10), asked).await.is_ok(), "it is lost");
    }
}
