//! etcd, as a lock's holder uses it: the shared client, with what is given back in the background.

mod calls;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use fencepost_locks::{EtcdAccess, EtcdClient, EtcdTls, EtcdUser};
use fencepost_tls::ClientTls;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

pub(crate) use self::calls::{Change, Mine, Taking};
use crate::error::{InvalidEtcd, StoreError};

/// How long whoever ends waits for what is given back in the background.
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
    access: Arc<EtcdAccess>,
    /// What is given back in the background.
    settling: TaskTracker,
}

impl Etcd {
    /// The cluster at these endpoints, `http://host:port` each, without TLS and users.
    ///
    /// # Errors
    /// If there is none, one is not of that form, or one is there twice.
    pub fn at<E: Into<String>>(
        endpoints: impl IntoIterator<Item = E>,
    ) -> Result<Etcd, InvalidEtcd> {
        Etcd::builder(endpoints).build()
    }

    /// The cluster at these endpoints, `http://host:port` or `https://host:port` each, with more to
    /// say.
    pub fn builder<E: Into<String>>(endpoints: impl IntoIterator<Item = E>) -> EtcdBuilder {
        let endpoints = endpoints.into_iter().map(Into::into).collect();
        EtcdBuilder { endpoints, ca: Vec::new(), identity: None, user: None }
    }

    /// Has connections and logins that begin from now on be as this says: what is read from files
    /// may be replaced while locks are held. Those that there are go on, and the endpoints stay. As
    /// long as etcd does not accept a user's new password, the last that it has accepted goes on:
    /// it may be said here before etcd is told.
    ///
    /// # Errors
    /// If there can't be TLS with it: then all stays as it was.
    pub fn renew(&self, said: EtcdBuilder) -> Result<(), InvalidEtcd> {
        self.0.access.replace(said.tls()?, said.user);
        Ok(())
    }

    /// Returns once no call has been answered for so long, with what was wrong with the last one.
    /// As long as there is nothing to ask etcd, it is not silent.
    ///
    /// # Cancel safety
    /// May be given up and called again.
    pub async fn silent_for(&self, how_long: Duration) -> StoreError {
        self.client().silent_for(how_long).await
    }

    /// Returns once a call has been answered since those that were not; at once if there are none.
    ///
    /// # Cancel safety
    /// May be given up and called again.
    pub async fn answers(&self) {
        self.client().answers().await;
    }

    /// Returns once whatever was given up on this cluster has been given back there, or can't be: a
    /// lock that was waited for no longer, a tenure that was dropped. Takes 3 s at most. To be
    /// called before the runtime ends.
    pub async fn settled(&self) {
        self.0.settling.close();
        let _ = timeout(SETTLED_WITHIN, self.0.settling.wait()).await;
    }

    /// Does something in the background that [`Etcd::settled`] waits for. Without a runtime it is
    /// not done.
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
#[derive(Clone, PartialEq, Eq)]
pub struct EtcdBuilder {
    endpoints: Vec<String>,
    /// Certificates to trust, in PEM.
    ca: Vec<u8>,
    /// A certificate and its key, in PEM.
    identity: Option<(Vec<u8>, Vec<u8>)>,
    user: Option<EtcdUser>,
}

impl EtcdBuilder {
    /// Trusts servers by these certificates (PEM): an authority for what it has issued, any other
    /// certificate for itself. `https://` endpoints need at least one, and no others take any. No
    /// authority is trusted that is not named.
    #[must_use]
    pub fn ca_pem(mut self, pem: impl AsRef<[u8]>) -> EtcdBuilder {
        self.ca.extend_from_slice(pem.as_ref());
        self.ca.push(b'\n');
        self
    }

    /// Presents this certificate, with its private key (PEM both), to `https://` endpoints.
    #[must_use]
    pub fn identity_pem(
        mut self,
        certificate: impl AsRef<[u8]>,
        key: impl AsRef<[u8]>,
    ) -> EtcdBuilder {
        self.identity = Some((certificate.as_ref().to_vec(), key.as_ref().to_vec()));
        self
    }

    /// Logs in as this user of etcd. With `http://` endpoints the password goes over the network as
    /// it is.
    #[must_use]
    pub fn user(mut self, name: impl Into<String>, password: impl Into<String>) -> EtcdBuilder {
        self.user = Some(EtcdUser::with_password(name, password));
        self
    }

    /// The cluster. Nothing is sent yet.
    ///
    /// # Errors
    /// If there is no endpoint, one is not of the right form or there twice, if some have TLS and
    /// some do not, or if what TLS is made of lacks an authority, cannot be used, or is there
    /// though no endpoint has TLS.
    pub fn build(self) -> Result<Etcd, InvalidEtcd> {
        let endpoints = checked(&self.endpoints)?;
        let access = Arc::new(EtcdAccess::new(self.tls()?, self.user));
        let client = EtcdClient::new(&endpoints, &access);
        Ok(Etcd(Arc::new(Shared { client, access, settling: TaskTracker::new() })))
    }

