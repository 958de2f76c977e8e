//! A request at the worker, from its first byte until the worker is done with it.

mod ending;
mod response;

use std::future::pending;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::{Request, Response};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::error::{ResponseBodyError, SendError};
use super::handed_over::{HandedOver, HeadFuture};
use super::link::Link;
use super::permit::{Ending, Held, LastBytes, Permit, TenureWatch, held};
use super::pool::{Pool, STALL_MAX};
use super::relay::Relay;
use super::request_body::RequestBody;
use super::response_body::ResponseBody;
use super::target::Timeouts;
use super::tenure;
use super::upload::{Broken, Upload};
use crate::wire::{Alarm, BackgroundGuard, Socket};

/// A request at the worker. It has a task of its own, which ends when the worker is done with the
/// request, or it is given up; whether its client is there makes no difference to that.
pub(super) struct AtWorker<P: Permit> {
    pub(super) link: Link,
    /// The connection, as long as it has to be reset before the permit goes.
    connection: Rc<Socket>,
    pool: Pool,
    pub(super) permit: Held<P>,
    client: Client<P>,
    has_body: bool,
    handed_over: Rc<HandedOver>,
    /// `None` unless the request's body is streamed.
    upload: Option<Rc<Upload>>,
    pub(super) timeouts: Timeouts,
    started: Instant,
    /// Whether it has no end of its own: it is cut when its tenure ends.
    is_endless: bool,
    /// Whether nobody waits for its end but its client.
    may_be_left: bool,
    pub(super) watch: Option<Rc<dyn TenureWatch>>,
    /// Ready when the tenure has ended. `None` as long as that is not watched, and once it is
    /// known.
    until_end: Option<Pin<Box<dyn Future<Output = ()>>>>,
    tenure_has_ended: bool,
    alarm: Alarm,
    /// For a client that lets us wait.
    client_alarm: Alarm,
    /// How long the worker may be silent in this phase of the request.
    silence_max: Option<Duration>,
    /// Since when the worker owes us something.
    waiting_since: Option<Instant>,
    /// How much had been read of the connection when it was last looked at.
    read: u64,
    /// When a client that lets it wait is looked at again.
    looks_at: Option<Instant>,
    /// When the worker was last heard of, or found to be too slow. `None` as long as the request
    /// has not taken too long.
    overdue_since: Option<Instant>,
    /// Whether it is not read for ever once its client has left.
    is_left_in_time: bool,
    /// When it is closed, if it has no end of its own, or none that anybody waits for.
    closes_at: Option<Instant>,
    /// Counts it as background work. `None` as long as the client is there.
    without_client: Option<BackgroundGuard>,
    /// The thread does not end before this.
    _stays: BackgroundGuard,
}

/// What a client gets for a request.
pub(super) type Outcome<P> = Result<Response<ResponseBody>, SendError<P>>;

/// A request that hyper has been given.
pub(super) struct Sent {
    pub(super) head: HeadFuture,
    /// The request once more, where hyper would not give it back although the worker has refused
    /// it.
    pub(super) copy: Option<Box<Request<RequestBody>>>,
    pub(super) asks_to_upgrade: bool,
    pub(super) is_head: bool,
}

