//! A worker that keeps every byte it gets and reads them as strictly as RFC 9112 allows.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use fencepost_tests::{eventually, until};

/// Answers each message that is whole and clean with 200, and keeps its connections open.
pub(super) struct Recorder {
    pub(super) address: SocketAddr,
    connections: Arc<Mutex<Vec<Recorded>>>,
}

/// What came over one connection.
#[derive(Clone, Debug, Default)]
pub(super) struct Recorded {
    pub(super) bytes: Vec<u8>,
    ended: bool,
}

/// A request, as it was read.
#[derive(Clone, Debug)]
pub(super) struct Message {
    pub(super) target: String,
    /// In order, names as they were written.
    pub(super) fields: Vec<(String, String)>,
    pub(super) body: String,
    pub(super) trailers: Vec<(String, String)>,
}

/// Why bytes are no clean message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unread {
    /// More has to come.
    Partial,
    /// Two readers could read it in two ways.
    Unclean(String),
}

type Read_<T> = Result<T, Unread>;

impl Recorder {
    pub(super) fn start() -> Recorder {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let connections: Arc<Mutex<Vec<Recorded>>> = Arc::default();
        let kept = Arc::clone(&connections);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let kept = Arc::clone(&kept);
                let index = {
                    let mut all = kept.lock().unwrap();
                    all.push(Recorded::default());
                    all.len() - 1
                };
                thread::spawn(move || serve(stream.unwrap(), &kept, index));
            }
        });
        Recorder { address, connections }
    }

    /// Waits until those bytes have come over some connection.
    pub(super) async fn gets(&self, bytes: &str) {
        let have =
            |one: &Recorded| one.bytes.windows(bytes.len()).any(|some| some == bytes.as_bytes());
        until("bytes at the worker", async || self.connections.lock().unwrap().iter().any(have))
            .await;
    }

    /// What came over each connection, once all have ended.
    pub(super) async fn ended(&self) -> Vec<Recorded> {
        eventually("the end of all connections to the worker", async || {
            let all = self.connections.lock().unwrap();
            all.iter().all(|one| one.ended).then(|| all.clone())
        })
        .await
    }
}

fn serve(mut stream: TcpStream, kept: &Mutex<Vec<Recorded>>, index: usize) {
    let mut answered = 0;
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        let whole = {
            let mut all = kept.lock().unwrap();
            all[index].bytes.extend_from_slice(&buffer[..count]);
            messages(&all[index].bytes).0.len()
        };
        let answers = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok".repeat(whole - answered);
        answered = whole;
        if stream.write_all(&answers).is_err() {
            break;
        }
    }
    kept.lock().unwrap()[index].ended = true;
}

/// The messages on a connection, and why the rest is not one; `None` if nothing is left.
pub(super) fn messages(mut bytes: &[u8]) -> (Vec<Message>, Option<Unread>) {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        match message(&mut bytes) {
            Ok(message) => all.push(message),
            Err(unread) => return (all, Some(unread)),
        }
    }
    (all, None)
}

fn message(bytes: &mut &[u8]) -> Read_<Message> {
    let mut rest = *bytes;
    let request_line = line(&mut rest)?;
    let [_, target, "HTTP/1.1"] = request_line.split(' ').collect::<Vec<_>>()[..] else {
        return Err(Unread::Unclean(format!("the request line {request_line:?}")));
    };
    let fields = fields(&mut rest)?;
    let framing: Vec<_> = fields
        .iter()
        .filter(|(name, _)| {
            ["CONTENT_LENGTH", "TRANSFER_ENCODING"].contains(&folded(name).as_str())
        })
        .map(|(name, value)| (name.to_ascii_lowercase(), value.as_str()))
        .collect();
    let mut trailers = Vec::new();
    let body =
        match framing.iter().map(|(name, value)| (name.as_str(), *value)).collect::<Vec<_>>()[..] {
            [] => Vec::new(),
            [("content-length", length)] => {
                let length = number(length, 10)?;
                exactly(&mut rest, length)?
            }
            [("transfer-encoding", "chunked")] => {
                let body = chunks(&mut rest)?;
                trailers = self::fields(&mut rest)?;
                body
            }
            _ => return Err(Unread::Unclean(format!("framed by {framing:?}"))),
        };
    *bytes = rest;
    let body = String::from_utf8(body)
        .map_err(|_| Unread::Unclean("a body that is not the case's".to_owned()))?;
    Ok(Message { target: target.to_owned(), fields, body, trailers })
}

fn chunks(rest: &mut &[u8]) -> Read_<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let size = number(&line(rest)?, 16)?;
        if size == 0 {
            return Ok(body);
        }
        body.extend(exactly(rest, size)?);
        if exactly(rest, 2)? != b"\r\n" {
            return Err(Unread::Unclean("a chunk longer than it says".to_owned()));
        }
    }
}

fn fields(rest: &mut &[u8]) -> Read_<Vec<(String, String)>> {
    let mut fields = Vec::new();
    loop {
        let line = line(rest)?;
        if line.is_empty() {
            return Ok(fields);
        }
        let unclean = || Unread::Unclean(format!("the field {line:?}"));
        let (name, value) = line.split_once(':').ok_or_else(unclean)?;
        let is_token =
            |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if name.is_empty() || !name.bytes().all(is_token) {
            return Err(unclean());
        }
        fields.push((name.to_owned(), value.trim_matches([' ', '\t']).to_owned()));
    }
}

/// A line without its end. No control byte but a tab may be in it.
fn line(rest: &mut &[u8]) -> Read_<String> {
    let end = rest.windows(2).position(|two| two == b"\r\n").ok_or(Unread::Partial)?;
    let line = &rest[..end];
    *rest = &rest[end + 2..];
    if line.iter().any(|byte| byte.is_ascii_control() && *byte != b'\t') {
        return Err(Unread::Unclean(format!(
            "control bytes in {:?}",
            String::from_utf8_lossy(line)
        )));
    }
    Ok(String::from_utf8_lossy(line).into_owned())
}

fn exactly(rest: &mut &[u8], count: usize) -> Read_<Vec<u8>> {
    let (taken, left) = rest.split_at_checked(count).ok_or(Unread::Partial)?;
    *rest = left;
    Ok(taken.to_vec())
}

fn number(text: &str, radix: u32) -> Read_<usize> {
    let plain = text.chars().all(|digit| digit.is_digit(radix));
    let number = usize::from_str_radix(text, radix).ok().filter(|_| plain);
    number.ok_or_else(|| Unread::Unclean(format!("the length {text:?}")))
}

/// A name as the most generous CGI server folds it: whatever is neither letter nor digit becomes
/// `_`.
pub(super) fn folded(name: &str) -> String {
    name.chars()
        .map(|one| if one.is_ascii_alphanumeric() { one.to_ascii_uppercase() } else { '_' })
        .collect()
}