    fn tls(&self) -> Result<Option<EtcdTls>, InvalidEtcd> {
        let is_secure = self.endpoints.iter().any(|endpoint| is_secure(endpoint));
        match (is_secure, self.ca.is_empty(), &self.identity) {
            (false, true, None) => Ok(None),
            (false, _, _) => Err(InvalidEtcd::NoTls),
            (true, true, _) => Err(InvalidEtcd::NoAuthority),
            (true, false, identity) => {
                let identity = identity.as_ref().map(|(certificate, key)| (&**certificate, &**key));
                let client =
                    ClientTls::of_pem(&self.ca, identity, &[b"h2"]).map_err(InvalidEtcd::Tls)?;
                Ok(Some(EtcdTls { client, server_name: None }))
            }
        }
    }
}

/// The endpoints of these names: at least one, each once, and all with TLS or none.
fn checked(named: &[String]) -> Result<Vec<String>, InvalidEtcd> {
    let mut endpoints: Vec<String> = Vec::new();
    for text in named {
        let endpoint = endpoint(text).ok_or_else(|| InvalidEtcd::Endpoint(without_login(text)))?;
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
fn endpoint(text: &str) -> Option<String> {
    let text = text.strip_suffix('/').unwrap_or(text);
    let url = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    let authority = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"))?;
    authority.parse::<http::uri::Authority>().ok()?.port_u16()?;
    // Who is in front of an `@` would not be logged in.
    (!url.contains('@')).then_some(url)
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

impl std::fmt::Debug for EtcdBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Neither keys nor passwords.
        f.debug_struct("EtcdBuilder")
            .field("endpoints", &self.endpoints)
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use fencepost_locks::Within;
    use fencepost_tests::{Authority, Claim, Issued, Subject, Worker, WorkerTls};

    use super::*;

    fn ca() -> String {
        Authority::new("etcd").certificate()
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
    fn endpoints_differ_and_are_reached_in_one_way_that_all_of_them_have() {
        type Saying = fn(EtcdBuilder) -> EtcdBuilder;
        let (nothing, with_ca, identity): (Saying, Saying, Saying) =
            (|etcd| etcd, |etcd| etcd.ca_pem(ca()), |etcd| etcd.identity_pem("c3rt", "k3y"));
        for (endpoints, say, wrong) in [
            (&["http://h:1", "http://h:2"][..], nothing, None),
            (&["https://h:1", "https://h:2"], with_ca, None),
            (&["https://h:1"], nothing, Some(InvalidEtcd::NoAuthority)),
            (&["https://h:1"], identity, Some(InvalidEtcd::NoAuthority)),
            (&["http://h:1"], with_ca, Some(InvalidEtcd::NoTls)),
            (&["http://h:1"], identity, Some(InvalidEtcd::NoTls)),
            (
                &["http://h:1", "https://h:2"],
                with_ca,
                Some(InvalidEtcd::Mixed("https://h:2".to_owned())),
            ),
            (
                &["https://h:1", "http://h:2"],
                with_ca,
                Some(InvalidEtcd::Mixed("http://h:2".to_owned())),
            ),
            (
                &["http://h:1", "http://h:1/"],
                nothing,
                Some(InvalidEtcd::Twice("http://h:1/".to_owned())),
            ),
        ] {
            let built = say(Etcd::builder(endpoints.iter().copied())).build();
            assert_eq!(built.err(), wrong, "{endpoints:?}");
        }
    }

    /// Whether a server that presents this certificate is believed, where that one is trusted.
    async fn believes(presented: &Issued, trusted: &str) -> bool {
        let tls = WorkerTls { identity: presented, client_ca: None, protocols: &["h2"] };
        let server = Worker::start_tls(&tls).await;
        let etcd = Etcd::builder([server.https()]).ca_pem(trusted).build().unwrap();
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

    #[test]
    fn what_there_can_be_no_tls_with_renews_nothing() {
        let said = || Etcd::builder(["https://h:1"]).ca_pem(ca()).user("master", "s3cret");
        let etcd = said().build().unwrap();
        let wrong = etcd
            .renew(said().user("other", "s3cret").identity_pem("c3rt", "k3y"))
            .unwrap_err()
            .to_string();
        assert!(
            wrong.starts_with("no TLS: the PEM of the certificate: is not PEM")
                && !wrong.contains("k3y"),
            "{wrong}"
        );
        assert!(format!("{etcd:?}").contains("master"));
        assert_eq!(etcd.renew(said().user("other", "s3cret")), Ok(()));
        assert!(format!("{etcd:?}").contains("other"));
    }

    #[test]
    fn authorities_that_cannot_be_read_are_refused() {
        for (pem, says) in
            [("ca", "is not PEM"), ("-----BEGIN CERTIFICATE-----\n", "is cut short or garbled")]
        {
            let refused =
                Etcd::builder(["https://h:1"]).ca_pem(pem).build().unwrap_err().to_string();
            assert!(
                refused.starts_with("no TLS: the PEM of the authorities: ")
                    && refused.contains(says),
                "{refused}"
            );
        }
    }

    #[test]
    fn no_secret_is_shown() {
        let own = Authority::new("a master").own();
        let etcd = Etcd::builder(["https://h:1"]).ca_pem(ca()).user("master", "s3cret");
        let etcd = etcd.identity_pem(&own.certificate, &own.key);
        let shown = format!("{etcd:?} {:?}", etcd.clone().build().unwrap());
        assert!(shown.contains("master"));
        for secret in ["s3cret", own.key.lines().nth(1).unwrap()] {
            assert!(!shown.contains(secret), "{shown}");
        }
    }
}
