//! A worker behind TLS that does exactly what it is told.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use fencepost::upstream::{UPSTREAM_PROTOCOLS, UpstreamTls};
use fencepost_tests::{Authority, Issued, Subject, WorkerTls, replace_file};
use fencepost_tls::{
    ClientFiles, ClientTls, Followed, IdentityFiles, Look, MinVersion, ServerFiles, ServerTls,
};
use rustls::{ClientConnection, ServerConfig, ServerConnection, StreamOwned};
use socket2::{Domain, Socket, Type};

use super::PATIENCE;

/// The certificates of a test, on both sides: a worker's, and what the proxy believes and shows.
pub(crate) struct Certificates {
    pub(crate) authority: Authority,
    pub(crate) worker: Issued,
    pub(crate) files: tempfile::TempDir,
}

impl Certificates {
    pub(crate) fn new() -> Certificates {
        let authority = Authority::new("the test's");
        let worker = authority.issue_for_localhost();
        let certificates = Certificates { authority, worker, files: tempfile::tempdir().unwrap() };
        std::fs::write(certificates.path("ca.pem"), certificates.authority.certificate()).unwrap();
        certificates
    }

    pub(crate) fn path(&self, name: &str) -> std::path::PathBuf {
        self.files.path().join(name)
    }

    /// A worker's side, with these protocols.
    pub(crate) fn server(&self, protocols: &[&str]) -> Arc<ServerConfig> {
        WorkerTls { identity: &self.worker, client_ca: None, protocols }.config()
    }

    /// A worker's side that wants to see a certificate.
    pub(crate) fn server_for(
        &self,
        client_ca: &Authority,
        protocols: &[&str],
    ) -> Arc<ServerConfig> {
        WorkerTls { identity: &self.worker, client_ca: Some(&client_ca.certificate()), protocols }
            .config()
    }

    /// The proxy's side of connections from clients, with the same certificate.
    pub(crate) fn listening(&self) -> ServerTls {
        let (certificate, key) = self.worker.write(self.files.path(), "listener");
        let identity = IdentityFiles { certificate, key };
        ServerTls::load(
            ServerFiles {
                identity,
                more: Vec::new(),
                clients: None,
                min_version: MinVersion::Tls12,
            },
            &[],
        )
        .unwrap()
    }

    /// A client's connection to a proxy that listens so. It takes little that is not read.
    pub(crate) fn connect(&self, proxy: SocketAddr) -> StreamOwned<ClientConnection, TcpStream> {
        let socket = Socket::new(Domain::for_address(proxy), Type::STREAM, None).unwrap();
        socket.set_recv_buffer_size(16 * 1024).unwrap();
        socket.connect(&proxy.into()).unwrap();
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let config = self.client().identity.config();
        StreamOwned::new(
            ClientConnection::new(config, "127.0.0.1".try_into().unwrap()).unwrap(),
            stream,
        )
    }

    /// The proxy's side, without a certificate of its own.
    pub(crate) fn client(&self) -> UpstreamTls {
        self.client_with(None)
    }

    /// The proxy's side, with a certificate of that authority.
    pub(crate) fn client_of(&self, authority: &Authority) -> UpstreamTls {
        let issued =
            authority.issue(&Subject { common_name: Some("fencepost"), ..Subject::default() });
        let (certificate, key) = issued.write(self.files.path(), "client");
        self.client_with(Some(IdentityFiles { certificate, key }))
    }

    /// Has the proxy open new connections, although those that are open are well.
    pub(crate) fn begin_anew(&self, tls: &UpstreamTls) {
        let was = std::fs::read_to_string(self.path("ca.pem")).unwrap();
        replace_file(&self.path("ca.pem"), &format!("# once more\n{was}"));
        assert_eq!(tls.identity.look(), Look::Reloaded);
    }

    fn client_with(&self, identity: Option<IdentityFiles>) -> UpstreamTls {
        trusting(&self.path("ca.pem"), identity, "127.0.0.1")
    }
}

/// The proxy's side, as files have it.
pub(crate) fn trusting(
    ca: &Path,
    identity: Option<IdentityFiles>,
    server_name: &str,
) -> UpstreamTls {
    let files = ClientFiles { ca: ca.to_owned(), crl: None, identity };
    UpstreamTls {
        identity: ClientTls::load(files, UPSTREAM_PROTOCOLS).unwrap(),
        server_name: server_name.to_owned().try_into().unwrap(),
    }
}

