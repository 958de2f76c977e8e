//! The endpoint that is in use, and how it is left.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Client, ConnectOptions, Error};
use tokio::sync::{OnceCell, watch};
use tokio::time::{Instant, sleep, timeout};
use tracing::debug;

use super::{Etcd, Options};
use crate::error::StoreError;

/// How long one endpoint may take to answer a call, if nothing shorter is said.
pub(super) const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(1);

/// An endpoint for as long as it is in use. When one fails, the next turn begins: with the next endpoint, or, where there is
/// only one, with new connections to it. Whether the member, the connection or something between is stuck, a fresh
/// connection finds out soonest.
pub(super) struct Turn {
    number: usize,
    pub(super) endpoint: String,
    calls: Connection,
    /// A connection of its own, since it is probed and wants a leader.
    watches: Connection,
}

struct Connection {
    options: ConnectOptions,
    client: OnceCell<Client>,
}

impl Turn {
    pub(super) fn new(number: usize, endpoint: &str, options: &Options) -> Turn {
        Turn {
            number,
            endpoint: endpoint.to_owned(),
            calls: Connection { options: options.for_calls(endpoint), client: OnceCell::new() },
            watches: Connection { options: options.for_watches(endpoint), client: OnceCell::new() },
        }
    }

    /// A client for calls.
    pub(super) async fn client(&self) -> Result<Client, Error> {
        self.calls.client(&self.endpoint).await
    }

    /// A client for watches.
    pub(super) async fn watching_client(&self) -> Result<Client, Error> {
        self.watches.client(&self.endpoint).await
    }
}

impl Connection {
    async fn client(&self, endpoint: &str) -> Result<Client, Error> {
        let connect = || Client::connect([endpoint], Some(self.options.clone()));
        Ok(self.client.get_or_try_init(connect).await?.clone())
    }
}

impl std::fmt::Debug for Turn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (turn {})", self.endpoint, self.number)
    }
}

impl Etcd {
    /// The endpoint in use now, and what tells when it is left.
    pub(super) fn turn(&self) -> (Arc<Turn>, watch::Receiver<Arc<Turn>>) {
        let mut turns = self.0.turn.subscribe();
        let turn = Arc::clone(&turns.borrow_and_update());
        (turn, turns)
    }

    /// Goes on to the next endpoint, unless somebody did so already.
    pub(super) fn leave(&self, turn: &Arc<Turn>, why: &str) {
        let number = turn.number + 1;
        let endpoint = &self.0.endpoints[number % self.0.endpoints.len()];
        let left = self.0.turn.send_if_modified(|present| {
            let is_present = Arc::ptr_eq(present, turn);
            if is_present {
                *present = Arc::new(Turn::new(number, endpoint, &self.0.options));
            }
            is_present
        });
        if left {
            debug!(endpoint = turn.endpoint, why, "leaving the endpoint");
        }
    }

    /// Makes a call, at one endpoint after another, until one answers or the time is over. So the call may reach etcd more
    /// than once, and must be of a kind for which that makes no difference.
    pub(super) async fn call<T, F>(&self, within: Within, call: impl Fn(Client) -> F) -> Result<T, Failed>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let deadline = Instant::now() + within.altogether;
        let mut backoff = Backoff::new(self.0.endpoints.len());
        loop {
            let (turn, _) = self.turn();
            let attempt = async { call(turn.client().await?).await };
            let time = within.each.min(deadline.saturating_duration_since(Instant::now()));
            let failed = match timeout(time, attempt).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error)) => Failed::from(error),
                Err(_) => Failed::Store(StoreError::Unavailable(format!("no answer within {:.1?}", within.each))),
            };
            let Failed::Store(StoreError::Unavailable(why)) = failed else { return Err(failed) };
            self.leave(&turn, &why);
            let pause = backoff.next();
            if Instant::now() + pause >= deadline {
                return Err(Failed::Store(StoreError::Unavailable(format!("{}: {why}", turn.endpoint))));
            }
            sleep(pause).await;
        }
    }
}

