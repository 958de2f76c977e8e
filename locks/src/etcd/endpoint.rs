//! One endpoint and our connections to it.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use etcd_client::Client;
use futures_util::future::{BoxFuture, FutureExt, Shared};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::access::EtcdAccess;
use super::connect::{Purpose, connect};
use super::failure::Failure;
use super::login::log_in;
use super::member_check::check_member;
use crate::store::StoreError;

/// How often a call is tried whose login etcd does not accept: a change of roles makes etcd forget
/// logins.
const TRIES_MAX: u32 = 3;

/// For how long a login that was refused, or a connection to no member, is not tried again: checking
/// a password is costly for etcd.
const REFUSED_FOR: Duration = Duration::from_secs(1);

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
        let address: Arc<str> = address.into();
        let connections = |purpose| Connections {
            address: Arc::clone(&address),
            access: Arc::clone(access),
            purpose,
            present: Mutex::default(),
        };
        Endpoint {
            calls: connections(Purpose::Calls),
            watches: connections(Purpose::Watches),
            suspicions: watch::Sender::new(0),
            address,
        }
    }

    /// Whether it is there, and let us in in that way.
    pub(super) fn is(&self, address: &str, access: &Arc<EtcdAccess>) -> bool {
        *self.address == *address && Arc::ptr_eq(&self.calls.access, access)
    }

    /// Gives up all connections to it, and tells the watches that hang on them. Connections that
    /// are coming up stay: they have not failed, and on a slow line the next would be no faster. So
    /// do those that were refused, for their time.
    pub(super) fn suspect(&self) {
        for connections in [&self.calls, &self.watches] {
            connections
                .present()
                .take_if(|present| !present.is_coming_up() && !present.was_refused());
        }
        self.suspicions.send_modify(|count| *count += 1);
    }

    /// Changes when it becomes suspect.
    pub(super) fn suspicions(&self) -> watch::Receiver<u64> {
        self.suspicions.subscribe()
    }
}

/// One connection at a time, made and logged in when it is needed, and never used again once it has
/// failed: whether it is the member, the connection or something between that is stuck, a fresh
/// connection finds out soonest.
#[derive(Debug)]
pub(super) struct Connections {
    address: Arc<str>,
    access: Arc<EtcdAccess>,
    purpose: Purpose,
    present: Mutex<Option<Arc<Connection>>>,
}

impl Connections {
    /// Makes a call that may take so long, once a connection is up, which is waited for as long. If
    /// etcd takes the connection's login no more, the call is made anew after another login. Returns
    /// the connection that was used last, too.
    pub(super) async fn call<T, C: Future<Output = Result<T, Failure>>>(
        &self,
        limit: Duration,
        call: impl Fn(Client) -> C,
    ) -> (Arc<Connection>, Result<T, Failure>) {
        let (began, mut tries) = (Instant::now(), 1);
        loop {
            let connection = self.get();
            let outcome = connection.call(limit, &call).await;
            let has_user = self.access.user.is_some();
            let failure = match outcome {
                Err(Failure::LoggedOut) if !has_user => nobody_logs_in(),
                Err(Failure::LoggedOut) if tries == TRIES_MAX => {
                    Failure::endpoint("it takes none of the logins that it grants")
                }
                Err(Failure::LoggedOut) => {
                    self.log_in_again(&connection);
                    tries += 1;
                    continue;
                }
                // Where no login was needed, one may be by now. Of a watch, some versions say so of
                // a login whose time is over.
                Err(Failure::Denied)
                    if has_user
                        && connection.begun < began
                        && (self.purpose == Purpose::Watches || !connection.is_logged_in()) =>
                {
                    self.log_in_again(&connection);
                    continue;
                }
                outcome => return (connection, outcome),
            };
            return (connection, Err(failure));
        }
    }

    /// The one to use now.
    pub(super) fn get(&self) -> Arc<Connection> {
        let mut present = self.present();
        present.take_if(|present| present.was_refused() && present.begun.elapsed() >= REFUSED_FOR);
        Arc::clone(present.get_or_insert_with(|| Arc::new(self.connect(None))))
    }