/// A worker behind TLS whose connections are taken one by one.
pub(crate) struct TlsWorker {
    address: SocketAddr,
    accepted: mpsc::Receiver<TlsPeer>,
    speaks: Arc<Mutex<Arc<ServerConfig>>>,
}

/// The worker's end of a connection.
pub(crate) struct TlsPeer {
    stream: StreamOwned<ServerConnection, TcpStream>,
    /// Read, but not asked for yet.
    buffer: Vec<u8>,
}

impl TlsWorker {
    pub(crate) fn start(config: Arc<ServerConfig>) -> TlsWorker {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, accepted) = mpsc::channel();
        let speaks = Arc::new(Mutex::new(config));
        let present = Arc::clone(&speaks);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let config = Arc::clone(&present.lock().unwrap());
                let sender = sender.clone();
                // A connection that comes to nothing does not keep others waiting.
                thread::spawn(move || {
                    if let Ok(peer) = TlsPeer::accept(stream.unwrap(), config) {
                        let _ = sender.send(peer); // The test may be over.
                    }
                });
            }
        });
        TlsWorker { address, accepted, speaks }
    }

    /// What connections to come speak.
    pub(crate) fn speak(&self, config: Arc<ServerConfig>) {
        *self.speaks.lock().unwrap() = config;
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next connection whose handshake is done.
    pub(crate) fn next(&self) -> TlsPeer {
        self.accepted.recv_timeout(PATIENCE).expect("a connection is opened")
    }

    /// Whether another connection has been opened.
    pub(crate) fn has_another(&self) -> bool {
        self.accepted.try_recv().is_ok()
    }
}

impl TlsPeer {
    fn accept(stream: TcpStream, config: Arc<ServerConfig>) -> io::Result<TlsPeer> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        let session = ServerConnection::new(config).unwrap();
        let mut stream = StreamOwned::new(session, stream);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        stream.flush()?; // The tickets.
        Ok(TlsPeer { stream, buffer: Vec::new() })
    }

    /// What was settled by ALPN.
    pub(crate) fn protocol(&self) -> Option<&[u8]> {
        self.stream.conn.alpn_protocol()
    }

    pub(crate) fn send(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).unwrap();
        self.stream.flush().unwrap();
    }

    pub(crate) fn respond(&mut self, body: &str) {
        self.send(&format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()));
    }

    /// Sends a record that carries nothing of HTTP.
    pub(crate) fn refresh_keys(&mut self) {
        self.stream.conn.refresh_traffic_keys().unwrap();
        self.stream.flush().unwrap();
    }

    /// The head of the next request, which has no body. `None` when the connection has ended.
    pub(crate) fn next_request(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                let rest = self.buffer.split_off(end + 4);
                let head = std::mem::replace(&mut self.buffer, rest);
                return Some(String::from_utf8(head).unwrap());
            }
            match self.some() {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }

    pub(crate) fn exactly(&mut self, length: usize) -> Vec<u8> {
        while self.buffer.len() < length {
            assert!(
                self.some().unwrap() > 0,
                "closed after {} of {length} bytes",
                self.buffer.len()
            );
        }
        let rest = self.buffer.split_off(length);
        std::mem::replace(&mut self.buffer, rest)
    }

    /// Reads until the other side ends. Returns what came.
    pub(crate) fn until_end(mut self) -> Vec<u8> {
        let _ = self.end();
        self.buffer
    }

    /// Reads until the other side ends, and how it does: `Err` with `UnexpectedEof` if that looks
    /// like a loss.
    pub(crate) fn end(&mut self) -> io::Result<()> {
        while self.some()? > 0 {}
        Ok(())
    }

    fn some(&mut self) -> io::Result<usize> {
        let mut buffer = [0; 64 * 1024];
        let count = self.stream.read(&mut buffer)?;
        self.buffer.extend_from_slice(&buffer[..count]);
        Ok(count)
    }

    /// Says that this is the end, and closes.
    pub(crate) fn close(mut self) {
        self.stream.conn.send_close_notify();
        self.stream.flush().unwrap();
    }

    /// Says that this is the end, and goes on reading.
    pub(crate) fn say_end(&mut self) {
        self.stream.conn.send_close_notify();
        self.stream.flush().unwrap();
    }

    /// Closes without a word of TLS.
    pub(crate) fn break_off(self) {
        self.stream.sock.shutdown(Shutdown::Write).unwrap();
    }

    /// Closes with a reset instead of an end.
    pub(crate) fn reset(self) {
        socket2::SockRef::from(&self.stream.sock).set_linger(Some(Duration::ZERO)).unwrap();
    }
}
