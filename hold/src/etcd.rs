//! etcd, as a lock's holder uses it: the shared client, with what is given back in the background.

mod calls;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use fencepost_locks::{EtcdAccess, EtcdClient, EtcdTls, EtcdUser};
use fencepost_tls::{ClientFiles, ClientTls, Followed as _, Look};
use rustls::pki_types::ServerName;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

pub use self::calls::Behind;
pub(crate) use self::calls::{Change, Mine, Taking};
use crate::error::{InvalidEtcd, StoreError};

/// How long [`Etcd::settled`] waits for the background to give back leases.
const SETTLED_WITHIN: Duration = Duration::from_secs(3);

/// A cluster of etcd: its endpoints and how to speak with them. Cheap to clone; clones share their
/// connections.
///
/// One endpoint is used at a time, and left for the next as soon as it does not answer in time.
#[derive(Debug, Clone)]
pub struct Etcd(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    client: EtcdClient,
    tls: Option<ClientTls>,
    /// What is given back in the background.
    settling: TaskTracker,
}

impl Etcd {
    /// The cluster at these endpoints, `http://host:port` each, without TLS and users.
    ///
    /// # Errors
    /// If the list is empty, if an endpoint is not of that form, or if it is listed twice.
    pub fn at<E: Into<String>>(
        endpoints: impl IntoIterator<Item = E>,
    ) -> Result<Etcd, InvalidEtcd> {
        Etcd::builder(endpoints).build()
    }

    /// Starts the settings of a cluster at these endpoints, `http://host:port` or
    /// `https://host:port` each.
    pub fn builder<E: Into<String>>(endpoints: impl IntoIterator<Item = E>) -> EtcdBuilder {
        let endpoints = endpoints.into_iter().map(Into::into).collect();
        EtcdBuilder { endpoints, tls: None, server_name: None, user: None }
    }

    /// Looks whether the files of TLS have changed, and has connections that begin from now on go by
    /// what they hold. Those that there are go on.
    pub async fn reload_files(&self) -> Look {
        let Some(tls) = self.0.tls.clone() else { return Look::Unchanged };
        // Reading a file may block. An error means that looking panicked.
        tokio::task::spawn_blocking(move || tls.look()).await.unwrap_or(Look::Unchanged)
    }

    /// Returns once no call has been answered for so long, with what was wrong with the last one.
    /// As long as there is nothing to ask etcd, it is not silent.
    ///
    /// # Cancel safety
    /// May be given up and called again.
    pub async fn silent_for(&self, how_long: Duration) -> StoreError {
        self.client().silent_for(how_long).await
    }

    /// Returns once etcd answers a call again. Returns at once unless etcd has left a call
    /// unanswered since its last answer.
    ///
    /// # Cancel safety
    /// May be given up and called again.
    pub async fn answers(&self) {
        self.client().answers().await;
    }

    /// Waits until locks and tenures that were dropped are given back in the cluster, or can't be:
    /// a lock whose [`acquire`](crate::Lock::acquire) was dropped, or a [`Tenure`](crate::Tenure).
    /// Takes 3 s at most. Call it before the runtime ends.
    pub async fn settled(&self) {
        self.0.settling.close();
        let _ = timeout(SETTLED_WITHIN, self.0.settling.wait()).await;
    }

    /// Runs work in the background, for which [`Etcd::settled`] waits. Without a runtime the work
    /// is not done.
    pub(crate) fn settle(&self, work: impl Future<Output = ()> + Send + 'static) {
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            self.0.settling.spawn_on(work, &runtime);
        }
    }

    pub(crate) fn client(&self) -> &EtcdClient {
        &self.0.client
    }
}

/// Says how to reach a cluster of etcd.
#[derive(Debug, Clone)]
pub struct EtcdBuilder {
    endpoints: Vec<String>,
    tls: Option<ClientFiles>,
    server_name: Option<String>,
    user: Option<EtcdUser>,
}

impl EtcdBuilder {
    /// Speaks TLS by these files ([`Etcd::reload_files`] follows them): `https://` endpoints need them, and
    /// no others take any. No authority is trusted that is not named.
    #[must_use]
    pub fn tls(self, files: ClientFiles) -> EtcdBuilder {
        EtcdBuilder { tls: Some(files), ..self }
    }

