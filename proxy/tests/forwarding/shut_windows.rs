//! A worker that shuts its window before a request is written, while the lock moves on. The
//! worker's log is the judge.
//!
//! R1 is the first holder's request, R2 its successor's. Whatever the proxy does with the rest of
//! R1, nothing of R1 may arrive after R2.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};
use std::thread;

use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::support::{Certificates, Client, Frame, Frames, Peer, Scene};

/// The longest body that the proxy can read whole: more than a kernel takes for a worker that does
/// not read.
const LENGTH: usize = 16 * 1024 * 1024;
const WHOLE: &str = "buffer_body_max = \"16MiB\"";
/// The first holder's request is lost to a worker that does not read, and its successor enters
/// then.
const SHORT: &str = "upstream_timeout = \"1s\"\norphan_timeout = \"2s\"";

/// Which request the worker has read something of, in the order of its reads.
#[derive(Default)]
struct Log(Mutex<Vec<Of>>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    R1,
    R2,
}

impl Log {
    fn note(&self, of: Of) {
        self.0.lock().unwrap().push(of);
    }

    fn has(&self, of: Of) -> bool {
        self.0.lock().unwrap().contains(&of)
    }

    /// Both have arrived, and nothing of R1 after R2.
    fn judge(&self) {
        let log = self.0.lock().unwrap();
        assert_eq!(log.first(), Some(&Of::R1));
        let second = log.iter().position(|of| *of == Of::R2).expect("R2 arrives");
        assert!(!log[second..].contains(&Of::R1), "{log:?}");
    }
}

/// A worker's end of an HTTP/1.1 connection, by TLS or not.
struct Connection {
    raw: Peer,
    plain: Box<dyn ReadWrite>,
}

trait ReadWrite: Read + Write + Send {}

impl<T: Read + Write + Send> ReadWrite for T {}

impl Connection {
    fn next(scene: &Scene, tls: Option<&Arc<ServerConfig>>) -> Connection {
        let raw = scene.worker.next();
        let stream = raw.stream().try_clone().unwrap();
        let plain: Box<dyn ReadWrite> = match tls {
            None => Box::new(stream),
            Some(config) => Box::new(handshake(stream, config)),
        };
        Connection { raw, plain }
    }

    /// Reads a head, and as little as can be of what follows it. Returns how much of that, or
    /// `None` at the end.
    fn head(&mut self) -> Option<usize> {
        let (mut head, mut buffer) = (Vec::new(), [0; 1024]);
        loop {
            let count = self.plain.read(&mut buffer).unwrap_or(0);
            head.extend_from_slice(&buffer[..count]);
            if let Some(end) = head.windows(4).position(|four| four == b"\r\n\r\n") {
                return Some(head.len() - end - 4);
            }
            if count == 0 {
                return None;
            }
        }
    }

    /// Answers, and says that this is the end. The proxy may have closed.
    fn respond(&mut self) {
        let _ = self
            .plain
            .write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
        let _ = self.plain.flush();
    }

    /// How many bytes are here, unread. The rest is more than the kernel of the proxy takes.
    fn arrived_in_part(&self) -> usize {
        let arrived = self.raw.stream().peek(&mut vec![0; LENGTH]).unwrap_or(0);
        assert!(arrived < LENGTH / 2, "the test is of no use: a kernel has all of it");
        arrived
    }
}

fn handshake(
    mut stream: TcpStream,
    config: &Arc<ServerConfig>,
) -> StreamOwned<ServerConnection, TcpStream> {
    let mut session = ServerConnection::new(Arc::clone(config)).unwrap();
    while session.is_handshaking() && session.complete_io(&mut stream).is_ok() {}
    StreamOwned::new(session, stream)
}

/// R1 at a worker that reads no more than its head, and what came with that.
fn unread(
    scene: &Scene,
    tls: Option<&Arc<ServerConfig>>,
    log: &Log,
) -> (Client, Connection, usize) {
    let client = scene.post(&scene.hold("a"), LENGTH);
    let mut first = Connection::next(scene, tls);
    let read = first.head().expect("R1 arrives");
    log.note(Of::R1);
    (client, first, read)
}

/// Plays the worker to R2, which has got this connection. Another follows where this one has been
/// idle for too long.
fn take_r2(scene: &Scene, tls: Option<&Arc<ServerConfig>>, mut connection: Connection, log: &Log) {
    while connection.head().is_none() {
        connection = Connection::next(scene, tls);
    }
    log.note(Of::R2);
    connection.respond();
}

