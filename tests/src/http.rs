//! A small HTTP/1.1 client that hides nothing: bytes are written when the test says so, and each
//! response is read on its own.

use std::fmt;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::path::PathBuf;

use ::http::{HeaderMap, HeaderName, HeaderValue};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

use crate::patience::PATIENCE;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A TCP address.
    Tcp(SocketAddr),
    /// The path of a unix socket.
    Unix(PathBuf),
}

impl From<SocketAddr> for Endpoint {
    fn from(address: SocketAddr) -> Endpoint {
        Endpoint::Tcp(address)
    }
}

impl From<PathBuf> for Endpoint {
    fn from(path: PathBuf) -> Endpoint {
        Endpoint::Unix(path)
    }
}

/// As an upstream is written in a configuration: `http://127.0.0.1:9000` or
/// `unix:/run/worker.sock`.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Tcp(address) => write!(f, "http://{address}"),
            Endpoint::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A response, read to its end.
#[derive(Clone, Debug)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
    /// The body, without its framing.
    pub body: Vec<u8>,
    /// What came after a chunked body.
    pub trailers: HeaderMap,
}

impl Response {
    /// The only value of a header; `None` without the header.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.headers.get_all(name).iter();
        let value = values.next()?;
        assert!(values.next().is_none(), "{name} was given twice: {self:?}");
        Some(value.to_str().expect("the header's value is text"))
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// One request on a connection of its own; returns the final response. `Host: localhost`, unless
/// there is one among the headers, `Content-Length` (for a body) and `Connection: close` are added.
pub async fn request(
    server: impl Into<Endpoint>,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> io::Result<Response> {
    let mut connection = Connection::open(server).await?;
    let mut head = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        head.push_str("Host: localhost\r\n");
    }
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    if !body.is_empty() {
        head.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    head.push_str("\r\n");
    connection.send(head).await?;
    // A server that refuses may close before it has the whole body: then its answer is what counts.
    let sent = connection.send(body).await;
    let answered = if method == "HEAD" {
        connection.response_to_head().await
    } else {
        connection.final_response().await
    };
    if answered.is_err() { sent.and(answered) } else { answered }
}

/// A client's connection, written and read by hand.
pub struct Connection {
    stream: Box<dyn Stream>,
    /// Read, but not yet used.
    buffer: Vec<u8>,
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

impl Connection {
    /// Connects.
    pub async fn open(server: impl Into<Endpoint>) -> io::Result<Connection> {
        let stream: Box<dyn Stream> = match server.into() {
            Endpoint::Tcp(address) => {
                let stream = in_time("a connection", TcpStream::connect(address)).await?;
                stream.set_nodelay(true)?;
                Box::new(stream)
            }
            Endpoint::Unix(path) => {
                Box::new(in_time("a connection", UnixStream::connect(path)).await?)
            }
        };
        Ok(Connection { stream, buffer: Vec::new() })
    }

    /// A connection that was opened elsewhere, such as one by TLS.
    pub fn over(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Connection {
        Connection { stream: Box::new(stream), buffer: Vec::new() }
    }

    /// Writes bytes as they are.
    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        in_time("that the server takes what is sent", self.stream.write_all(bytes.as_ref())).await
    }

    /// Says that nothing more will be sent.
    pub async fn finish_sending(&mut self) -> io::Result<()> {
        self.stream.shutdown().await
    }

    /// Reads the next response, interim ones (1xx) too.
    pub async fn response(&mut self) -> io::Result<Response> {
        let mut response = self.head().await?;
        in_time("the whole response", self.body(&mut response)).await?;
        Ok(response)
    }

    /// Reads responses until one that is not interim.
    pub async fn final_response(&mut self) -> io::Result<Response> {
        loop {
            let response = self.response().await?;
            if response.status >= 200 || response.status == 101 {
                return Ok(response);
            }
        }
    }

    /// Reads the response to a HEAD request: its headers speak of a body that does not come.
    pub async fn response_to_head(&mut self) -> io::Result<Response> {
        self.head().await
    }

    /// Reads the next response's status and headers only, for a body that the test reads bit by bit
    /// with [`Connection::receive`].
    pub async fn head(&mut self) -> io::Result<Response> {
        let head = in_time("a response's head", async {
            loop {
                if let Some(end) = find(&self.buffer, b"\r\n\r\n") {
                    return Ok(self.buffer.drain(..end + 4).collect::<Vec<u8>>());
                }
                self.fill().await?;
            }
        })
        .await?;
        let head = String::from_utf8(head).map_err(|_| malformed("a head that is not text"))?;
        let (status_line, fields) = head.split_once("\r\n").expect("the head ends with line ends");
        let status = status_line.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5));
        let status =
            status.and_then(|code| code.parse().ok()).ok_or_else(|| malformed(status_line))?;
        Ok(Response {
            status,
            headers: parse_fields(fields)?,
            body: Vec::new(),
            trailers: HeaderMap::new(),
        })
    }

    /// Reads `count` bytes as they are.
    pub async fn receive(&mut self, count: usize) -> io::Result<Vec<u8>> {
        in_time("bytes", self.take(count)).await
    }

    /// Reads until the server closes the connection, and returns what came before.
    pub async fn rest(&mut self) -> io::Result<Vec<u8>> {
        in_time("the end of the connection", self.until_closed()).await
    }

    async fn body(&mut self, response: &mut Response) -> io::Result<()> {
        if response.status < 200 || matches!(response.status, 204 | 304) {
            return Ok(());
        }
        if let Some(encoding) = response.header("transfer-encoding") {
            assert_eq!(encoding, "chunked", "only this encoding is read here: {response:?}");
            return self.chunks(response).await;
        }
        response.body = match response.header("content-length") {
            Some(length) => self.take(length.parse().map_err(|_| malformed(length))?).await?,
            None => self.until_closed().await?,
        };
        Ok(())
    }

    async fn chunks(&mut self, response: &mut Response) -> io::Result<()> {
        loop {
            let line = self.line().await?;
            let size = line.split(';').next().unwrap_or_default();
            let size = usize::from_str_radix(size, 16).map_err(|_| malformed(&line))?;
            if size == 0 {
                break;
            }
            response.body.extend(self.take(size).await?);
            let end = self.line().await?;
            if !end.is_empty() {
                return Err(malformed("a chunk longer than it says"));
            }
        }
        let mut fields = String::new();
        loop {
            let line = self.line().await?;
            if line.is_empty() {
                response.trailers = parse_fields(&fields)?;
                return Ok(());
            }
            fields.push_str(&line);
            fields.push_str("\r\n");
        }
    }

    async fn line(&mut self) -> io::Result<String> {
        loop {
            if let Some(end) = find(&self.buffer, b"\r\n") {
                let line = self.buffer.drain(..end + 2).take(end).collect();
                return String::from_utf8(line).map_err(|_| malformed("a line that is not text"));
            }
            self.fill().await?;
        }
    }

    async fn take(&mut self, count: usize) -> io::Result<Vec<u8>> {
        while self.buffer.len() < count {
            self.fill().await?;
        }
        Ok(self.buffer.drain(..count).collect())
    }

    async fn until_closed(&mut self) -> io::Result<Vec<u8>> {
        let mut all = std::mem::take(&mut self.buffer);
        self.stream.read_to_end(&mut all).await?;
        Ok(all)
    }

    async fn fill(&mut self) -> io::Result<()> {
        if self.stream.read_buf(&mut self.buffer).await? == 0 {
            let got = String::from_utf8_lossy(&self.buffer);
            return Err(io::Error::new(
                ErrorKind::UnexpectedEof,
                format!("the connection ended after {got:?}"),
            ));
        }
        Ok(())
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("unread", &String::from_utf8_lossy(&self.buffer))
            .finish_non_exhaustive()
    }
}

async fn in_time<T>(what: &str, step: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout(PATIENCE, step).await.unwrap_or_else(|_| {
        Err(io::Error::new(ErrorKind::TimedOut, format!("not within {PATIENCE:?}: {what}")))
    })
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}

fn parse_fields(text: &str) -> io::Result<HeaderMap> {
    let mut fields = HeaderMap::new();
    for line in text.split("\r\n").filter(|line| !line.is_empty()) {
        let (name, value) = line.split_once(':').ok_or_else(|| malformed(line))?;
        let name = HeaderName::try_from(name).map_err(|_| malformed(line))?;
        let value = HeaderValue::try_from(value.trim()).map_err(|_| malformed(line))?;
        fields.append(name, value);
    }
    Ok(fields)
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("not HTTP: {what}"))
}
