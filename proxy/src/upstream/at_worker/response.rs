//! The response: its head, then its body, to the end.

use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use fencepost_fence::is_event_stream;
use http::response::Parts;
use http::{Request, Response, StatusCode, Version};
use http_body::{Body, Frame};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use scopeguard::ScopeGuard;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use super::{AtWorker, Client, Event, Sent};
use crate::upstream::error::{Forwarded, ResponseBodyError, SendError};
use crate::upstream::fields::{self, KeptFields};
use crate::upstream::handed_over::Outgoing;
use crate::upstream::here::Here;
use crate::upstream::http2::{BLOCKED_MAX, complains, is_unreadable, was_refused};
use crate::upstream::link::Link;
use crate::upstream::permit::{Admitted, Ending, Permit};
use crate::upstream::relay::{Reading, Relay};
use crate::upstream::request_body::RequestBody;
use crate::upstream::response_body::ResponseBody;
use crate::upstream::response_head;
use crate::upstream::unread_response::UnreadResponse;
use crate::upstream::upload::Broken;

/// How long a response whose head cannot be read is read on. It keeps its connection for so long.
const READ_ON_MAX: Duration = Duration::from_secs(1);

/// How far a client may be behind a response whose tenure has ended.
const BEHIND_BYTES_MAX: usize = 256 * 1024;
/// How much of a response of unknown length is read before its head is passed on, if it is here.
const HERE_BYTES_MAX: usize = 8 * 1024;
/// How long such a response waits for a client that is as far behind as it may be, in all: long
/// enough for the client of a fast worker to be given its turn by the system, too short for a
/// tenure to be held up.
const CATCH_UP_MAX: Duration = Duration::from_millis(100);

impl<P: Permit> AtWorker<P> {
    /// Waits for the head of the response, tells the client, and goes on from there.
    pub(in crate::upstream) async fn run(mut self: Box<Self>, sent: Sent) {
        let Sent { mut head, copy, asks_to_upgrade, is_head } = sent;
        loop {
            let next = poll_fn(|cx| {
                if let Poll::Ready(head) = head.as_mut().poll(cx) {
                    return Poll::Ready(Ok(head));
                }
                self.poll_event(cx, true).map(Err)
            });
            let event = match next.await {
                Ok(Ok(response)) => return self.respond(response, asks_to_upgrade, is_head).await,
                Ok(Err(error)) => return self.failed(error, copy).await,
                Err(event) => event,
            };
            if let Some((why, ending)) = self.react(event) {
                drop(head); // Over HTTP/2, this resets the stream.
                self.client.end(why);
                return self.end(ending).await;
            }
        }
    }

    /// There is no head.
    async fn failed(
        mut self: Box<Self>,
        mut error: TrySendError<Request<Outgoing>>,
        copy: Option<Box<Request<RequestBody>>>,
    ) {
        let returned =
            error.take_message().map(|request| Box::new(request.map(Outgoing::into_body)));
        let error = error.into_error();
        self.pool.lost(self.link.socket());
        if let Link::Http1(connection) = &self.link
            && connection.was_closed_while_kept()
            && !self.connection.was_reset_by_group()
        {
            self.pool.lost_while_kept(connection.opened);
        }
        let broken = self.upload.as_ref().and_then(|upload| upload.broken());
        self.note_complaint(&error);
        let refused = was_refused(&error);
        let copy = if refused { copy } else { None };
        let (why, ending) = match (returned.or(copy), broken) {
            (Some(request), None) => {
                let AtWorker { permit, client, .. } = *self;
                let unsent = Admitted::new(request, ScopeGuard::into_inner(permit));
                // Where nobody is left to send it again, the permit is given back with it.
                let (admitted, refused) = (Box::new(unsent), refused.then_some(error));
                return client.fail(SendError::Unsent { admitted, refused });
            }
            (None, Some(Broken::ByClient(fault))) => {
                (ResponseBodyError::Unfinished(fault).into(), Ending::BodyCut)
            }
            (None, Some(Broken::Cut)) => (ResponseBodyError::Sealed.into(), Ending::BodyCut),
            (None, None) if error.is_parse() => return self.unreadable(error).await,
            (None, None) if is_unreadable(&error) => {
                let why = "it breaks a rule of HTTP/2, or its head has more than 80 KiB";
                (SendError::Unreadable(why.to_owned()), self.loss())
            }
            (None, None) if !refused => (self.lost(error).into(), self.loss()),
            // Nothing was sent, and nothing is left to be sent whole. Or the worker has not looked
            // at it and never will, but a streamed body can't be sent again.
            (Some(_), Some(_)) | (None, None) => {
                let declined =
                    SendError::NoAnswer { forwarded: Forwarded::No, source: Some(error) };
                (declined, Ending::Complete)
            }
        };
        self.client.take().fail(why);
        self.end(ending).await;
    }

