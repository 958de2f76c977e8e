//! How a fence reaches etcd.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fencepost_locks::{
    EtcdAccess, EtcdOptions, EtcdStore, EtcdTls, EtcdUser, GroupOptions, LockSource, SourceOptions,
    SpawnError,
};
use fencepost_policy::group::Timing;
use fencepost_tls::{ClientFiles, ClientTls, Followed, IdentityFiles, Look, TlsError};
use http::uri::Authority;
use tokio::time::{MissedTickBehavior, interval};

use crate::fence::Fence;
use crate::rules::TIME_MAX;

/// How often the files of TLS are looked at.
const LOOK_PERIOD: Duration = Duration::from_secs(1);

/// Says how to reach etcd: [`Fence::etcd`] begins it, [`FenceBuilder::build`] ends it.
#[derive(Debug, Clone)]
pub struct FenceBuilder {
    endpoints: Vec<String>,
    cluster_id: Option<u64>,
    ca: Option<PathBuf>,
    identity: Option<IdentityFiles>,
    user: Option<EtcdUser>,
    tracked_locks_max: u64,
    group: Option<Group>,
}

/// How a service shares the gates of its locks with others: see [`FenceBuilder::group`].
#[derive(Debug, Clone)]
struct Group {
    name: String,
    member_ttl: Duration,
    orphan_timeout: Duration,
}

/// How long the name of a group may be.
const GROUP_NAME_MAX: usize = 64;

