//! HTTP/2: in the clear by prior knowledge, by TLS as ALPN has agreed.

use std::rc::Rc;

use anyhow::Context;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::{self, SendRequest};
use hyper::{Request, Uri};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::sync::Mutex;

use crate::answer::Answer;
use crate::client::Protocol;
use crate::drive::plan::Plan;
use crate::drive::tenures::Presented;
use crate::stream::Stream;
use crate::token::{OWNER, REVISION};

/// A connection that several streams share.
pub(crate) struct Multiplexed {
    plan: Rc<Plan>,
    /// Locked only while the connection is opened or a request gets its turn on it.
    present: Mutex<Present>,
}

struct Present {
    sender: SendRequest<Full<Bytes>>,
    requests: u64,
}

/// One stream after the other on a shared connection.
pub(crate) struct Http2 {
    connection: Rc<Multiplexed>,
    /// The lock that the last request was for, and its target.
    last: Option<(usize, Uri)>,
}

impl Multiplexed {
    /// Connects.
    pub(crate) async fn open(plan: &Rc<Plan>) -> anyhow::Result<Rc<Multiplexed>> {
        let present = Mutex::new(Present { sender: connect(plan).await?, requests: 0 });
        Ok(Rc::new(Multiplexed { plan: Rc::clone(plan), present }))
    }

    /// A turn on the connection, on a new one if this has ended or has had its number of requests. What runs on the old one goes on.
    async fn turn(&self) -> anyhow::Result<SendRequest<Full<Bytes>>> {
        let mut present = self.present.lock().await;
        let is_full = self.plan.requests_per_connection.is_some_and(|count| present.requests >= count.get());
        if is_full || present.sender.is_closed() {
            *present = Present { sender: connect(&self.plan).await?, requests: 0 };
        }
        present.requests += 1;
        Ok(present.sender.clone())
    }
}

impl Http2 {
    /// On that connection.
    pub(crate) fn on(connection: &Rc<Multiplexed>) -> Http2 {
        Http2 { connection: Rc::clone(connection), last: None }
    }

    /// Sends a request and reads its answer to the end.
    pub(crate) async fn exchange(&mut self, presented: &Presented) -> anyhow::Result<Answer> {
        let request = self.request(presented)?;
        let mut sender = self.connection.turn().await?;
        sender.ready().await.context("the connection broke before the request")?;
        let response = sender.send_request(request).await.context("the connection broke before the answer")?;
        let answer = Answer::new(response.status(), response.headers());
        let mut body = response.into_body();
        while let Some(frame) = body.frame().await {
            frame.context("the connection broke within the answer")?;
        }
        Ok(answer)
    }

    fn request(&mut self, presented: &Presented) -> anyhow::Result<Request<Full<Bytes>>> {
        let plan = &self.connection.plan;
        let Presented { lock, token, .. } = presented;
        let uri = match &self.last {
            Some((last, uri)) if last == lock => uri.clone(),
            Some(_) | None => {
                let uri = Uri::builder().scheme(plan.target.scheme()).authority(plan.target.authority());
                let uri = uri.path_and_query(plan.path.of(*lock)).build()?;
                self.last = Some((*lock, uri.clone()));
                uri
            }
        };
        let mut request = Request::builder().method(plan.method.clone()).uri(uri);
        request = request.header(OWNER, token.owner()).header(REVISION, token.revision());
        for (name, value) in plan.more_headers(*lock)? {
            request = request.header(name, value);
        }
        Ok(request.body(Full::new(plan.body.clone()))?)
    }
}

async fn connect(plan: &Plan) -> anyhow::Result<SendRequest<Full<Bytes>>> {
    let stream = Stream::open(&plan.target, Protocol::Http2).await?;
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    // What goes wrong on a connection shows at its requests.
    tokio::spawn(connection);
    Ok(sender)
}
