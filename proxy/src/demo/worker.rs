//! The worker: it keeps a balance and applies whatever reaches it. It knows nothing of locks.

use std::cell::Cell;
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;

use anyhow::Context;
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::client::{PATH, Write};

/// The longest number that it reads.
const BODY_BYTES_MAX: usize = 64;

/// How many applied writes may wait for their reader.
const UNTOLD_MAX: usize = 64;

/// A running worker. It ends with this value.
pub(super) struct Worker {
    address: SocketAddr,
    applied: mpsc::Receiver<Applied>,
    _serving: JoinSet<()>,
}

/// A write that reached the worker, as it arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Applied {
    pub(super) owner: String,
    pub(super) revision: String,
    pub(super) balance: i64,
}

/// The worker's side of a connection.
#[derive(Clone)]
struct Account {
    balance: Rc<Cell<i64>>,
    applied: mpsc::Sender<Applied>,
}

impl Worker {
    /// Starts one on a free port.
    pub(super) async fn start() -> anyhow::Result<Worker> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .context("the worker cannot listen")?;
        let address = listener.local_addr()?;
        let (sender, applied) = mpsc::channel(UNTOLD_MAX);
        let mut serving = JoinSet::new();
        serving.spawn_local(serve(listener, Account { balance: Rc::default(), applied: sender }));
        Ok(Worker { address, applied, _serving: serving })
    }

    /// Where it listens: past the fence, which is not where clients should go.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next write that it applied and that nobody has asked for yet.
    pub(super) async fn next_applied(&mut self) -> Option<Applied> {
        self.applied.recv().await
    }

    /// As [`Worker::next_applied`], if there is one.
    pub(super) fn already_applied(&mut self) -> Option<Applied> {
        self.applied.try_recv().ok()
    }
}

impl Applied {
    /// What the worker sees of a write.
    pub(super) fn of(write: &Write) -> Applied {
        let Write { name: _, token, balance } = write;
        Applied {
            owner: token.owner.to_owned(),
            revision: token.revision.to_string(),
            balance: *balance,
        }
    }
}

async fn serve(listener: TcpListener, account: Account) {
    let mut connections = JoinSet::new();
    // Accepting fails when there are no file descriptors left, and this program has few: then the
    // story fails too.
    while let Ok((stream, _)) = listener.accept().await {
        connections.spawn_local(converse(stream, account.clone()));
        while connections.try_join_next().is_some() {}
    }
}

async fn converse(stream: TcpStream, account: Account) {
    let service = service_fn(move |request| {
        let account = account.clone();
        async move { Ok::<_, Infallible>(account.answer(request).await) }
    });
    // An error means that the other side went away, and it knows that.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

impl Account {
    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        match (request.method(), request.uri().path()) {
            (_, path) if path != PATH => {
                answer(StatusCode::NOT_FOUND, format!("there is only {PATH}"))
            }
            (&Method::GET, _) => answer(StatusCode::OK, self.balance.get().to_string()),
            (&Method::PUT, _) => self.apply(request).await,
            _ => answer(StatusCode::METHOD_NOT_ALLOWED, "GET it or PUT it".to_owned()),
        }
    }

    async fn apply(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let (head, body) = request.into_parts();
        let number = Limited::new(body, BODY_BYTES_MAX).collect().await.ok();
        let number =
            number.and_then(|body| std::str::from_utf8(&body.to_bytes()).ok()?.trim().parse().ok());
        let Some(balance) = number else {
            return answer(StatusCode::BAD_REQUEST, "a balance is a whole number".to_owned());
        };
        self.balance.set(balance);
        let header = |name| {
            head.headers.get(name).map_or("", |value| value.to_str().unwrap_or("?")).to_owned()
        };
        let applied =
            Applied { owner: header("fence-owner"), revision: header("fence-revision"), balance };
        // Fails once nobody wants to know any more; the worker goes on all the same.
        let _ = self.applied.send(applied).await;
        answer(StatusCode::OK, format!("the balance is {balance}"))
    }
}

fn answer(status: StatusCode, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(text + "\n"));
    *response.status_mut() = status;
    response
}
