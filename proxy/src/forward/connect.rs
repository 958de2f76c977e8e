//! Opens connections to a worker.

use std::io;

use tokio::net::{TcpStream, UnixStream, lookup_host};

use super::upstream::UpstreamAddress;
use crate::wire::Socket;

/// Whether a worker takes connections. It is closed again at once.
///
/// # Errors
///
/// What the system says of the last address that was tried.
pub async fn connects(address: &UpstreamAddress) -> io::Result<()> {
    connect(address).await.map(drop)
}

/// Opens a connection, trying each address that the name has.
pub(super) async fn connect(address: &UpstreamAddress) -> io::Result<Socket> {
    match address {
        UpstreamAddress::Unix(path) => Ok(Socket::upstream(UnixStream::connect(path).await?.into())),
        UpstreamAddress::Tcp { host, port } => {
            let mut failure = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
            for address in lookup_host((host.as_str(), *port)).await? {
                match TcpStream::connect(address).await {
                    Ok(stream) => {
                        stream.set_nodelay(true)?;
                        return Ok(Socket::upstream(stream.into()));
                    }
                    Err(error) => failure = error,
                }
            }
            Err(failure)
        }
    }
}
