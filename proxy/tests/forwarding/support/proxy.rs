//! The data plane with a service that forwards everything.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::Duration;

use bytes::Bytes;
use fencepost::server::{
    ClientBody, Limits, ListenAddress, Listener, Protocol, Server, ThreadContext, ThreadService,
    serve,
};
use fencepost::upstream::{
    Admitted, ConnectionQuota, Ending, KeptFields, LastBytes, Permit, Pool, ResponseBody,
    SendError, Speaks, TenureWatch, Timeouts, Upstream, UpstreamTls, Wants, outgoing_request,
    prepare_body,
};
use fencepost_config::{HostPort, UpstreamAddress};
use fencepost_locks::Membership;
use fencepost_tls::ServerTls;
use http::{HeaderName, Request, Response, StatusCode};
use tokio::time::Instant;

use super::{Client, PATIENCE, Peer, Tenures, Worker};

/// What a permit was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// Not told: its request is at `/wait` and has a connection, or at `/keep` and has an answer.
    Waits,
    Overdue,
    BodyCut,
    Finished(Ending),
}

/// What a test wants to be otherwise.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) limits: Limits,
    pub(crate) timeouts: Timeouts,
    pub(crate) threads: usize,
    pub(crate) connections_max: usize,
    /// Of all threads.
    pub(crate) quota: ConnectionQuota,
    pub(crate) waiting_max: usize,
    pub(crate) ready_timeout: Duration,
    pub(crate) idle_timeout: Duration,
    pub(crate) connect_retries: u32,
    pub(crate) headers_max: usize,
    pub(crate) keepalive: bool,
    pub(crate) connection_age_max: Option<Duration>,
    pub(crate) unacknowledged_max: Duration,
    pub(crate) upstream_protocol: Protocol,
    /// The worker is behind TLS, and `upstream_protocol` nothing to it.
    pub(crate) upstream_tls: Option<UpstreamTls>,
    pub(crate) listen_unix: Option<PathBuf>,
    /// Clients are taken by TLS.
    pub(crate) listen_tls: Option<ServerTls>,
    /// What the requests of each path depend on; those of others depend on nothing.
    pub(crate) tenures: Vec<(&'static str, Tenures)>,
    pub(crate) endless: bool,
    /// Nobody waits for the end of a request but its client.
    pub(crate) may_be_left: bool,
    /// Up to which length bodies are read whole.
    pub(crate) whole_bytes_max: usize,
    /// Requests go to the worker only while this process stands in the group.
    pub(crate) group: Option<Arc<Membership>>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            limits: Limits::default(),
            timeouts: Timeouts::default(),
            threads: 1,
            connections_max: 64,
            quota: ConnectionQuota::unlimited(),
            waiting_max: 64,
            ready_timeout: Duration::from_secs(10),
            idle_timeout: 10 * PATIENCE,
            connect_retries: 3,
            headers_max: 100,
            keepalive: true,
            connection_age_max: None,
            unacknowledged_max: Duration::from_secs(15),
            upstream_protocol: Protocol::Http1,
            upstream_tls: None,
            listen_unix: None,
            listen_tls: None,
            tenures: Vec::new(),
            endless: false,
            may_be_left: false,
            whole_bytes_max: 64 * 1024,
            group: None,
        }
    }
}

/// A proxy that forwards everything but `/refuse`, which it answers with 412 at once, and
/// `/give-up`, which it answers so once it has a connection to the worker. At `/halt` its only
/// thread stands still until [`Proxy::go_on`]; at `/wait` the request does, once it has a
/// connection, and at `/keep` its answer, once its head is there.
pub(crate) struct Proxy {
    server: Option<Server>,
    record: Arc<Record>,
    go_on: mpsc::Sender<()>,
}

impl Proxy {
    pub(crate) fn before(worker: SocketAddr) -> Proxy {
        Proxy::with(worker, Settings::default())
    }

    /// Before a worker that the test plays by hand.
    pub(crate) fn by_hand() -> (Worker, Proxy) {
        let worker = Worker::by_hand();
        let proxy = Proxy::before(worker.address());
        (worker, proxy)
    }

    /// Before such a worker; requests for `/` depend on these tenures.
    pub(crate) fn fenced() -> (Worker, Tenures, Proxy) {
        let (worker, tenures) = (Worker::by_hand(), Tenures::new());
        let settings = Settings { tenures: vec![("/", tenures.clone())], ..Settings::default() };
        let proxy = Proxy::with(worker.address(), settings);
        (worker, tenures, proxy)
    }

