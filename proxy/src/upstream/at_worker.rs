//! A request at the worker, from its first byte until the worker is done with it.

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
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout, timeout_at};

use super::error::{Forwarded, ResponseBodyError, SendError};
use super::fields::{self, KeptFields};
use super::handed_over::{HandedOver, HeadFuture, Outgoing};
use super::here::Here;
use super::http2::was_refused;
use super::link::Link;
use super::permit::{Admitted, Ending, Held, LastBytes, Permit, TenureWatch};
use super::pool::{Pool, STALL_MAX};
use super::relay::Relay;
use super::request_body::RequestBody;
use super::response_body::{Reading, ResponseBody};
use super::response_head;
use super::target::Timeouts;
use super::tenure;
use super::upload::{Broken, Upload};
use super::websocket::WorkerEnd;
use crate::downstream::{BodyFault, Protocol};
use crate::wire::{Alarm, BackgroundGuard, BackgroundHold, Socket};

/// How far a client may be behind a response whose tenure has ended.
const BEHIND_BYTES_MAX: usize = 256 * 1024;
/// How long such a response waits for a client that is as far behind as it may be, in all: long enough for the client of a fast
/// worker to be given its turn by the system, too short for a tenure to be held up.
const CATCH_UP_MAX: Duration = Duration::from_millis(100);
/// How long a request that was given up may take to leave a connection whose worker takes what is written: its reset goes out when its
/// task has had its turn.
const LEAVE_MAX: Duration = Duration::from_millis(100);

/// A request at the worker. It has a task of its own, which ends when the worker is done with the request, or it is given up; whether its
/// client is there makes no difference to that.
pub(super) struct AtWorker<P: Permit> {
    link: Link,
    /// The connection, as long as it has to be reset before the permit goes.
    connection: Rc<Socket>,
    pool: Pool,
    permit: Held<P>,
    handed_over: Rc<HandedOver>,
    /// `None` unless the request's body is streamed.
    upload: Option<Rc<Upload>>,
    timeouts: Timeouts,
    started: Instant,
    /// Whether it is cut when its tenure ends.
    is_endless: bool,
    /// Whether nobody waits for its end but its client.
    may_be_left: bool,
    /// Whether its upload gives way to those who wait for its connection.
    gives_way: bool,
    watch: Option<Rc<dyn TenureWatch>>,
    /// Ready when the tenure has ended. `None` as long as that is not watched, and once it is known.
    until_end: Option<Pin<Box<dyn Future<Output = ()>>>>,
    tenure_has_ended: bool,
    alarm: Alarm,
    /// For a client that lets us wait.
    client_alarm: Alarm,
    /// Since when the worker owes us something.
    waiting_since: Option<Instant>,
    /// How much had been read of the connection when it was last looked at.
    read: u64,
    /// When a client that lets it wait is looked at again.
    looks_at: Option<Instant>,
    /// When the worker was last heard of, or found to be too slow. `None` as long as the request has not taken too long.
    overdue_since: Option<Instant>,
    /// Whether it is not read for ever once its client has left.
    is_left_in_time: bool,
    /// When it is closed, if it has no end of its own, or none that anybody waits for.
    closes_at: Option<Instant>,
    /// Counts it as background work. `None` as long as the client is there.
    without_client: Option<BackgroundGuard>,
    /// The thread does not end before this.
    _stays: BackgroundHold,
}

/// What a client gets for a request.
pub(super) type Outcome<P> = Result<Response<ResponseBody<P>>, SendError<P>>;

/// A request that hyper has been given.
pub(super) struct Sent {
    pub(super) head: HeadFuture,
    /// The request once more, where hyper would not give it back although the worker has refused it.
    pub(super) copy: Option<Box<Request<RequestBody>>>,
    pub(super) asks_to_upgrade: bool,
    pub(super) is_head: bool,
    pub(super) has_body: bool,
}

/// What may come while something of the worker is waited for.
enum Event {
    /// The client has left.
    ClientLeft,
    /// The client does not read, and is not to be waited for.
    ClientStalls,
    TenureEnded,
    /// The worker never gets the whole of the request.
    UploadBroken(Broken),
    /// The worker has been silent for too long.
    TimeUp,
}

