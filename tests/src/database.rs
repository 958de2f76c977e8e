//! A database server for tests, and the one that tests share.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Weak};

use rustix::process::getuid;
use tokio::sync::Mutex;

use crate::patience::eventually;
use crate::port::FreePort;
use crate::process::Process;
use crate::scratch::Scratch;

/// A running server on loopback, its data in a [`Scratch`] directory.
#[derive(Debug)]
pub(crate) struct Server {
    process: Process,
    port: FreePort,
    /// Is removed last: the process writes there.
    _scratch: Scratch,
}

impl Server {
    /// Starts one, on another port if a stranger was faster, and waits until its log has `ready`.
    pub(crate) async fn start(
        scratch: Scratch,
        command: impl Fn(&Path, SocketAddr) -> Command,
        ready: &str,
    ) -> Server {
        let log = scratch.path().join("log");
        loop {
            let port = FreePort::reserve();
            let mut process = Process::start(&command(scratch.path(), port.address()), &log);
            let is_up = eventually("the database server is up", async || {
                let printed = process.log();
                if printed.contains(ready) {
                    return Some(true);
                }
                let status = process.ended()?;
                let is_taken = printed.to_lowercase().contains("address already in use");
                assert!(is_taken, "the database server ended with {status}: {printed}");
                Some(false)
            })
            .await;
            if is_up {
                return Server { process, port, _scratch: scratch };
            }
            std::fs::remove_file(&log).expect("the log of a process can be removed");
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.port.address()
    }

    pub(crate) fn log(&self) -> String {
        self.process.log()
    }

    /// Ends it at once, with the processes that it has started.
    pub(crate) fn quit(&mut self) {
        self.process.quit();
    }
}

/// What tests share as long as one of them has it: a server that takes long to make.
pub(crate) struct SharedServer<T>(Mutex<Weak<T>>);

impl<T> SharedServer<T> {
    pub(crate) const fn new() -> SharedServer<T> {
        SharedServer(Mutex::const_new(Weak::new()))
    }

    pub(crate) async fn get(&self, start: impl AsyncFnOnce() -> T) -> Arc<T> {
        let mut shared = self.0.lock().await;
        if let Some(running) = shared.upgrade() {
            return running;
        }
        let started = Arc::new(start().await);
        *shared = Arc::downgrade(&started);
        started
    }
}

/// Who a server runs as that does not run as root: its user and group, and nobody's where that is
/// root.
pub(crate) const NOBODY: u32 = 65_534;

/// Whether what a test starts runs as root.
pub(crate) fn is_root() -> bool {
    getuid().is_root()
}

/// Gives a file or a directory to a server that runs as nobody.
pub(crate) fn give_away(path: &Path) {
    if is_root() {
        std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY))
            .expect("root can give a file away");
    }
}

/// Runs a command to its end.
pub(crate) async fn run(command: Command) {
    let mut command = tokio::process::Command::from(command);
    let output = command.kill_on_drop(true).output().await;
    let output = output.unwrap_or_else(|error| panic!("{command:?} can't be started: {error}"));
    let printed = [output.stdout, output.stderr].concat();
    let printed = String::from_utf8_lossy(&printed);
    assert!(output.status.success(), "{command:?} ended with {}: {printed}", output.status);
}
