//! What can go wrong, by what the caller can do about it.

use std::time::Duration;

pub use fencepost_locks::EtcdError as StoreError;
use fencepost_policy::Owner;
use fencepost_tls::TlsError;

/// Why the lock could not be taken. Nothing is left behind in etcd, or runs out by itself there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AcquireError {
    /// Somebody else holds it: only from [`Lock::try_acquire`](crate::Lock::try_acquire).
    #[error("the lock is held by {}{}", in_words(owner), if *leased { "" } else { NO_LEASE })]
    Held {
        /// Who.
        owner: Owner,
        /// Whether its key has a lease, and so may run out.
        leased: bool,
    },
    /// etcd did not do what it was asked to.
    #[error("the lock cannot be taken")]
    Store(#[from] StoreError),
    /// The process has no file descriptor left for its clock.
    #[error("the clock cannot be set up: {0}")]
    Clock(String),
}

/// What follows where a lock's key has no lease.
pub(crate) const NO_LEASE: &str = "; that key has no lease: it stays until somebody deletes it";

/// How much of an owner is shown, in bytes of its text.
const OWNER_MAX: usize = 256;

/// An owner among words: an empty one is quoted, a long one is cut.
pub(crate) fn in_words(owner: &Owner) -> String {
    let text = owner.to_string();
    match text.len() {
        0 => r#""""#.to_owned(),
        // All of it is ASCII.
        OWNER_MAX.. => format!("{}…", &text[..OWNER_MAX]),
        _ => text,
    }
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

/// Why there is no such etcd.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidEtcd {
    /// No endpoint was named.
    #[error("no endpoint of etcd is named")]
    NoEndpoint,
    /// An endpoint is not `http://host:port` or `https://host:port`. It is shown without a login,
    /// which is said apart: [`EtcdBuilder::user`](crate::EtcdBuilder::user).
    #[error(
        "{0:?} is no endpoint of etcd: it must be \"http://host:port\" or \"https://host:port\", and who logs in is said apart"
    )]
    Endpoint(String),
    /// An endpoint is a unix socket.
    #[error(
        "etcd by a unix socket is not offered: have it listen on a loopback address too, and write \"http://127.0.0.1:2379\", not {0:?}"
    )]
    UnixSocket(String),
    /// An endpoint is an IPv6 address with a zone.
    #[error(
        "an IPv6 address with a zone is not offered: write a global address, a unique local one (fc00::/7), or a host name, not {0:?}"
    )]
    Zone(String),
    /// An endpoint is there twice: then one member would be asked twice before another.
    #[error("{0:?} is in the list of etcd's endpoints already")]
    Twice(String),
    /// Some endpoints are `http://` and some `https://`.
    #[error(
        "{0:?} must begin as the other endpoints of etcd do: all of them with http:// or all with https://"
    )]
    Mixed(String),
    /// Endpoints are `https://`, and nobody is to be trusted there.
    #[error(
        "no authority is named whose certificates are to be trusted at https:// endpoints of etcd"
    )]
    NoAuthority,
    /// There is an authority or a certificate, and endpoints are `http://`.
    #[error(
        "authorities and certificates mean nothing with http:// endpoints of etcd: write https://, or leave them out"
    )]
    NoTls,
    /// No certificate can be for the server name.
    #[error(
        "{0:?} is not a name that a certificate can be for: write a host name or an IP address"
    )]
    ServerName(String),
    /// The certificates and the key can't be used.
    #[error("no TLS: {0}")]
    Tls(#[from] TlsError),
}