/// What is told what comes of a request.
pub(super) enum Client<P: Permit> {
    /// It waits for the head of the response.
    Awaits(oneshot::Sender<Outcome<P>>),
    /// It reads the body of the response.
    Reads(Rc<Relay>),
    /// It has left, or has got all that it gets.
    Gone,
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
        client: oneshot::Sender<Outcome<P>>,
        (handed_over, upload, has_body): (Rc<HandedOver>, Option<Rc<Upload>>, bool),
        (timeouts, at): (Timeouts, Instant),
    ) -> Box<AtWorker<P>> {
        let (is_endless, may_be_left) = (permit.is_endless(), permit.may_be_left());
        let mut at_worker = Box::new(AtWorker {
            _stays: pool.background().hold(),
            connection: Rc::new(link.socket().clone()),
            read: link.socket().bytes_read(),
            link,
            pool,
            is_endless,
            may_be_left,
            permit: held(permit),
            client: Client::Awaits(client),
            has_body,
            handed_over,
            upload,
            timeouts,
            started: at,
            watch: None,
            until_end: None,
            tenure_has_ended: false,
            alarm: Alarm::new(),
            client_alarm: Alarm::new(),
            silence_max: Some(timeouts.silence),
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

    /// Ready when a client that has let its connection wait since then is to lose it, since others
    /// wait for one.
    fn poll_stall(&mut self, cx: &mut Context<'_>, since: Instant) -> Poll<()> {
        let due =
            self.looks_at.map_or(since + STALL_MAX, |looks_at| looks_at.max(since + STALL_MAX));
        ready!(self.client_alarm.poll(cx, due));
        if self.pool.is_wanted() {
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

    /// Whether a part of its body is still to be sent.
    fn is_upload(&self) -> bool {
        self.upload.as_ref().is_some_and(|upload| upload.is_running())
    }

    /// Whether a worker that has been silent for too long is not waited for any longer: it has had
    /// its time, or it does not have the whole of the request, and is not to get that later.
    fn is_given_up(&self) -> bool {
        let closes =
            self.without_client.is_some() && self.closes_at.is_some_and(|at| at <= Instant::now());
        self.overdue_since.is_some() || closes || self.is_upload() || !self.handed_over.is_written()
    }

    /// The worker has taken too long; its end is waited for without the client, as long as it is
    /// heard of.
    fn overdue(&mut self) {
        self.watch_tenure(); // With which its answer may have to be cut.
        let last_bytes = self.last_bytes();
        self.permit.lost(Ending::TimedOut, last_bytes);
        let now = Instant::now();
        let total = self.timeouts.total.map(|total| now.max(self.started + total));
        let ends = if self.is_left_in_time { Some(now) } else { total };
        // Not before it ceases to count: what the worker says until then may end that sooner.
        let counts_until = self.permit.counts_until();
        self.closes_at = ends.map(|at| (at + self.timeouts.late).max(counts_until.unwrap_or(at)));
        (self.overdue_since, self.waiting_since) = (Some(now), None);
        self.note_client_has_left();
    }

    /// Counts it as background work from now on.
    fn note_client_has_left(&mut self) {
        self.without_client.get_or_insert_with(|| self.pool.background().guard());
    }

    /// What follows from an event: what the client is told, and how the request ends. `None` if it
    /// goes on.
    fn react(&mut self, event: Event) -> Option<(ResponseBodyError, Ending)> {
        match event {
            Event::ClientLeft => {
                self.client = Client::Gone;
                None
            }
            Event::ClientStalls => {
                let why = if self.is_hurried() {
                    self.watch.iter().for_each(|watch| watch.cut());
                    ResponseBodyError::TooSlow
                } else {
                    ResponseBodyError::Stalled
                };
                self.client.end(why);
                None
            }
            Event::TenureEnded if self.is_endless || self.is_upload() => {
                Some((ResponseBodyError::Sealed, self.cut()))
            }
            Event::TenureEnded => None,
            Event::UploadBroken(Broken::Cut) => Some((ResponseBodyError::Sealed, Ending::BodyCut)),
            Event::UploadBroken(Broken::ByClient(fault)) => {
                Some((ResponseBodyError::Unfinished(fault), Ending::BodyCut))
            }
            Event::TimeUp if self.is_given_up() => {
                Some((ResponseBodyError::Silent, self.gave_up()))
            }
            Event::TimeUp => {
                self.overdue();
                self.client.end(ResponseBodyError::Silent);
                None
            }
        }
    }

    /// Whether its response is read at the worker's pace.
    fn is_hurried(&self) -> bool {
        self.tenure_has_ended || self.overdue_since.is_some()
    }

    /// The permit counts down from now on, unless it does already.
    fn lose(&mut self, how: Ending) {
        if self.overdue_since.replace(Instant::now()).is_none() {
            let last_bytes = self.last_bytes();
            self.permit.lost(how, last_bytes);
        }
    }

    /// How the worker may still get something of it from here on.
    fn last_bytes(&self) -> LastBytes {
        let written = match &self.link {
            Link::Http1(connection) => connection.socket().last_write(),
            Link::Http2(_) => self.handed_over.last_write(),
        };
        let now = Instant::now();
        let until = written
            .map_or(now, |written| now.max(written + self.pool.upstream().unacknowledged_max));
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
    fn poll_event(&mut self, cx: &mut Context<'_>, owes: bool) -> Poll<Event> {
        if self.client.has_left(cx) && self.without_client.is_none() {
            self.without_client = Some(self.pool.background().guard());
            if self.is_left_in_time {
                self.closes_at = Some(Instant::now() + self.timeouts.late);
            }
            return Poll::Ready(Event::ClientLeft);
        }
        if pin!(self.tenure_end()).poll(cx).is_ready() {
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

    /// Completes once, when the tenure has ended.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub(super) async fn tenure_end(&mut self) {
        match &mut self.until_end {
            Some(until_end) => until_end.await,
            None => pending().await,
        }
        (self.until_end, self.tenure_has_ended) = (None, true);
    }

    /// Ready when the worker has been silent for too long.
    fn poll_time_up(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let waiting_since = *self.waiting_since.get_or_insert_with(Instant::now);
        if self.overdue_since.is_some() {
            self.hear(cx);
        }
        let due = match self.overdue_since {
            Some(since) => {
                let counts_until = self.permit.counts_until().unwrap_or(since + self.timeouts.late);
                self.closes_at.map_or(counts_until, |at| at.min(counts_until))
            }
            None => {
                let turn = self
                    .upload
                    .as_ref()
                    .map_or(waiting_since, |upload| upload.worker_has_its_turn_since());
                let silent = self.silence_max.map(|max| waiting_since.max(turn) + max);
                let ends = match self.closes_at {
                    Some(at) if self.without_client.is_some() => Some(at),
                    _ => self.timeouts.total.map(|total| self.started + total),
                };
                match silent.into_iter().chain(ends).min() {
                    Some(due) => due,
                    None => return Poll::Pending,
                }
            }
        };
        self.alarm.poll(cx, due)
    }

    /// Hears whether a worker that has taken too long has said something that is no head yet, or no
    /// whole piece: it has been at the request until then. Over HTTP/2 that is not seen.
    fn hear(&mut self, cx: &Context<'_>) {
        if let Link::Http1(connection) = &self.link {
            connection.turns().wake_after_next(cx);
            let read = connection.socket().bytes_read();
            if std::mem::replace(&mut self.read, read) != read {
                self.heard();
            }
        }
    }

    /// The tunnel begins: what comes of its client is like a body.
    pub(super) fn watch_tunnel(&mut self) {
        if let Some(watch) = self.watch.clone() {
            self.until_end = Some(Box::pin(tenure::ended(watch, || true)));
        }
    }
}

impl<P: Permit> Client<P> {
    /// The client as it was. It is gone from now on.
    fn take(&mut self) -> Client<P> {
        std::mem::replace(self, Client::Gone)
    }

    /// Whether it has left. The task hears when it does, and when it reads.
    fn has_left(&mut self, cx: &mut Context<'_>) -> bool {
        match self {
            Client::Awaits(tell) => tell.poll_closed(cx).is_ready(),
            Client::Reads(relay) => relay.is_left(cx),
            Client::Gone => true,
        }
    }

    /// It gets no response, for that reason.
    fn fail(self, error: SendError<P>) {
        if let Client::Awaits(tell) = self {
            let _ = tell.send(Err(error));
        }
    }

    /// It gets that response if it waits for one; if it reads one, that is whole.
    fn finish(self, answer: Option<Response<ResponseBody>>) {
        match (self, answer) {
            (Client::Awaits(tell), Some(answer)) => _ = tell.send(Ok(answer)),
            (Client::Reads(relay), _) => relay.end(Ok(())),
            (Client::Awaits(_) | Client::Gone, _) => {}
        }
    }

    /// It gets no more than it has been given, for that reason.
    fn end(&mut self, why: ResponseBodyError) {
        match self.take() {
            Client::Reads(relay) => relay.end(Err(why)),
            client @ (Client::Awaits(_) | Client::Gone) => client.fail(why.into()),
        }
    }
}
