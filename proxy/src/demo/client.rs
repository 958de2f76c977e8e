//! The masters' HTTP client: what they write, and what they are told. A request is bytes, so that
//! the network can hold it back.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, anyhow};
use fencepost_policy::FenceToken;
use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

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
    /// The whole request.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let Write { name: _, token, balance } = self;
        let balance = balance.to_string();
        format!(
            "PUT {PATH} HTTP/1.1\r\nHost: worker\r\nConnection: close\r\nFence-Owner: {}\r\nFence-Revision: {}\r\n\
             Content-Length: {}\r\n\r\n{balance}",
            token.owner,
            token.revision,
            balance.len(),
        )
        .into_bytes()
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

/// Sends the bytes of a write and waits for what becomes of it.
pub(super) async fn send(to: SocketAddr, write: &[u8]) -> anyhow::Result<Answer> {
    let (status, body) = exchange(to, write).await?;
    Ok(match serde_json::from_str::<Refusal>(&body) {
        Ok(refusal) if refusal.status == status => Answer::Refused(refusal),
        Err(_) if status == 200 => Answer::Applied,
        Ok(_) | Err(_) => Answer::Other(format!("{status}: {body}")),
    })
}

/// What is at a path, and its status.
pub(super) async fn get(from: SocketAddr, path: &str) -> anyhow::Result<(u16, String)> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    exchange(from, request.as_bytes()).await
}

/// One request on a connection of its own: the status, and the body as text.
async fn exchange(to: SocketAddr, request: &[u8]) -> anyhow::Result<(u16, String)> {
    let exchanged = timeout(PATIENCE, async {
        let mut connection = TcpStream::connect(to).await?;
        connection.write_all(request).await?;
        let mut response = String::new();
        connection.read_to_string(&mut response).await?;
        std::io::Result::Ok(response)
    });
    let response = exchanged.await.context("no answer in time")??;
    let (head, body) = response.split_once("\r\n\r\n").unwrap_or((&response, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.ok_or_else(|| anyhow!("this is no response: {head}"))?;
    Ok((status, body.trim_end().to_owned()))
}