impl<P: Permit> AtWorker<P> {
    pub(super) fn new(
        link: Link,
        pool: Pool,
        permit: P,
        (handed_over, upload): (Rc<HandedOver>, Option<Rc<Upload>>),
        timeouts: Timeouts,
        at: Instant,
    ) -> Box<AtWorker<P>> {
        let (is_endless, may_be_left) = (permit.is_endless(), permit.may_be_left());
        let gives_way = upload.is_some() && matches!(link, Link::Http1(_)) && permit.gives_way();
        let mut at_worker = Box::new(AtWorker {
            _stays: pool.background().hold(),
            connection: Rc::new(link.socket().clone()),
            read: link.socket().bytes_read(),
            link,
            pool,
            is_endless,
            may_be_left,
            gives_way,
            permit: Held::new(permit),
            handed_over,
            upload,
            timeouts,
            started: at,
            watch: None,
            until_end: None,
            tenure_has_ended: false,
            alarm: Alarm::new(),
            client_alarm: Alarm::new(),
            waiting_since: Some(at),
            looks_at: None,
            overdue_since: None,
            is_left_in_time: is_endless,
            closes_at: None,
            without_client: None,
        });
        // What is whole and has an end is mostly over before that matters.
        if at_worker.upload.is_some() || is_endless {
            at_worker.watch_tenure();
        }
        at_worker
    }

    /// Waits for the head of the response, tells the client, and goes on from there.
    pub(super) async fn run(mut self: Box<Self>, sent: Sent, tell: oneshot::Sender<Outcome<P>>) {
        let Sent { mut head, copy, asks_to_upgrade, is_head, has_body } = sent;
        let mut tell = Some(tell);
        let response = loop {
            let next = poll_fn(|cx| {
                if let Poll::Ready(head) = head.as_mut().poll(cx) {
                    return Poll::Ready(Ok(head));
                }
                let has_left = tell.as_mut().is_some_and(|tell| tell.poll_closed(cx).is_ready());
                self.poll_event(cx, has_left, true).map(Err)
            });
            let (told, ending) = match next.await {
                Ok(Ok(response)) => break response,
                Ok(Err(error)) => return self.failed(error, copy, tell).await,
                Err(Event::ClientLeft | Event::ClientStalls) => {
                    tell = None;
                    continue;
                }
                Err(Event::TenureEnded) if self.is_endless || self.is_upload() => (no_answer(None), self.cut()),
                Err(Event::TenureEnded) => continue,
                Err(Event::UploadBroken(Broken::ByClient(fault))) => (SendError::Body(fault), Ending::BodyCut),
                Err(Event::UploadBroken(Broken::Cut)) => (no_answer(None), Ending::BodyCut),
                Err(Event::TimeUp) if self.is_given_up() => (SendError::Timeout, self.gave_up()),
                Err(Event::TimeUp) => {
                    self.overdue();
                    self.tell(&mut tell, Err(SendError::Timeout));
                    continue;
                }
            };
            drop(head); // Over HTTP/2, this resets the stream.
            self.tell(&mut tell, Err(told));
            return self.end(ending).await;
        };
        self.respond(response, (asks_to_upgrade, is_head, has_body), tell).await;
    }

    /// Tells the client, which is not waited for from then on.
    fn tell(&mut self, tell: &mut Option<oneshot::Sender<Outcome<P>>>, outcome: Outcome<P>) {
        if let Some(tell) = tell.take() {
            let _ = tell.send(outcome);
        }
        self.without_client.get_or_insert_with(|| self.pool.background().guard());
    }

    /// There is no head.
    async fn failed(
        self: Box<Self>,
        mut error: TrySendError<Request<Outgoing>>,
        copy: Option<Box<Request<RequestBody>>>,
        mut tell: Option<oneshot::Sender<Outcome<P>>>,
    ) {
        let returned = error.take_message().map(|request| Box::new(request.map(Outgoing::into_body)));
        let error = error.into_error();
        self.pool.lost(self.link.socket());
        let broken = self.upload.as_ref().and_then(|upload| upload.broken());
        let refused = was_refused(&error);
        let copy = if refused { copy } else { None };
        let (told, ending) = match (returned.or(copy), broken) {
            (Some(request), None) => {
                let unsent = Admitted::new(request, self.permit.into_inner());
                // Where nobody is left to send it again, the permit is given back with it.
                let _ = tell.take().map(|tell| tell.send(Err(SendError::Unsent(Box::new(unsent)))));
                return;
            }
            // Nothing was sent, and nothing is left to be sent whole.
            (Some(_), Some(_)) => (declined(error), Ending::Complete),
            (None, Some(Broken::ByClient(fault))) => (SendError::Body(fault), Ending::BodyCut),
            (None, Some(Broken::Cut)) => (no_answer(None), Ending::BodyCut),
            // The worker has not looked at it and never will, but a streamed body can't be sent again.
            (None, None) if refused => (declined(error), Ending::Complete),
            (None, None) => (no_answer(Some(error)), self.loss()),
        };
        let mut this = self;
        this.tell(&mut tell, Err(told));
        this.end(ending).await;
    }