    /// The head of the response cannot be read. The client is told at once, and the response is read
    /// on for a while: the worker is done with the request where that ends.
    async fn unreadable(mut self: Box<Self>, error: hyper::Error) {
        let Link::Http1(connection) = &mut self.link else {
            let ending = self.loss();
            self.client.end(ResponseBodyError::Lost(Some(error)));
            return self.end(ending).await;
        };
        let response = UnreadResponse::new(&error, connection.unread().await);
        let socket = connection.socket().clone();
        self.client.take().fail(SendError::Unreadable(response.why().to_owned()));
        if self.is_upload() || !self.handed_over.is_written() {
            let ending = self.loss();
            return self.end(ending).await;
        }
        self.note_client_has_left();
        self.lose(Ending::Reset);
        let has_ended = timeout(READ_ON_MAX, response.has_ended(socket)).await;
        let ending = if has_ended == Ok(true) { Ending::Complete } else { Ending::Reset };
        self.end(ending).await;
    }

    /// The head of the response has come.
    async fn respond(
        mut self: Box<Self>,
        response: Response<Incoming>,
        asks_to_upgrade: bool,
        is_head: bool,
    ) {
        let (mut head, mut incoming) = response.into_parts();
        let is_clear = self.answered(&head, is_head);
        let is_coded =
            !is_clear && !incoming.is_end_stream() && response_head::is_coded(&head.headers);
        let length = match &self.link {
            Link::Http1(_) => response_head::length_beside_identity(&head.headers),
            Link::Http2(_) => None,
        };
        let is_switch = head.status == StatusCode::SWITCHING_PROTOCOLS;
        response_head::clean(&mut head.headers, head.status, self.link.protocol());
        head.version = response_head::ANSWER_VERSION;
        if is_switch {
            if !asks_to_upgrade {
                self.client.end(ResponseBodyError::Lost(None));
                return self.end(Ending::Reset).await;
            }
            // Where the client has left, this ends with its answer.
            let (to_worker, client) = oneshot::channel();
            let switched = ResponseBody::Switched(Some(to_worker));
            self.client.take().finish(Some(Response::from_parts(head, switched)));
            return self.tunnel(client).await;
        }
        self.is_endless |= is_event_stream(&head.headers);
        if incoming.is_end_stream() || length == Some(0) {
            drop(incoming); // With the last handle of a stream, its connection has another turn.
            let answer = Response::from_parts(head, ResponseBody::Empty);
            return self.complete(Some(answer)).await;
        }
        let mut here = match incoming.size_hint().exact() {
            _ if is_coded || self.is_endless || length.is_some() => Here::nothing(),
            // A single piece: those behind it can be passed on as they come.
            Some(1..) => Here::read(&mut incoming, 1).await,
            None if self.is_alone() => Here::read(&mut incoming, HERE_BYTES_MAX).await,
            // Over HTTP/2, what comes first may be trailers.
            Some(0) | None => Here::nothing(),
        };
        if here.is_all {
            drop(incoming);
            self.heard();
            let answer = Response::from_parts(head, ResponseBody::Whole(here.data));
            return self.complete(Some(answer)).await;
        }
        if let Some(Err(error)) = here.next.take_if(|next| next.is_err() && here.data.is_empty()) {
            self.note_complaint(&error);
            let ending = self.loss();
            let why = self.lost(error);
            self.client.end(why);
            return self.end(ending).await;
        }
        if is_coded {
            self.client.take().fail(SendError::Coded);
        } else {
            let left = incoming.size_hint().exact().map(|left| left + here.data.len() as u64);
            let relay = Relay::new(length.or(left));
            if !here.data.is_empty() {
                relay.add(Frame::data(here.data));
            }
            let reading = ResponseBody::Upstream(Reading(Rc::clone(&relay)));
            self.client.take().finish(Some(Response::from_parts(head, reading)));
            self.client = Client::Reads(relay);
        }
        self.read_on(incoming, here.next, length).await;
    }

    /// The worker has sent the head of its response. False if that may be read in two ways.
    fn answered(&mut self, head: &Parts, is_head: bool) -> bool {
        self.heard();
        self.permit.answered(self.started.elapsed());
        let Link::Http1(connection) = &mut self.link else { return true };
        connection.answered();
        let is_ambiguous = response_head::is_ambiguous(&head.headers, head.status, is_head);
        // To a worker that has spoken HTTP/1.0 hyper speaks HTTP/1.0 from then on, which has no
        // chunks: an upload of unknown length would be sent without its body.
        let is_last = !self.pool.upstream().keepalive;
        if is_ambiguous || is_last || head.version == Version::HTTP_10 {
            connection.spoil();
        }
        !is_ambiguous
    }

