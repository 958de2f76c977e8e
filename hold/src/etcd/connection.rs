//! A connection to one endpoint, which comes up and logs in at its own pace.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Channel, Client, ConnectOptions, Error};
use tokio::sync::watch;
use tokio::time::timeout;
use tonic::transport::Endpoint;
use tracing::debug;

use super::failed::{Failed, with_causes};
use super::{Options, User};
use crate::error::StoreError;

/// How long a connection may take to come up, TLS included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// How long etcd may take to check a password. It does so slowly on purpose (`--bcrypt-cost`): 70 ms as it is delivered, twice
/// as long with each step.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(3);

/// How often a connection that carries a watch is probed. etcd closes the connections of clients that probe it more often
/// than every 5 s.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(6);

/// How long the answer to such a probe may take.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(2);

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Calls that have a deadline of their own.
    Calls,
    /// Watches: a member without a leader ends them, since it could only go on being silent.
    Watches,
}

/// A connection. It comes up when it is first needed and goes on doing so without those who wait for it: on a slow line that
/// takes longer than any of them can wait.
pub(super) struct Connection {
    pub(super) endpoint: String,
    options: Options,
    purpose: Purpose,
    state: watch::Sender<State>,
}

#[derive(Clone)]
enum State {
    Unbegun,
    UnderWay,
    Up(Arc<Session>),
    /// It has not come up, or did not get in: whoever comes next begins anew.
    Down(Failed),
}

/// What calls are made with: a client that has logged in, if it has to.
pub(super) struct Session {
    pub(super) client: Client,
    /// Tells one login of the connection from the next.
    login: u64,
    /// Whether etcd asked nobody to log in. Once it does, it may take us for the user that our certificate names.
    pub(super) login_was_needless: bool,
}

impl Connection {
    /// One that nobody has needed yet.
    pub(super) fn new(endpoint: &str, options: &Options, purpose: Purpose) -> Arc<Connection> {
        let state = watch::Sender::new(State::Unbegun);
        Arc::new(Connection { endpoint: endpoint.to_owned(), options: options.clone(), purpose, state })
    }

    /// For the time after this one was found failing: this one, if it has still to come up, else a new one.
    pub(super) fn after_failure(self: &Arc<Self>) -> Arc<Connection> {
        match *self.state.borrow() {
            State::UnderWay => Arc::clone(self),
            State::Unbegun | State::Up(_) | State::Down(_) => {
                Connection::new(&self.endpoint, &self.options, self.purpose)
            }
        }
    }

    /// Has it come up from now on, unless somebody did that already.
    pub(super) fn begin(self: &Arc<Self>) {
        let connection = Arc::clone(self);
        self.go_on(|state| matches!(state, State::Unbegun | State::Down(_)), async move {
            let client = connection.connect().await?;
            let login_was_needless = !connection.log_in(&client).await?;
            Ok(Session { client, login: 0, login_was_needless })
        });
    }

    /// What calls are made with, once it is up.
    ///
    /// # Cancel safety
    /// It goes on coming up without those who wait for it.
    pub(super) async fn session(self: &Arc<Self>) -> Result<Arc<Session>, Failed> {
        let mut states = self.state.subscribe();
        self.begin();
        let settled = states.wait_for(|state| matches!(state, State::Up(_) | State::Down(_))).await;
        match &*settled.expect("its other end is our own") {
            State::Up(session) => Ok(Arc::clone(session)),
            State::Down(failed) => Err(failed.clone()),
            State::Unbegun | State::UnderWay => unreachable!("it is up or down"),
        }
    }

    /// etcd takes that login no longer: has the next session be under another. `false` if nobody is to log in. However many
    /// find that out, there is one login.
    pub(super) fn log_in_again(self: &Arc<Self>, ended: &Session) -> bool {
        if self.options.now().user.is_none() {
            return false;
        }
        let (client, login) = (ended.client.clone(), ended.login);
        let connection = Arc::clone(self);
        self.go_on(|state| matches!(state, State::Up(session) if session.login == login), async move {
            let login_was_needless = !connection.log_in(&client).await?;
            Ok(Session { client, login: login + 1, login_was_needless })
        });
        true
    }

    /// Does something that brings it up, in the background, where it is in a state for that.
    fn go_on(
        self: &Arc<Self>,
        from: impl FnOnce(&State) -> bool,
        work: impl Future<Output = Result<Session, Failed>> + Send + 'static,
    ) {
        let begins = self.state.send_if_modified(|state| {
            let begins = from(state);
            if begins {
                *state = State::UnderWay;
            }
            begins
        });
        if begins {
            let under_way = UnderWay(Arc::clone(self));
            tokio::spawn(async move {
                let state = work.await.map_or_else(State::Down, |session| State::Up(Arc::new(session)));
                under_way.0.state.send_replace(state);
            });
        }
    }

