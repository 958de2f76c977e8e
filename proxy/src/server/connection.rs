//! What the requests of one client connection share: who the client is, and what the connection is
//! doing.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use fencepost_config::Proxies;
use fencepost_tls::PeerNames;
use http::HeaderValue;
use http1_strict::Progress;

use super::activity::{Activity, UnderWay};
use super::answer::Tunnel;
use super::client::{Client, ClientAddress, Protocol};
use super::connection_limiter::ClientPlace;
use super::limits::{Closing, Limits};
use super::proxy_protocol::Unexpected;
use super::sending::Sending;
use crate::wire::{Background, Socket};

/// A client's connection. One per connection, shared by its requests.
pub struct Connection {
    client: Client,
    forwarded_for: Option<HeaderValue>,
    pub(super) limits: Rc<Limits>,
    pub(super) socket: Socket,
    pub(super) background: Background,
    pub(super) activity: Rc<Activity>,
    /// On HTTP/1: how far its requests were read.
    pub(super) progress: Progress,
    pub(super) state: RefCell<ConnectionState>,
}

/// What changes on a connection as its requests go by.
#[derive(Default)]
pub(super) struct ConnectionState {
    /// Requests so far.
    pub(super) requests: u64,
    /// The last request whose body was held back and not asked for: the connection ends with its
    /// response. 0: none.
    pub(super) unasked: u64,
    /// On HTTP/2: whether an answer asked the client to leave.
    pub(super) is_to_leave: bool,
    /// On HTTP/1: what takes the connection over once the response that switches protocols is out.
    pub(super) tunnel: Option<Tunnel>,
    /// On HTTP/2: the request that has just begun, until its stream takes this.
    pub(super) newest: Option<Rc<Sending>>,
    /// On HTTP/2: bytes of responses that h2 has and has not sent.
    pub(super) unsent: u64,
    /// On HTTP/2: bytes of responses that h2 has sent; it wraps around.
    pub(super) sent: u64,
    /// In how many pieces, since the last look at the client's frames.
    pub(super) sent_pieces: u64,
    /// On HTTP/2: the limit on frames that the client has exceeded.
    pub(super) exceeded: Option<Closing>,
}

impl Connection {
    pub(super) fn new(
        client: Client,
        socket: Socket,
        limits: Rc<Limits>,
        background: Background,
        activity: Rc<Activity>,
    ) -> Rc<Connection> {
        Rc::new(Connection {
            forwarded_for: forwarded_for(client.address),
            client,
            limits,
            socket,
            background,
            activity,
            progress: Progress::default(),
            state: RefCell::default(),
        })
    }

    /// Where the connection comes from.
    pub fn address(&self) -> ClientAddress {
        self.client.address
    }

    /// The protocol that the client uses.
    pub fn protocol(&self) -> Protocol {
        self.client.protocol
    }

    /// Whether it is by TLS.
    pub fn is_tls(&self) -> bool {
        self.client.is_tls
    }

    /// The names in the client's certificate, which the handshake has verified. `None` in the
    /// clear, and where the client has shown none.
    pub fn peer(&self) -> Option<&Rc<PeerNames>> {
        self.client.names.as_ref()
    }

    /// The client's address as `X-Forwarded-For` has it, written once per connection. Unix sockets
    /// have none.
    pub fn forwarded_for(&self) -> Option<&HeaderValue> {
        self.forwarded_for.as_ref()
    }

    /// What its first bytes are of, if they are no HTTP.
    pub(super) fn unexpected(&self) -> Option<Unexpected> {
        self.client.unexpected
    }

    /// The proxies before the listener, if it has any.
    pub fn proxies(&self) -> Option<&Proxies> {
        self.client.proxies.as_deref()
    }

    /// Whether the connection is a trusted proxy's, so that its requests may name their clients.
    pub fn is_trusted(&self) -> bool {
        self.client.is_trusted
    }

    /// Counts a request as one of the client's that a trusted proxy names, for as long as the guard
    /// lives. `None` if the client has too many. Other requests are not counted.
    pub fn place_of_request(&self, client: ClientAddress) -> Option<ClientPlace> {
        if self.is_trusted() {
            self.activity.place_of_request(client)
        } else {
            Some(ClientPlace::default())
        }
    }

    /// Counts a request as under way for as long as the guard lives, even when the connection has
    /// ended: until then the connection keeps its slot, and on HTTP/2 the request its place among
    /// the streams.
    pub fn under_way(&self) -> UnderWay {
        self.activity.under_way()
    }

    /// Waits until an HTTP/1 client has ended its side while its last request is under way: it does
    /// not wait for the response. A client that has sent something behind that request does. Looks
    /// each time that the connection's task is woken.
    pub(super) async fn client_left(&self) {
        let is_last = || self.progress.is_at_end_of(self.requests());
        let waits = || {
            self.protocol() == Protocol::Http1 && self.activity.count_in_flight() > 0 && is_last()
        };
        poll_fn(|cx| if waits() { self.socket.poll_end(cx) } else { Poll::Pending }).await;
    }

    /// How many requests it has had.
    pub(super) fn requests(&self) -> u64 {
        self.state.borrow().requests
    }

    /// Whether the client is to be asked to leave. Over HTTP/1 the last response says so.
    pub(super) fn is_to_leave(&self) -> bool {
        self.protocol() == Protocol::Http2 && (self.is_spent() || self.state.borrow().is_to_leave)
    }

    /// Whether it has had as many requests as it may have.
    pub(super) fn is_spent(&self) -> bool {
        self.limits.requests_per_connection_max.is_some_and(|max| self.requests() >= max)
    }
}

fn forwarded_for(address: ClientAddress) -> Option<HeaderValue> {
    let address = address.ip()?;
    let mut text = String::with_capacity(40);
    write!(text, "{}", address.to_canonical()).expect("a string takes what is written");
    Some(HeaderValue::try_from(text).expect("an IP address is visible ASCII"))
}

#[cfg(test)]
impl Connection {
    /// An HTTP/2 connection that has just been accepted.
    pub(super) async fn for_tests(limits: Limits, socket: Socket) -> Rc<Connection> {
        let limiter = super::connection_limiter::ConnectionLimiter::new(&limits);
        let slot = limiter.slot(ClientAddress::Unix, false).await.unwrap();
        let activity = Activity::new(slot, std::task::Waker::noop().clone());
        let (address, protocol) = (ClientAddress::Unix, Protocol::Http2);
        let (proxies, is_trusted) = (None, false);
        let client = Client {
            address,
            protocol,
            is_tls: false,
            names: None,
            proxies,
            is_trusted,
            unexpected: None,
        };
        Connection::new(client, socket, Rc::new(limits), Background::default(), activity)
    }
}