    /// Whether new calls use that connection.
    pub(super) fn has(&self, connection: &Arc<Connection>) -> bool {
        self.present().as_ref().is_some_and(|present| Arc::ptr_eq(present, connection))
    }

    /// Has new calls wait for another login on this connection. If many calls find that the last
    /// login is over, the first of them starts the new one.
    fn log_in_again(&self, connection: &Arc<Connection>) {
        let mut present = self.present();
        if present.as_ref().is_some_and(|present| Arc::ptr_eq(present, connection)) {
            *present = Some(Arc::new(self.connect(connection.client())));
        }
    }

    /// Connects, unless there is a client already, and logs in, in a task that no caller can
    /// interrupt: on a slow line, and while etcd checks a password, it takes longer than any of them
    /// can wait.
    fn connect(&self, client: Option<Client>) -> Connection {
        let (address, access, purpose) =
            (Arc::clone(&self.address), Arc::clone(&self.access), self.purpose);
        let connecting = tokio::spawn(async move {
            let (client, is_new) = match client {
                Some(client) => (client, false),
                None => (connect(&address, access.tls.as_ref(), purpose).await?, true),
            };
            let is_logged_in = match &access.user {
                Some(user) => log_in(&client, &access, user).await?,
                None => false,
            };
            // The first watch on a connection for watches finds it out by itself.
            if is_new && purpose == Purpose::Calls {
                check_member(&client).await?;
            }
            Ok(Connected { client, is_logged_in })
        });
        let broke_off = |error| Err(Failure::endpoint(format!("connecting broke off: {error}")));
        let connecting = connecting.map(move |outcome| outcome.unwrap_or_else(broke_off));
        Connection {
            connecting: connecting.boxed().shared(),
            begun: Instant::now(),
            is_slow: AtomicBool::new(false),
        }
    }

    fn present(&self) -> std::sync::MutexGuard<'_, Option<Arc<Connection>>> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn nobody_logs_in() -> Failure {
    let what = "it wants a user to log in: give the source a username and a password_file";
    Failure::Store(StoreError::NoLogin(what.into()))
}

/// A connection, up or not.
pub(super) struct Connection {
    connecting: Shared<BoxFuture<'static, Result<Connected, Failure>>>,
    begun: Instant,
    /// Whether somebody has noted that it takes long to come up.
    is_slow: AtomicBool,
}

/// A connection that is up.
#[derive(Clone)]
struct Connected {
    client: Client,
    /// Whether etcd asked somebody to log in, when it came up.
    is_logged_in: bool,
}

impl Connection {
    async fn call<T, C: Future<Output = Result<T, Failure>>>(
        &self,
        limit: Duration,
        call: impl Fn(Client) -> C,
    ) -> Result<T, Failure> {
        let connected = timeout(limit, self.connecting.clone()).await;
        let Connected { client, .. } = connected.unwrap_or(Err(Failure::Connecting(limit)))?;
        timeout(limit, call(client)).await.unwrap_or(Err(Failure::TooLate(limit)))
    }

    fn is_coming_up(&self) -> bool {
        self.connecting.peek().is_none()
    }

    fn client(&self) -> Option<Client> {
        let Some(Ok(Connected { client, .. })) = self.connecting.peek() else { return None };
        Some(client.clone())
    }

    fn is_logged_in(&self) -> bool {
        matches!(self.connecting.peek(), Some(Ok(Connected { is_logged_in: true, .. })))
    }

    /// Whether etcd did not let us in, or something else than a member did.
    fn was_refused(&self) -> bool {
        matches!(self.connecting.peek(), Some(Err(Failure::Store(_) | Failure::NoMember)))
    }

    /// Notes that it takes long to come up. Whether that is news.
    pub(super) fn note_slow(&self) -> bool {
        !self.is_slow.swap(true, Ordering::Relaxed)
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("begun", &self.begun).finish_non_exhaustive()
    }
}
