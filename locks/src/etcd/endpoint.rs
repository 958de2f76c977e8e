//! One endpoint and our connections to it.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use etcd_client::Client;
use futures_util::future::{BoxFuture, FutureExt, Shared};
use tokio::sync::watch;
use tokio::time::timeout;

use super::access::EtcdAccess;
use super::connect::{Purpose, connect};
use super::failure::Failure;
use super::login::Logins;
use crate::store::StoreError;

/// How often a call is made whose login etcd does not take: whoever changes roles makes it forget
/// logins.
const TRIES_MAX: u32 = 3;

/// An endpoint of the cluster, with a client of its own: the library's balancer keeps dead members
/// in its rotation and does not say which one it asked.
#[derive(Debug)]
pub(super) struct Endpoint {
    /// Where it is, as configured.
    pub(super) address: Arc<str>,
    /// For calls that have a deadline.
    pub(super) calls: Connections,
    /// For watches: a connection of its own, so that heavy reads do not hold up events.
    pub(super) watches: Connections,
    /// How often it has become suspect: watches that hang on it end then.
    suspicions: watch::Sender<u64>,
}

impl Endpoint {
    pub(super) fn new(address: &str, access: &Arc<EtcdAccess>) -> Endpoint {
        let connections = |purpose| Connections {
            address: address.to_owned(),
            access: Arc::clone(access),
            purpose,
            present: Mutex::default(),
        };
        Endpoint {
            address: address.into(),
            calls: connections(Purpose::Calls),
            watches: connections(Purpose::Watches),
            suspicions: watch::Sender::new(0),
        }
    }

    /// Whether it is there, and let us in in that way.
    pub(super) fn is(&self, address: &str, access: &Arc<EtcdAccess>) -> bool {
        *self.address == *address && Arc::ptr_eq(&self.calls.access, access)
    }

    /// Gives up all connections to it, and tells the watches that hang on them.
    pub(super) fn suspect(&self) {
        self.calls.renew();
        self.watches.renew();
        self.suspicions.send_modify(|count| *count += 1);
    }

    /// Changes when it becomes suspect.
    pub(super) fn suspicions(&self) -> watch::Receiver<u64> {
        self.suspicions.subscribe()
    }
}

/// One connection at a time, made when it is needed and never used again once it has failed:
/// whether it is the member, the connection or something between that is stuck, a fresh connection
/// finds out soonest.
#[derive(Debug)]
pub(super) struct Connections {
    address: String,
    access: Arc<EtcdAccess>,
    purpose: Purpose,
    present: Mutex<Arc<Connection>>,
}

impl Connections {
    /// The one to use now.
    pub(super) fn present(&self) -> Arc<Connection> {
        Arc::clone(&self.present.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Makes a call that may take so long, once the connection is up, which is waited for as long,
    /// logged in if there is somebody to log in, with a login after so many others; anew if etcd
    /// does not take that login any more.
    pub(super) async fn call<T, C: Future<Output = Result<T, Failure>>>(
        &self,
        connection: &Connection,
        after: u64,
        limit: Duration,
        call: impl Fn(Client) -> C,
    ) -> Result<T, Failure> {
        let connected = timeout(limit, connection.client(|| self.connect())).await;
        let client = &connected.unwrap_or(Err(Failure::Connecting(limit)))?;
        let mut after = after;
        for _ in 0..TRIES_MAX {
            let logins = &connection.logins;
            let has_user = self.access.user().is_some();
            if has_user {
                let login = timeout(limit, logins.more_than(after, client, &self.access)).await;
                login.unwrap_or(Err(Failure::Checking))?;
            }
            let login = logins.count();
            let outcome = timeout(limit, call(client.clone())).await;
            match outcome.unwrap_or(Err(Failure::TooLate(limit))) {
                Err(Failure::LoggedOut) if has_user => after = login,
                Err(Failure::Denied) if logins.were_needless() => after = login,
                Err(Failure::LoggedOut) => return Err(nobody_logs_in()),
                outcome => return outcome,
            }
        }
        Err(Failure::endpoint("it takes none of the logins that it grants"))
    }

    /// Connects, in a task that no caller can interrupt: on a slow line that takes longer than any
    /// of them can wait.
    fn connect(&self) -> Connecting {
        let (address, access, purpose) =
            (self.address.clone(), Arc::clone(&self.access), self.purpose);
        let connecting =
            tokio::spawn(
                async move { connect(&address, access.terms().tls.as_ref(), purpose).await },
            );
        let broke_off = |error| Err(Failure::endpoint(format!("connecting broke off: {error}")));
        connecting
            .map(move |outcome| outcome.map_or_else(broke_off, |connected| Ok(connected?)))
            .boxed()
            .shared()
    }

    /// Makes sure that the one in use is not used again, except by those who are using it. One that
    /// is coming up stays: it has not failed, and on a slow line the next would be no faster.
    fn renew(&self) {
        let mut present = self.present.lock().unwrap_or_else(PoisonError::into_inner);
        if !present.is_coming_up() {
            *present = Arc::default();
        }
    }
}

fn nobody_logs_in() -> Failure {
    let what = "it wants a user to log in: give the source a username and a password_file";
    Failure::Store(StoreError::NoLogin(what.into()))
}

/// A connection that comes up, or has.
type Connecting = Shared<BoxFuture<'static, Result<Client, Failure>>>;

/// A connection, up or not.
#[derive(Default)]
pub(super) struct Connection {
    connecting: OnceLock<Connecting>,
    /// Whether somebody has noted that it takes long to come up.
    is_slow: AtomicBool,
    logins: Arc<Logins>,
}

impl Connection {
    /// Its client, once it is up.
    async fn client(&self, connect: impl FnOnce() -> Connecting) -> Result<Client, Failure> {
        self.connecting.get_or_init(connect).clone().await
    }

    fn is_coming_up(&self) -> bool {
        self.connecting.get().is_some_and(|connecting| connecting.peek().is_none())
    }

    /// Notes that it takes long to come up. Whether that is news.
    pub(super) fn note_slow(&self) -> bool {
        !self.is_slow.swap(true, Ordering::Relaxed)
    }

    /// How often there was a login on it.
    pub(super) fn logins(&self) -> u64 {
        self.logins.count()
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("used", &self.connecting.get().is_some()).finish()
    }
}
