//! A worker that writes down what reaches it.

mod behaviour;
mod delivery;
mod log;
mod serve;
mod tls;

use std::path::PathBuf;
use std::sync::Arc;

use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, UnixListener};
use tokio_rustls::TlsAcceptor;

pub use self::behaviour::{Answer, Behaviour};
pub use self::log::{BodyEnd, Seen};
pub use self::tls::WorkerTls;

use self::behaviour::Rules;
use self::log::Log;
use self::tls::Present;
use crate::http::Endpoint;
use crate::latch::Latch;
use crate::scratch::Scratch;
use crate::thread::TaskThread;

/// An HTTP server (HTTP/1.1, and HTTP/2 by its preface) that keeps a log of all requests and
/// behaves as it is told. It runs on a thread of its own, so a test that blocks does not block it.
///
/// Without a rule it reads each request to its end and answers 200 with `ok`.
#[derive(Debug)]
pub struct Worker {
    endpoint: Endpoint,
    shared: Arc<Shared>,
    /// `None`: it speaks in cleartext.
    tls: Option<Arc<Present>>,
    /// Ends before the directory of its socket does.
    _thread: TaskThread,
    _socket: Option<Scratch>,
}

#[derive(Debug, Default)]
struct Shared {
    log: Log,
    rules: Rules,
}

impl Worker {
    /// Starts one on a loopback port that the system chooses.
    pub async fn start() -> Worker {
        Worker::start_on(loopback(), None)
    }

    /// Starts one over TLS. Printed, its endpoint is not the upstream that it is: that is
    /// [`Worker::https`].
    pub async fn start_tls(tls: &WorkerTls<'_>) -> Worker {
        Worker::start_on(loopback(), Some(tls))
    }

    /// Starts one that takes the connections of this listener, in cleartext or over TLS.
    pub fn start_on(listener: std::net::TcpListener, tls: Option<&WorkerTls<'_>>) -> Worker {
        let tls = tls.map(|tls| Arc::new(Present::new(tls)));
        listener.set_nonblocking(true).expect("a socket can be made non-blocking");
        let address = listener.local_addr().expect("a bound listener has an address");
        let spoken = tls.clone();
        let worker = Worker::run(address.into(), None, |thread, mut connections| {
            let _runtime = thread.enter();
            let listener = TcpListener::from_std(listener).expect("the listener fits the runtime");
            thread.spawn(async move {
                loop {
                    let (stream, _) =
                        listener.accept().await.expect("a listener of a test accepts");
                    stream.set_nodelay(true).expect("TCP has this option");
                    let reset = serve::ResetHandle::of_tcp(&stream);
                    let context = connections.next();
                    match &spoken {
                        None => {
                            let speaks = serve::Speaks::WhatItHears;
                            tokio::spawn(serve::connection(
                                TokioIo::new(stream),
                                reset,
                                speaks,
                                context,
                            ))
                        }
                        Some(tls) => {
                            let handshake = TlsAcceptor::from(tls.now()).accept(stream);
                            tokio::spawn(async move {
                                // Whom it does not believe is told so by the handshake.
                                if let Ok(stream) = handshake.await {
                                    let speaks =
                                        serve::Speaks::settled(stream.get_ref().1.alpn_protocol());
                                    serve::connection(TokioIo::new(stream), reset, speaks, context)
                                        .await;
                                }
                            })
                        }
                    };
                }
            });
        });
        Worker { tls, ..worker }
    }

    /// Starts one on a unix socket in a directory of its own.
    pub async fn start_unix() -> Worker {
        let scratch = Scratch::new();
        let path: PathBuf = scratch.path().join("worker.sock");
        let listener = std::os::unix::net::UnixListener::bind(&path)
            .expect("a socket in an empty directory can be bound");
        listener.set_nonblocking(true).expect("a socket can be made non-blocking");
        Worker::run(path.into(), Some(scratch), |thread, mut connections| {
            let _runtime = thread.enter();
            let listener = UnixListener::from_std(listener).expect("the listener fits the runtime");
            thread.spawn(async move {
                loop {
                    let (stream, _) =
                        listener.accept().await.expect("a listener of a test accepts");
                    let reset = serve::ResetHandle::none();
                    let speaks = serve::Speaks::WhatItHears;
                    tokio::spawn(serve::connection(
                        TokioIo::new(stream),
                        reset,
                        speaks,
                        connections.next(),
                    ));
                }
            });
        })
    }

    fn run(
        endpoint: Endpoint,
        socket: Option<Scratch>,
        accept: impl FnOnce(&TaskThread, serve::Connections),
    ) -> Worker {
        let thread = TaskThread::start("worker");
        let shared = Arc::new(Shared::default());
        accept(&thread, serve::Connections::new(Arc::clone(&shared)));
        Worker { endpoint, shared, tls: None, _thread: thread, _socket: socket }
    }

    /// Where it listens; printed, it is an upstream as a configuration names it.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Where it listens, as an upstream over TLS is written.
    pub fn https(&self) -> String {
        match &self.endpoint {
            Endpoint::Tcp(address) => format!("https://{address}"),
            Endpoint::Unix(path) => panic!("{} is no TCP address", path.display()),
        }
    }

    /// What connections to come speak; those that are open go on.
    pub fn change_tls(&self, tls: &WorkerTls<'_>) {
        self.tls.as_ref().expect("the worker speaks TLS").change(tls);
    }

    /// From now on, requests for exactly this path are treated so. The newest rule that fits
    /// counts.
    pub fn on(&self, path: &str, behaviour: Behaviour) {
        let path = path.to_owned();
        self.when(move |seen| (seen.path == path).then(|| behaviour.clone()));
    }

    /// From now on, requests for exactly this path are read whole, and answered with `held` once
    /// the latch opens.
    pub fn holds(&self, path: &str) -> Latch {
        let latch = Latch::new();
        self.on(path, Behaviour::Hold(latch.clone(), Answer::ok("held")));
        latch
    }

    /// From now on, whatever the rule has an opinion on is treated so. It is asked when the
    /// request's head is here. The newest rule that fits counts.
    pub fn when(&self, rule: impl Fn(&Seen) -> Option<Behaviour> + Send + Sync + 'static) {
        self.shared.rules.add(rule);
    }

    /// All requests so far, in the order in which their heads arrived.
    pub fn seen(&self) -> Vec<Seen> {
        self.shared.log.seen()
    }

    /// Waits until `count` requests have arrived (their heads, at least), and returns all.
    pub async fn wait_for(&self, count: usize) -> Vec<Seen> {
        self.wait_until(&format!("{count} requests at the worker"), |seen| seen.len() >= count)
            .await
    }

    /// Waits until `count` requests have been answered to the end, and returns all.
    pub async fn wait_for_answered(&self, count: usize) -> Vec<Seen> {
        let answered =
            |seen: &[Seen]| seen.iter().filter(|request| request.answered).count() >= count;
        self.wait_until(&format!("{count} requests answered by the worker"), answered).await
    }

    /// Waits until the log fulfils a condition, and returns it.
    pub async fn wait_until(
        &self,
        what: &str,
        condition: impl FnMut(&[Seen]) -> bool,
    ) -> Vec<Seen> {
        self.shared.log.wait_until(what, condition).await
    }
}

fn loopback() -> std::net::TcpListener {
    std::net::TcpListener::bind(("127.0.0.1", 0)).expect("the loopback address can be bound")
}
