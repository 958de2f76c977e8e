//! The sources of locks of a process: each goes on for as long as a configuration in force, or a
//! request that came in under an earlier one, uses it. What it has learnt of its store is kept for
//! the next one of its name.

use std::env;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use fencepost_config::{ClientTls, Config, HostPort, PostgresSource, Source, SourceKind};
use fencepost_locks::{
    ConsulStore, EtcdOptions, EtcdStore, GroupOptions, HttpStoreOptions, HttpStoreTls,
    KubernetesStore, Lapsed, LockSource, MemoryStore, MysqlOptions, MysqlStore, PostgresOptions,
    PostgresStore, PostgresTls, SourceOptions, SpawnError, SqlLogin, Stopped, StorePast,
    WeakLockSource, ZookeeperOptions, ZookeeperStore, ZookeeperUser,
};
use fencepost_policy::group;
use fencepost_tls::TlsError;
use rustix::system::uname;
use tokio::time::interval;

use crate::cli::VERSION;
use crate::client_tls;
use crate::etcd_access::Access;
use crate::metrics::TlsUse;
use crate::tenure_log::Memory;
use crate::tls_files::TlsFiles;

/// How often it is looked whether a source has ended. Until then what is known ages, and admits
/// nobody after `max_age`.
const FAILED_PERIOD: Duration = Duration::from_millis(500);

/// Where a pod finds what its cluster has given to it.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The lock sources of a process.
pub struct LockSources {
    /// The store behind those of kind `memory`.
    store: MemoryStore,
    tls_files: TlsFiles,
    /// Whether this process serves requests, and so takes part in the group of its configuration.
    takes_part: AtomicBool,
    known: Mutex<Vec<Known>>,
}

/// A source that was started. Nobody but its users keeps it going; but as long as they do there is
/// no second one of its name, whose gates would know nothing of the requests of the first.
///
/// A lock's gate is forgotten with its source. A source that is put back begins where the one before
/// it was, and believes nothing less: so it is over the same store, for as long as the process runs.
struct Known {
    source: WeakLockSource,
    learnt: StorePast,
    /// Whether requests may have been let in by what it has learnt, or what the one before it had.
    has_admitted: bool,
    name: String,
    /// `None` for every kind but `etcd`.
    etcd: Option<Etcd>,
    /// What it was started for, to be reached in no other way.
    kind: SourceKind,
}

/// To tell a source where its members are.
struct Etcd {
    store: EtcdStore,
    /// How they let us in.
    access: Access,
    /// While another configuration is made ready: how they will, or how they did if that is what is
    /// tried by now.
    other: Option<Access>,
}

/// A source that goes on and is to be reached in another way: both ways, each over connections of
/// its own.
pub(crate) struct Detour {
    /// The source's name.
    pub(crate) name: String,
    /// The way in which it is reached.
    pub(crate) present: EtcdStore,
    /// The way in which it is to be reached.
    pub(crate) other: EtcdStore,
}

/// Why there are no sources for a configuration.
#[derive(Debug, thiserror::Error)]
pub enum SourcesError {
    /// The system gives no thread.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    /// What its TLS is made of is of no use.
    #[error("source.{name}.tls")]
    Tls {
        /// Its name.
        name: String,
        /// What is wrong.
        source: TlsError,
    },
    /// The other members of the group wait for this one's requests by what it said when it joined.
    #[error("group: a longer orphan_timeout than at the start needs a restart")]
    LongerOrphans,
    /// No server is named, and this is no pod.
    #[error(
        "source.{name}: url is missing, and this process runs in no pod (KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set): \
         write url = \"https://…\" with tls and token_file"
    )]
    NotInPod {
        /// Its name.
        name: String,
    },
    /// A source of that name was over another store.
    #[error("this name was that of another store until now: needs a restart")]
    AnotherStore {
        /// Its name.
        name: String,
    },
}

impl LockSources {
    /// None yet; `store` will be behind those of kind `memory`.
    pub fn new(store: MemoryStore, tls_files: TlsFiles) -> LockSources {
        LockSources {
            store,
            tls_files,
            takes_part: AtomicBool::new(false),
            known: Mutex::default(),
        }
    }

