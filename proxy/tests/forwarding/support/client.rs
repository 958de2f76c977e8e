//! A client that writes and reads exactly what it is told.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::PATIENCE;

/// One end of a TCP connection, a client's or a worker's.
pub(crate) struct Client {
    stream: TcpStream,
    /// Read, but not asked for yet.
    buffer: Vec<u8>,
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> Client {
        Client::new(TcpStream::connect(address).unwrap())
    }

    pub(crate) fn new(stream: TcpStream) -> Client {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Client { stream, buffer: Vec::new() }
    }

    pub(crate) fn send(&mut self, text: &str) {
        self.send_bytes(text.as_bytes());
    }

    pub(crate) fn send_bytes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Writes as far as the other side lets us; what it says to that is read later.
    pub(crate) fn try_send_bytes(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Sends a request and reads the whole answer.
    pub(crate) fn ask(&mut self, request: &str) -> (String, Vec<u8>) {
        self.send(request);
        self.answer()
    }

    pub(crate) fn get(&mut self, path: &str) -> (String, Vec<u8>) {
        self.ask(&format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n"))
    }

    /// Reads a message head up to its empty line.
    pub(crate) fn head(&mut self) -> String {
        loop {
            if let Some(end) = self.buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                let rest = self.buffer.split_off(end + 4);
                let head = std::mem::replace(&mut self.buffer, rest);
                return String::from_utf8(head).unwrap();
            }
            assert!(
                self.fill() > 0,
                "closed in the middle of a head: {:?}",
                String::from_utf8_lossy(&self.buffer)
            );
        }
    }

    /// Reads a whole message: its head and its body, decoded.
    pub(crate) fn answer(&mut self) -> (String, Vec<u8>) {
        let head = self.head();
        let body = self.body_of(&head);
        (head, body)
    }

    /// Reads a whole message, or none if the other side ends or resets instead.
    pub(crate) fn answer_or_end(&mut self) -> Option<(String, Vec<u8>)> {
        if self.buffer.is_empty() && self.fill() == 0 {
            return None;
        }
        Some(self.answer())
    }

    pub(crate) fn body_of(&mut self, head: &str) -> Vec<u8> {
        if let Some(length) = field(head, "content-length") {
            return self.exactly(length.parse().unwrap());
        }
        if field(head, "transfer-encoding").is_some() {
            return self.chunks().0;
        }
        Vec::new()
    }

    /// Reads a chunked body and the trailers after it.
    pub(crate) fn chunks(&mut self) -> (Vec<u8>, String) {
        let mut body = Vec::new();
        loop {
            let line = self.line();
            let length = usize::from_str_radix(line.split(';').next().unwrap().trim(), 16).unwrap();
            if length == 0 {
                break;
            }
            body.extend(self.exactly(length));
            self.line();
        }
        let mut trailers = String::new();
        loop {
            let line = self.line();
            if line.is_empty() {
                return (body, trailers);
            }
            trailers.push_str(&line);
            trailers.push('\n');
        }
    }

    pub(crate) fn line(&mut self) -> String {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|two| two == b"\r\n") {
                let rest = self.buffer.split_off(end + 2);
                let mut line = std::mem::replace(&mut self.buffer, rest);
                line.truncate(end);
                return String::from_utf8(line).unwrap();
            }
            assert!(self.fill() > 0, "closed in the middle of a line");
        }
    }

    pub(crate) fn exactly(&mut self, length: usize) -> Vec<u8> {
        while self.buffer.len() < length {
            assert!(self.fill() > 0, "closed after {} of {length} bytes", self.buffer.len());
        }
        let rest = self.buffer.split_off(length);
        std::mem::replace(&mut self.buffer, rest)
    }

    /// Reads that many bytes, or none if the other side ends or resets instead.
    pub(crate) fn exactly_or_end(&mut self, length: usize) -> Option<Vec<u8>> {
        while self.buffer.len() < length {
            if self.fill() == 0 {
                return None;
            }
        }
        Some(self.exactly(length))
    }

    /// Reads whatever has come.
    pub(crate) fn some(&mut self) -> Vec<u8> {
        if self.buffer.is_empty() {
            assert!(self.fill() > 0, "closed too early");
        }
        std::mem::take(&mut self.buffer)
    }

    /// Reads whatever has come; `None` at the end.
    pub(crate) fn some_or_end(&mut self) -> Option<Vec<u8>> {
        if self.buffer.is_empty() && self.fill() == 0 {
            return None;
        }
        Some(std::mem::take(&mut self.buffer))
    }

    /// Reads and forgets that many bytes.
    pub(crate) fn skip(&mut self, mut length: usize) {
        let mut buffer = vec![0; 256 * 1024];
        let kept = self.buffer.len().min(length);
        self.buffer.drain(..kept);
        length -= kept;
        while length > 0 {
            let wanted = length.min(buffer.len());
            let count = self.stream.read(&mut buffer[..wanted]).unwrap();
            assert!(count > 0, "closed {length} bytes too early");
            length -= count;
        }
    }

    /// Reads and forgets that many bytes, or up to the end. Whether so many came.
    pub(crate) fn has(&mut self, length: usize) -> bool {
        let mut came = std::mem::take(&mut self.buffer).len();
        while came < length {
            match self.fill() {
                0 => return false,
                count => came += count,
            }
            self.buffer.clear();
        }
        true
    }

    /// Reads until the other side ends its side or resets. Returns what came.
    pub(crate) fn until_end(&mut self) -> Vec<u8> {
        loop {
            let mut buffer = [0; 64 * 1024];
            match self.stream.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => self.buffer.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => break,
                Err(error) => panic!("neither bytes nor an end: {error}"),
            }
        }
        std::mem::take(&mut self.buffer)
    }

    /// What has come within a moment. For asserting that nothing comes that ought not to.
    pub(crate) fn within(&mut self, moment: Duration) -> Vec<u8> {
        self.stream.set_read_timeout(Some(moment)).unwrap();
        let mut buffer = [0; 64 * 1024];
        if let Ok(count) = self.stream.read(&mut buffer) {
            self.buffer.extend_from_slice(&buffer[..count]);
        }
        self.stream.set_read_timeout(Some(PATIENCE)).unwrap();
        std::mem::take(&mut self.buffer)
    }

    pub(crate) fn end_writing(&mut self) {
        self.stream.shutdown(Shutdown::Write).unwrap();
    }

    /// Closes with a reset instead of an end.
    pub(crate) fn reset(self) {
        socket2::SockRef::from(&self.stream).set_linger(Some(Duration::ZERO)).unwrap();
    }

    /// Whether everything that was read has been asked for.
    pub(crate) fn is_drained(&self) -> bool {
        self.buffer.is_empty()
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    fn fill(&mut self) -> usize {
        let mut buffer = [0; 64 * 1024];
        let count = match self.stream.read(&mut buffer) {
            Ok(count) => count,
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => 0,
            Err(error) => panic!("nothing came in time: {error}"),
        };
        self.buffer.extend_from_slice(&buffer[..count]);
        count
    }
}

