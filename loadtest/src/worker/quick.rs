//! The worker of a measurement: as little of one as can stand behind a proxy, since it shares the machine with it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use bytes::{Buf, BytesMut};
use httparse::{Header, Request, Status};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::spawn_local;

use super::order::{Breaches, Order};
use crate::framing::{Body, HEADERS_MAX};
use crate::token::{OWNER, REVISION};

/// Tells the worker which lock a request is for, by number; proxies pass it on like any header.
pub(crate) const LOCK_NUMBER: &str = "loadtest-lock";
/// How much is read at a time.
const READ_BYTES: usize = 64 * 1024;
/// What every request is answered: 100 bytes.
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 100\r\n\r\n\
    ....................................................................................................";

/// What reaches a worker, by lock.
#[derive(Clone, Debug, Default)]
pub(crate) struct Orders(Arc<Mutex<HashMap<usize, Order>>>);

impl Orders {
    /// The rules broken so far, over all locks.
    pub(crate) fn breaches(&self) -> Breaches {
        let mut all = Breaches::default();
        self.lock().values().for_each(|order| all.add(order.breaches()));
        all
    }

    fn with(&self, number: usize, change: impl FnOnce(&mut Order)) {
        change(self.lock().entry(number).or_default());
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<usize, Order>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Binds the address.
pub(crate) async fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| format!("the worker cannot listen on {address}"))
}

/// Answers whatever comes on a runtime of its own, and follows its order if it is asked to; for ever.
pub(crate) fn run(listener: std::net::TcpListener, orders: Option<Orders>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio::task::LocalSet::new().block_on(&runtime, async { serve(TcpListener::from_std(listener)?, orders).await })
}

async fn serve(listener: TcpListener, orders: Option<Orders>) -> anyhow::Result<()> {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let orders = orders.clone();
                // A connection that breaks shows at the proxy, and so at the client.
                spawn_local(async move { connection(stream, orders.as_ref()).await });
            }
            // Out of descriptors, or a client that was gone at once: the next one may fare better.
            Err(_) => tokio::task::yield_now().await,
        }
    }
}

async fn connection(mut stream: TcpStream, orders: Option<&Orders>) -> anyhow::Result<()> {
    stream.set_nodelay(true)?;
    let mut bytes = BytesMut::with_capacity(READ_BYTES);
    loop {
        let Some(request) = head(&mut stream, &mut bytes, orders.is_some()).await? else { return Ok(()) };
        if let (Some(orders), Some(token)) = (orders, &request.token) {
            orders.with(token.lock, |order| order.begins(&token.owner, token.revision));
        }
        let outcome = skip(&mut stream, &mut bytes, request.body).await;
        if let (Some(orders), Some(token)) = (orders, &request.token) {
            orders.with(token.lock, |order| order.ends(token.revision));
        }
        outcome?;
        stream.write_all(ANSWER).await?;
    }
}

struct Incoming {
    body: Body,
    token: Option<Presented>,
}

/// What a request says of its lock. One without a token must not get here; it counts as older than any other.
struct Presented {
    lock: usize,
    owner: String,
    revision: i64,
}

/// Reads a request's head; `None` if the connection ends before.
async fn head(stream: &mut TcpStream, bytes: &mut BytesMut, with_token: bool) -> anyhow::Result<Option<Incoming>> {
    loop {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut request = Request::new(&mut headers);
        if let Status::Complete(length) = request.parse(bytes)? {
            let body = Body::of(request.headers, Body::NONE)?;
            let token = with_token.then(|| presented(request.headers));
            bytes.advance(length);
            return Ok(Some(Incoming { body, token }));
        }
        if read_more(stream, bytes).await? == 0 {
            return Ok(None);
        }
    }
}

async fn skip(stream: &mut TcpStream, bytes: &mut BytesMut, mut body: Body) -> anyhow::Result<()> {
    loop {
        let taken = body.skip(bytes)?;
        bytes.advance(taken);
        if body.has_ended() {
            return Ok(());
        }
        anyhow::ensure!(read_more(stream, bytes).await? > 0, "the connection broke within a body");
    }
}

async fn read_more(stream: &mut TcpStream, bytes: &mut BytesMut) -> std::io::Result<usize> {
    bytes.reserve(READ_BYTES);
    stream.read_buf(bytes).await
}

fn presented(headers: &[Header<'_>]) -> Presented {
    let text = |name: &str| {
        let header = headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
        header.map(|header| String::from_utf8_lossy(header.value)).unwrap_or_default()
    };
    Presented {
        lock: text(LOCK_NUMBER).parse().unwrap_or(0),
        owner: text(OWNER).into_owned(),
        revision: text(REVISION).parse().unwrap_or(0),
    }
}
