//! The signals that `fencepost hold` gets.

use std::io;

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};
use tokio::sync::mpsc;

/// Those that are listened to: all but the first are the command's business.
const LISTENED_TO: [Signal; 9] = [
    Signal::CHILD,
    Signal::TERM,
    Signal::INT,
    Signal::HUP,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
    Signal::WINCH,
    Signal::CONT,
];

/// The signals of this process.
#[derive(Debug)]
pub(super) struct Signals(mpsc::Receiver<Signal>);

impl Signals {
    /// Listens from now on: none of them ends this process any more.
    pub(super) fn listen() -> io::Result<Signals> {
        let (sender, received) = mpsc::channel(LISTENED_TO.len());
        for signal in LISTENED_TO {
            let mut stream = unix::signal(SignalKind::from_raw(signal.as_raw()))?;
            let sender = sender.clone();
            tokio::spawn(async move { while stream.recv().await.is_some() && sender.send(signal).await.is_ok() {} });
        }
        Ok(Signals(received))
    }

    /// The next one. Several of one kind may show as one.
    ///
    /// # Cancel safety
    /// None is lost if this is given up.
    pub(super) async fn next(&mut self) -> Signal {
        match self.0.recv().await {
            Some(signal) => signal,
            // They are listened to as long as the runtime lives.
            None => std::future::pending().await,
        }
    }
}

/// Whether a signal asks this process to end.
pub(super) fn asks_to_end(signal: Signal) -> bool {
    [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT].contains(&signal)
}