    /// The name that etcd's certificates must have, where it is not the host of the endpoint.
    #[must_use]
    pub fn server_name(self, name: impl Into<String>) -> EtcdBuilder {
        EtcdBuilder { server_name: Some(name.into()), ..self }
    }

    /// Logs in as this user of etcd. With `http://` endpoints the password goes over the network as
    /// it is.
    #[must_use]
    pub fn user(self, user: EtcdUser) -> EtcdBuilder {
        EtcdBuilder { user: Some(user), ..self }
    }

    /// The cluster. Nothing is sent yet.
    ///
    /// # Errors
    /// - The list of endpoints is empty, or an endpoint is invalid or listed twice.
    /// - Some endpoints have TLS and some do not.
    /// - The TLS files lack an authority or cannot be used.
    /// - There are TLS files, or a server name, but no endpoint has TLS.
    /// - No certificate can be for the server name.
    pub fn build(self) -> Result<Etcd, InvalidEtcd> {
        let endpoints = checked(&self.endpoints)?;
        let tls = match (is_secure(&endpoints[0]), self.tls) {
            (false, None) if self.server_name.is_none() => None,
            (false, _) => return Err(InvalidEtcd::NoTls),
            (true, None) => return Err(InvalidEtcd::NoAuthority),
            (true, Some(files)) => Some(ClientTls::load(files, &[b"h2"])?),
        };
        let server_name = self.server_name;
        if let Some(name) = &server_name
            && ServerName::try_from(name.as_str()).is_err()
        {
            return Err(InvalidEtcd::ServerName(name.clone()));
        }
        let of_access = tls.clone().map(|client| EtcdTls { client, server_name });
        let access = Arc::new(EtcdAccess::new(of_access, self.user));
        let client = EtcdClient::new(&endpoints, &access);
        Ok(Etcd(Arc::new(Shared { client, tls, settling: TaskTracker::new() })))
    }
}

/// The endpoints of these names: at least one, each once, and all with TLS or none.
fn checked(named: &[String]) -> Result<Vec<String>, InvalidEtcd> {
    let mut endpoints: Vec<String> = Vec::new();
    for text in named {
        let endpoint = endpoint(text)?;
        if endpoints.contains(&endpoint) {
            return Err(InvalidEtcd::Twice(text.clone()));
        }
        if endpoints.first().is_some_and(|first| is_secure(first) != is_secure(&endpoint)) {
            return Err(InvalidEtcd::Mixed(text.clone()));
        }
        endpoints.push(endpoint);
    }
    if endpoints.is_empty() { Err(InvalidEtcd::NoEndpoint) } else { Ok(endpoints) }
}

fn is_secure(endpoint: &str) -> bool {
    endpoint.starts_with("https://")
}

/// The endpoint of that name. A slash at its end says no more than none (RFC 3986, section 6.2.3);
/// without a scheme it is `http`, as for etcdctl.
fn endpoint(text: &str) -> Result<String, InvalidEtcd> {
    if text.starts_with("unix:") || text.starts_with("unixs:") {
        return Err(InvalidEtcd::UnixSocket(text.to_owned()));
    }
    let bare = text.strip_suffix('/').unwrap_or(text);
    let url = if bare.contains("://") { bare.to_owned() } else { format!("http://{bare}") };
    let authority = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    if authority.is_some_and(|authority| authority.starts_with('[') && authority.contains('%')) {
        return Err(InvalidEtcd::Zone(text.to_owned()));
    }
    let port = authority.and_then(|rest| rest.parse::<http::uri::Authority>().ok()?.port_u16());
    // Who is in front of an `@` would not be logged in.
    port.filter(|_| !url.contains('@'))
        .map(|_| url)
        .ok_or_else(|| InvalidEtcd::Endpoint(without_login(text)))
}

/// An address as it may be shown: what is in front of an `@` is a name and a password, often
/// enough.
fn without_login(text: &str) -> String {
    let Some((_, host)) = text.rsplit_once('@') else { return text.to_owned() };
    format!("…@{host}")
}

/// A number that differs from call to call and from process to process.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(())
}

#[cfg(test)]
mod tests {
    use fencepost_locks::Within;
    use fencepost_tests::{Authority, Claim, Issued, Scratch, Subject, Worker, WorkerTls};

    use super::*;

