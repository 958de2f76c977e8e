//! The endpoint that is in use, and how it is left.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Client, Error};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tracing::debug;

use super::connection::{Connection, Purpose};
use super::failed::{DENIED, Failed, NOBODY, denies, wants_login};
use super::{Etcd, Options};
use crate::error::StoreError;

/// How long one endpoint may take to answer a call, if nothing shorter is said.
pub(super) const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(1);

/// How often a call is made whose login etcd does not take: whoever changes roles makes it forget logins.
const LOGINS_MAX: u32 = 3;

/// An endpoint for as long as it is in use. When one fails, the next turn begins: with the next endpoint, or, where there is
/// only one, with new connections to it. Whether the member, the connection or something between is stuck, a fresh
/// connection finds out soonest.
pub(super) struct Turn {
    number: usize,
    /// To each endpoint.
    connections: Vec<Connections>,
}

/// The connections to one endpoint.
#[derive(Clone)]
struct Connections {
    calls: Arc<Connection>,
    /// A connection of its own, since it is probed and wants a leader.
    watches: Arc<Connection>,
}

/// Why an endpoint is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Left {
    /// It has failed: what was up is not used again.
    Failing,
    /// Its connection has not come up yet. That goes on meanwhile, and is there when its turn comes again.
    Slow,
}

impl Turn {
    pub(super) fn first(endpoints: &[String], options: &Options) -> Turn {
        let connections = endpoints.iter().map(|endpoint| Connections {
            calls: Connection::new(endpoint, options, Purpose::Calls),
            watches: Connection::new(endpoint, options, Purpose::Watches),
        });
        Turn { number: 0, connections: connections.collect() }
    }

    fn next(&self, why: Left) -> Turn {
        let mut connections = self.connections.clone();
        let left = &mut connections[self.place()];
        if why == Left::Failing {
            *left = Connections { calls: left.calls.after_failure(), watches: left.watches.after_failure() };
        }
        Turn { number: self.number + 1, connections }
    }

    /// How many endpoints there are.
    pub(super) fn endpoints(&self) -> usize {
        self.connections.len()
    }

    pub(super) fn endpoint(&self) -> &str {
        &self.calls().endpoint
    }

    /// For calls.
    pub(super) fn calls(&self) -> &Arc<Connection> {
        &self.connections[self.place()].calls
    }

    /// For watches.
    pub(super) fn watches(&self) -> &Arc<Connection> {
        &self.connections[self.place()].watches
    }

    fn place(&self) -> usize {
        self.number % self.connections.len()
    }
}

impl std::fmt::Debug for Turn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (turn {})", self.endpoint(), self.number)
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
    pub(super) fn leave(&self, turn: &Arc<Turn>, left: Left, why: &str) {
        if left == Left::Slow && turn.endpoints() == 1 {
            return;
        }
        let left = self.0.turn.send_if_modified(|present| {
            let is_present = Arc::ptr_eq(present, turn);
            if is_present {
                *present = Arc::new(turn.next(left));
            }
            is_present
        });
        if left {
            debug!(endpoint = turn.endpoint(), why, "leaving the endpoint");
        }
    }

    /// Makes a call, at one endpoint after another, until one answers or the time is over. So the call may reach etcd more
    /// than once, and must be of a kind for which that makes no difference.
    pub(super) async fn call<T, F>(
        &self,
        keys: Keys<'_>,
        within: Within,
        call: impl Fn(Client) -> F,
    ) -> Result<T, Failed>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let deadline = within.altogether.map(|altogether| Instant::now() + altogether);
        let limit = || match deadline {
            Some(deadline) => within.each.min(deadline.saturating_duration_since(Instant::now())),
            None => within.each,
        };
        let mut backoff = None;
        loop {
            let (turn, _) = self.turn();
            let began = Instant::now();
            let (left, why) = match attempt(turn.calls(), &limit, &call).await {
                Err((left, Failed::Store(StoreError::Unavailable(why)))) => (left, why),
                answered => {
                    self.note_answer();
                    return answered.map_err(|(_, failed)| self.naming(keys, failed));
                }
            };
            self.leave(&turn, left, &why);
            let unavailable = StoreError::Unavailable(format!("{}: {why}", turn.endpoint()));
            self.note_silence(began, &unavailable);
            let pause = backoff.get_or_insert_with(|| Backoff::new(turn.endpoints())).next();
            if deadline.is_none_or(|deadline| Instant::now() + pause >= deadline) {
                return Err(Failed::Store(unavailable));
            }
            sleep(pause).await;
        }
    }

    /// Says of a refusal who is missing, where etcd wants a user, or which keys it is about, where it denies them: it has no word of
    /// them itself.
    fn naming(&self, keys: Keys<'_>, failed: Failed) -> Failed {
        let Failed::Store(StoreError::Refused(why)) = &failed else { return failed };
        let user = self.0.options.now().user.map(|(name, _)| name);
        if user.is_none() && why.contains(NOBODY) {
            return Failed::Store(StoreError::NoLogin);
        }
        let keys = match keys {
            Keys::None => return failed,
            Keys::One(key) => key.to_owned(),
            Keys::Below(prefix) => format!("--prefix {prefix}"),
        };
        if why.contains(DENIED) { Failed::Store(StoreError::Denied { user, keys }) } else { failed }
    }
}

