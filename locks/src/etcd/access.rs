//! How a cluster lets us in: over TLS, as a user.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::{fmt, io};

use fencepost_tls::ClientTls;

use crate::secret;

/// Where an etcd cluster is, and how it lets us in.
#[derive(Debug, Clone, Default)]
pub struct EtcdOptions {
    /// The client addresses of its members, such as `http://127.0.0.1:2379`. The first is asked
    /// first.
    pub endpoints: Vec<String>,
    /// Its id, if it is known: members of another cluster are not believed. Without it, all that
    /// answer must be of one cluster, and at least half of them must answer, before any is
    /// believed.
    pub cluster_id: Option<u64>,
    /// How it lets us in.
    pub access: Arc<EtcdAccess>,
}

/// How a cluster lets us in. The default is cleartext, without a login.
#[derive(Debug, Default)]
pub struct EtcdAccess {
    pub(super) tls: Option<EtcdTls>,
    pub(super) user: Option<EtcdUser>,
    /// The password that etcd has accepted last.
    accepted: Mutex<Option<Password>>,
}

impl EtcdAccess {
    /// `tls` makes connections to `https` addresses, `user` logs in; `None`: nobody. If etcd takes
    /// the common name of a client's certificate for a user, no login is needed.
    pub fn new(tls: Option<EtcdTls>, user: Option<EtcdUser>) -> EtcdAccess {
        EtcdAccess { tls, user, accepted: Mutex::default() }
    }

    /// The name of the user that logs in.
    pub(super) fn user_name(&self) -> Option<&str> {
        self.user.as_ref().map(|user| user.name.as_str())
    }

    /// The password that etcd has accepted last.
    pub(super) fn accepted(&self) -> Option<Password> {
        self.accepted.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes a password that etcd has accepted.
    pub(super) fn accept(&self, password: Password) {
        *self.accepted.lock().unwrap_or_else(PoisonError::into_inner) = Some(password);
    }
}

/// What TLS connections to etcd are made with.
#[derive(Debug, Clone)]
pub struct EtcdTls {
    /// As what its files say when a connection is made; HTTP/2 by ALPN.
    pub client: ClientTls,
    /// The name that etcd's certificate must have; `None`: the host that is connected to.
    pub server_name: Option<String>,
}

/// A user of etcd. While etcd rejects a new password, the client logs in with the last one that
/// etcd has accepted: the operator changes the password here first, and in etcd then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdUser {
    /// The name.
    pub name: String,
    /// The file of the password: UTF-8, up to 4 KiB, without the one line's end after it. It is
    /// read at each login.
    pub password_file: PathBuf,
}

/// A password: shown nowhere.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Password(pub(super) String);

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password")
    }
}

impl EtcdUser {
    /// A user with the password in that file.
    pub fn with_file(name: impl Into<String>, password_file: impl Into<PathBuf>) -> EtcdUser {
        EtcdUser { name: name.into(), password_file: password_file.into() }
    }

    /// Whether there is a password now. Reads the file on this thread.
    ///
    /// # Errors
    /// If it can't be read, or can't be a password.
    pub fn check(&self) -> io::Result<()> {
        secret::read_here(&self.password_file).map(|_| ())
    }

    /// The password to log in with now.
    ///
    /// # Errors
    /// As with [`check`](EtcdUser::check).
    pub(super) async fn password(&self) -> io::Result<Password> {
        secret::read(&self.password_file).await.map(Password)
    }

    /// Why this user is not let in, in words that name the file.
    pub(super) fn told(&self, why: &str) -> String {
        let EtcdUser { name, password_file } = self;
        format!("user {name:?} with the password in {}: {why}", password_file.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(contents: &[u8]) -> Result<String, String> {
        let directory = tempfile::tempdir().unwrap();
        let password_file = directory.path().join("password");
        std::fs::write(&password_file, contents).unwrap();
        let user = EtcdUser::with_file("fencepost", password_file);
        user.password().await.map(|password| password.0).map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn a_password_ends_before_the_end_of_its_line() {
        for (contents, password) in
            [("a b", "a b"), ("a\n", "a"), ("a\r\n", "a"), ("a\n\n", "a\n"), (" a ", " a ")]
        {
            assert_eq!(read(contents.as_bytes()).await.as_deref(), Ok(password), "{contents:?}");
        }
    }

    #[tokio::test]
    async fn what_can_be_no_password_is_told_without_it() {
        assert_eq!(read(b"\n").await, Err("it is empty".to_owned()));
        assert_eq!(read(b"secret\xff").await, Err("it is not UTF-8".to_owned()));
        assert_eq!(read(&[b'a'; 5000]).await, Err("it is no file of at most 4 KiB".to_owned()));
        assert_eq!(format!("{:?}", Password("secret".to_owned())), "Password");
    }
}
