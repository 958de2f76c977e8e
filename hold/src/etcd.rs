//! etcd, as a lock's holder uses it: a few calls that may be sent twice, and a watch that survives its member.

mod calls;
mod connection;
mod failed;
mod silence;
mod turn;
mod watch;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use etcd_client::{Identity, TlsOptions};
use fencepost_tls::server_verifier_of;
use rustls::client::danger::ServerCertVerifier;
use tokio::sync::watch as channel;
use tokio::time::timeout;
use tonic::transport::Endpoint;

pub(crate) use self::calls::{Mine, Place, Taking};
pub(crate) use self::failed::Failed;
use self::silence::Silence;
use self::turn::Turn;
pub(crate) use self::turn::{Within, random};
pub(crate) use self::watch::{Change, Gone};
use crate::error::InvalidEtcd;

/// How long whoever ends waits for what is given back in the background.
const SETTLED_WITHIN: Duration = Duration::from_secs(3);

/// A cluster of etcd: its endpoints and how to speak with them. Cheap to clone; clones share their connections.
///
/// One endpoint is used at a time, and left for the next as soon as it does not answer in time.
#[derive(Debug, Clone)]
pub struct Etcd(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// The endpoint in use. Whoever hangs on it learns when it is left.
    turn: channel::Sender<Arc<Turn>>,
    options: Options,
    /// Since when it does not answer; `None` while it does.
    silence: channel::Sender<Option<Silence>>,
    /// How many are giving something back in the background.
    settling: channel::Sender<usize>,
}

/// How to connect. Clones are the same.
#[derive(Clone, Default)]
struct Options(Arc<Said>);

#[derive(Default)]
struct Said {
    /// What was said last.
    access: Mutex<Access>,
    /// The user, with the password, that etcd has let in last.
    let_in: Mutex<Option<User>>,
}

/// A name and a password.
type User = (String, String);

