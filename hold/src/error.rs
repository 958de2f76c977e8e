//! What can go wrong, by what the caller can do about it.

use std::time::Duration;

use fencepost_policy::{InvalidLockKey, Owner};

use crate::lock::OWNER_BYTES_MAX;

/// Why the lock could not be taken. Nothing is left behind in etcd, or runs out by itself there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AcquireError {
    /// Somebody else holds it: only from [`Lock::try_acquire`](crate::Lock::try_acquire).
    #[error("the lock is held by {owner}")]
    Held {
        /// Who.
        owner: Owner,
    },
    /// etcd did not do what it was asked to.
    #[error("the lock cannot be taken")]
    Store(#[from] StoreError),
    /// The process has no file descriptor left for its clock.
    #[error("the clock cannot be set up: {0}")]
    Clock(String),
}

/// Why a lock is not known to be given back. It gets free by itself when its lease has run out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the lock is not known to be given back; it gets free within {within:?}")]
pub struct ReleaseError {
    /// For how long the lock may still stand in etcd. A change of etcd's leader makes it longer.
    pub within: Duration,
    /// Why.
    pub source: StoreError,
}

/// Why etcd did not do what it was asked to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// No endpoint has answered in time: later one may.
    #[error("etcd does not answer: {0}")]
    Unavailable(String),
    /// etcd refuses: it does not let us in, or the request makes no sense to it.
    #[error("etcd refuses: {0}")]
    Refused(String),
    /// etcd wants a user to log in, and none was named: [`EtcdBuilder::user`](crate::EtcdBuilder::user).
    #[error("etcd wants a user to log in")]
    NoLogin,
    /// etcd lets us in, but not to these keys.
    #[error(
        "{} may not read and write {keys} in etcd: etcdctl role grant-permission ROLE readwrite {keys}",
        user.as_ref().map_or_else(|| "who we are".to_owned(), |user| format!("user {user:?}"))
    )]
    Denied {
        /// Who is logged in; `None`: whoever etcd takes us for.
        user: Option<String>,
        /// The keys, in the words of etcdctl: a key, or `--prefix` and what they begin with.
        keys: String,
    },
}

/// Why there is no such etcd.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidEtcd {
    /// No endpoint was named.
    #[error("no endpoint of etcd is named")]
    NoEndpoint,
    /// An endpoint is not `http://host:port` or `https://host:port`. It is shown without a login, which is said apart:
    /// [`EtcdBuilder::user`](crate::EtcdBuilder::user).
    #[error(
        "{0:?} is no endpoint of etcd: it must be \"http://host:port\" or \"https://host:port\", and who logs in is said apart"
    )]
    Endpoint(String),
    /// An endpoint is there twice: then one member would be asked twice before another.
    #[error("{0:?} is in the list of etcd's endpoints already")]
    Twice(String),
    /// Some endpoints are `http://` and some `https://`.
    #[error("{0:?} must begin as the other endpoints of etcd do: all of them with http:// or all with https://")]
    Mixed(String),
    /// Endpoints are `https://`, and nobody is to be trusted there.
    #[error("no authority is named whose certificates are to be trusted at https:// endpoints of etcd")]
    NoAuthority,
    /// There is an authority or a certificate, and endpoints are `http://`.
    #[error(
        "authorities and certificates mean nothing with http:// endpoints of etcd: write https://, or leave them out"
    )]
    NoTls,
    /// The certificates and the key can't be used.
    #[error("{0}")]
    Tls(String),
}

/// Why there is no such lock.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidLock {
    /// Its key is none.
    #[error("not a lock key")]
    Key(#[from] InvalidLockKey),
    /// Its owner's name is of so many bytes: none, or too many.
    #[error("an owner's name is of 1 to {OWNER_BYTES_MAX} bytes, not of {0}")]
    Owner(usize),
    /// Its time to live is not from 1 s to a day, in whole seconds, as etcd counts.
    #[error("a lock's time to live is from 1 s to 24 h, in whole seconds, not {0:?}")]
    Ttl(Duration),
}