/// Why there is no such fence.
#[derive(Debug, thiserror::Error)]
pub enum InvalidFence {
    /// No endpoint was given.
    #[error("no endpoint of etcd is given: add one, like http://127.0.0.1:2379")]
    NoEndpoint,
    /// One is not `http://host:port` or `https://host:port`. It is shown without a login:
    /// [`FenceBuilder::user`] takes that.
    #[error(
        "{0:?} is no endpoint: write http://host:port or https://host:port, without a login; FenceBuilder::user takes that"
    )]
    Endpoint(String),
    /// Some endpoints are reached over TLS, and some are not.
    #[error("all endpoints have to begin with http://, or all with https://")]
    Mixed,
    /// Files of TLS, and nothing to use them for.
    #[error("http endpoints need no files of TLS")]
    NeedlessTls,
    /// The name of the group, or one of its times, is invalid.
    #[error(
        "group {0:?} needs a name of 1 to 64 letters, digits, '_' and '-', a member_ttl of 3 s to 5 min, and an orphan_timeout of an hour at \
         most"
    )]
    Group(String),
    /// The name of the user is invalid.
    #[error("{0:?} cannot be the name of a user of etcd")]
    User(String),
    /// Endpoints with `https` lack the file of an authority.
    #[error("https endpoints need the file of the authority that signed etcd's certificate")]
    NoAuthority,
    /// A file for TLS cannot be used.
    #[error("TLS to etcd")]
    Tls(#[from] TlsError),
    /// The system gives no thread for the watched cache.
    #[error(transparent)]
    Thread(#[from] SpawnError),
}

impl FenceBuilder {
    pub(crate) fn at<E: Into<String>>(endpoints: impl IntoIterator<Item = E>) -> FenceBuilder {
        let tracked_locks_max = SourceOptions::default().tracked_locks_max;
        let endpoints = endpoints.into_iter().map(Into::into).collect();
        FenceBuilder {
            endpoints,
            cluster_id: None,
            ca: None,
            identity: None,
            user: None,
            tracked_locks_max,
            group: None,
        }
    }

    /// Believes only members of the cluster with this id, as `etcdctl endpoint status -w json`
    /// shows it (in decimal). Without it the endpoints are asked first: those that answer have to
    /// be of one cluster, and at least half of them.
    #[must_use]
    pub fn cluster_id(mut self, id: u64) -> FenceBuilder {
        self.cluster_id = Some(id);
        self
    }

    /// Trusts servers by the certificates in this file (PEM): an authority for what it has issued,
    /// any other for itself. `https://` endpoints need one. The file is read again when it changes.
    #[must_use]
    pub fn ca_file(mut self, ca: impl Into<PathBuf>) -> FenceBuilder {
        self.ca = Some(ca.into());
        self
    }

    /// Presents the certificate in this file, with its private key (PEM both). The files are read
    /// again when they change.
    #[must_use]
    pub fn identity_files(
        mut self,
        certificate: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
    ) -> FenceBuilder {
        self.identity = Some(IdentityFiles { certificate: certificate.into(), key: key.into() });
        self
    }

    /// Logs in as this user of etcd, with the password in this file, which is read at each login.
    /// Reading the lock keys is all that it must be allowed.
    #[must_use]
    pub fn user(
        mut self,
        name: impl Into<String>,
        password_file: impl Into<PathBuf>,
    ) -> FenceBuilder {
        self.user = Some(EtcdUser::with_file(name, password_file));
        self
    }

    /// Shares the gates of its locks with every process in the group of that name: other services of
    /// this kind, and fencepost processes with the same `[group]` (`docs/several-proxies.md`). So no
    /// request of a new holder begins in one while one of an older holder runs in another.
    ///
    /// `member_ttl` has to be that of the others, 15 s in fencepost unless said otherwise. No layer
    /// may have a longer `orphan_timeout` than the one given here: the others wait for so long. The
    /// user of etcd has to be allowed to read and write below `/fencepost/NAME/`. End with
    /// [`Fence::leave`].
    ///
    /// Whether this process may let requests in is looked at before the handler is called. A handler
    /// that stands still for longer than `member_ttl` and `orphan_timeout`, as with its whole
    /// machine, may meet requests of the next holder.
    #[must_use]
    pub fn group(
        mut self,
        name: impl Into<String>,
        member_ttl: Duration,
        orphan_timeout: Duration,
    ) -> FenceBuilder {
        self.group = Some(Group { name: name.into(), member_ttl, orphan_timeout });
        self
    }

    /// Sets how many templated locks ([`Fence::locks_below`]) are kept current though no request
    /// holds them: 100,000 by default. Beyond that, a new lock replaces the least recently used
    /// one, which is read anew when a request asks for it.
    #[must_use]
    pub fn tracked_locks_max(mut self, max: u64) -> FenceBuilder {
        self.tracked_locks_max = max;
        self
    }

    /// Builds the fence. Its cache works on a thread of its own from now on. The thread ends with
    /// the last fence, layer and admitted request.
    ///
    /// # Errors
    /// [`InvalidFence`] for a setting or a file that is invalid. `build` does not wait for etcd:
    /// see [`Fence::ready`].
    pub fn build(self) -> Result<Fence, InvalidFence> {
        let FenceBuilder { endpoints, cluster_id, ca, identity, user, tracked_locks_max, group } =
            self;
        if endpoints.is_empty() {
            return Err(InvalidFence::NoEndpoint);
        }
        let endpoints: Vec<String> =
            endpoints.iter().map(|text| endpoint(text)).collect::<Result<_, _>>()?;
        if let Some(EtcdUser { name, .. }) = &user
            && (name.is_empty() || name.contains(char::is_control))
        {
            return Err(InvalidFence::User(name.clone()));
        }
        let tls = load_tls(&endpoints, ca, identity)?;
        let followed = tls.as_ref().map(ClientTls::followed);
        let tls = tls.map(|client| EtcdTls { client, server_name: None });
        let access = Arc::new(EtcdAccess::new(tls, user));
        let group = group.map(Group::options).transpose()?;
        let options = SourceOptions { tracked_locks_max, group, ..SourceOptions::default() };
        let source = LockSource::spawn("etcd", options, move || {
            // On the runtime of the cache, and ended with it.
            followed.map(|followed| tokio::spawn(follow(followed)));
            EtcdStore::new(&EtcdOptions { endpoints, cluster_id, access })
        })?;
        Ok(Fence::over(source))
    }
}

impl Group {
    fn options(self) -> Result<GroupOptions, InvalidFence> {
        let Group { name, member_ttl, orphan_timeout } = self;
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        let is_name = (1..=GROUP_NAME_MAX).contains(&name.len()) && name.bytes().all(is_part);
        let fits = (Duration::from_secs(3)..=Duration::from_secs(300)).contains(&member_ttl);
        if !is_name || !fits || orphan_timeout > TIME_MAX {
            return Err(InvalidFence::Group(name));
        }
        Ok(GroupOptions {
            prefix: format!("/fencepost/{name}/members/"),
            name,
            timing: Timing { member_ttl, orphan_timeout },
            host: String::new(),
            version: concat!("fencepost-fence ", env!("CARGO_PKG_VERSION")).to_owned(),
        })
    }
}

/// The endpoint of that name. A slash at its end says no more than none (RFC 3986, section 6.2.3).
fn endpoint(text: &str) -> Result<String, InvalidFence> {
    let address = text.strip_suffix('/').unwrap_or(text);
    let authority = address.strip_prefix("http://").or_else(|| address.strip_prefix("https://"));
    let authority = authority.and_then(|authority| authority.parse::<Authority>().ok());
    // Who is in front of an `@` would not be logged in.
    let is_endpoint =
        authority.is_some_and(|authority| authority.port_u16().is_some() && !address.contains('@'));
    if is_endpoint {
        Ok(address.to_owned())
    } else {
        Err(InvalidFence::Endpoint(without_login(text)))
    }
}

/// An address as it may be shown: what is in front of an `@` is a name and a password, often
/// enough.
fn without_login(text: &str) -> String {
    let Some((_, host)) = text.rsplit_once('@') else { return text.to_owned() };
    format!("…@{host}")
}

/// What TLS to these endpoints is made of; `None` if they do without.
fn load_tls(
    endpoints: &[String],
    ca: Option<PathBuf>,
    identity: Option<IdentityFiles>,
) -> Result<Option<ClientTls>, InvalidFence> {
    let secure = endpoints.iter().filter(|endpoint| endpoint.starts_with("https://")).count();
    if secure == 0 {
        return if ca.is_some() || identity.is_some() {
            Err(InvalidFence::NeedlessTls)
        } else {
            Ok(None)
        };
    }
    if secure < endpoints.len() {
        return Err(InvalidFence::Mixed);
    }
    let ca = ca.ok_or(InvalidFence::NoAuthority)?;
    Ok(Some(ClientTls::load(ClientFiles { ca, crl: None, identity }, &[b"h2"])?))
}

/// Has files that change put in force, for as long as it is polled.
async fn follow(followed: Arc<dyn Followed>) {
    let mut ticks = interval(LOOK_PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let looking = Arc::clone(&followed);
        match tokio::task::spawn_blocking(move || looking.look()).await {
            Ok(Look::Reloaded) => tracing::info!("the TLS files for etcd were read again"),
            // Perhaps one of two has been written and the other has not: then the next look finds
            // both.
            Ok(Look::Failed(error)) => {
                tracing::warn!("the TLS files for etcd: {error}; what was in force stays")
            }
            Ok(Look::Unchanged) | Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_says_what_is_wrong_with_the_way_to_etcd() {
        let refused = |endpoints: &[&str]| {
            Fence::etcd(endpoints.iter().copied()).build().unwrap_err().to_string()
        };
        assert_eq!(
            refused(&[]),
            "no endpoint of etcd is given: add one, like http://127.0.0.1:2379"
        );
        assert_eq!(endpoint("http://h:1/").unwrap(), "http://h:1");
        for wrong in [
            "127.0.0.1:2379",
            "http://127.0.0.1",
            "ftp://h:1",
            "http://h:1/path",
            "http://h:1//",
            "http://",
            "",
        ] {
            assert!(
                refused(&["http://127.0.0.1:2379", wrong]).contains("is no endpoint"),
                "{wrong}"
            );
        }
        for login in [
            "http://me:s3cret@h:1",
            "https://me@h:1",
            "http://me:s3@cret@h:1",
            "me:s3cret@h:1",
            "http://me:s3cret@h",
        ] {
            let why = refused(&[login]);
            assert!(why.contains("is no endpoint") && !why.contains("me"), "{why}");
        }
        assert_eq!(
            refused(&["https://h:1"]),
            "https endpoints need the file of the authority that signed etcd's certificate"
        );
        let mixed = "all endpoints have to begin with http://, or all with https://";
        assert_eq!(refused(&["https://h:1", "http://h:2"]), mixed);
        let plain = || Fence::etcd(["http://h:1"]);
        for needless in
            [plain().ca_file("/ca.pem"), plain().identity_files("/cert.pem", "/key.pem")]
        {
            assert_eq!(
                needless.build().unwrap_err().to_string(),
                "http endpoints need no files of TLS"
            );
        }
        for name in ["", "a\nb"] {
            let nobody = plain().user(name, "/password").build().unwrap_err().to_string();
            assert_eq!(nobody, format!("{name:?} cannot be the name of a user of etcd"));
        }
        let second = Duration::from_secs(1);
        for (name, member_ttl, orphan_timeout) in
            [("", 15, 30), ("a/b", 15, 30), ("a", 1, 30), ("a", 15, 3601)]
        {
            let wrong = plain().group(name, second * member_ttl, second * orphan_timeout).build();
            assert!(matches!(wrong, Err(InvalidFence::Group(of)) if of == name), "{name}");
        }
        let no_file = Fence::etcd(["https://h:1"]).ca_file("/nowhere/ca.pem").build().unwrap_err();
        assert!(matches!(no_file, InvalidFence::Tls(_)), "{no_file}");
    }
}