impl Options {
    fn now(&self) -> Access {
        self.0.access.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn say(&self, access: Access) {
        *self.0.access.lock().unwrap_or_else(PoisonError::into_inner) = access;
    }

    fn let_in(&self) -> Option<User> {
        self.0.let_in.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note_let_in(&self, user: User) {
        *self.0.let_in.lock().unwrap_or_else(PoisonError::into_inner) = Some(user);
    }
}

/// How to connect.
#[derive(Clone, Default)]
struct Access {
    tls: Option<Tls>,
    user: Option<User>,
}

/// What a member is verified by, and what is shown to it.
#[derive(Clone)]
struct Tls {
    verifier: Arc<dyn ServerCertVerifier>,
    options: TlsOptions,
}

impl Tls {
    fn applied_to(self, endpoint: Endpoint) -> Result<Endpoint, tonic::transport::Error> {
        endpoint.tls_config_with_verifier(self.options, self.verifier)
    }
}

impl Etcd {
    /// The cluster at these endpoints, `http://host:port` each, without TLS and users.
    ///
    /// # Errors
    /// If there is none, one is not of that form, or one is there twice.
    pub fn at<E: Into<String>>(endpoints: impl IntoIterator<Item = E>) -> Result<Etcd, InvalidEtcd> {
        Etcd::builder(endpoints).build()
    }

    /// The cluster at these endpoints, `http://host:port` or `https://host:port` each, with more to say.
    pub fn builder<E: Into<String>>(endpoints: impl IntoIterator<Item = E>) -> EtcdBuilder {
        let endpoints = endpoints.into_iter().map(Into::into).collect();
        EtcdBuilder { endpoints, ca: Vec::new(), identity: None, access: Access::default() }
    }

    /// Has connections and logins that begin from now on be as this says: what is read from files may be replaced while
    /// locks are held. Those that there are go on, and the endpoints stay. As long as etcd does not accept a user's new password, the last that it
    /// has accepted goes on: it may be said here before etcd is told.
    ///
    /// # Errors
    /// If there can't be TLS with it: then all stays as it was.
    pub fn renew(&self, said: EtcdBuilder) -> Result<(), InvalidEtcd> {
        let access = said.access()?;
        if let Some(tls) = &access.tls {
            let unusable =
                |error: tonic::transport::Error| InvalidEtcd::Tls(failed::with_causes("no TLS", Some(&error)));
            tls.clone().applied_to(Endpoint::from_static("https://localhost")).map_err(unusable)?;
        }
        self.0.options.say(access);
        Ok(())
    }

    /// Returns once whatever was given up on this cluster has been given back there, or can't be: a lock that was waited for
    /// no longer, a tenure that was dropped. Takes 3 s at most. To be called before the runtime ends.
    pub async fn settled(&self) {
        let mut settling = self.0.settling.subscribe();
        // The channel's other end is our own.
        let _ = timeout(SETTLED_WITHIN, settling.wait_for(|running| *running == 0)).await;
    }

    /// Does something in the background that [`Etcd::settled`] waits for. Without a runtime it is not done.
    pub(crate) fn settle(&self, work: impl Future<Output = ()> + Send + 'static) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        self.0.settling.send_modify(|running| *running += 1);
        let settling = Settling(self.clone());
        runtime.spawn(async move {
            work.await;
            drop(settling);
        });
    }
}

/// Counts while it lives, also if its task is given up.
struct Settling(Etcd);

impl Drop for Settling {
    fn drop(&mut self) {
        self.0.0.settling.send_modify(|running| *running -= 1);
    }
}

/// Says how to reach a cluster of etcd.
#[derive(Debug, Clone)]
pub struct EtcdBuilder {
    endpoints: Vec<String>,
    /// Certificates to trust, in PEM.
    ca: Vec<u8>,
    identity: Option<Identity>,
    access: Access,
}

impl EtcdBuilder {
    /// Trusts servers by these certificates (PEM): an authority for what it has issued, any other certificate for itself. `https://`
    /// endpoints need at least one, and no others take any. No authority is trusted that is not named.
    #[must_use]
    pub fn ca_pem(mut self, pem: impl AsRef<[u8]>) -> EtcdBuilder {
        self.ca.extend_from_slice(pem.as_ref());
        self.ca.push(b'\n');
        self
    }

    /// Presents this certificate, with its private key (PEM both), to `https://` endpoints.
    #[must_use]
    pub fn identity_pem(mut self, certificate: impl AsRef<[u8]>, key: impl AsRef<[u8]>) -> EtcdBuilder {
        self.identity = Some(Identity::from_pem(certificate, key));
        self
    }

    /// Logs in as this user of etcd. With `http://` endpoints the password goes over the network as it is.
    #[must_use]
    pub fn user(mut self, name: impl Into<String>, password: impl Into<String>) -> EtcdBuilder {
        self.access.user = Some((name.into(), password.into()));
        self
    }

    /// The cluster. Nothing is sent yet.
    ///
    /// # Errors
    /// If there is no endpoint, one is not of the right form or there twice, if some have TLS and some do not, or if what TLS is made of
    /// lacks an authority, cannot be used, or is there though no endpoint has TLS.
    pub fn build(self) -> Result<Etcd, InvalidEtcd> {
        let endpoints = checked(&self.endpoints)?;
        let options = Options::default();
        options.say(self.access()?);
        let turn = channel::Sender::new(Arc::new(Turn::first(&endpoints, &options)));
        Ok(Etcd(Arc::new(Shared {
            turn,
            options,
            silence: channel::Sender::new(None),
            settling: channel::Sender::new(0),
        })))
    }

    fn access(self) -> Result<Access, InvalidEtcd> {
        let EtcdBuilder { endpoints, ca, identity, mut access } = self;
        let is_secure = endpoints.iter().any(|endpoint| is_secure(endpoint));
        match (is_secure, ca.is_empty(), identity) {
            (false, true, None) => {}
            (false, _, _) => return Err(InvalidEtcd::NoTls),
            (true, true, _) => return Err(InvalidEtcd::NoAuthority),
            (true, false, identity) => {
                let unusable = |flaw| InvalidEtcd::Tls(format!("no TLS: the PEM of the authorities {flaw}"));
                let verifier = server_verifier_of(&ca).map_err(unusable)?;
                let options = TlsOptions::new();
                let options = identity.into_iter().fold(options, TlsOptions::identity);
                access.tls = Some(Tls { verifier, options });
            }
        }
        Ok(access)
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

/// The endpoint of that name. A slash at its end says no more than none (RFC 3986, section 6.2.3).
fn endpoint(text: &str) -> Option<String> {
    let text = text.strip_suffix('/').unwrap_or(text);
    let authority = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"))?;
    authority.parse::<http::uri::Authority>().ok()?.port_u16()?;
    // Who is in front of an `@` would not be logged in.
    (!text.contains('@')).then(|| text.to_owned())
}

/// An address as it may be shown: what is in front of an `@` is a name and a password, often enough.
fn without_login(text: &str) -> String {
    let Some((_, host)) = text.rsplit_once('@') else { return text.to_owned() };
    format!("…@{host}")
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.now().fmt(f)
    }
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Neither keys nor passwords.
        let user = self.user.as_ref().map(|(name, _)| name);
        f.debug_struct("Access").field("tls", &self.tls.is_some()).field("user", &user).finish()
    }
}

#[cfg(test)]
mod tests {
    use fencepost_tests::Authority;

    use super::*;

    fn ca() -> String {
        Authority::new("etcd").certificate()
    }

    #[test]
    fn an_endpoint_has_a_scheme_a_host_and_a_port() {
        for right in ["http://127.0.0.1:2379", "https://etcd.example:2379", "http://[::1]:2379"] {
            for written in [right.to_owned(), format!("{right}/")] {
                assert_eq!(checked(&[written]).unwrap(), [right]);
            }
        }
        for wrong in [
            "127.0.0.1:2379",
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
            assert!(why.contains("…@h:1") && why.contains("no endpoint") && !why.contains("me:"), "{why}");
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
            (&["http://h:1", "https://h:2"], with_ca, Some(InvalidEtcd::Mixed("https://h:2".to_owned()))),
            (&["https://h:1", "http://h:2"], with_ca, Some(InvalidEtcd::Mixed("http://h:2".to_owned()))),
            (&["http://h:1", "http://h:1/"], nothing, Some(InvalidEtcd::Twice("http://h:1/".to_owned()))),
        ] {
            let built = say(Etcd::builder(endpoints.iter().copied())).build();
            assert_eq!(built.err(), wrong, "{endpoints:?}");
        }
    }

    #[test]
    fn what_there_can_be_no_tls_with_renews_nothing() {
        let said = || Etcd::builder(["https://h:1"]).ca_pem(ca()).user("master", "s3cret");
        let etcd = said().build().unwrap();
        let wrong = etcd.renew(said().user("other", "s3cret").identity_pem("c3rt", "k3y")).unwrap_err().to_string();
        assert!(wrong.starts_with("no TLS: ") && !wrong.contains("k3y"), "{wrong}");
        assert!(format!("{etcd:?}").contains("master"));
        assert_eq!(etcd.renew(said().user("other", "s3cret")), Ok(()));
        assert!(format!("{etcd:?}").contains("other"));
    }

    #[test]
    fn authorities_that_cannot_be_read_are_refused() {
        for (pem, says) in [("ca", "is not PEM"), ("-----BEGIN CERTIFICATE-----\n", "is cut short or garbled")] {
            let refused = Etcd::builder(["https://h:1"]).ca_pem(pem).build().unwrap_err().to_string();
            assert!(refused.starts_with("no TLS: the PEM of the authorities ") && refused.contains(says), "{refused}");
        }
    }

    #[test]
    fn no_secret_is_shown() {
        let etcd = Etcd::builder(["https://h:1"]).ca_pem(ca()).user("master", "s3cret").identity_pem("c3rt", "k3y");
        let shown = format!("{etcd:?} {:?}", etcd.clone().build().unwrap());
        assert!(shown.contains("master"));
        for secret in ["s3cret", "k3y"] {
            assert!(!shown.contains(secret), "{shown}");
        }
    }
}
