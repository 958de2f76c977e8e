//! Ports for processes that must be told theirs.

use std::collections::hash_map::RandomState;
use std::fs::{self, File};
use std::hash::BuildHasher;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener};
use std::ops::Range;

use rustix::process::getuid;
use socket2::SockRef;

/// A port of the loopback address that no other test uses as long as this value lives.
///
/// For processes that must be told their port, and for those that leave it and come back. Where a
/// socket can be bound to port 0 and kept, that is better.
#[derive(Debug)]
pub struct FreePort {
    number: u16,
    /// Keeps the port from other test processes: another user of this crate cannot lock the file.
    _reservation: File,
}

impl FreePort {
    /// Reserves one that nobody listens on.
    pub fn reserve() -> FreePort {
        // Each begins elsewhere, so that parallel tests seldom ask for the same one.
        let first = RandomState::new().hash_one(()) as usize % PORTS.len();
        PORTS
            .skip(first)
            .chain(PORTS.take(first))
            .find_map(|number| {
                let reservation = lock(number)?;
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, number)).ok()?;
                // A process that is being started has it, too: it ends here and now, so that the
                // port is free.
                SockRef::from(&listener).shutdown(Shutdown::Read).ok()?;
                Some(FreePort { number, _reservation: reservation })
            })
            .expect("one of some thousand ports is free")
    }

    /// Its number.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// The loopback address with it.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.number).into()
    }
}

/// Below the range from which the system gives ports to outgoing connections: those come without
/// asking anyone.
const PORTS: Range<u16> = 20_000..32_768;

fn lock(number: u16) -> Option<File> {
    let directory = std::env::temp_dir().join(format!("fencepost-ports-{}", getuid().as_raw()));
    fs::create_dir_all(&directory).expect("the temporary directory can be written");
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(directory.join(number.to_string()))
        .expect("a file of this user's own directory can be opened");
    file.try_lock().ok()?;
    Some(file)
}