/// The window opens while R2 waits: the worker goes on with what comes of R1, and answers.
fn opens_while_r2_waits(scheme: &str, tls: Option<&Arc<ServerConfig>>, settings: &str) {
    let (scene, log) = (Scene::speaking(scheme, WHOLE, settings), Log::default());
    let (_client, first, mut read) = unread(&scene, tls, &log);
    let mut successor = scene.get(&scene.hold("b"));
    let second = Connection::next(&scene, tls);
    scene.somebody_waits();
    first.arrived_in_part();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut first = first; // It ends here.
            let mut buffer = vec![0; 64 * 1024];
            while read < LENGTH {
                match first.plain.read(&mut buffer) {
                    Ok(count) if count > 0 => read += count,
                    Ok(_) | Err(_) => break,
                }
                log.note(Of::R1);
            }
            first.respond();
        });
        take_r2(&scene, tls, second, &log);
    });
    assert!(successor.head().starts_with("HTTP/1.1 200 "));
    log.judge();
}

/// The window opens when R2 is there: what comes of R1 had arrived before.
fn opens_behind_r2(scheme: &str, tls: Option<&Arc<ServerConfig>>, settings: &str) {
    let scene = Scene::speaking(scheme, WHOLE, &format!("{SHORT}\n{settings}"));
    let log = Log::default();
    let (_client, mut first, _) = unread(&scene, tls, &log);
    let mut successor = scene.get(&scene.hold("b"));
    take_r2(&scene, tls, Connection::next(&scene, tls), &log);
    let arrived = first.arrived_in_part();
    assert!(successor.head().starts_with("HTTP/1.1 200 "));
    assert_eq!(first.raw.until_end().len(), arrived);
    log.judge();
}

#[test]
fn nothing_of_r1_follows_r2_over_http1_with_a_shut_window() {
    thread::scope(|scope| {
        scope.spawn(|| opens_while_r2_waits("http", None, ""));
        scope.spawn(|| opens_behind_r2("http", None, ""));
    });
}

#[test]
fn nothing_of_r1_follows_r2_over_tls_with_a_shut_window() {
    let certificates = Certificates::new();
    let tls = certificates.server(&["http/1.1"]);
    let settings = format!("upstream_tls = {{ ca = {:?} }}", certificates.path("ca.pem"));
    thread::scope(|scope| {
        scope.spawn(|| opens_while_r2_waits("https", Some(&tls), &settings));
        scope.spawn(|| opens_behind_r2("https", Some(&tls), &settings));
    });
}

/// Plays the worker on an HTTP/2 connection up to its end.
fn play(mut frames: Frames, has_r1: bool, log: &Log) {
    while let Some(frame) = frames.next_or_end() {
        match frame {
            Frame::Headers { stream: 1 } | Frame::Data { stream: 1, .. } if has_r1 => {
                log.note(Of::R1)
            }
            Frame::Headers { stream } => {
                log.note(Of::R2);
                frames.respond(stream);
            }
            Frame::Data { .. } | Frame::Reset { .. } => {}
        }
    }
}

/// h2 keeps a whole body above the socket, and would write it after its response has ended.
#[test]
fn nothing_of_r1_follows_r2_over_h2c_with_a_shut_window() {
    let check = |opens_while_r2_waits: bool| {
        let (scene, log) = (Scene::speaking("h2c", "", "orphan_timeout = \"4s\""), Log::default());
        let mut client = scene.post(&scene.hold("a"), 5);
        let mut first = Frames::with_shut_windows(scene.worker.next());
        assert_eq!(first.next(), Frame::Headers { stream: 1 });
        log.note(Of::R1);
        first.respond(1);
        assert!(client.head().starts_with("HTTP/1.1 200 "));
        scene.metric_becomes("fencepost_orphans", "1"); // From here on nobody else gets its connection.
        let mut successor = scene.get(&scene.hold("b"));
        thread::scope(|scope| {
            let log = &log;
            let mut window = first.writer();
            scope.spawn(move || play(first, true, log));
            let next = || scene.worker.next_unless(|| log.has(Of::R2));
            let take =
                |peer| scope.spawn(move || play(Frames::with_shut_windows(peer), false, log));
            next().map(take);
            if opens_while_r2_waits {
                scene.somebody_waits();
                window.open(1, 5);
            }
            while let Some(peer) = next() {
                take(peer);
            }
            if !opens_while_r2_waits {
                window.open(1, 5);
            }
        });
        assert!(successor.head().starts_with("HTTP/1.1 200 "));
        log.judge();
    };
    thread::scope(|scope| {
        scope.spawn(|| check(true));
        scope.spawn(|| check(false));
    });
}
