//! The body of a client's request, with its timeouts and limits. An unwanted body is read and
//! thrown away.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use fencepost_fence::refusal::{DISCARD_BYTES_MAX, DISCARD_TIMEOUT};
use futures_util::FutureExt;
use http::header::EXPECT;
use http::{Request, Version};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::Instant;

use super::client::Protocol;
use super::connection::Connection;
use super::limits::patience;
use super::whole_length::WholeLength;
use crate::wire::Alarm;

/// The body of a client's request, and the connection it comes from.
///
/// Dropping it before its end, as every refusal does, does not close the connection: what is here
/// of it is read and thrown away, and what is still to come in the background, within
/// [`DISCARD_BYTES_MAX`] and [`DISCARD_TIMEOUT`]. A client that writes its whole request
/// before it reads would otherwise see a reset instead of the response. But a body that the client
/// holds back until it sees `100 Continue` (`Expect`) is not asked for: the connection ends with
/// the response, and what comes all the same is read behind that.
pub struct ClientBody {
    /// `None` for a request without a body, and once the body has ended, failed or been handed on.
    /// Boxed, so that moving a request does not move the body.
    incoming: Option<Box<WholeLength<Incoming>>>,
    connection: Rc<Connection>,
    /// The number of its request on the connection.
    request: u64,
    expects: Expects,
    /// When the present wait for the client began, and how long the earlier ones were.
    awaited_since: Option<Instant>,
    awaited: Duration,
    has_known_length: bool,
    received: u64,
    /// Boxed: most bodies come with their heads.
    alarm: Option<Box<Alarm>>,
}

/// Whether a client waits for `100 Continue` before it sends a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expects {
    /// No, or it has been sent.
    Nothing,
    /// hyper sends it when the body is read.
    Continue,
    /// It expects something else, or something beside that: nobody meets it. hyper knows the word
    /// where it stands alone, in the last of such fields.
    InVain,
}

/// Why the rest of a request's body will not come.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// The client closed or reset its request, or broke HTTP/2's framing.
    #[error("the client ended its request in the middle of the body")]
    Aborted(#[source] hyper::Error),
    /// It is no body by HTTP/1.1's grammar: its end cannot be found.
    #[error("the client broke the framing of the body")]
    Malformed,
    /// The client reset its HTTP/2 stream with NO_ERROR, which hyper takes for an end.
    #[error("the client reset its stream in the middle of the body")]
    Truncated,
    /// The client sent nothing for too long.
    #[error("the client stayed silent in the middle of the body")]
    Silent,
    /// The client sends too slowly.
    #[error("the client sends its body too slowly")]
    TooSlow,
    /// There is more of it than there may be.
    #[error("the body is larger than it may be")]
    TooLarge,
}

/// What is wrong with a request's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyFault {
    /// It ended before its end.
    Broken,
    /// It came too slowly.
    Slow,
    /// It is too large.
    Large,
}

impl BodyError {
    /// What is wrong with the body.
    pub fn fault(&self) -> BodyFault {
        match self {
            BodyError::Aborted(_) | BodyError::Malformed | BodyError::Truncated => {
                BodyFault::Broken
            }
            BodyError::Silent | BodyError::TooSlow => BodyFault::Slow,
            BodyError::TooLarge => BodyFault::Large,
        }
    }
}

impl ClientBody {
    /// The newest request of a connection, with its body.
    pub(super) fn of_request(
        request: Request<Incoming>,
        connection: &Rc<Connection>,
    ) -> Box<Request<ClientBody>> {
        let (connection, number, expects) =
            (Rc::clone(connection), connection.requests(), Expects::of(&request));
        // Written where it stays: a request is large.
        Box::write(
            Box::new_uninit(),
            request.map(|incoming| ClientBody::new(incoming, connection, number, expects)),
        )
    }

    fn new(
        incoming: Incoming,
        connection: Rc<Connection>,
        request: u64,
        expects: Expects,
    ) -> ClientBody {
        let mut body = ClientBody::empty(connection, request);
        body.has_known_length = incoming.size_hint().exact().is_some();
        body.incoming = (!incoming.is_end_stream()).then(|| Box::new(WholeLength::new(incoming)));
        body.expects = expects;
        body
    }

    fn empty(connection: Rc<Connection>, request: u64) -> ClientBody {
        ClientBody {
            incoming: None,
            connection,
            request,
            expects: Expects::Nothing,
            awaited_since: None,
            awaited: Duration::ZERO,
            has_known_length: true,
            received: 0,
            alarm: None,
        }
    }