    /// The head of the response has come.
    async fn respond(
        mut self: Box<Self>,
        response: Response<Incoming>,
        (asks_to_upgrade, is_head, has_body): (bool, bool, bool),
        mut tell: Option<oneshot::Sender<Outcome<P>>>,
    ) {
        let (mut head, mut incoming) = response.into_parts();
        let is_clear = self.answered(&head, is_head);
        let is_coded = !is_clear && !incoming.is_end_stream() && response_head::is_coded(&head.headers);
        let is_switch = head.status == StatusCode::SWITCHING_PROTOCOLS;
        response_head::clean(&mut head.headers, head.status, self.link.protocol());
        head.version = response_head::ANSWER_VERSION;
        if is_switch {
            let Some(tell) = tell.take_if(|_| asks_to_upgrade) else {
                self.tell(&mut tell, Err(no_answer(None)));
                return self.end(Ending::Reset).await;
            };
            // Where the client has left, this ends with its answer.
            let _ =
                tell.send(Ok(Response::from_parts(head, ResponseBody::Switched(Some(Box::new(WorkerEnd::new(self)))))));
            return;
        }
        let is_endless = self.is_endless || is_event_stream(&head.headers);
        if incoming.is_end_stream() {
            drop(incoming); // With the last handle of a stream, its connection has another turn.
            let answer = Response::from_parts(head, ResponseBody::Empty);
            return self.complete(has_body, || _ = tell.map(|tell| tell.send(Ok(answer)))).await;
        }
        let mut here =
            if is_coded { Here::default() } else { Here::read(&mut incoming, self.link.protocol(), is_endless).await };
        if here.is_all {
            drop(incoming);
            self.heard();
            let answer = Response::from_parts(head, ResponseBody::Whole(here.data));
            return self.complete(has_body, || _ = tell.map(|tell| tell.send(Ok(answer)))).await;
        }
        if let Some(Err(error)) = here.next.take_if(|next| next.is_err() && here.data.is_empty()) {
            let ending = self.loss();
            self.tell(&mut tell, Err(no_answer(Some(error))));
            return self.end(ending).await;
        }
        let relay = Rc::<Relay>::default();
        let left = incoming.size_hint().exact().map(|left| left + here.data.len() as u64);
        if !here.data.is_empty() {
            relay.add(Frame::data(here.data));
        }
        let answer = Response::from_parts(head, ResponseBody::Upstream(Reading::new(Rc::clone(&relay), left)));
        // With an answer that is not passed on, the client has left.
        match tell.take_if(|_| !is_coded) {
            Some(tell) => _ = tell.send(Ok(answer)),
            None => {
                drop(answer);
                self.tell(&mut tell, Err(SendError::Coded));
            }
        }
        self.read_on((incoming, here.next), &relay, is_endless, has_body).await;
    }

    /// The worker has sent the head of its response. False if that may be read in two ways.
    fn answered(&mut self, head: &Parts, is_head: bool) -> bool {
        self.heard();
        self.permit.answered(self.started.elapsed());
        let Link::Http1(connection) = &mut self.link else { return true };
        connection.answered();
        let is_ambiguous = response_head::is_ambiguous(&head.headers, head.status, is_head);
        // To a worker that has spoken HTTP/1.0 hyper speaks HTTP/1.0 from then on, which has no chunks: an upload of unknown length would
        // be sent without its body.
        if is_ambiguous || head.version == Version::HTTP_10 {
            connection.spoil();
        }
        !is_ambiguous
    }

