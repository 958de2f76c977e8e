//! Bound addresses.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fencepost_config::Proxies;
use fencepost_tls::ServerTls;
use socket2::{Domain, SockAddr, SockRef, Socket, Type};

use super::handshake::LostHandshake;
use crate::wire::{keep_alive, write_little_ahead};

/// Connections that the kernel keeps for us before they are accepted.
const BACKLOG: i32 = 4096;

/// Where to listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenAddress {
    /// A TCP address; port 0 is any free port.
    Tcp(SocketAddr),
    /// A unix socket at that path.
    Unix(PathBuf),
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenAddress::Tcp(address) => address.fmt(f),
            ListenAddress::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A bound address. Connections wait in the kernel until [`serve`](super::serve()) takes them.
///
/// The file of a unix socket is removed when this is dropped.
#[derive(Debug)]
pub struct Listener {
    pub(super) address: ListenAddress,
    pub(super) socket: Socket,
    pub(super) file: Option<SocketFile>,
    pub(super) tls: Option<ListenerTls>,
    pub(super) proxies: Option<Arc<Proxies>>,
}

/// By what a listener takes connections.
#[derive(Clone)]
pub(super) struct ListenerTls {
    /// Its side of the handshake.
    pub(super) server: ServerTls,
    /// Called with each failed handshake.
    pub(super) on_failure: Arc<dyn Fn(&LostHandshake) + Send + Sync>,
}

impl fmt::Debug for ListenerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.server.fmt(f)
    }
}

/// Why an address could not be bound.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// A process listens there already.
    #[error("{address} is in use by another process: end that one, or choose another address")]
    InUse {
        /// The address.
        address: ListenAddress,
    },
    /// There is a file at the path of the unix socket that is no socket.
    #[error("{} exists and is not a socket", path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// A socket that the service manager was to pass is not there, or is of no use.
    #[error(
        "systemd passed no listening socket named {name:?}: write FileDescriptorName={name} in the socket unit, or choose another address"
    )]
    NotPassed {
        /// Its name.
        name: String,
        /// What is wrong.
        source: io::Error,
    },
    /// The system said no.
    #[error("cannot listen on {address}")]
    Refused {
        /// The address.
        address: ListenAddress,
        /// What the system said.
        source: io::Error,
    },
}

impl Listener {
    /// Binds `address`.
    ///
    /// Not with `SO_REUSEPORT`: a second process would silently take half of the connections past
    /// the gate.
    ///
    /// # Errors
    ///
    /// If a process listens there, if a file that is no socket is there, or if the system does not
    /// let us. The file of a unix socket whose process is gone is replaced.
    pub fn bind(address: &ListenAddress) -> Result<Listener, BindError> {
        match address {
            ListenAddress::Tcp(tcp) => {
                Listener::bind_tcp(*tcp).map_err(|error| refused(address, error))
            }
            ListenAddress::Unix(path) => Listener::bind_unix(path),
        }
    }

    fn bind_tcp(address: SocketAddr) -> io::Result<Listener> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        if address.is_ipv6() {
            socket.set_only_v6(false)?; // `[::]` is all of the machine, whatever the system's default is.
        }
        socket.bind(&address.into())?;
        listen(&socket)?;
        let bound = socket.local_addr()?.as_socket().expect("a TCP socket has an IP address");
        Ok(Listener::new(ListenAddress::Tcp(bound), socket, None))
    }

    fn bind_unix(path: &Path) -> Result<Listener, BindError> {
        let address = ListenAddress::Unix(path.to_owned());
        let bind = || -> io::Result<Socket> {
            let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
            socket.bind(&SockAddr::unix(path)?)?;
            listen(&socket)?;
            Ok(socket)
        };
        let bound = match bind() {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                clear_stale(path)?;
                bind()
            }
            other => other,
        };
        let socket = bound.map_err(|error| refused(&address, error))?;
        let file = SocketFile::of(path).map_err(|error| refused(&address, error))?;
        Ok(Listener::new(address, socket, Some(file)))
    }

    pub(super) fn new(
        address: ListenAddress,
        socket: Socket,
        file: Option<SocketFile>,
    ) -> Listener {
        Listener { address, socket, file, tls: None, proxies: None }
    }

    /// Believes these proxies; `None`: nobody.
    pub fn with_proxies(self, proxies: Option<Proxies>) -> Listener {
        Listener { proxies: proxies.map(Arc::new), ..self }
    }

    /// Takes connections by TLS, and by nothing else; `None`: in the clear.
    pub fn with_tls(self, server: Option<ServerTls>) -> Listener {
        let tls = server.map(|server| ListenerTls { server, on_failure: Arc::new(|_| {}) });
        Listener { tls, ..self }
    }

    /// Has the system end a connection whose client has not acknowledged, or not taken, what it was
    /// sent for so long: it may be gone, with its machine. Connections have that of their listener
    /// (tcp(7), `TCP_USER_TIMEOUT`).
    pub fn with_silence_max(self, silence_max: Duration) -> Listener {
        let _ = self.socket.set_tcp_user_timeout(Some(silence_max)); // Not on a unix socket, where the system sees the client's end.
        self
    }

    /// Its side of the handshake; `None`: it takes connections in the clear.
    pub fn tls(&self) -> Option<&ServerTls> {
        self.tls.as_ref().map(|tls| &tls.server)
    }

    /// Tells of each handshake that comes to nothing.
    pub fn on_handshake_failure(&mut self, tell: impl Fn(&LostHandshake) + Send + Sync + 'static) {
        if let Some(tls) = &mut self.tls {
            tls.on_failure = Arc::new(tell);
        }
    }

    /// The address, with the port that the system chose.
    pub fn address(&self) -> &ListenAddress {
        &self.address
    }
}

