//! A worker that does exactly what it is told.

use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use super::client::Client;
use super::{MOMENT, PATIENCE};

/// The worker's end of a connection.
pub(crate) type Peer = Client;

/// A worker: a listener whose connections are taken one by one.
pub(crate) struct Worker {
    address: SocketAddr,
    accepted: mpsc::Receiver<Peer>,
}

impl Worker {
    /// A worker that a test plays by hand.
    pub(crate) fn by_hand() -> Worker {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, accepted) = mpsc::channel();
        thread::spawn(move || {
            for stream in listener.incoming() {
                if sender.send(Client::new(stream.unwrap())).is_err() {
                    return;
                }
            }
        });
        Worker { address, accepted }
    }

    /// A worker that plays `script` on each connection.
    pub(crate) fn scripted(script: impl Fn(Peer) + Clone + Send + 'static) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let script = script.clone();
                thread::spawn(move || script(Client::new(stream.unwrap())));
            }
        });
        address
    }

    /// A worker that answers each request with what it got: its head and its body.
    pub(crate) fn echo() -> SocketAddr {
        Worker::scripted(|mut peer| {
            while let Some((head, body)) = peer.next_request() {
                let mut answer = head.into_bytes();
                answer.extend(body);
                peer.send(&format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", answer.len()));
                peer.send_bytes(&answer);
            }
        })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next connection that is opened.
    pub(crate) fn next(&self) -> Peer {
        self.accepted.recv_timeout(PATIENCE).expect("a connection is opened")
    }

    /// The next connection that is opened, or none once that has happened.
    pub(crate) fn next_unless(&self, has_happened: impl Fn() -> bool) -> Option<Peer> {
        let deadline = Instant::now() + PATIENCE;
        while !has_happened() {
            if let Ok(peer) = self.accepted.recv_timeout(MOMENT) {
                return Some(peer);
            }
            assert!(Instant::now() < deadline, "neither happens");
        }
        None
    }

    /// Whether another connection has been opened.
    pub(crate) fn has_another(&self) -> bool {
        self.accepted.try_recv().is_ok()
    }
}

impl Peer {
    /// The next request, whole. `None` when the connection has ended.
    pub(crate) fn next_request(&mut self) -> Option<(String, Vec<u8>)> {
        let mut byte = [0];
        if !matches!(self.stream().peek(&mut byte), Ok(1)) && self.is_drained() {
            return None;
        }
        Some(self.answer())
    }

    pub(crate) fn respond(&mut self, body: &str) {
        self.send(&format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()));
    }
}