    /// Reads a response to its end: as fast as its client does, or as it comes once the tenure has
    /// ended or the client has left. If `left` is known, the response ends after so many bytes,
    /// whatever hyper takes for its end.
    async fn read_on(
        mut self: Box<Self>,
        mut incoming: Incoming,
        mut next: Option<Result<Frame<Bytes>, hyper::Error>>,
        mut left: Option<u64>,
    ) {
        self.watch_tenure(); // From here on it may take long.
        self.silence_max = self.timeouts.stream_idle;
        if self.is_endless || self.may_be_left {
            self.leave_in_time();
        }
        if self.is_endless && self.tenure_has_ended {
            drop(incoming);
            self.client.end(ResponseBodyError::Sealed);
            let ending = self.cut();
            return self.end(ending).await;
        }
        let mut catch_up = CatchUp::default();
        loop {
            let event = poll_fn(|cx| {
                let behind_max = if self.is_hurried() { BEHIND_BYTES_MAX } else { 0 };
                let may_read = match &self.client {
                    Client::Reads(relay) => {
                        relay.is_left(cx) || relay.behind().is_none_or(|behind| behind < behind_max)
                    }
                    Client::Awaits(_) | Client::Gone => true,
                };
                if may_read {
                    catch_up.goes_on();
                    if let Some(next) = next.take() {
                        return Poll::Ready(Ok(Some(next)));
                    }
                    if let Poll::Ready(next) = Pin::new(&mut incoming).poll_frame(cx) {
                        return Poll::Ready(Ok(next));
                    }
                } else if self.poll_slow_client(cx, &mut catch_up).is_ready() {
                    return Poll::Ready(Err(Event::ClientStalls));
                }
                self.poll_event(cx, may_read).map(Err)
            });
            let ended = match event.await {
                Ok(Some(Ok(mut frame))) => {
                    self.heard();
                    if let (Some(left), Some(data)) = (&mut left, frame.data_mut()) {
                        data.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
                        *left -= data.len() as u64;
                    }
                    if let Some(trailers) = frame.trailers_mut() {
                        fields::retain_harmless_trailers(trailers, &KeptFields::NONE);
                    }
                    if let Client::Reads(relay) = &self.client {
                        relay.add(frame);
                    }
                    if incoming.is_end_stream() || left == Some(0) {
                        drop(incoming);
                        return self.complete(None).await;
                    }
                    continue;
                }
                Ok(None) if self.is_whole(&incoming) && left.is_none() => {
                    drop(incoming);
                    return self.complete(None).await;
                }
                Ok(None) => Some((ResponseBodyError::Lost(None), self.loss())),
                Ok(Some(Err(error))) => {
                    self.note_complaint(&error);
                    Some((self.lost(error), self.loss()))
                }
                Err(event) => self.react(event),
            };
            if let Some((why, ending)) = ended {
                drop(incoming);
                self.client.end(why);
                return self.end(ending).await;
            }
        }
    }

    /// Why there is no more of a response whose connection was lost with that error.
    fn lost(&self, error: hyper::Error) -> ResponseBodyError {
        if self.connection.was_reset_by_group() {
            ResponseBodyError::LostStanding
        } else {
            ResponseBodyError::Lost(Some(error))
        }
    }

    /// Ready when a client that does not read is not waited for any longer.
    fn poll_slow_client(&mut self, cx: &mut Context<'_>, catch_up: &mut CatchUp) -> Poll<()> {
        self.waiting_since = None;
        if self.is_hurried() {
            return self.client_alarm.poll(cx, catch_up.due());
        }
        let Client::Reads(relay) = &self.client else { return Poll::Pending };
        let since = relay.untaken_since().unwrap_or_else(Instant::now);
        let Link::Http2(stream) = &mut self.link else { return self.poll_stall(cx, since) };
        ready!(self.client_alarm.poll(cx, since + BLOCKED_MAX));
        stream.is_held_up();
        Poll::Pending
    }

    /// Has no more requests go on an HTTP/2 connection on which the worker has lost its patience.
    fn note_complaint(&self, error: &hyper::Error) {
        if let Link::Http2(stream) = &self.link
            && complains(error)
        {
            stream.wears_out();
        }
    }

    /// Whether a body is whole that hyper says has ended: it takes an HTTP/2 reset with NO_ERROR
    /// for an end.
    fn is_whole(&self, incoming: &Incoming) -> bool {
        match self.link {
            Link::Http1(_) => incoming.size_hint().exact().is_none_or(|left| left == 0),
            Link::Http2(_) => incoming.is_end_stream(),
        }
    }
}

/// How long a client may still be behind, in all.
struct CatchUp {
    left: Duration,
    since: Option<Instant>,
}

impl Default for CatchUp {
    fn default() -> CatchUp {
        CatchUp { left: CATCH_UP_MAX, since: None }
    }
}

impl CatchUp {
    fn due(&mut self) -> Instant {
        *self.since.get_or_insert_with(Instant::now) + self.left
    }

    fn goes_on(&mut self) {
        if let Some(since) = self.since.take() {
            self.left = self.left.saturating_sub(since.elapsed());
        }
    }
}
