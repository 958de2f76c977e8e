//! One endpoint and our connections to it.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use etcd_client::Client;
use tokio::sync::{OnceCell, watch};
use tokio::time::timeout;

use super::access::EtcdAccess;
use super::connect::{Purpose, client};
use super::failure::Failure;
use super::login::Logins;
use crate::store::StoreError;

/// How often a call is made whose login etcd does not take: whoever changes roles makes it forget logins.
const TRIES_MAX: u32 = 3;

/// An endpoint of the cluster, with a client of its own: the library's balancer keeps dead members in its rotation and
/// does not say which one it asked.
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

/// One connection at a time, made when it is needed and never used again once it has failed: whether it is the member, the
/// connection or something between that is stuck, a fresh connection finds out soonest.
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

    /// Makes a call that may take so long, logged in if there is somebody to log in, with a login after so many others; anew
    /// if etcd does not take that login any more.
    pub(super) async fn call<T, C: Future<Output = Result<T, Failure>>>(
        &self,
        connection: &Connection,
        after: u64,
        limit: Duration,
        call: impl Fn(Client) -> C,
    ) -> Result<T, Failure> {
        let connect = || client(&self.address, self.access.tls.as_ref(), self.purpose);
        let client = connection.client.get_or_try_init(connect).await?;
        let mut after = after;
        for _ in 0..TRIES_MAX {
            let logins = &connection.logins;
            if self.access.user.is_some() {
                let login = timeout(limit, logins.more_than(after, client, &self.access)).await;
                login.unwrap_or(Err(Failure::Checking))?;
            }
            let login = logins.count();
            let outcome = timeout(limit, call(client.clone())).await;
            match outcome.unwrap_or(Err(Failure::TooLate(limit))) {
                Err(Failure::LoggedOut) if self.access.user.is_some() => after = login,
                Err(Failure::Denied) if logins.were_needless() => after = login,
                Err(Failure::LoggedOut) => return Err(nobody_logs_in()),
                outcome => return outcome,
            }
        }
        Err(Failure::endpoint("it takes none of the logins that it grants"))
    }

    /// Makes sure that the one in use is not used again, except by those who are using it.
    fn renew(&self) {
        *self.present.lock().unwrap_or_else(PoisonError::into_inner) = Arc::default();
    }
}

fn nobody_logs_in() -> Failure {
    let what = "it wants a user to log in: give the source a username and a password_file";
    Failure::Store(StoreError::Refused(what.into()))
}

/// A connection, up or not.
#[derive(Default)]
pub(super) struct Connection {
    client: OnceCell<Client>,
    logins: Arc<Logins>,
}

impl Connection {
    /// How often there was a login on it.
    pub(super) fn logins(&self) -> u64 {
        self.logins.count()
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("used", &self.client.initialized()).finish()
    }
}