fn refused(address: &ListenAddress, error: io::Error) -> BindError {
    let address = address.clone();
    if error.kind() == io::ErrorKind::AddrInUse {
        return BindError::InUse { address };
    }
    BindError::Refused { address, source: error }
}

fn listen(socket: &Socket) -> io::Result<()> {
    prepare(socket)?;
    socket.listen(BACKLOG)
}

/// Sets what a listening socket's connections are to have, which they take over as their clients
/// connect.
pub(super) fn prepare(socket: &Socket) -> io::Result<()> {
    write_little_ahead(&SockRef::from(socket));
    keep_alive(&SockRef::from(socket));
    socket.set_nonblocking(true)
}

/// Removes the socket file of a process that is gone, where connecting is refused.
fn clear_stale(path: &Path) -> Result<(), BindError> {
    let address = ListenAddress::Unix(path.to_owned());
    let kind = path.symlink_metadata().map_err(|error| refused(&address, error))?.file_type();
    if !kind.is_socket() {
        return Err(BindError::NotASocket { path: path.to_owned() });
    }
    let connect = || {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        // A full backlog shows at once, where a blocking call would wait for room in it.
        socket.set_nonblocking(true)?;
        socket.connect(&SockAddr::unix(path)?)
    };
    match connect() {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(|error| refused(&address, error))
        }
        Ok(_) | Err(_) => Err(BindError::InUse { address }),
    }
}

/// The file of our unix socket: removed at the end, unless another process has put its own there.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl SocketFile {
    fn of(path: &Path) -> io::Result<SocketFile> {
        Ok(SocketFile { path: path.to_owned(), identity: identity(path)? })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|found| found == self.identity) {
            let _ = std::fs::remove_file(&self.path); // Someone was faster: just as well.
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = path.symlink_metadata()?;
    Ok((metadata.dev(), metadata.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bind(path: &Path) -> Result<Listener, BindError> {
        Listener::bind(&ListenAddress::Unix(path.to_owned()))
    }

    /// Retransmissions went on for a quarter of an hour.
    #[test]
    fn connections_have_the_patience_of_their_listener() {
        let silence_max = Duration::from_secs(7);
        let address = ListenAddress::Tcp("127.0.0.1:0".parse().unwrap());
        let listener = Listener::bind(&address).unwrap().with_silence_max(silence_max);
        listener.socket.set_nonblocking(false).unwrap();
        let _client = std::net::TcpStream::connect(
            listener.socket.local_addr().unwrap().as_socket().unwrap(),
        )
        .unwrap();
        let (accepted, _) = listener.socket.accept().unwrap();
        assert_eq!(accepted.tcp_user_timeout().unwrap(), Some(silence_max));
    }

    #[test]
    fn stale_socket_file_is_replaced_and_removed_at_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("http.sock");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "the standard library leaves its file");
        let listener = bind(&path).unwrap();
        assert!(std::os::unix::net::UnixStream::connect(&path).is_ok());
        drop(listener);
        assert!(!path.exists());
    }

    #[test]
    fn a_socket_that_somebody_listens_on_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("http.sock");
        let first = bind(&path).unwrap();
        assert!(matches!(bind(&path), Err(BindError::InUse { .. })));
        assert!(std::os::unix::net::UnixStream::connect(&path).is_ok());
        drop(first);
    }

    /// The start waited for room, and the log had not a word.
    #[test]
    fn socket_with_a_full_backlog_is_in_use() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("http.sock");
        let socket = || Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
        let (owner, address) = (socket(), SockAddr::unix(&path).unwrap());
        owner.bind(&address).unwrap();
        owner.listen(0).unwrap();
        let connect = || {
            let client = socket();
            client.set_nonblocking(true).unwrap();
            client.connect(&address).map(|()| client)
        };
        let mut clients = Vec::new();
        let full = loop {
            match connect() {
                Ok(client) => clients.push(client),
                Err(error) => break error,
            }
        };
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
        let (tell, told) = std::sync::mpsc::channel();
        let bound_at = path.clone();
        std::thread::spawn(move || tell.send(bind(&bound_at)));
        let bound = told.recv_timeout(Duration::from_secs(10)).expect("nobody is waited for");
        assert!(matches!(bound, Err(BindError::InUse { .. })), "{bound:?}");
        assert!(path.exists());
    }

    #[test]
    fn a_file_that_is_no_socket_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notes.txt");
        std::fs::write(&path, "precious").unwrap();
        assert!(matches!(bind(&path), Err(BindError::NotASocket { .. })));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn a_tcp_address_is_bound_once() {
        let first = Listener::bind(&ListenAddress::Tcp("127.0.0.1:0".parse().unwrap())).unwrap();
        assert!(matches!(Listener::bind(first.address()), Err(BindError::InUse { .. })));
    }
}