    /// Files that trust that certificate, in a directory.
    fn trusting(certificate: &str) -> (Scratch, ClientFiles) {
        let scratch = Scratch::new();
        let ca = scratch.path().join("ca.pem");
        std::fs::write(&ca, certificate).unwrap();
        (scratch, ClientFiles { ca, crl: None, identity: None })
    }

    #[test]
    fn an_endpoint_has_a_host_and_a_port() {
        for right in ["http://127.0.0.1:2379", "https://etcd.example:2379", "http://[::1]:2379"] {
            for written in [right.to_owned(), format!("{right}/")] {
                assert_eq!(checked(&[written]).unwrap(), [right]);
            }
        }
        assert_eq!(checked(&["127.0.0.1:2379".to_owned()]).unwrap(), ["http://127.0.0.1:2379"]);
        for wrong in [
            "127.0.0.1",
            "http://127.0.0.1",
            "ftp://h:1",
            "http://h:1/path",
            "http://h:1//",
            "http:///",
            "http://",
            "",
        ] {
            let refused = Etcd::at(["http://127.0.0.1:2379", wrong]).err();
            assert_eq!(refused, Some(InvalidEtcd::Endpoint(wrong.to_owned())));
        }
        assert_eq!(Etcd::at::<String>([]).err(), Some(InvalidEtcd::NoEndpoint));
    }

    #[test]
    fn a_login_in_an_endpoint_is_refused_and_not_shown() {
        for login in [
            "http://me:s3cret@h:1",
            "https://me@h:1",
            "http://me:s3@cret@h:1",
            "me:s3cret@h:1",
            "http://me:s3cret@h:1/",
            "http://me:s3/cret@h:1",
        ] {
            let why = Etcd::at([login]).unwrap_err().to_string();
            assert!(
                why.contains("…@h:1") && why.contains("no endpoint") && !why.contains("me:"),
                "{why}"
            );
        }
    }

    #[test]
    fn endpoints_differ_and_are_reached_in_one_way() {
        let (_scratch, files) = trusting(&Authority::new("etcd").certificate());
        let mixed = |endpoint: &str| Some(InvalidEtcd::Mixed(endpoint.to_owned()));
        let twice = Some(InvalidEtcd::Twice("http://h:1/".to_owned()));
        for (endpoints, has_files, wrong) in [
            (&["http://h:1", "http://h:2"][..], false, None),
            (&["https://h:1", "https://h:2"], true, None),
            (&["https://h:1"], false, Some(InvalidEtcd::NoAuthority)),
            (&["http://h:1"], true, Some(InvalidEtcd::NoTls)),
            (&["http://h:1", "https://h:2"], true, mixed("https://h:2")),
            (&["https://h:1", "http://h:2"], true, mixed("http://h:2")),
            (&["http://h:1", "http://h:1/"], false, twice),
        ] {
            let tls = has_files.then(|| files.clone());
            let etcd = EtcdBuilder { tls, ..Etcd::builder(endpoints.iter().copied()) };
            assert_eq!(etcd.build().err(), wrong, "{endpoints:?}");
        }
    }

    /// Whether a server that presents this certificate is believed, where that one is trusted.
    async fn believes(presented: &Issued, trusted: &str) -> bool {
        let tls = WorkerTls { identity: presented, client_ca: None, protocols: &["h2"] };
        let server = Worker::start_tls(&tls).await;
        let (_scratch, files) = trusting(trusted);
        let etcd = Etcd::builder([server.https()]).tls(files).build().unwrap();
        let why =
            etcd.look("/lock", Within::one_attempt(SETTLED_WITHIN)).await.unwrap_err().to_string();
        !why.contains("invalid peer certificate")
    }

    /// The key of a pinned certificate signed one for an etcd of its own, and a lock was taken
    /// there.
    #[tokio::test]
    async fn etcd_pinned_certificate_is_trusted_for_itself_alone() {
        let subject =
            Subject { common_name: Some("etcd"), names: &["127.0.0.1"], ..Subject::default() };
        for (claim, issues) in
            [(Claim::EndEntity, false), (Claim::Nothing, false), (Claim::Authority, true)]
        {
            let pinned = Authority::claiming(claim, &subject);
            assert!(believes(&pinned.own(), &pinned.certificate()).await, "{claim:?}");
            assert_eq!(
                believes(&pinned.issue(&subject), &pinned.certificate()).await,
                issues,
                "{claim:?}"
            );
        }
    }
}