    /// This process serves requests: from now on it takes part in the group of its configuration.
    pub fn take_part(&self) {
        self.takes_part.store(true, Ordering::Relaxed);
    }

    /// The sources of a configuration, in its order: those that go on already, and new ones.
    ///
    /// # Errors
    /// If one can't be started, if its name was that of another store, or if its TLS files are of no
    /// use.
    pub fn of(
        &self,
        config: &Config,
        memory: Option<&Memory>,
    ) -> Result<Vec<LockSource>, SourcesError> {
        let mut known = self.known();
        // Held to the end: those that have not ended by now don't end meanwhile.
        let _in_use = in_use(&known);
        known.retain(|known| known.source.upgrade().is_some() || known.is_kept());
        let mut sources = Vec::new();
        for (index, wanted) in config.sources.iter().enumerate() {
            let before = known.iter().position(|known| known.name == wanted.name);
            if before.is_some_and(|before| !known[before].may_be(&wanted.kind)) {
                return Err(SourcesError::AnotherStore { name: wanted.name.clone() });
            }
            let going_on =
                before.and_then(|before| Some((before, known[before].source.upgrade()?)));
            let source = match going_on {
                Some((before, source)) => {
                    let orphans =
                        group_options(config, index).map(|group| group.timing.orphan_timeout);
                    if orphans > source.group().map(|group| group.options().timing.orphan_timeout) {
                        return Err(SourcesError::LongerOrphans);
                    }
                    self.make_ready(&mut known[before], wanted)?;
                    source
                }
                None => {
                    let past = before.map(|before| &known[before]);
                    let mut options = options(config, index, memory, past);
                    if self.takes_part.load(Ordering::Relaxed) {
                        options.group = group_options(config, index);
                    }
                    let (started, source) = self.start(wanted, past, options)?;
                    match before {
                        Some(before) => known[before] = started,
                        None => known.push(started),
                    }
                    source
                }
            };
            sources.push(source);
        }
        Ok(sources)
    }

    /// Has the sources of a configuration read as often as its routes need it, and reached where it
    /// says.
    pub fn follow(&self, config: &Config) {
        for known in &mut *self.known() {
            let Some(index) = config.sources.iter().position(|source| source.name == known.name)
            else {
                continue;
            };
            let Some(source) = known.source.upgrade() else { continue };
            source.set_period(period(config, index));
            if let (Some(etcd), SourceKind::Etcd { endpoints, .. }) =
                (&mut known.etcd, &config.sources[index].kind)
                && etcd.follow(&config.sources[index].kind, endpoints)
            {
                source.ask_members();
            }
        }
    }

    /// A configuration is about to be put in force: requests are let in by what its sources learn.
    pub(crate) fn admit(&self, config: &Config) {
        let is_named =
            |known: &&mut Known| config.sources.iter().any(|source| source.name == known.name);
        self.known().iter_mut().filter(is_named).for_each(|known| known.has_admitted = true);
    }

    /// The sources that `new`, which is made ready, reaches in another way than `old`, which is
    /// followed.
    pub(crate) fn detours(&self, old: &Config, new: &Config) -> Vec<Detour> {
        let detour = |known: &Known| {
            let kind = |config: &Config| {
                config
                    .sources
                    .iter()
                    .find(|source| source.name == known.name)
                    .map(|source| source.kind.clone())
            };
            let (etcd, before, after) = (known.etcd.as_ref()?, kind(old)?, kind(new)?);
            let (
                SourceKind::Etcd { endpoints: present, .. },
                SourceKind::Etcd { endpoints: other, .. },
            ) = (&before, &after)
            else {
                return None;
            };
            let access =
                etcd.other.as_ref().filter(|other| other.is_of(&after)).unwrap_or(&etcd.access);
            (before != after).then(|| Detour {
                name: known.name.clone(),
                present: etcd.store.beside(&etcd.access.urls(present), &etcd.access.made),
                other: etcd.store.beside(&access.urls(other), &access.made),
            })
        };
        self.known().iter().filter_map(detour).collect()
    }

    /// It is clear which configuration is followed: the one before, or the one that came to
    /// nothing, needs no access any more.
    pub fn settle(&self) {
        self.known()
            .iter_mut()
            .filter_map(|known| known.etcd.as_mut())
            .for_each(|etcd| etcd.other = None);
    }

