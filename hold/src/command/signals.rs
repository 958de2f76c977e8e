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

/// Those that `nohup` ignores, and a shell for what it runs in the background. What is ignored
/// stays so after an `exec`.
const MAY_BE_IGNORED: [Signal; 3] = [Signal::HUP, Signal::INT, Signal::QUIT];

/// The signals of this process.
#[derive(Debug)]
pub(super) struct Signals(mpsc::Receiver<Signal>);

impl Signals {
    /// Listens from now on: none of them ends this process any more. To be called once: by then,
    /// some may be ignored.
    pub(super) fn listen() -> io::Result<Signals> {
        let (sender, received) = mpsc::channel(LISTENED_TO.len());
        let ignored = ignored()?;
        // An order of whoever has started us. It is for the command, too, which inherits it as long
        // as nobody listens.
        let is_left_alone = |signal: Signal| {
            MAY_BE_IGNORED.contains(&signal) && ignored & 1 << (signal.as_raw() - 1) != 0
        };
        for signal in LISTENED_TO.into_iter().filter(|signal| !is_left_alone(*signal)) {
            let mut stream = unix::signal(SignalKind::from_raw(signal.as_raw()))?;
            let sender = sender.clone();
            tokio::spawn(async move {
                while stream.recv().await.is_some() && sender.send(signal).await.is_ok() {}
            });
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

/// What this process ignores: the lowest bit is signal 1.
fn ignored() -> io::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status").map_err(|error| {
        io::Error::new(
            error.kind(),
            format!("/proc/self/status: {error}: hold needs /proc, mount it"),
        )
    })?;
    let ignored = status
        .lines()
        .find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    ignored.ok_or_else(|| io::Error::other("the system does not say which are ignored"))
}

/// Whether a signal asks this process to end.
pub(super) fn asks_to_end(signal: Signal) -> bool {
    [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT].contains(&signal)
}
