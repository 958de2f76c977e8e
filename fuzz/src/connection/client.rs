//! A client that sends what it is told, and reads what comes back until nothing does.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use socket2::{Domain, SockAddr, Socket, Type};

/// For how long an answer is waited for after the last byte. A proxy that is slower only makes the
/// target see less.
const PATIENCE: Duration = Duration::from_millis(5);
/// For how long the proxy may take to close after the client has.
const PARTING: Duration = Duration::from_millis(30);
/// The most pieces that an input is sent in.
const PIECES_MAX: usize = 6;

/// Sends `bytes` from that address, and returns what was answered.
pub(super) fn exchange(to: SocketAddr, from: Ipv4Addr, bytes: &[u8], pieces: u8) -> Vec<u8> {
    let mut stream = connect(to, from);
    let mut answers = Vec::new();
    for (index, piece) in split(bytes, pieces).enumerate() {
        if index > 0 {
            read(&mut stream, Duration::from_micros(300), &mut answers);
        }
        if stream.write_all(piece).is_err() {
            break; // It was refused, and closed.
        }
    }
    read(&mut stream, PATIENCE, &mut answers);
    let _ = stream.shutdown(Shutdown::Write); // It may be closed already.
    read(&mut stream, PARTING, &mut answers);
    answers
}

fn connect(to: SocketAddr, from: Ipv4Addr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket can be had");
    socket
        .bind(&SockAddr::from(SocketAddr::from((from, 0))))
        .expect("all of 127.0.0.0/8 is this machine");
    // Thousands of connections a minute would use up the ports of a client that waits for late
    // packets.
    socket.set_linger(Some(Duration::ZERO)).expect("a socket takes an option");
    socket.connect(&SockAddr::from(to)).expect("the proxy listens");
    socket.set_tcp_nodelay(true).expect("a socket takes an option");
    socket.into()
}

/// As many pieces as the low bits say, of sizes that the high bits say.
fn split(bytes: &[u8], pieces: u8) -> impl Iterator<Item = &[u8]> {
    let count = usize::from(pieces & 7).clamp(1, PIECES_MAX);
    let first = usize::from(pieces >> 3) * bytes.len() / 31;
    let (head, mut rest) = bytes.split_at(if count == 1 { bytes.len() } else { first });
    let size = rest.len().div_ceil(count).max(1);
    let mut head = Some(head);
    std::iter::from_fn(move || {
        let piece = head.take().unwrap_or_else(|| {
            let (piece, left) = rest.split_at(size.min(rest.len()));
            rest = left;
            piece
        });
        (!piece.is_empty() || !rest.is_empty()).then_some(piece)
    })
}

/// Reads until the proxy closes or nothing comes for that long.
fn read(stream: &mut TcpStream, silence: Duration, answers: &mut Vec<u8>) {
    stream.set_read_timeout(Some(silence)).expect("a socket takes a timeout");
    let mut buffer = [0; 16 * 1024];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return,
            Ok(count) => answers.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}