    /// The store behind a source of kind `etcd` that goes on, to ask it something else than the
    /// source does.
    pub(crate) fn etcd(&self, name: &str) -> Option<EtcdStore> {
        let known = self.known();
        known.iter().find(|known| known.name == name)?.etcd.as_ref().map(|etcd| etcd.store.clone())
    }

    /// Every source that anybody still uses.
    pub fn all(&self) -> Vec<LockSource> {
        in_use(&self.known())
    }

    /// Accepts that the store of a source went back ([`LockSource::accept_regression`]); where
    /// nobody uses it any more, for the next source of its name. `None` if there never was one.
    pub(crate) async fn accept_regression(
        &self,
        name: &str,
        memory: Option<&Memory>,
    ) -> Option<Result<bool, Stopped>> {
        let source = {
            // Whoever starts the next one waits for this, and so it begins with all of it or
            // nothing.
            let known = self.known();
            let known = known.iter().find(|known| known.name == name)?;
            match known.source.upgrade() {
                Some(source) => source,
                None => {
                    let forget =
                        || memory.iter().for_each(|memory| memory.of_source(name).forget_tenures());
                    let had_gone_back = known.learnt.accept_regression(forget);
                    if had_gone_back {
                        tracing::warn!(
                            source = name,
                            "an operator accepted that the lock store went back; no route uses the source"
                        );
                    }
                    return Some(Ok(had_gone_back));
                }
            }
        };
        Some(source.accept_regression().await)
    }

    /// Completes, with its name, when the thread of one has ended that somebody uses: what is known
    /// then only ages.
    pub async fn failed(&self) -> String {
        let mut tick = interval(FAILED_PERIOD);
        loop {
            tick.tick().await;
            if let Some(source) = self.all().iter().find(|source| source.has_ended()) {
                return source.name().to_owned();
            }
        }
    }

    /// Starts a source, which goes on with what the one before it had learnt, if there was one.
    fn start(
        &self,
        source: &Source,
        past: Option<&Known>,
        options: SourceOptions,
    ) -> Result<(Known, LockSource), SourcesError> {
        let name = source.name.clone();
        let (started, etcd) = match (&source.kind, self.access(source)?) {
            (SourceKind::Consul { address, tls, token_file }, _) => {
                let tls = tls.as_deref().map(|tls| self.http_tls(source, tls)).transpose()?;
                let address = (address.host.clone(), address.port);
                let token_file = token_file.clone();
                let store = ConsulStore::new(HttpStoreOptions { address, tls, token_file });
                (LockSource::spawn_records(&name, options, move || store)?, None)
            }
            (SourceKind::Kubernetes { address, tls, token_file }, _) => {
                let at = match (address, tls.as_deref()) {
                    (Some(address), Some(tls)) => HttpStoreOptions {
                        address: (address.host.clone(), address.port),
                        tls: Some(self.http_tls(source, tls)?),
                        token_file: token_file.clone(),
                    },
                    (_, _) => self.in_pod(source)?,
                };
                let store = KubernetesStore::new(at);
                (LockSource::spawn_records(&name, options, move || store)?, None)
            }
            (SourceKind::Zookeeper { servers, session_timeout, user }, _) => {
                let store = ZookeeperStore::new(ZookeeperOptions {
                    servers: servers.iter().map(HostPort::to_string).collect(),
                    session_timeout: *session_timeout,
                    user: user.as_ref().map(made_zookeeper_user),
                });
                (LockSource::spawn_records(&name, options, move || store)?, None)
            }
            (SourceKind::Postgres(postgres), _) => {
                let store = PostgresStore::new(self.postgres(source, postgres)?);
                (LockSource::spawn_records(&name, options, move || store)?, None)
            }
            (SourceKind::Mysql(mysql), _) => {
                let store = MysqlStore::new(MysqlOptions {
                    login: sql_login(&mysql.login),
                    query: mysql.query.clone(),
                    lapsed: lapsed(mysql.lapsed),
                });
                (LockSource::spawn_records(&name, options, move || store)?, None)
            }
            (SourceKind::Etcd { endpoints, cluster_id, .. }, Some(access)) => {
                let (endpoints, made) = (access.urls(endpoints), Arc::clone(&access.made));
                let known_id = cluster_id.or_else(|| past.and_then(Known::cluster_id));
                let store =
                    EtcdStore::new(&EtcdOptions { endpoints, cluster_id: known_id, access: made });
                let etcd = Etcd { store: store.clone(), access, other: None };
                (LockSource::spawn(&name, options, move || store)?, Some(etcd))
            }
            (SourceKind::Etcd { .. } | SourceKind::Memory, _) => {
                let store = self.store.clone();
                (LockSource::spawn(&name, options, move || store)?, None)
            }
        };
        let (kind, learnt) = (source.kind.clone(), started.past());
        let has_admitted = past.is_some();
        Ok((Known { source: started.downgrade(), learnt, has_admitted, name, etcd, kind }, started))
    }

