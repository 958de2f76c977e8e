//! Logging in on a connection: a token for a name and a password.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use etcd_client::{Client, Error};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use super::access::{EtcdAccess, EtcdUser, Password, Terms};
use super::failure::Failure;
use crate::store::StoreError;

/// How long etcd may take to check a password. It does so slowly on purpose (`--bcrypt-cost`): 70
/// ms as it is delivered, twice as long with each step.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(3);

/// For how long a login that was refused is not tried again: checking a password is costly for
/// etcd.
const REFUSED_FOR: Duration = Duration::from_secs(1);

/// The logins of one connection, whose client sends the token of the last one. They are counted,
/// from 1.
#[derive(Debug, Default)]
pub(super) struct Logins {
    count: AtomicU64,
    /// Whether at the last one etcd asked nobody to log in.
    needless: AtomicBool,
    /// How the last one failed, if it did, when, and on which terms. Locked while one is under way:
    /// whoever waits for it is served by it.
    failed: Mutex<Option<(Instant, Arc<Terms>, Failure)>>,
}

impl Logins {
    /// How many there have been.
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// Whether etcd asked nobody to log in. Once it does, it may take us for the user that our
    /// certificate names.
    pub(super) fn were_needless(&self) -> bool {
        self.needless.load(Ordering::Acquire)
    }

    /// Logs in, unless that has been done since there were so many logins. However many ask, there
    /// is one login at a time.
    ///
    /// # Cancel safety
    /// A login goes on without those who wait for it: it may take longer than any of them can wait.
    pub(super) async fn more_than(
        self: &Arc<Self>,
        count: u64,
        client: &Client,
        access: &Arc<EtcdAccess>,
    ) -> Result<(), Failure> {
        if self.count() > count {
            return Ok(());
        }
        let asked = Instant::now();
        let (logins, client, access) = (Arc::clone(self), client.clone(), Arc::clone(access));
        let login = tokio::spawn(async move {
            let mut failed = logins.failed.lock().await;
            if logins.count() > count {
                return Ok(());
            }
            let terms = access.terms();
            if let Some((at, refused, failure)) = &*failed
                && Arc::ptr_eq(refused, &terms)
                && (*at >= asked || is_refusal(failure) && at.elapsed() < REFUSED_FOR)
            {
                return Err(failure.clone());
            }
            let outcome = log_in(&client, &access, &terms).await;
            *failed =
                outcome.as_ref().err().map(|failure| (Instant::now(), terms, failure.clone()));
            let needed = outcome?;
            logins.needless.store(!needed, Ordering::Release);
            logins.count.fetch_add(1, Ordering::Release);
            Ok(())
        });
        login.await.unwrap_or_else(|error| {
            Err(Failure::endpoint(format!("logging in broke off: {error}")))
        })
    }
}

fn is_refusal(failure: &Failure) -> bool {
    matches!(failure, Failure::Store(_))
}

/// Has the client send a new token from now on; none if etcd asks nobody to log in, which is
/// `false`.
async fn log_in(client: &Client, access: &EtcdAccess, terms: &Terms) -> Result<bool, Failure> {
    let Some(user) = &terms.user else { return Ok(false) };
    let written = user
        .password()
        .await
        .map_err(|error| not_let_in(user, &format!("it can't be read: {error}")));
    let failure = match &written {
        Ok(password) => match show(client, user, password).await {
            Ok(needed) => {
                access.accept(user, password.clone());
                return Ok(needed);
            }
            Err(failure) => failure,
        },
        Err(failure) => failure.clone(),
    };
    let before = access
        .accepted(user)
        .filter(|before| is_refusal(&failure) && written.as_ref().ok() != Some(before));
    let Some(before) = before else { return Err(failure) };
    let needed = match show(client, user, &before).await {
        Ok(needed) => needed,
        Err(again) => {
            // etcd may have been told the new one since it refused that. If not, what it refused is
            // said.
            let Some(password) = written.ok().filter(|_| is_refusal(&again)) else {
                return Err(failure);
            };
            let needed = show(client, user, &password).await.map_err(|_| failure)?;
            access.accept(user, password);
            return Ok(needed);
        }
    };
    tracing::warn!(
        "{}; the one before goes on",
        user.told("etcd does not accept this password yet")
    );
    Ok(needed)
}

/// Shows etcd a password; `false` if it asks for none.
async fn show(
    client: &Client,
    user: &EtcdUser,
    Password(password): &Password,
) -> Result<bool, Failure> {
    let mut client = client.clone();
    let outcome =
        timeout(LOGIN_TIMEOUT, client.update_user(Some((user.name.clone(), password.clone()))))
            .await;
    match outcome.map_err(|_| Failure::endpoint(format!("no login within {LOGIN_TIMEOUT:?}")))? {
        Ok(()) => Ok(true),
        Err(Error::GRpcStatus(status))
            if status.message().contains("authentication is not enabled") =>
        {
            tracing::warn!(user = user.name, "etcd asks nobody to log in");
            client.update_user(None).await?;
            Ok(false)
        }
        Err(error) => Err(match Failure::from(error) {
            Failure::Store(StoreError::Refused(why)) => not_let_in(user, &why),
            Failure::LoggedOut | Failure::Denied | Failure::NoLease => {
                Failure::endpoint("it takes no login")
            }
            failure @ (Failure::Endpoint(_)
            | Failure::Connecting(_)
            | Failure::TooLate(_)
            | Failure::AnotherCluster { .. }
            | Failure::Checking
            | Failure::Store(_)) => failure,
        }),
    }
}

fn not_let_in(user: &EtcdUser, why: &str) -> Failure {
    Failure::Store(StoreError::NoLogin(user.told(why).into()))
}
