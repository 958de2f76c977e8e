//! The worker of a measurement: as little of one as can stand behind a proxy, since it shares the machine with it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use bytes::{Buf, BytesMut};
use httparse::{Header, Request, Status};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::spawn_local;

use super::alarms::Alarms;
use super::order::{AtWorker, Order};
use crate::framing::{Body, HEADERS_MAX};
use crate::token::{OWNER, REVISION};

/// Tells the worker which lock a request is for, by number; proxies pass it on like any header.
pub(crate) const LOCK_NUMBER: &str = "loadtest-lock";
/// How much is read at a time.
const READ_BYTES: usize = 64 * 1024;
/// How many bytes a request is answered that does not ask for another number.
const ANSWER_BYTES: usize = 100;
/// What stands before that number in a request's target.
pub(crate) const ASKS_FOR_BYTES: &str = "?bytes=";
/// The most that is answered, whatever is asked for.
const ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;

/// What reaches a worker, by lock.
#[derive(Clone, Debug, Default)]
pub(crate) struct Orders(Arc<Mutex<HashMap<usize, Order>>>);

impl Orders {
    /// What was seen so far, over all locks.
    pub(crate) fn seen(&self) -> AtWorker {
        let mut all = AtWorker::default();
        self.lock().values().for_each(|order| all.add(order.seen()));
        all
    }

    fn with(&self, number: usize, change: impl FnOnce(&mut Order)) {
        change(self.lock().entry(number).or_default());
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<usize, Order>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a worker does that shows whether it is fenced.
#[derive(Clone, Debug)]
pub(crate) struct Duty {
    /// Where it writes down what reaches it.
    pub(crate) orders: Orders,
    /// How long it works on each request. If that is no time at all, no two are ever there at once.
    pub(crate) takes: Duration,
    pub(crate) alarms: Alarms,
}

/// Binds the address.
pub(crate) async fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| format!("the worker cannot listen on {address}"))
}

/// Answers whatever comes on a runtime of its own, at once if it has no other duty; for ever.
pub(crate) fn run(listener: std::net::TcpListener, duty: Option<Duty>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio::task::LocalSet::new().block_on(&runtime, async { serve(TcpListener::from_std(listener)?, duty).await })
}

async fn serve(listener: TcpListener, duty: Option<Duty>) -> anyhow::Result<()> {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let duty = duty.clone();
                // A connection that breaks shows at the proxy, and so at the client.
                spawn_local(async move { connection(stream, duty.as_ref()).await });
            }
            // Out of descriptors, or a client that was gone at once: the next one may fare better.
            Err(_) => tokio::task::yield_now().await,
        }
    }
}

async fn connection(mut stream: TcpStream, duty: Option<&Duty>) -> anyhow::Result<()> {
    stream.set_nodelay(true)?;
    let mut bytes = BytesMut::with_capacity(READ_BYTES);
    let mut answer = Answer::of(ANSWER_BYTES);
    loop {
        let Some(request) = head(&mut stream, &mut bytes, duty.is_some()).await? else { return Ok(()) };
        if request.answer_bytes != answer.body_bytes {
            answer = Answer::of(request.answer_bytes);
        }
        let done = work(&mut stream, &mut bytes, &request, duty, &answer);
        let Some((duty, token)) = duty.zip(request.token.as_ref()) else {
            done.await?;
            continue;
        };
        duty.orders.with(token.lock, |order| order.begins(&token.owner, token.revision));
        let outcome = done.await;
        // In the same turn as the last write: nothing that is sent because of the answer is seen before this.
        duty.orders.with(token.lock, |order| order.ends(token.revision));
        outcome?;
    }
}

/// Takes in the rest of a request, works on it and answers.
async fn work(
    stream: &mut TcpStream,
    bytes: &mut BytesMut,
    request: &Incoming,
    duty: Option<&Duty>,
    answer: &Answer,
) -> anyhow::Result<()> {
    skip(stream, bytes, request.body).await?;
    if let Some(Duty { takes, alarms, .. }) = duty.filter(|duty| !duty.takes.is_zero()) {
        alarms.wait(*takes).await;
    }
    let length = if request.is_head { answer.text.len() - answer.body_bytes } else { answer.text.len() };
    Ok(stream.write_all(&answer.text[..length]).await?)
}

/// What a request is answered; most are answered like the one before.
struct Answer {
    body_bytes: usize,
    text: Vec<u8>,
}

impl Answer {
    fn of(body_bytes: usize) -> Answer {
        let head = format!("HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {body_bytes}\r\n\r\n");
        let mut text = head.into_bytes();
        text.resize(text.len() + body_bytes, b'.');
        Answer { body_bytes, text }
    }
}

struct Incoming {
    is_head: bool,
    body: Body,
    answer_bytes: usize,
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
            let answer_bytes = asked_for(request.path.unwrap_or_default());
            let is_head = request.method == Some("HEAD");
            bytes.advance(length);
            return Ok(Some(Incoming { is_head, body, answer_bytes, token }));
        }
        if read_more(stream, bytes).await? == 0 {
            return Ok(None);
        }
    }
}

fn asked_for(target: &str) -> usize {
    let asked = target.split_once(ASKS_FOR_BYTES).and_then(|(_, number)| number.parse().ok());
    asked.unwrap_or(ANSWER_BYTES).min(ANSWER_BYTES_MAX)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_as_long_as_its_request_asks() {
        for (target, body_bytes) in [
            ("/job", 100),
            ("/job?bytes=0", 0),
            ("/job?bytes=4096", 4096),
            ("/job?bytes=many", 100),
            ("/job?bytes=99999999999", ANSWER_BYTES_MAX),
        ] {
            let answer = Answer::of(asked_for(target));
            let head = format!("HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {body_bytes}\r\n\r\n");
            assert!(answer.text.starts_with(head.as_bytes()), "{target}");
            assert_eq!(answer.text.len() - head.len(), body_bytes, "{target}");
        }
    }
}