    /// How a pod reaches the API server of its cluster.
    fn in_pod(&self, source: &Source) -> Result<HttpStoreOptions, SourcesError> {
        let variable = |name: &str| env::var(name).ok();
        let (Some(host), Some(port)) = (
            variable("KUBERNETES_SERVICE_HOST"),
            variable("KUBERNETES_SERVICE_PORT").and_then(|port| port.parse().ok()),
        ) else {
            return Err(SourcesError::NotInPod { name: source.name.clone() });
        };
        let ca = Path::new(SERVICE_ACCOUNT).join("ca.crt");
        let tls = ClientTls { ca, crl: None, identity: None, server_name: None };
        let tls = Some(self.http_tls(source, &tls)?);
        let token_file = Some(Path::new(SERVICE_ACCOUNT).join("token"));
        Ok(HttpStoreOptions { address: (host, port), tls, token_file })
    }

    fn postgres(
        &self,
        source: &Source,
        postgres: &PostgresSource,
    ) -> Result<PostgresOptions, SourcesError> {
        let wrong = |error| SourcesError::Tls { name: source.name.clone(), source: error };
        let load = |tls: &ClientTls| -> Result<PostgresTls, SourcesError> {
            let client = client_tls::load(tls, &[]).map_err(wrong)?;
            self.tls_files.follow(TlsUse::Source, &source.name, &client.followed());
            Ok(PostgresTls { client, server_name: tls.server_name.clone() })
        };
        Ok(PostgresOptions {
            login: sql_login(&postgres.login),
            tls: postgres.tls.as_ref().map(load).transpose()?,
            query: postgres.query.clone(),
            lapsed: lapsed(postgres.lapsed),
            barrier: postgres.barrier,
            channel: postgres.channel.clone(),
        })
    }

    fn http_tls(&self, source: &Source, tls: &ClientTls) -> Result<HttpStoreTls, SourcesError> {
        let wrong = |error| SourcesError::Tls { name: source.name.clone(), source: error };
        let client = client_tls::load(tls, &[b"http/1.1"]).map_err(wrong)?;
        self.tls_files.follow(TlsUse::Source, &source.name, &client.followed());
        Ok(HttpStoreTls { client, server_name: tls.server_name.clone() })
    }

    /// Reads what a source that goes on needs to be reached in another way, if it is to be.
    fn make_ready(&self, known: &mut Known, wanted: &Source) -> Result<(), SourcesError> {
        let Some(etcd) = &mut known.etcd else { return Ok(()) };
        etcd.other = if etcd.access.is_of(&wanted.kind) { None } else { self.access(wanted)? };
        Ok(())
    }

    fn access(&self, source: &Source) -> Result<Option<Access>, SourcesError> {
        let wrong = |error| SourcesError::Tls { name: source.name.clone(), source: error };
        Access::new(source, &self.tls_files).map_err(wrong)
    }

    fn known(&self) -> MutexGuard<'_, Vec<Known>> {
        self.known.lock().expect("nothing panics while it looks at the sources")
    }
}

impl Etcd {
    /// Whether it is reached in another way from now on.
    fn follow(&mut self, kind: &SourceKind, endpoints: &[HostPort]) -> bool {
        if let Some(other) = self.other.as_mut().filter(|other| other.is_of(kind)) {
            std::mem::swap(&mut self.access, other);
        }
        self.store.move_to(&self.access.urls(endpoints), &self.access.made)
    }
}