/// Writes zeros until nobody reads any more for a while. Returns how many.
pub(crate) fn write_until_blocked(end: &Client, most: usize) -> usize {
    let mut stream = &end.stream;
    stream.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
    let zeros = vec![0; 1024 * 1024];
    let mut written = 0;
    while let Ok(count) = stream.write(&zeros) {
        written += count;
        assert!(written < most, "nothing holds up the writer");
    }
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    written
}

pub(crate) fn write_zeros(end: &Client, mut length: usize) {
    let (mut stream, zeros) = (&end.stream, vec![0; 1024 * 1024]);
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    while length > 0 {
        length -= stream.write(&zeros[..length.min(zeros.len())]).unwrap();
    }
}

/// The value of a field of a head.
pub(crate) fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().skip(1).find_map(|line| {
        let (found, value) = line.split_once(':')?;
        found.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

#[track_caller]
pub(crate) fn assert_field(head: &str, name: &str, value: Option<&str>) {
    assert_eq!(field(head, name), value, "{name} in {head}");
}

/// The kernel of the other side asks this one, when it has said nothing for a minute at most,
/// whether it is still there.
pub(crate) fn assert_is_asked(end: &Client) {
    let (theirs, ours) = (end.stream.local_addr().unwrap(), end.stream.peer_addr().unwrap());
    let deadline = Instant::now() + PATIENCE;
    let asks_in = loop {
        if let Some(left) = until_keepalive(ours, theirs) {
            break left;
        }
        assert!(Instant::now() < deadline, "{ours} does not ask {theirs}");
    };
    assert!(asks_in <= Duration::from_secs(60), "{ours} asks {theirs} in {asks_in:?}");
}

/// What is left of the keepalive timer that the kernel has set for a connection of this machine, if
/// it has: the timer in `/proc/net/tcp` (proc_net_tcp.txt), in hundredths of a second.
fn until_keepalive(ours: SocketAddr, theirs: SocketAddr) -> Option<Duration> {
    let row = row_of(ours, theirs)?;
    let left = row[5].strip_prefix("02:")?;
    Some(Duration::from_millis(10 * u64::from_str_radix(left, 16).unwrap()))
}

/// The fields of a connection's row in `/proc/net/tcp`.
fn row_of(ours: SocketAddr, theirs: SocketAddr) -> Option<Vec<String>> {
    let shown = |address: SocketAddr| match address {
        SocketAddr::V4(address) => {
            format!("{:08X}:{:04X}", u32::from_le_bytes(address.ip().octets()), address.port())
        }
        SocketAddr::V6(_) => panic!("the tests are on 127.0.0.1"),
    };
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let mut rows =
        table.lines().map(|line| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
    rows.find(|row| row[1] == shown(ours) && row[2] == shown(theirs))
}