    /// Reads a response to its end: as fast as its client does, or as it comes once the tenure has ended or the client has left.
    async fn read_on(
        mut self: Box<Self>,
        (mut incoming, mut next): (Incoming, Option<Result<Frame<Bytes>, hyper::Error>>),
        relay: &Rc<Relay>,
        is_endless: bool,
        has_body: bool,
    ) {
        self.watch_tenure(); // From here on it may take long.
        if is_endless || self.may_be_left {
            self.leave_in_time();
        }
        if is_endless && self.tenure_has_ended {
            drop(incoming);
            relay.end(Err(ResponseBodyError::Sealed));
            let ending = self.cut();
            return self.end(ending).await;
        }
        let mut catch_up = CatchUp::default();
        loop {
            let event = poll_fn(|cx| {
                let has_left = relay.is_left(cx);
                let is_hurried = self.tenure_has_ended || self.overdue_since.is_some();
                let behind_max = if is_hurried { BEHIND_BYTES_MAX } else { 0 };
                let may_read = has_left || relay.behind().is_none_or(|behind| behind < behind_max);
                if may_read {
                    catch_up.goes_on();
                    if let Some(next) = next.take() {
                        return Poll::Ready(Ok(Some(next)));
                    }
                    if let Poll::Ready(next) = Pin::new(&mut incoming).poll_frame(cx) {
                        return Poll::Ready(Ok(next));
                    }
                } else {
                    self.waiting_since = None;
                    let untaken_since = relay.untaken_since().unwrap_or_else(Instant::now);
                    let is_due = if is_hurried {
                        self.client_alarm.poll(cx, catch_up.due()).is_ready()
                    } else {
                        self.is_alone() && self.poll_stall(cx, untaken_since).is_ready()
                    };
                    if is_due {
                        return Poll::Ready(Err(Event::ClientStalls));
                    }
                }
                self.poll_event(cx, has_left, may_read).map(Err)
            });
            let (told, ending) = match event.await {
                Ok(Some(Ok(mut frame))) => {
                    self.heard();
                    if let Some(trailers) = frame.trailers_mut() {
                        fields::retain_harmless_trailers(trailers, &KeptFields::NONE);
                    }
                    relay.add(frame);
                    if incoming.is_end_stream() {
                        drop(incoming);
                        return self.complete(has_body, || relay.end(Ok(()))).await;
                    }
                    continue;
                }
                Ok(None) if self.is_whole(&incoming) => {
                    drop(incoming);
                    return self.complete(has_body, || relay.end(Ok(()))).await;
                }
                Ok(None) => (ResponseBodyError::Lost(None), self.loss()),
                Ok(Some(Err(error))) => (ResponseBodyError::Lost(Some(error)), self.loss()),
                Err(Event::ClientLeft) => continue,
                Err(Event::ClientStalls) => {
                    let is_cut = self.tenure_has_ended || self.overdue_since.is_some();
                    if is_cut {
                        self.watch.iter().for_each(|watch| watch.cut());
                    }
                    relay.leave_client(if is_cut { ResponseBodyError::TooSlow } else { ResponseBodyError::Stalled });
                    continue;
                }
                Err(Event::TenureEnded) if is_endless || self.is_upload() => (ResponseBodyError::Sealed, self.cut()),
                Err(Event::TenureEnded) => continue,
                Err(Event::UploadBroken(Broken::Cut)) => (ResponseBodyError::Sealed, Ending::BodyCut),
                Err(Event::UploadBroken(Broken::ByClient(_))) => (ResponseBodyError::Unfinished, Ending::BodyCut),
                Err(Event::TimeUp) if self.is_given_up() => (ResponseBodyError::Silent, self.gave_up()),
                Err(Event::TimeUp) => {
                    self.overdue();
                    relay.leave_client(ResponseBodyError::Silent);
                    continue;
                }
            };
            drop(incoming);
            relay.end(Err(told));
            return self.end(ending).await;
        }
    }

    /// Ready when a client that has let its connection wait since then is to lose it, since others wait for one.
    fn poll_stall(&mut self, cx: &mut Context<'_>, since: Instant) -> Poll<()> {
        let due = self.looks_at.map_or(since + STALL_MAX, |looks_at| looks_at.max(since + STALL_MAX));
        ready!(self.client_alarm.poll(cx, due));
        if self.pool.takes_from_client() {
            return Poll::Ready(());
        }
        let looks_at = Instant::now() + STALL_MAX;
        self.looks_at = Some(looks_at);
        self.client_alarm.poll(cx, looks_at)
    }

    /// Whether it has its connection for itself.
    fn is_alone(&self) -> bool {
        matches!(self.link, Link::Http1(_))
    }

