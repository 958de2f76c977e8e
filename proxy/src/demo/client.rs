//! The masters' HTTP client: what they write, and what they are told.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use fencepost_policy::FenceToken;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde::Deserialize;

use crate::refusal::FENCE_REASON;

/// How long anything on loopback may take. It takes milliseconds.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// Where the worker keeps the balance.
pub(super) const PATH: &str = "/balance";

/// A master's claim to the lock.
pub(super) type Token = FenceToken<&'static str>;

/// A master's order to set the balance.
#[derive(Clone)]
pub(super) struct Write {
    /// What the story calls it.
    pub(super) name: &'static str,
    /// Under which token it is sent.
    pub(super) token: Token,
    /// What it sets.
    pub(super) balance: i64,
}

/// What a master is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The worker's own answer.
    Applied,
    /// fencepost's.
    Refused(Refusal),
    /// Neither: the status and what came with it.
    Other(String),
}

/// The part of a refusal's problem document that the story is about.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Refusal {
    pub(super) status: u16,
    pub(super) reason: String,
    pub(super) title: String,
    pub(super) action: String,
    pub(super) forwarded: bool,
}

impl Write {
    fn request(&self) -> Result<Request<Full<Bytes>>, http::Error> {
        Request::put(PATH)
            .header("Host", "worker")
            .header("Fence-Owner", self.token.owner)
            .header("Fence-Revision", self.token.revision.to_string())
            .body(Full::from(self.balance.to_string()))
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Answer::Applied => f.write_str("200"),
            Answer::Refused(refusal) => write!(f, "{} {}", refusal.status, refusal.reason),
            Answer::Other(what) => f.write_str(what),
        }
    }
}

/// Sends a write and waits for what becomes of it, for as long as that takes.
pub(super) async fn send(to: SocketAddr, write: &Write) -> anyhow::Result<Answer> {
    let response = exchange(to, write.request()?)
        .await
        .with_context(|| format!("{} was not answered", write.name))?;
    let body = response.body();
    let text = || String::from_utf8_lossy(body).trim_end().to_owned();
    let reason = response.headers().get(FENCE_REASON);
    Ok(match (response.status().as_u16(), reason) {
        (200, None) => Answer::Applied,
        (status, Some(reason)) => match serde_json::from_slice::<Refusal>(body) {
            Ok(refusal) if *reason == refusal.reason && refusal.status == status => {
                Answer::Refused(refusal)
            }
            _ => Answer::Other(format!("{status} with a document that says otherwise: {}", text())),
        },
        (status, None) => Answer::Other(format!("{status}: {}", text())),
    })
}

/// What is at a path, and its status.
pub(super) async fn get(from: SocketAddr, path: &str) -> anyhow::Result<(u16, String)> {
    let request = Request::builder()
        .method(Method::GET)
        .uri(path)
        .header("Host", "localhost")
        .body(Full::default())?;
    let response = tokio::time::timeout(PATIENCE, exchange(from, request))
        .await
        .context("no answer in time")??;
    Ok((response.status().as_u16(), String::from_utf8_lossy(response.body()).trim_end().to_owned()))
}

/// One request on a connection of its own.
async fn exchange(
    to: SocketAddr,
    mut request: Request<Full<Bytes>>,
) -> anyhow::Result<Response<Bytes>> {
    *request.uri_mut() = format!("http://{to}{}", request.uri()).parse()?;
    let (head, body) =
        Client::builder(TokioExecutor::new()).build_http().request(request).await?.into_parts();
    Ok(Response::from_parts(head, body.collect().await?.to_bytes()))
}