    pub(crate) fn with(worker: SocketAddr, settings: Settings) -> Proxy {
        Proxy::before_address(
            UpstreamAddress::Tcp(HostPort { host: worker.ip().to_string(), port: worker.port() }),
            settings,
        )
    }

    pub(crate) fn before_address(address: UpstreamAddress, settings: Settings) -> Proxy {
        let listen = match &settings.listen_unix {
            Some(path) => ListenAddress::Unix(path.clone()),
            None => ListenAddress::Tcp("127.0.0.1:0".parse().unwrap()),
        };
        let listener = Listener::bind(&listen).unwrap().with_tls(settings.listen_tls.clone());
        let record = Arc::new(Record::default());
        let (go_on, halted) = mpsc::channel();
        let halted = Arc::new(Mutex::new(halted));
        let seen = record.clone();
        let threads = NonZeroUsize::new(settings.threads).unwrap();
        let limits = settings.limits;
        let make_service = move |thread: ThreadContext| {
            let cleartext = Speaks::Cleartext(settings.upstream_protocol);
            let speaks = settings.upstream_tls.clone().map_or(cleartext, Speaks::Tls);
            let mut upstream = Upstream::new(address.clone(), speaks);
            upstream.connections_max = settings.connections_max;
            upstream.quota = settings.quota.clone();
            upstream.waiting_max = settings.waiting_max;
            upstream.idle_timeout = settings.idle_timeout;
            upstream.connect_retries = settings.connect_retries;
            upstream.headers_max = settings.headers_max;
            upstream.keepalive = settings.keepalive;
            upstream.connection_age_max = settings.connection_age_max;
            upstream.unacknowledged_max = settings.unacknowledged_max;
            let pool = match &settings.group {
                None => Pool::new(upstream, thread.background),
                Some(group) => Pool::in_group(upstream, thread.background, Arc::clone(group)),
            };
            let forwarder = Rc::new(Forwarder {
                pool,
                record: seen.clone(),
                halted: halted.clone(),
                settings: settings.clone(),
                kept: Rc::new(KeptFields::new(
                    ["fence-owner", "fence-revision"].map(HeaderName::from_static),
                )),
            });
            ThreadService::new(tower::service_fn(move |request| forwarder.clone().answer(request)))
        };
        let server = serve(vec![listener], threads, limits, make_service).unwrap();
        server.begin();
        Proxy { server: Some(server), record, go_on }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        match &self.server().addresses()[0] {
            ListenAddress::Tcp(address) => *address,
            ListenAddress::Unix(path) => panic!("listens on {}", path.display()),
        }
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(self.address())
    }

    /// A new client whose request has come to the worker, by a new connection.
    pub(crate) fn at_worker(&self, worker: &Worker, request: &str) -> (Client, Peer) {
        let mut client = self.client();
        client.send(request);
        let mut peer = worker.next();
        peer.next_request();
        (client, peer)
    }

    /// Ends one standstill, or one wait.
    pub(crate) fn go_on(&self) {
        self.go_on.send(()).unwrap();
    }

    pub(crate) fn server(&self) -> &Server {
        self.server.as_ref().unwrap()
    }

    pub(crate) async fn shutdown(mut self, grace: Duration) -> usize {
        self.server.take().unwrap().shutdown(grace).await
    }

    /// What permits have been told so far.
    pub(crate) fn events(&self) -> Vec<Event> {
        self.record.events.lock().unwrap().clone()
    }

    /// Waits until permits have been told that much, and returns it.
    pub(crate) fn wait_for_events(&self, count: usize) -> Vec<Event> {
        let events = self.record.events.lock().unwrap();
        let (events, timeout) = self
            .record
            .changed
            .wait_timeout_while(events, PATIENCE, |events| events.len() < count)
            .unwrap();
        assert!(!timeout.timed_out(), "only {events:?}");
        events.clone()
    }
}

/// What all permits were told, in order.
#[derive(Default)]
struct Record {
    events: Mutex<Vec<Event>>,
    changed: Condvar,
}

impl Record {
    fn add(&self, event: Event) {
        self.events.lock().unwrap().push(event);
        self.changed.notify_all();
    }
}