    /// Whether a body is whole that hyper says has ended: it takes an HTTP/2 reset with NO_ERROR for an end.
    fn is_whole(&self, incoming: &Incoming) -> bool {
        match self.link {
            Link::Http1(_) => incoming.size_hint().exact().is_none_or(|left| left == 0),
            Link::Http2(_) => incoming.is_end_stream(),
        }
    }

    /// The response has ended whole: `tell` says so to the client. The request leaves the gate now if it is written. A worker may answer
    /// before it has read the whole request, and read on.
    async fn complete(mut self: Box<Self>, has_body: bool, tell: impl FnOnce()) {
        let is_over = |this: &Self| this.handed_over.is_settled() && !this.is_upload();
        // Over HTTP/2, the worker has read a head that it has answered.
        if self.handed_over.is_written() || !has_body {
            return self.settle(has_body, tell).await;
        }
        tell();
        self.without_client.get_or_insert_with(|| self.pool.background().guard());
        self.watch_tenure();
        if matches!(self.link, Link::Http2(_)) {
            let handed_over = Rc::clone(&self.handed_over);
            let settled = handed_over.turns().until(|| is_over(&self));
            if timeout(LEAVE_MAX, settled).await.is_err() {
                self.leave_connection();
                self.overdue();
            }
        }
        loop {
            let event = poll_fn(|cx| {
                if is_over(&self) {
                    return Poll::Ready(None);
                }
                self.handed_over.turns().wake_after_next(cx);
                self.poll_event(cx, true, true).map(Some)
            });
            let ending = match event.await {
                None => break,
                Some(Event::TenureEnded) if self.is_upload() => self.cut(),
                Some(Event::TenureEnded | Event::ClientLeft | Event::ClientStalls) => continue,
                Some(Event::UploadBroken(_)) => Ending::BodyCut,
                Some(Event::TimeUp) => self.gave_up(),
            };
            return self.end(ending).await;
        }
        // Over HTTP/2, a worker that has answered may reset the rest of its request: it is done with it.
        let is_broken = self.upload.as_ref().is_some_and(|upload| upload.broken().is_some());
        let is_reset = matches!(self.link, Link::Http2(_)) && !self.handed_over.is_lost() && !is_broken;
        if self.handed_over.is_written() || is_reset {
            return self.settle(has_body, || ()).await;
        }
        self.end(Ending::BodyCut).await;
    }

    /// Request and response have come to their ends: the permit is told before the client is. The connection goes back to its pool.
    async fn settle(self: Box<Self>, has_body: bool, tell: impl FnOnce()) {
        let AtWorker { link, pool, permit, .. } = *self;
        let connection = match link {
            Link::Http1(connection) => connection.end_exchange(has_body),
            Link::Http2(stream) => {
                stream.ends();
                None
            }
        };
        let later = match connection {
            Some(connection) if connection.is_ready() => {
                pool.put_back(connection); // At once, for the next request.
                None
            }
            later => later,
        };
        permit.finished(Ending::Complete, Instant::now());
        tell();
        // hyper may not have seen yet that this was the end.
        if let Some(connection) = later
            && let Some(connection) = connection.until_ready().await
        {
            pool.put_back(connection);
        }
    }

    /// The request is given up. Its permit is told when nothing more of it can be written.
    async fn end(mut self: Box<Self>, how: Ending) {
        self.break_off();
        let undelivered_max = self.pool.upstream().unacknowledged_max;
        if matches!(self.link, Link::Http2(_)) && !self.handed_over.is_settled() {
            let handed_over = Rc::clone(&self.handed_over);
            let settled = handed_over.turns().until(|| handed_over.is_settled());
            if timeout(LEAVE_MAX, settled).await.is_err() {
                self.leave_connection();
                self.lose(how);
                let closes_at = self.permit.counts_until().unwrap_or_else(|| Instant::now() + self.timeouts.late);
                let is_left = || matches!(&self.link, Link::Http2(stream) if stream.is_left_by_all());
                let left = handed_over.turns().until(|| handed_over.is_settled() || is_left());
                let _ = timeout_at(closes_at, left).await;
                if !handed_over.is_settled() {
                    self.connection.reset();
                }
            }
        }
        let AtWorker { link, permit, handed_over, .. } = *self;
        let now = Instant::now();
        let last_bytes = match &link {
            Link::Http1(_) => now, // It is reset right here.
            Link::Http2(_) => handed_over.last_write().map_or(now, |written| now.max(written + undelivered_max)),
        };
        drop(link);
        permit.finished(how, last_bytes);
    }