/// The keys that a call reads and writes: etcd may deny them.
#[derive(Debug, Clone, Copy)]
pub(super) enum Keys<'a> {
    /// It is about a lease.
    None,
    One(&'a str),
    /// All that begin so.
    Below(&'a str),
}

/// One attempt: waits for the connection, makes the call, and logs in and makes it again where that is what etcd wants. Each of
/// these has its own time, so that a connection is not left before it could show what it is good for.
async fn attempt<T, F>(
    connection: &Arc<Connection>,
    limit: impl Fn() -> Duration,
    call: impl Fn(Client) -> F,
) -> Result<T, (Left, Failed)>
where
    F: Future<Output = Result<T, Error>>,
{
    let mut logins = 1;
    loop {
        let time = limit();
        let session = timeout(time, connection.session()).await.map_err(|_| (Left::Slow, Failed::late(time)))?;
        let session = session.map_err(|failed| (Left::Failing, failed))?;
        let time = limit();
        let answer =
            timeout(time, call(session.client.clone())).await.map_err(|_| (Left::Failing, Failed::late(time)))?;
        match answer {
            Ok(answer) => return Ok(answer),
            Err(error)
                if logins < LOGINS_MAX
                    && (wants_login(&error) || session.login_was_needless && denies(&error))
                    && connection.log_in_again(&session) =>
            {
                logins += 1;
            }
            Err(error) => return Err((Left::Failing, error.into())),
        }
    }
}

/// How long a call may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Within {
    /// The answer, and before it the connection, or a login.
    each: Duration,
    /// All attempts together; `None`: there is one.
    altogether: Option<Duration>,
}

impl Within {
    pub(crate) fn altogether(altogether: Duration) -> Within {
        Within { each: ATTEMPT_TIMEOUT, altogether: Some(altogether) }
    }

    /// At one endpoint only.
    pub(crate) fn one_attempt(each: Duration) -> Within {
        Within { each, altogether: None }
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
        assert_eq!(turn.endpoint(), "http://127.0.0.1:1");
        etcd.leave(&turn, Left::Failing, "test");
        etcd.leave(&turn, Left::Slow, "test");
        assert_eq!(etcd.turn().0.endpoint(), "http://127.0.0.1:2");
        etcd.leave(&etcd.turn().0, Left::Slow, "test");
        assert_eq!(etcd.turn().0.endpoint(), "http://127.0.0.1:1");
    }

    /// Else a line that is slower than the patience of those who use it would never have a connection.
    #[tokio::test]
    async fn what_is_coming_up_when_an_endpoint_is_left_goes_on_and_what_has_failed_is_not_used_again() {
        // Takes connections, and never says a word of TLS.
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let ca = fencepost_tests::Authority::new("etcd").certificate();
        let etcd = Etcd::builder([format!("https://{}", silent.local_addr().unwrap())]).ca_pem(ca).build().unwrap();
        for why in [Left::Failing, Left::Slow] {
            let (turn, _) = etcd.turn();
            assert!(timeout(Duration::from_millis(10), turn.calls().session()).await.is_err());
            etcd.leave(&turn, why, "test");
            assert!(Arc::ptr_eq(turn.calls(), etcd.turn().0.calls()), "{why:?}");
        }
        let (turn, _) = etcd.turn();
        assert!(turn.calls().session().await.is_err(), "it takes too long");
        etcd.leave(&turn, Left::Failing, "test");
        assert!(!Arc::ptr_eq(turn.calls(), etcd.turn().0.calls()));
    }
}