    /// Takes the body out. What is left knows its connection still, and is empty.
    pub fn take(&mut self) -> ClientBody {
        let empty = ClientBody::empty(Rc::clone(&self.connection), self.request);
        std::mem::replace(self, empty)
    }

    /// Whether its length is known to be more than may be.
    pub fn is_too_large(&self) -> bool {
        self.size_hint().exact().is_some_and(|bytes| self.exceeds(bytes))
    }

    fn exceeds(&self, bytes: u64) -> bool {
        self.connection.limits.body_bytes_max.is_some_and(|max| bytes > max)
    }

    /// Whether what has come of it by now shows that it will not come whole. Over HTTP/2 that is
    /// seen when it is read.
    pub fn is_malformed(&self) -> bool {
        self.connection.progress.has_rejected_body_of(self.request)
    }

    /// Whether its client waits for `100 Continue`, which is sent as soon as the body is polled.
    pub fn is_held_back(&self) -> bool {
        self.expects != Expects::Nothing
    }

    /// Whether its client expects what nobody meets.
    pub fn expects_in_vain(&self) -> bool {
        self.expects == Expects::InVain
    }

    /// Stops the timeout until the body is polled again: until then, its client is neither silent
    /// nor slow.
    pub fn rest(&mut self) {
        if let Some(since) = self.awaited_since.take() {
            self.awaited += since.elapsed();
        }
    }

    /// The connection that the request came on.
    pub fn connection(&self) -> &Rc<Connection> {
        &self.connection
    }

    /// What hyper gave of the body, as it is to be passed on.
    fn take_in(
        &mut self,
        frame: Option<Result<Frame<Bytes>, hyper::Error>>,
    ) -> Option<Result<Frame<Bytes>, BodyError>> {
        match frame {
            Some(Ok(frame)) => {
                self.received += frame.data_ref().map_or(0, Bytes::len) as u64;
                if self.exceeds(self.received) {
                    self.throw_rest_away();
                    return Some(Err(BodyError::TooLarge));
                }
                Some(Ok(frame))
            }
            Some(Err(error)) => {
                self.incoming = None;
                let is_malformed = self.is_malformed();
                Some(Err(if is_malformed {
                    BodyError::Malformed
                } else {
                    BodyError::Aborted(error)
                }))
            }
            None => {
                let incoming = self.incoming.take()?;
                let is_whole = is_whole(&incoming, self.connection.protocol());
                if is_whole { None } else { Some(Err(BodyError::Truncated)) }
            }
        }
    }

    /// Whether the client has kept us waiting for longer than what has come of its body allows. A
    /// body of unknown length may pause.
    fn is_too_slow(&self) -> bool {
        let patience = patience(&self.connection.limits, self.received);
        self.has_known_length && patience.is_some_and(|patience| self.awaited > patience)
    }

    /// Reads and drops what is still to come, so that the client gets to see the response.
    fn throw_rest_away(&mut self) {
        let Some(mut incoming) = self.incoming.take() else { return };
        let mut left = DISCARD_BYTES_MAX;
        // Dropping a body before its end closes the connection.
        let mut reads = Box::pin(async move {
            while let Some(Ok(frame)) = incoming.frame().await {
                let bytes = frame.data_ref().map_or(0, Bytes::len) as u64;
                let Some(rest) = left.checked_sub(bytes) else { return };
                left = rest;
            }
        });
        // A small body has come with its head, and needs no task.
        if (&mut reads).now_or_never().is_some() {
            return;
        }
        let in_flight = self.connection.activity.in_flight();
        self.connection.background.spawn(async move {
            let _ = tokio::time::timeout(DISCARD_TIMEOUT, reads).await; // Either way it is dropped.
            drop(in_flight);
        });
    }
}

