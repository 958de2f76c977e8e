//! What is known of a client's connection.

use std::cell::Cell;
use std::fmt::{self, Write as _};
use std::net::SocketAddr;
use std::rc::Rc;

use fencepost_tls::PeerNames;
use http::HeaderValue;
use http1_strict::Progress;

use super::answer::Tunnel;
use super::awaited_body::AwaitedBody;
use super::limits::Limits;
use super::seat::{Answering, Seat, UnderWay};
use super::tally::Closing;
use super::unread::{Rests, Unread};
use crate::wire::{Background, Socket};

#[cfg(test)]
use {
    super::places::{Oldest, Places},
    super::seat::Waiting,
    std::sync::Arc,
    tokio::time::Instant,
};

/// What a handshake has told of a client.
pub(super) struct TlsClient {
    /// The names in its certificate, if it has shown one; its requests share them.
    pub(super) names: Option<Rc<PeerNames>>,
}

/// Where a client's connection comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientAddress {
    /// Over TCP, from that address.
    Tcp(SocketAddr),
    /// Over a unix socket.
    Unix,
}

impl fmt::Display for ClientAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClientAddress::Tcp(address) => address.fmt(f),
            ClientAddress::Unix => f.write_str("unix"),
        }
    }
}

/// What a client speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.0 or HTTP/1.1.
    Http1,
    /// HTTP/2.
    Http2,
}

/// A client's connection: who is at its other end, and what it is doing. One per connection, shared by its requests.
pub struct Connection {
    address: ClientAddress,
    protocol: Protocol,
    forwarded_for: Option<HeaderValue>,
    /// Boxed: most connections of most listeners have none.
    tls: Option<Box<TlsClient>>,
    pub(super) limits: Rc<Limits>,
    pub(super) socket: Socket,
    pub(super) background: Background,
    pub(super) seat: Rc<Seat>,
    /// Requests so far.
    pub(super) requests: Cell<u64>,
    /// Over HTTP/1: the last of them whose answer has begun. 0: none.
    pub(super) answered: Cell<u64>,
    /// The last of them whose body was held back and not asked for: the connection ends with its answer. 0: none.
    pub(super) unasked: Cell<u64>,
    /// Requests whose answer has not been written yet, to the kernel or to what goes there with the end of the turn.
    pub(super) in_flight: Cell<usize>,
    /// On HTTP/2: what h2 has left of answers that have ended for everybody else.
    pub(super) rests: Rests,
    /// Over HTTP/1: the body of its request, if somebody waits for that.
    pub(super) awaited_body: AwaitedBody,
    /// How far its requests were read over HTTP/1.
    pub(super) progress: Progress,
    /// What takes the connection over once the answer that switches protocols is out.
    pub(super) tunnel: Cell<Option<Tunnel>>,
    /// On HTTP/2: what is noted of the answer to the request that has just begun, until its stream takes it.
    pub(super) newest: Cell<Option<Rc<Unread>>>,
    /// On HTTP/2: whether its client has answered a PING since it was asked to leave.
    pub(super) answers_pings: Cell<bool>,
    /// On HTTP/2: how many pieces of answers have been put down to be written, since that was last looked at.
    pub(super) pieces: Cell<u64>,
    /// On HTTP/2: which frames its client has sent too many of.
    pub(super) exceeded: Cell<Option<Closing>>,
}

impl Connection {
    pub(super) fn new(
        address: ClientAddress,
        protocol: Protocol,
        tls: Option<Box<TlsClient>>,
        socket: Socket,
        limits: Rc<Limits>,
        background: Background,
        seat: Rc<Seat>,
    ) -> Rc<Connection> {
        Rc::new(Connection {
            address,
            protocol,
            forwarded_for: forwarded_for(address),
            tls,
            limits,
            socket,
            background,
            seat,
            requests: Cell::new(0),
            answered: Cell::new(0),
            unasked: Cell::new(0),
            in_flight: Cell::new(0),
            rests: Rests::default(),
            awaited_body: AwaitedBody::default(),
            progress: Progress::default(),
            tunnel: Cell::new(None),
            newest: Cell::new(None),
            answers_pings: Cell::new(false),
            pieces: Cell::new(0),
            exceeded: Cell::new(None),
        })
    }

