//! TLS and users for etcd.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::pki::{Authority, Issued, Subject, replace_file};
use crate::scratch::Scratch;

/// What etcd gives to a user who logs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tokens {
    /// A random word that every member keeps, until it was not used there for so long.
    Simple(Duration),
    /// A signed note that ends after so long, or when any user or role is changed.
    Jwt(Duration),
}

/// TLS with client certificates, users and roles, for all members of a cluster. The user `root` has
/// the password `root`.
pub struct EtcdSecurity {
    /// Who issued the certificates of both sides.
    pub authority: Authority,
    tokens: Tokens,
    scratch: Scratch,
    users: AtomicBool,
}

impl EtcdSecurity {
    /// Certificates for the members and their clients.
    pub fn new(tokens: Tokens) -> Arc<EtcdSecurity> {
        let (authority, scratch) = (Authority::new("etcd"), Scratch::new());
        replace_file(&scratch.path().join("ca.pem"), &authority.certificate());
        replace_file(
            &scratch.path().join("jwt.key"),
            "a secret of all members, of more than thirty bytes",
        );
        authority.issue_for_localhost().write(scratch.path(), "server");
        EtcdSecurity::issue_client(&authority).write(scratch.path(), "client");
        Arc::new(EtcdSecurity { authority, tokens, scratch, users: AtomicBool::new(false) })
    }

    /// The file of the authority's certificate.
    pub fn ca(&self) -> PathBuf {
        self.scratch.path().join("ca.pem")
    }

    /// The files of a client's certificate and of its key.
    pub fn client(&self) -> (PathBuf, PathBuf) {
        (self.scratch.path().join("client.pem"), self.scratch.path().join("client.key"))
    }

    /// Writes another certificate and key into the files of [`EtcdSecurity::client`].
    pub fn replace_client(&self) {
        EtcdSecurity::issue_client(&self.authority).write(self.scratch.path(), "client");
    }

    fn issue_client(authority: &Authority) -> Issued {
        authority.issue(&Subject { common_name: Some("a client"), ..Subject::default() })
    }

    /// What a member is started with.
    pub(crate) fn server_arguments(&self) -> Vec<String> {
        let file = |name: &str| self.scratch.path().join(name).display().to_string();
        let tokens = match self.tokens {
            Tokens::Simple(ttl) => vec!["--auth-token-ttl".to_owned(), ttl.as_secs().to_string()],
            Tokens::Jwt(ttl) => {
                let (key, ttl) = (file("jwt.key"), ttl.as_secs());
                vec![
                    "--auth-token".to_owned(),
                    format!("jwt,pub-key={key},priv-key={key},sign-method=HS256,ttl={ttl}s"),
                ]
            }
        };
        let files = [
            ("--cert-file", "server.pem"),
            ("--key-file", "server.key"),
            ("--trusted-ca-file", "ca.pem"),
        ];
        let files = files.into_iter().flat_map(|(option, name)| [option.to_owned(), file(name)]);
        files.chain(["--client-cert-auth".to_owned()]).chain(tokens).collect()
    }

    /// What etcdctl is started with.
    pub(crate) fn client_arguments(&self) -> Vec<String> {
        let (certificate, key) = self.client();
        let files = [("--cacert", self.ca()), ("--cert", certificate), ("--key", key)];
        let files = files
            .into_iter()
            .flat_map(|(option, file)| [option.to_owned(), file.display().to_string()]);
        let root = self
            .users
            .load(Ordering::Relaxed)
            .then(|| ["--user".to_owned(), "root:root".to_owned()]);
        files.chain(root.into_iter().flatten()).collect()
    }

    /// From now on etcdctl has to log in.
    pub(crate) fn users_enabled(&self) {
        self.users.store(true, Ordering::Relaxed);
    }

    /// A directory for files that go with it.
    pub fn directory(&self) -> &Path {
        self.scratch.path()
    }
}

impl fmt::Debug for EtcdSecurity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdSecurity").field("tokens", &self.tokens).finish_non_exhaustive()
    }
}