impl Body for ClientBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        let Some(incoming) = &mut this.incoming else { return Poll::Ready(None) };
        this.expects = Expects::Nothing;
        let polled = Pin::new(&mut **incoming).poll_frame(cx);
        if polled.is_pending() {
            let since = *this.awaited_since.get_or_insert_with(Instant::now);
            ready!(
                this.alarm
                    .get_or_insert_default()
                    .poll(cx, since + this.connection.limits.body_timeout)
            );
            this.rest();
            this.throw_rest_away();
            return Poll::Ready(Some(Err(BodyError::Silent)));
        }
        let was_awaited = this.awaited_since.is_some();
        this.rest();
        let frame = this.take_in(ready!(polled));
        if was_awaited && this.incoming.is_some() && this.is_too_slow() {
            this.throw_rest_away();
            return Poll::Ready(Some(Err(BodyError::TooSlow)));
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

impl Drop for ClientBody {
    fn drop(&mut self) {
        if self.is_end_stream() {
            return;
        }
        if self.is_held_back() && self.connection.protocol() == Protocol::Http1 {
            // Dropping it makes hyper respond without asking for it, and close: the client may send
            // it all the same.
            self.connection.state.borrow_mut().unasked = self.request;
            return;
        }
        self.throw_rest_away();
    }
}

impl Expects {
    fn of(request: &Request<Incoming>) -> Expects {
        let is_continue = |word: &[u8]| word.trim_ascii().eq_ignore_ascii_case(b"100-continue");
        let expectations = request.headers().get_all(EXPECT);
        let Some(last) = expectations.iter().next_back() else { return Expects::Nothing };
        let words =
            expectations.iter().flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
        let mut words = words.filter(|word| !word.trim_ascii().is_empty()).peekable();
        let is_none = words.peek().is_none();
        if !words.all(is_continue) {
            return Expects::InVain;
        }
        if is_none || request.version() != Version::HTTP_11 || request.body().is_end_stream() {
            return Expects::Nothing;
        }
        if is_continue(last.as_bytes()) { Expects::Continue } else { Expects::InVain }
    }
}

/// Whether a body that hyper says has ended is whole: after an HTTP/2 reset with NO_ERROR hyper
/// says so too, and a length that was announced may be left over.
fn is_whole(incoming: &WholeLength<Incoming>, protocol: Protocol) -> bool {
    match protocol {
        Protocol::Http1 => incoming.size_hint().exact().is_none_or(|left| left == 0),
        Protocol::Http2 => incoming.is_end_stream(),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::convert::Infallible;

    use http::Response;
    use http_body_util::Empty;
    use hyper::server::conn::{http1, http2};
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixStream;
    use tokio::task::LocalSet;

    use super::super::Limits;
    use super::super::sending::Streams;
    use super::*;
    use crate::wire::Socket;

    /// HTTP/2's preface, empty SETTINGS, and the head of a `POST /` on stream 1 (RFC 7541, appendix
    /// A: 3, 6, 4 and the name 1).
    const HTTP2_POST: &[u8] =
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\x06\x01\x04\0\0\0\x01\x83\x86\x84\x41\x01a";

    /// What goes on in the background for a client that sends that, once its request's body is
    /// dropped.
    async fn goes_on_after(protocol: Protocol, sent: &[u8]) -> usize {
        let (ours, mut client) = UnixStream::pair().unwrap();
        let (elsewhere, _its_client) = UnixStream::pair().unwrap();
        let connection =
            Connection::for_tests(Limits::default(), Socket::downstream(elsewhere.into())).await;
        let streams = Streams(Rc::clone(&connection));
        client.write_all(sent).await.unwrap();
        let goes_on = Rc::new(Cell::new(None));
        let noted = Rc::clone(&goes_on);
        let refuses = service_fn(move |request: Request<Incoming>| {
            let (connection, noted) = (Rc::clone(&connection), Rc::clone(&noted));
            async move {
                drop(ClientBody::new(
                    request.into_body(),
                    Rc::clone(&connection),
                    1,
                    Expects::Nothing,
                ));
                noted.set(Some(connection.background.running()));
                Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
            }
        });
        let io = TokioIo::new(ours);
        let served = async {
            // Part of a body is an error, once its client has left.
            let _ = match protocol {
                Protocol::Http1 => http1::Builder::new().serve_connection(io, refuses).await,
                Protocol::Http2 => http2::Builder::new(streams).serve_connection(io, refuses).await,
            };
        };
        let left = async {
            let mut answer = [0; 1];
            while goes_on.get().is_none() {
                client.read_exact(&mut answer).await.unwrap();
            }
            drop(client);
        };
        tokio::join!(served, left);
        goes_on.take().unwrap()
    }

    #[tokio::test]
    async fn task_discards_a_body_only_if_some_is_still_to_come() {
        let http1 = |length: usize| {
            format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n12345")
        };
        let http2 = |flags: u8| [HTTP2_POST, &[0, 0, 5, 0, flags, 0, 0, 0, 1], b"12345"].concat();
        let here_and_to_come = async {
            assert_eq!(goes_on_after(Protocol::Http1, http1(5).as_bytes()).await, 0, "it is here");
            assert_eq!(
                goes_on_after(Protocol::Http1, http1(6).as_bytes()).await,
                1,
                "a byte is to come"
            );
            assert_eq!(goes_on_after(Protocol::Http2, &http2(1)).await, 0, "END_STREAM is here");
            assert_eq!(goes_on_after(Protocol::Http2, &http2(0)).await, 1, "its end is to come");
        };
        LocalSet::new().run_until(here_and_to_come).await;
    }
}