    /// Over HTTP/2: no more requests go by this connection as long as this one has not left it, and if it can't, the connection ends.
    fn leave_connection(&mut self) {
        if let Link::Http2(stream) = &mut self.link {
            stream.leaves();
        }
    }

    fn break_off(&self) {
        if let Some(upload) = &self.upload {
            upload.break_off(Broken::Cut);
        }
    }

    /// Cuts it, since its tenure has ended.
    fn cut(&self) -> Ending {
        self.watch.iter().for_each(|watch| watch.cut());
        if self.is_upload() { Ending::BodyCut } else { Ending::Cut }
    }

    fn gave_up(&self) -> Ending {
        if self.is_upload() && self.link.protocol() == Protocol::Http1 { Ending::BodyCut } else { Ending::TimedOut }
    }

    /// The connection was lost.
    fn loss(&self) -> Ending {
        let is_partial = self.upload.as_ref().is_some_and(|upload| !upload.is_whole());
        if is_partial { Ending::BodyCut } else { Ending::Reset }
    }

    /// Whether a part of its body is still to be sent.
    fn is_upload(&self) -> bool {
        self.upload.as_ref().is_some_and(|upload| upload.is_running())
    }

    /// Whether a worker that has been silent for too long is not waited for any longer: it has had its time, or it does not have the
    /// whole of the request, and is not to get that later.
    fn is_given_up(&self) -> bool {
        let closes = self.without_client.is_some() && self.closes_at.is_some_and(|at| at <= Instant::now());
        self.overdue_since.is_some() || closes || self.is_upload() || !self.handed_over.is_written()
    }

    /// The worker has taken too long; its end is waited for without the client, as long as it is heard of.
    fn overdue(&mut self) {
        self.watch_tenure(); // With which its answer may have to be cut.
        let last_bytes = self.last_bytes();
        self.permit.overdue(last_bytes);
        let now = Instant::now();
        let total = self.timeouts.total.map(|total| now.max(self.started + total));
        let ends = if self.is_left_in_time { Some(now) } else { total };
        // Not before it ceases to count: what the worker says until then may end that sooner.
        let counts_until = self.permit.counts_until();
        self.closes_at = ends.map(|at| (at + self.timeouts.late).max(counts_until.unwrap_or(at)));
        (self.overdue_since, self.waiting_since) = (Some(now), None);
        self.without_client.get_or_insert_with(|| self.pool.background().guard());
    }

    /// The permit counts down from now on, unless it does already.
    fn lose(&mut self, how: Ending) {
        if self.overdue_since.replace(Instant::now()).is_none() {
            let last_bytes = self.last_bytes();
            if how == Ending::BodyCut { self.permit.body_cut(last_bytes) } else { self.permit.overdue(last_bytes) }
        }
    }

    /// How the worker may still get something of it from here on.
    fn last_bytes(&self) -> LastBytes {
        let written = match &self.link {
            Link::Http1(connection) => connection.socket().last_write(),
            Link::Http2(_) => self.handed_over.last_write(),
        };
        let now = Instant::now();
        let until = written.map_or(now, |written| now.max(written + self.pool.upstream().unacknowledged_max));
        let is_to_close = self.is_alone() || !self.handed_over.is_settled();
        LastBytes { until, connection: is_to_close.then(|| Rc::downgrade(&self.connection)) }
    }

    /// The worker has said something.
    fn heard(&mut self) {
        self.waiting_since = None;
        if let Some(since) = &mut self.overdue_since {
            *since = Instant::now();
            self.permit.heard();
        }
    }

    /// Watches the tenure from here on, if the request depends on one.
    pub(super) fn watch_tenure(&mut self) {
        if self.watch.is_some() || self.overdue_since.is_some() {
            return;
        }
        self.watch = self.permit.watch();
        if let Some(watch) = &self.watch {
            let upload = self.upload.clone();
            upload.iter().for_each(|upload| upload.depends_on(Rc::clone(watch)));
            let is_coming = move || upload.as_ref().is_some_and(|upload| upload.is_running());
            self.until_end = Some(Box::pin(tenure::ended(Rc::clone(watch), is_coming)));
        }
    }