/// A permit that tells what it is told.
struct Recorder {
    record: Arc<Record>,
    watch: Option<Rc<dyn TenureWatch>>,
    endless: bool,
    may_be_left: bool,
    /// Told that its request is overdue, or its body cut: what it knew it does not know any more.
    is_lost: bool,
}

impl Permit for Recorder {
    fn watch(&self) -> Option<Rc<dyn TenureWatch>> {
        self.watch.clone().filter(|_| !self.is_lost)
    }

    fn is_endless(&self) -> bool {
        self.endless && !self.is_lost
    }

    fn may_be_left(&self) -> bool {
        self.may_be_left && !self.is_lost
    }

    fn lost(&mut self, how: Ending, _: LastBytes) {
        self.is_lost = true;
        let is_cut = how == Ending::BodyCut;
        self.record.add(if is_cut { Event::BodyCut } else { Event::Overdue });
    }

    fn finished(self, how: Ending, _: Instant) {
        self.record.add(Event::Finished(how));
    }
}

struct Forwarder {
    pool: Pool,
    record: Arc<Record>,
    halted: Arc<Mutex<mpsc::Receiver<()>>>,
    settings: Settings,
    kept: Rc<KeptFields>,
}

type Answer = Response<ResponseBody>;

impl Forwarder {
    async fn answer(
        self: Rc<Self>,
        request: Box<Request<ClientBody>>,
    ) -> Result<Answer, Infallible> {
        Ok(match self.forward(*request).await {
            Ok(answer) => answer,
            Err(status) => own_answer(status),
        })
    }

    async fn forward(&self, request: Request<ClientBody>) -> Result<Answer, StatusCode> {
        let (head, body) = request.into_parts();
        if head.uri.path() == "/refuse" {
            return Err(StatusCode::PRECONDITION_FAILED);
        }
        if head.uri.path() == "/halt" {
            self.halted.lock().unwrap().recv_timeout(PATIENCE).unwrap();
        }
        let connection = body.connection().clone();
        let body = prepare_body(body, self.settings.whole_bytes_max, &self.kept).await;
        let body = body.map_err(|_| StatusCode::BAD_REQUEST)?;
        let outgoing = outgoing_request(head, body, &connection, self.pool.upstream(), &self.kept);
        let mut request = outgoing.map_err(|_| StatusCode::BAD_REQUEST)?;
        let tenures = self.settings.tenures.iter().find(|(path, _)| *path == request.uri().path());
        let watch = tenures.map(|(_, tenures)| tenures.present());
        let Settings { endless, may_be_left, .. } = self.settings;
        let mut permit =
            Recorder { record: self.record.clone(), watch, endless, may_be_left, is_lost: false };
        loop {
            let deadline = Instant::now() + self.settings.ready_timeout;
            let ready = self
                .pool
                .ready(Wants::of(&request), deadline)
                .await
                .map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
            if request.uri().path() == "/give-up" {
                return Err(StatusCode::PRECONDITION_FAILED);
            }
            if request.uri().path() == "/wait" {
                self.stand_still().await;
            }
            let is_kept = request.uri().path() == "/keep";
            let sent = ready
                .send(Admitted::new(request, permit), self.settings.timeouts, Instant::now())
                .head()
                .await;
            (request, permit) = match sent {
                Ok(answer) => {
                    if is_kept {
                        self.stand_still().await;
                    }
                    return Ok(answer);
                }
                Err(SendError::Unsent { admitted, .. }) => admitted.into_parts(),
                Err(SendError::Body(_)) => return Err(StatusCode::BAD_REQUEST),
                Err(
                    SendError::NoAnswer { .. }
                    | SendError::LostStanding
                    | SendError::Unreadable(_)
                    | SendError::Coded,
                ) => {
                    return Err(StatusCode::BAD_GATEWAY);
                }
                Err(SendError::Timeout) => return Err(StatusCode::GATEWAY_TIMEOUT),
            };
        }
    }

    /// Waits for [`Proxy::go_on`].
    async fn stand_still(&self) {
        self.record.add(Event::Waits);
        let halted = self.halted.clone();
        let told = move || halted.lock().unwrap().recv_timeout(PATIENCE).unwrap();
        tokio::task::spawn_blocking(told).await.unwrap();
    }
}

fn own_answer(status: StatusCode) -> Answer {
    let mut answer = Response::new(ResponseBody::Whole(Bytes::from_static(b"own answer")));
    *answer.status_mut() = status;
    answer
}