/// How long a call may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Within {
    pub(crate) each: Duration,
    pub(crate) altogether: Duration,
}

impl Within {
    pub(crate) fn altogether(altogether: Duration) -> Within {
        Within { each: ATTEMPT_TIMEOUT, altogether }
    }

    /// At one endpoint only.
    pub(crate) fn one_attempt(each: Duration) -> Within {
        Within { each, altogether: each }
    }
}

/// How long to wait before the next endpoint is asked: not at all as long as there is one that was not asked yet, then
/// longer from round to round, from 10 ms to 1 s, and not in step with other processes.
#[derive(Debug)]
pub(super) struct Backoff {
    endpoints: usize,
    asked: usize,
}

impl Backoff {
    pub(super) fn new(endpoints: usize) -> Backoff {
        Backoff { endpoints, asked: 0 }
    }

    pub(super) fn next(&mut self) -> Duration {
        self.asked += 1;
        let round = self.asked / self.endpoints;
        if round == 0 {
            return Duration::ZERO;
        }
        let longest = Duration::from_millis(10 << round.min(7)).min(Duration::from_secs(1));
        longest.mul_f64(0.5 + random() as u32 as f64 / f64::from(u32::MAX) / 2.0)
    }
}

/// A number that differs from call to call and from process to process.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(())
}

/// Why a call did not do what it should.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failed {
    /// It named a lease that etcd does not have, or has no more.
    NoLease,
    /// Anything else.
    Store(StoreError),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        // gRPC's status codes; the client library has no names for them.
        const INVALID_ARGUMENT: i32 = 3;
        const NOT_FOUND: i32 = 5;
        const PERMISSION_DENIED: i32 = 7;
        const FAILED_PRECONDITION: i32 = 9;
        const UNAUTHENTICATED: i32 = 16;
        if let Error::InvalidArgs(what) = error {
            return Failed::Store(StoreError::Refused(what));
        }
        if matches!(&error, Error::LeaseKeepAliveError(what) if what == "lease not found") {
            return Failed::NoLease;
        }
        let Error::GRpcStatus(status) = &error else {
            return Failed::Store(StoreError::Unavailable(with_causes(&error)));
        };
        match i32::from(status.code()) {
            NOT_FOUND if status.message().contains("lease not found") => Failed::NoLease,
            INVALID_ARGUMENT | PERMISSION_DENIED | FAILED_PRECONDITION | UNAUTHENTICATED => {
                Failed::Store(StoreError::Refused(status.message().to_owned()))
            }
            _ => Failed::Store(StoreError::Unavailable(with_causes(status))),
        }
    }
}

/// An error's text with those of its causes: the last one is what helps.
pub(super) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let addition = error.to_string();
        if !text.contains(&addition) {
            text.push_str(": ");
            text.push_str(&addition);
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_endpoint_is_asked_once_before_anybody_waits_and_waits_get_longer_up_to_a_second() {
        let mut backoff = Backoff::new(3);
        assert_eq!([backoff.next(), backoff.next()], [Duration::ZERO; 2]);
        for _ in 0..100 {
            let pause = backoff.next();
            assert!(pause >= Duration::from_millis(10) && pause <= Duration::from_secs(1), "{pause:?}");
        }
        assert!(backoff.next() >= Duration::from_millis(500));
    }

    #[tokio::test]
    async fn an_endpoint_is_left_once_however_many_find_it_failing() {
        let etcd = Etcd::at(["http://127.0.0.1:1", "http://127.0.0.1:2"]).unwrap();
        let (turn, _) = etcd.turn();
        assert_eq!(turn.endpoint, "http://127.0.0.1:1");
        etcd.leave(&turn, "test");
        etcd.leave(&turn, "test");
        assert_eq!(etcd.turn().0.endpoint, "http://127.0.0.1:2");
        etcd.leave(&etcd.turn().0, "test");
        assert_eq!(etcd.turn().0.endpoint, "http://127.0.0.1:1");
    }
}
