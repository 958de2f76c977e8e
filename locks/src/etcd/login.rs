//! Logging in on a connection that has come up: a token for a name and a password.

use std::time::Duration;

use etcd_client::{Client, Error};
use tokio::time::timeout;

use super::access::{EtcdAccess, EtcdUser, Password};
use super::failure::Failure;
use crate::store::StoreError;

/// How long etcd may take to check a password. It does so slowly on purpose (`--bcrypt-cost`): 70
/// ms as it is delivered, twice as long with each step.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(3);

/// Has the client send a token from now on; none if etcd asks nobody to log in, which is `false`.
///
/// Tries the password that etcd has accepted last where it refuses the one that is written down: an
/// operator writes a new one down first, and tells etcd then.
pub(super) async fn log_in(
    client: &Client,
    access: &EtcdAccess,
    user: &EtcdUser,
) -> Result<bool, Failure> {
    let written = user
        .password()
        .await
        .map_err(|error| not_let_in(user, &format!("it can't be read: {error}")));
    let shown = match &written {
        Ok(password) => show(client, user, password).await,
        Err(unreadable) => Err(unreadable.clone()),
    };
    let before = access.accepted().filter(|before| written.as_ref().ok() != Some(before));
    let outcome = match (shown, before) {
        (Err(refused @ Failure::Store(_)), Some(before)) => {
            if let Ok(needed) = show(client, user, &before).await {
                let what = user.told("etcd does not accept this password yet");
                tracing::warn!("{what}; the one before goes on");
                return Ok(needed);
            }
            // etcd may have been told the new one since it refused that.
            match &written {
                Ok(password) => show(client, user, password).await.map_err(|_| refused),
                Err(_) => Err(refused),
            }
        }
        (shown, _) => shown,
    };
    if let (Ok(_), Ok(password)) = (&outcome, written) {
        access.accept(password);
    }
    outcome
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
            Failure::LoggedOut | Failure::Denied | Failure::TooLarge | Failure::NoLease => {
                Failure::endpoint("it takes no login")
            }
            failure @ (Failure::Endpoint(_)
            | Failure::Connecting(_)
            | Failure::TooLate(_)
            | Failure::NoMember
            | Failure::AnotherCluster { .. }
            | Failure::Store(_)) => failure,
        }),
    }
}

fn not_let_in(user: &EtcdUser, why: &str) -> Failure {
    Failure::Store(StoreError::NoLogin(user.told(why).into()))
}