    /// Without a client, it is not read for ever.
    fn leave_in_time(&mut self) {
        self.is_left_in_time = true;
        if self.without_client.is_some() {
            self.closes_at.get_or_insert(Instant::now() + self.timeouts.late);
        }
    }

    /// What has happened meanwhile. Whether the worker `owes` us something: then its time runs.
    fn poll_event(&mut self, cx: &mut Context<'_>, has_left: bool, owes: bool) -> Poll<Event> {
        if has_left && self.without_client.is_none() {
            self.without_client = Some(self.pool.background().guard());
            if self.is_left_in_time {
                self.closes_at = Some(Instant::now() + self.timeouts.late);
            }
            return Poll::Ready(Event::ClientLeft);
        }
        if self.poll_tenure_end(cx).is_ready() {
            return Poll::Ready(Event::TenureEnded);
        }
        if let Some(upload) = &self.upload
            && let Poll::Ready(broken) = upload.poll_broken(cx)
        {
            return Poll::Ready(Event::UploadBroken(broken));
        }
        if !owes {
            return Poll::Pending;
        }
        self.poll_time_up(cx).map(|()| Event::TimeUp)
    }

    /// Ready once, when the tenure has ended.
    pub(super) fn poll_tenure_end(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(until_end) = &mut self.until_end else { return Poll::Pending };
        ready!(until_end.as_mut().poll(cx));
        self.until_end = None;
        self.tenure_has_ended = true;
        Poll::Ready(())
    }

    /// Ready when the worker has been silent for too long.
    fn poll_time_up(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let waiting_since = *self.waiting_since.get_or_insert_with(Instant::now);
        if self.overdue_since.is_some() {
            self.hear(cx);
        } else if self.gives_way
            && let Some(upload) = self.upload.clone()
            && self.poll_stall(cx, upload.stalled_since().unwrap_or_else(Instant::now)).is_ready()
        {
            upload.break_off(Broken::ByClient(BodyFault::Slow));
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let due = match self.overdue_since {
            Some(since) => {
                let counts_until = self.permit.counts_until().unwrap_or(since + self.timeouts.late);
                self.closes_at.map_or(counts_until, |at| at.min(counts_until))
            }
            None => {
                let turn = self.upload.as_ref().map_or(waiting_since, |upload| upload.worker_has_its_turn_since());
                let silent = waiting_since.max(turn) + self.timeouts.silence;
                let ends = match self.closes_at {
                    Some(at) if self.without_client.is_some() => Some(at),
                    _ => self.timeouts.total.map(|total| self.started + total),
                };
                ends.map_or(silent, |ends| silent.min(ends))
            }
        };
        self.alarm.poll(cx, due)
    }

    /// Hears whether a worker that has taken too long has said something that is no head yet, or no whole piece: it has been at the request
    /// until then. Over HTTP/2 that is not seen.
    fn hear(&mut self, cx: &Context<'_>) {
        if let Link::Http1(connection) = &self.link {
            connection.turns().wake_after_next(cx);
            let read = connection.socket().bytes_read();
            if std::mem::replace(&mut self.read, read) != read {
                self.heard();
            }
        }
    }

    pub(super) fn late(&self) -> Duration {
        self.timeouts.late
    }

    pub(super) fn link_mut(&mut self) -> &mut Link {
        &mut self.link
    }

    /// What a tunnel depends on.
    pub(super) fn watch(&self) -> Option<Rc<dyn TenureWatch>> {
        self.watch.clone()
    }

    /// The tunnel begins: what comes of its client is like a body.
    pub(super) fn watch_tunnel(&mut self) {
        if let Some(watch) = self.watch.clone() {
            self.until_end = Some(Box::pin(tenure::ended(watch, || true)));
        }
    }

    /// What was spoken after HTTP has ended.
    pub(super) fn end_tunnel(self: Box<Self>, how: Ending) {
        let AtWorker { link, permit, watch, .. } = *self;
        if how == Ending::Cut {
            watch.iter().for_each(|watch| watch.cut());
        }
        drop(link);
        permit.finished(how, Instant::now());
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

fn no_answer<P>(source: Option<hyper::Error>) -> SendError<P> {
    SendError::NoAnswer { forwarded: Forwarded::Unknown, source }
}

fn declined<P>(error: hyper::Error) -> SendError<P> {
    SendError::NoAnswer { forwarded: Forwarded::No, source: Some(error) }
}
