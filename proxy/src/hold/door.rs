//! `POST /.well-known/fence`: has the proxy wait until nothing of an earlier holder can reach the worker any more.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use fencepost_holder::{Action, Over, Refusal, Tenure};
use http::header::HOST;
use http::{Method, Request, StatusCode, Uri};
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::voice::Voice;
use crate::fence_call::PATH;

/// How long one answer may take: longer than the proxy itself waits unless it was configured to wait for longer.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// How long to wait before the next call, unless the proxy says how long.
const PAUSE: Duration = Duration::from_secs(1);

/// The proxy before the worker.
#[derive(Debug)]
pub(super) struct Door {
    authority: String,
    address: String,
}

/// Why the proxy does not close it, and will not.
#[derive(Debug, thiserror::Error)]
pub(super) enum DoorError {
    /// It says that this tenure is none.
    #[error("{door} does not fence for this lock: {refusal}")]
    Refused { door: String, refusal: Refusal },
    /// It says something else: it may be no fencepost.
    #[error("{door} does not fence: it answered {status} to POST {PATH}")]
    Unexpected { door: String, status: StatusCode },
    /// The tenure is over.
    #[error("the lock was lost: {0}")]
    Over(Over),
}

impl Door {
    pub(super) fn at(url: Uri) -> Door {
        let authority = url.authority().map(ToString::to_string).unwrap_or_default();
        let address = match url.port_u16() {
            Some(_) => authority.clone(),
            None => format!("{authority}:80"),
        };
        Door { authority, address }
    }

    /// Asks for it until it is done: for as long as the proxy can't do it yet, or does not answer.
    ///
    /// # Cancel safety
    /// May be given up at any time: the call changes nothing but what the proxy knows.
    pub(super) async fn close(&self, tenure: &Tenure, voice: Voice) -> Result<(), DoorError> {
        let mut said = String::new();
        loop {
            let (why, pause) = match timeout(ANSWER_WITHIN, self.ask(tenure)).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(Asked::Final(error))) => return Err(error),
                Ok(Err(Asked::Again { why, pause })) => (why, pause),
                Err(_) => (format!("no answer within {ANSWER_WITHIN:?}"), PAUSE),
            };
            // Each reason once.
            if why != said {
                voice.say(format_args!("waiting for {self}: {why}"));
                said = why;
            }
            sleep(pause).await;
        }
    }

    async fn ask(&self, tenure: &Tenure) -> Result<(), Asked> {
        let mut request = Request::new(Empty::<Bytes>::new());
        *request.method_mut() = Method::POST;
        *request.uri_mut() = Uri::from_static(PATH);
        let host = self.authority.parse().map_err(|_| Asked::again("its name is no host"))?;
        request.headers_mut().insert(HOST, host);
        let stamped = tenure.stamp().with_lock().stamp(&mut request);
        stamped.map_err(|over| Asked::Final(DoorError::Over(over)))?;

        let stream = TcpStream::connect(&self.address).await.map_err(Asked::again)?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(Asked::again)?;
        let answer = tokio::select! {
            answer = sender.send_request(request) => answer.map_err(Asked::again)?,
            ended = connection => return Err(Asked::again(match ended {
                Ok(()) => "it has closed the connection".to_owned(),
                Err(error) => error.to_string(),
            })),
        };
        match Refusal::of(answer.status(), answer.headers()) {
            None if answer.status() == StatusCode::NO_CONTENT => Ok(()),
            None => Err(Asked::Final(DoorError::Unexpected { door: self.to_string(), status: answer.status() })),
            Some(refusal) if refusal.action == Action::Retry => {
                Err(Asked::Again { pause: refusal.retry_after.unwrap_or(PAUSE), why: refusal.reason.to_string() })
            }
            Some(refusal) => Err(Asked::Final(DoorError::Refused { door: self.to_string(), refusal })),
        }
    }
}

/// What becomes of one call that did not do it.
enum Asked {
    Again { why: String, pause: Duration },
    Final(DoorError),
}

impl Asked {
    fn again(why: impl fmt::Display) -> Asked {
        Asked::Again { why: why.to_string(), pause: PAUSE }
    }
}

impl fmt::Display for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}", self.authority)
    }
}