fn sql_login(login: &fencepost_config::SqlLogin) -> SqlLogin {
    let fencepost_config::SqlLogin { address, user, password_file, database } = login;
    SqlLogin {
        host: address.host.clone(),
        port: address.port,
        user: user.clone(),
        password_file: password_file.clone(),
        database: database.clone(),
    }
}

fn lapsed(lapsed: fencepost_config::Lapsed) -> Lapsed {
    match lapsed {
        fencepost_config::Lapsed::Holds => Lapsed::Holds,
        fencepost_config::Lapsed::Ends => Lapsed::Ends,
    }
}

impl Known {
    /// Whether a source of that kind is over the same store: a cluster is what it was before, unless
    /// the configuration names another.
    fn may_be(&self, kind: &SourceKind) -> bool {
        match kind {
            SourceKind::Etcd { cluster_id: wanted, .. } => {
                let is_same = match (self.cluster_id(), *wanted) {
                    (Some(known), Some(wanted)) => known == wanted,
                    // One that goes on and has found none yet may find another.
                    (None, Some(_)) => self.source.upgrade().is_none(),
                    (_, None) => true,
                };
                self.etcd.is_some() && is_same
            }
            SourceKind::Consul { .. }
            | SourceKind::Kubernetes { .. }
            | SourceKind::Zookeeper { .. }
            | SourceKind::Postgres(_)
            | SourceKind::Mysql(_)
            | SourceKind::Memory => self.kind == *kind,
        }
    }

    /// The id of its cluster, if it is one and known.
    fn cluster_id(&self) -> Option<u64> {
        self.etcd.as_ref()?.store.cluster_id()
    }

    /// Whether the next one of its name begins with what it has learnt. If no request was ever let
    /// in by it, it does not: the file may have named a wrong cluster, and been refused. If its store
    /// is below what an earlier process saw, there is something to accept.
    fn is_kept(&self) -> bool {
        self.has_admitted || self.learnt.went_back()
    }
}

/// Those of them that anybody still uses.
fn in_use(known: &[Known]) -> Vec<LockSource> {
    known.iter().filter_map(|known| known.source.upgrade()).collect()
}

fn options(
    config: &Config,
    index: usize,
    memory: Option<&Memory>,
    past: Option<&Known>,
) -> SourceOptions {
    let name = &config.sources[index].name;
    SourceOptions {
        period: period(config, index),
        tracked_locks_max: config.limits.tracked_locks_max as u64,
        highest_seen: memory.and_then(|memory| memory.highest_seen(name)),
        store_seen: memory.map(|memory| memory.store_seen(name)).unwrap_or_default(),
        distrusted_through: memory.and_then(|memory| memory.distrusted_through(name)),
        past: past.map(|past| past.learnt.clone()),
        memory: memory.map(|memory| memory.of_source(name)),
        ..SourceOptions::default()
    }
}

/// How this process takes part in its group, if that has its keys in that source.
fn group_options(config: &Config, source: usize) -> Option<GroupOptions> {
    let group = config.group.as_ref().filter(|group| group.source == source)?;
    let orphan_timeouts = config.routes.iter().map(|route| route.orphan_timeout);
    Some(GroupOptions {
        name: group.name.clone(),
        prefix: group.members_prefix(),
        timing: group::Timing {
            member_ttl: group.member_ttl,
            orphan_timeout: orphan_timeouts.max().unwrap_or_default(),
        },
        host: uname().nodename().to_string_lossy().into_owned(),
        version: VERSION.to_owned(),
    })
}

/// How often a source is read: often enough for the most impatient of its routes.
fn period(config: &Config, source: usize) -> Duration {
    let max_ages = config
        .routes
        .iter()
        .filter(|route| route.mode.lock().is_some_and(|lock| lock.source == source));
    max_ages.map(|route| route.max_age).min().unwrap_or(Duration::from_secs(5)) / 5
}

/// The user of a ZooKeeper, as the store takes it.
pub(crate) fn made_zookeeper_user(user: &fencepost_config::ZookeeperUser) -> ZookeeperUser {
    ZookeeperUser { name: user.name.clone(), password_file: user.password_file.clone() }
}
