//! Sockets that were bound for this process before it began, as systemd does it (`LISTEN_FDS`,
//! `LISTEN_FDNAMES`).

use std::io;

use listenfd::ListenFd;
use socket2::Socket;

use super::listener::{BindError, ListenAddress, Listener, prepare};

/// The sockets that were passed to this process.
pub struct PassedSockets {
    sockets: ListenFd,
    /// Their names, in the same order.
    names: Vec<String>,
    /// Whether the environment says that they are for this process: it may have been handed on by a
    /// parent.
    are_ours: bool,
}

impl PassedSockets {
    /// The sockets that the environment names. To be called once: a second call finds none.
    pub fn of_environment() -> PassedSockets {
        let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
        let are_ours =
            std::env::var("LISTEN_PID").is_ok_and(|id| id == std::process::id().to_string());
        let names = names.split(':').map(str::to_owned).collect();
        PassedSockets { sockets: ListenFd::from_env(), names, are_ours }
    }

    /// Takes all sockets of that name: one unit may listen on several addresses.
    ///
    /// # Errors
    /// If no socket has that name, or one that has it is no listening stream socket.
    pub fn take(&mut self, name: &str) -> Result<Vec<Listener>, BindError> {
        let named = |index: &usize| self.names.get(*index).is_some_and(|other| other == name);
        let indices: Vec<usize> = (0..self.sockets.len()).filter(named).collect();
        let mut taken = Vec::new();
        for index in indices {
            let listener = self.listener(index);
            taken.extend(
                listener
                    .map_err(|source| BindError::NotPassed { name: name.to_owned(), source })?,
            );
        }
        if taken.is_empty() {
            let source = io::Error::new(io::ErrorKind::NotFound, "none of that name");
            return Err(BindError::NotPassed { name: name.to_owned(), source });
        }
        Ok(taken)
    }

    /// Closes the listening sockets that were not taken, so that their clients are refused and
    /// don't wait. To be called when all listeners are bound: no later configuration has others.
    pub fn close_rest(mut self) {
        let ours = if self.are_ours { self.sockets.len() } else { 0 };
        for index in 0..ours {
            if let Ok(Some(listener)) = self.listener(index) {
                let (name, address) =
                    (self.names.get(index).map_or("unknown", String::as_str), listener.address());
                tracing::warn!(
                    name,
                    %address,
                    "systemd passed a socket that no listener names: it is closed. Have a listener on \"systemd:{name}\", or stop and \
                     disable the socket unit: while it is active, clients still connect to it and are never answered"
                );
            }
        }
    }

    /// The socket at an index; `None` if it was taken.
    fn listener(&mut self, index: usize) -> io::Result<Option<Listener>> {
        if let Ok(listener) = self.sockets.take_tcp_listener(index) {
            return listener.map(|listener| listening(listener.into())).transpose();
        }
        self.sockets
            .take_unix_listener(index)?
            .map(|listener| listening(listener.into()))
            .transpose()
    }
}

/// Takes a socket over. The file of a unix socket belongs to the process that made it, and stays.
fn listening(socket: Socket) -> io::Result<Listener> {
    if !socket.is_listener()? {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it does not listen"));
    }
    prepare(&socket)?;
    let address = socket.local_addr()?;
    let address = match address.as_socket() {
        Some(address) => ListenAddress::Tcp(address),
        None => ListenAddress::Unix(address.as_pathname().map(Into::into).unwrap_or_default()),
    };
    Ok(Listener::new(address, socket, None))
}
