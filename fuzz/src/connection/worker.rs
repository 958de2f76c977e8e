//! A worker that looks at every byte it gets, as strictly as RFC 9112 allows.

mod message;

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use message::{Message, Unread};

use super::{OWNER, REVISION};

/// How an answer says whom it is for.
const ANSWERED_TO: &str = "answered to ";

/// A worker, and what it has seen.
pub(super) struct Worker {
    pub(super) address: SocketAddr,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
struct Seen {
    /// Where clients have come from.
    clients: HashSet<Ipv4Addr>,
    /// What must not be, with the bytes that it was in.
    wrong: Option<String>,
}

impl Worker {
    pub(super) fn start() -> Worker {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("the system chooses a port");
        let address = listener.local_addr().expect("a bound listener has an address");
        let seen: Arc<Mutex<Seen>> = Arc::default();
        let sees = Arc::clone(&seen);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let seen = Arc::clone(&sees);
                std::thread::spawn(move || serve(stream, &seen));
            }
        });
        Worker { address, seen }
    }

    /// An address for a client that no client had before and none can guess.
    pub(super) fn next_client(&self) -> Ipv4Addr {
        let mut seen = lock(&self.seen);
        loop {
            let number = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0_u8)
                .to_le_bytes();
            let address = Ipv4Addr::new(127, number[0], number[1], number[2].clamp(1, 254));
            if seen.clients.len() > 1 << 20 {
                seen.clients.clear(); // Whoever was served so long ago has been.
            }
            if seen.clients.insert(address) {
                return address;
            }
        }
    }

    /// Panics if anything was wrong with what it got.
    pub(super) fn check(&self) {
        if let Some(wrong) = lock(&self.seen).wrong.take() {
            panic!("{wrong}");
        }
    }
}

/// Whom these answers are for, by their own words.
pub(super) fn answered_to(answers: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(answers);
    let marked = text.split(ANSWERED_TO).skip(1);
    marked.filter_map(|rest| rest.split_once(';')).map(|(address, _)| address.to_owned()).collect()
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

fn serve(mut stream: TcpStream, seen: &Mutex<Seen>) {
    let mut got = Vec::new();
    let mut buffer = [0; 16 * 1024];
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        got.extend_from_slice(&buffer[..count]);
        loop {
            match message::read(&got) {
                Ok((message, length)) => {
                    let answer = match judge(&message, &lock(seen).clients) {
                        Ok(client) => answer(client, &message),
                        Err(wrong) => return tell(seen, &wrong, &got),
                    };
                    got.drain(..length);
                    if stream.write_all(answer.as_bytes()).is_err() {
                        return;
                    }
                }
                Err(Unread::Partial) => break,
                Err(Unread::Unclean(what)) => return tell(seen, &what, &got),
            }
            if got.is_empty() {
                break;
            }
        }
    }
}

fn tell(seen: &Mutex<Seen>, what: &str, got: &[u8]) {
    lock(seen).wrong.get_or_insert_with(|| {
        format!("the worker got {what}: {:?}", String::from_utf8_lossy(got))
    });
}

/// For which client a message is.
fn judge(message: &Message, clients: &HashSet<Ipv4Addr>) -> Result<Ipv4Addr, String> {
    let only = |name: &str| match message.folded(name).as_slice() {
        [(written, value)] if written.eq_ignore_ascii_case(name) => Ok(value.to_string()),
        other => Err(format!("{other:?} for {name}")),
    };
    let token = (only("fence-owner")?, only("fence-revision")?);
    if (token.0.as_str(), token.1.as_str()) != (OWNER, REVISION) {
        return Err(format!("the token {token:?}"));
    }
    only("host")?;
    if message.method == "CONNECT" || !(message.target.starts_with('/') || message.target == "*") {
        return Err(format!("a request to {} {:?}", message.method, message.target));
    }
    if let Some(trailer) = message.trailers.iter().find(|(name, _)| message::is_special(name)) {
        return Err(format!("the trailer {trailer:?}"));
    }
    let way = message.folded("x-forwarded-for");
    let client = way.last().and_then(|(_, value)| value.rsplit(',').next()?.trim().parse().ok());
    client
        .filter(|client| clients.contains(client))
        .ok_or_else(|| format!("a message of nobody's, sent for {way:?}"))
}

fn answer(client: Ipv4Addr, message: &Message) -> String {
    let text = format!("{ANSWERED_TO}{client};");
    let body = if message.method == "HEAD" { "" } else { text.as_str() };
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", text.len())
}