    /// Where the connection comes from.
    pub fn address(&self) -> ClientAddress {
        self.address
    }

    /// What the client speaks.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Whether it is by TLS.
    pub fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// The names in the client's certificate, which the handshake has verified. `None` in the clear, and where the client
    /// has shown none.
    pub fn peer(&self) -> Option<&Rc<PeerNames>> {
        self.tls.as_ref()?.names.as_ref()
    }

    /// The client's address as `X-Forwarded-For` has it, written once per connection. Unix sockets have none.
    pub fn forwarded_for(&self) -> Option<&HeaderValue> {
        self.forwarded_for.as_ref()
    }

    /// Counts a request as under way for as long as what is returned lives, even when the connection has ended: until
    /// then its place is taken, on HTTP/2 its place among the streams too.
    pub fn under_way(&self) -> UnderWay {
        self.seat.under_way()
    }

    /// Whether it has had as many requests as it may have.
    pub(super) fn is_spent(&self) -> bool {
        self.limits.requests_per_connection_max.is_some_and(|max| self.requests.get() >= max)
    }
}

fn forwarded_for(address: ClientAddress) -> Option<HeaderValue> {
    let ClientAddress::Tcp(address) = address else { return None };
    let mut text = String::with_capacity(40);
    write!(text, "{}", address.ip().to_canonical()).expect("a string takes what is written");
    Some(HeaderValue::try_from(text).expect("an IP address is visible ASCII"))
}

/// Counts a request as in flight on its connection, for as long as this lives.
pub(super) struct InFlight {
    connection: Rc<Connection>,
    _answering: Answering,
}

impl InFlight {
    pub(super) fn new(connection: Rc<Connection>) -> InFlight {
        connection.in_flight.set(connection.in_flight.get() + 1);
        let answering = connection.seat.answers();
        InFlight { connection, _answering: answering }
    }

    pub(super) fn connection(&self) -> &Rc<Connection> {
        &self.connection
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let connection = &self.connection;
        connection.in_flight.set(connection.in_flight.get() - 1);
    }
}

/// A request that hyper wants an answer to. It is in flight until it has that, and on HTTP/2 until that is put down to be written.
pub(super) enum Asked {
    Http1(InFlight),
    Http2(Rc<Unread>),
}

impl Asked {
    /// One that begins: with HTTP/2 its stream begins right after this.
    pub(super) fn begin(connection: Rc<Connection>) -> Asked {
        connection.requests.set(connection.requests.get() + 1);
        let protocol = connection.protocol;
        let in_flight = InFlight::new(connection);
        match protocol {
            Protocol::Http1 => Asked::Http1(in_flight),
            Protocol::Http2 => {
                let unread = Rc::new(Unread::new(in_flight));
                unread.connection().newest.set(Some(Rc::clone(&unread)));
                Asked::Http2(unread)
            }
        }
    }

    pub(super) fn connection(&self) -> &Rc<Connection> {
        match self {
            Asked::Http1(in_flight) => in_flight.connection(),
            Asked::Http2(unread) => unread.connection(),
        }
    }

    /// How far its answer is read: noted on HTTP/2 only, where the connection can't tell.
    pub(super) fn unread(&self) -> Option<&Rc<Unread>> {
        match self {
            Asked::Http1(_) => None,
            Asked::Http2(unread) => Some(unread),
        }
    }
}

#[cfg(test)]
impl Connection {
    /// An HTTP/2 connection that has just been accepted.
    pub(super) async fn for_tests(limits: Limits, socket: Socket) -> Rc<Connection> {
        let places = Places::new(&limits);
        let waiting = Waiting::new(Oldest::none(), Arc::clone(&places), Instant::now());
        let client = places.of_client(ClientAddress::Unix).unwrap();
        let place = places.take(client, || unreachable!("there is room")).await.unwrap();
        let (limits, seat) = (Rc::new(limits), waiting.seat(place));
        Connection::new(ClientAddress::Unix, Protocol::Http2, None, socket, limits, Background::default(), seat)
    }
}