    async fn connect(&self) -> Result<Client, Failed> {
        let connecting = async {
            // At once: a client that connects with its first call would do that only for as long as somebody waits for it.
            let channel = self
                .endpoint()?
                .connect()
                .await
                .map_err(|error| unavailable(with_causes("no connection", Some(&error))))?;
            let options = ConnectOptions::new().with_require_leader(self.purpose == Purpose::Watches);
            Ok(Client::from_channel(Channel::Tonic(channel), Some(options)).await?)
        };
        timeout(CONNECT_TIMEOUT, connecting).await.map_err(|_| late("connection", CONNECT_TIMEOUT))?
    }

    fn endpoint(&self) -> Result<Endpoint, Error> {
        // The addresses that a name has share that time: one that is silent leaves the others some of it.
        let mut endpoint = Endpoint::from_shared(self.endpoint.clone())?.connect_timeout(CONNECT_TIMEOUT);
        if let (true, Some(tls)) = (self.endpoint.starts_with("https://"), self.options.now().tls) {
            endpoint = tls.applied_to(endpoint)?;
        }
        if self.purpose == Purpose::Watches {
            endpoint = endpoint
                .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
                .keep_alive_timeout(KEEPALIVE_TIMEOUT)
                .keep_alive_while_idle(false);
        }
        Ok(endpoint)
    }

    /// Has all clones of the client send a new token from now on; none if etcd asks nobody to log in, which is `false`.
    async fn log_in(&self, client: &Client) -> Result<bool, Failed> {
        let Some(user) = self.options.now().user else { return Ok(false) };
        let refused = match self.show(client, &user).await {
            Err(failed) if failed.is_refusal() => failed,
            Ok(true) => {
                self.options.note_let_in(user);
                return Ok(true);
            }
            outcome => return outcome,
        };
        // A new password may be said here before etcd is told.
        let before = self.options.let_in().filter(|before| before.0 == user.0 && before.1 != user.1);
        let Some(before) = before else { return Err(refused) };
        let needed = self.show(client, &before).await.map_err(|_| refused)?;
        debug!(endpoint = self.endpoint, "etcd does not accept this password yet; the one before goes on");
        Ok(needed)
    }

    /// Shows etcd a password; `false` if it asks for none.
    async fn show(&self, client: &Client, user: &User) -> Result<bool, Failed> {
        let mut client = client.clone();
        let login = timeout(LOGIN_TIMEOUT, client.update_user(Some(user.clone()))).await;
        match login.map_err(|_| late("login", LOGIN_TIMEOUT))? {
            Ok(()) => Ok(true),
            Err(Error::GRpcStatus(status)) if status.message().contains("authentication is not enabled") => {
                debug!(endpoint = self.endpoint, "etcd asks nobody to log in");
                client.update_user(None).await?;
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }
}

fn late(what: &str, limit: Duration) -> Failed {
    unavailable(format!("no {what} within {limit:?}"))
}

fn unavailable(why: String) -> Failed {
    Failed::Store(StoreError::Unavailable(why))
}

/// Work that brings a connection up. Nobody is to wait for it if it was given up: with its runtime, for one.
struct UnderWay(Arc<Connection>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.state.send_if_modified(|state| {
            let was_given_up = matches!(state, State::UnderWay);
            if was_given_up {
                *state = State::Down(unavailable("connecting was given up".to_owned()));
            }
            was_given_up
        });
    }
}

#[cfg(test)]
mod tests {
    use fencepost_tests::{Authority, Claim, Issued, Subject, Worker, WorkerTls};

    use super::*;
    use crate::etcd::Etcd;

    /// Connects to a server that presents this certificate, trusting that one.
    async fn connect(presented: &Issued, trusted: &str) -> Result<Client, Failed> {
        let tls = WorkerTls { identity: presented, client_ca: None, protocols: &["h2"] };
        let server = Worker::start_tls(&tls).await;
        let etcd = Etcd::builder([server.https()]).ca_pem(trusted).build().unwrap();
        Connection::new(&server.https(), &etcd.0.options, Purpose::Calls).connect().await
    }

    /// The key of a pinned certificate signed one for an etcd of its own, and a lock was taken there.
    #[tokio::test]
    async fn etcd_pinned_certificate_is_trusted_for_itself_alone() {
        let subject = Subject { common_name: Some("etcd"), names: &["127.0.0.1"], ..Subject::default() };
        for (claim, issues) in [(Claim::EndEntity, false), (Claim::Nothing, false), (Claim::Authority, true)] {
            let pinned = Authority::claiming(claim, &subject);
            let own = connect(&pinned.own(), &pinned.certificate()).await;
            assert!(own.is_ok(), "{claim:?}: {:?}", own.err());
            let issued = connect(&pinned.issue(&subject), &pinned.certificate()).await;
            assert_eq!(issued.is_ok(), issues, "{claim:?}: {:?}", issued.err());
        }
    }

    /// Without it, the first address of a name had all of the time in which a connection has to come up: where it dropped what was sent to
    /// it, the others were never tried.
    #[test]
    fn the_addresses_of_a_name_share_the_time_in_which_a_connection_comes_up() {
        for endpoint in ["http://etcd.test:2379", "https://etcd.test:2379"] {
            let connection = Connection::new(endpoint, &Options::default(), Purpose::Calls);
            assert_eq!(connection.endpoint().unwrap().get_connect_timeout(), Some(CONNECT_TIMEOUT));
        }
    }
}
