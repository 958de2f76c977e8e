//! The sources of locks of a process: each goes on for as long as a configuration in force, or a request that came in under
//! an earlier one, uses it.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use fencepost_config::{Config, HostPort, Source, SourceKind};
use fencepost_sources::{
    EtcdAccess, EtcdOptions, EtcdStore, LockSource, Member, MemoryStore, SourceOptions, SpawnError, WeakLockSource,
    known_stale_reads,
};
use tokio::time::interval;

use crate::memory::Memory;

/// How often it is looked whether a source has ended. Until then what is known ages, and admits nobody after `max_age`.
const FAILED_PERIOD: Duration = Duration::from_millis(500);

/// The lock sources of a process.
pub struct LockSources {
    /// The store behind those of kind `memory`.
    store: MemoryStore,
    known: Mutex<Vec<Known>>,
}

/// A source that was started. Nobody but its users keeps it going; but as long as they do there is no second one of its name,
/// whose gates would know nothing of the requests of the first.
struct Known {
    source: WeakLockSource,
    name: String,
    cluster_id: Option<u64>,
    /// To tell it where its members are; `None` for kind `memory`.
    etcd: Option<EtcdStore>,
    /// How its members let us in.
    access: Arc<EtcdAccess>,
}

/// Why there are no sources for a configuration.
#[derive(Debug, thiserror::Error)]
pub enum SourcesError {
    /// The system gives no thread.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    /// Requests still use a source of that name that is another.
    #[error("source.{name}: requests under way still use the source that had this name before, and it is another")]
    InUse {
        /// Its name.
        name: String,
    },
}

impl LockSources {
    /// None yet; `store` will be behind those of kind `memory`.
    pub fn new(store: MemoryStore) -> LockSources {
        LockSources { store, known: Mutex::default() }
    }

    /// The sources of a configuration, in its order: those that go on already, and new ones.
    ///
    /// # Errors
    /// If one can't be started, or is not what is still in use under its name.
    pub fn of(&self, config: &Config, memory: Option<&Memory>) -> Result<Vec<LockSource>, SourcesError> {
        let mut known = self.known();
        known.retain(|known| known.source.upgrade().is_some());
        let mut sources = Vec::new();
        for (index, wanted) in config.sources.iter().enumerate() {
            let found = known.iter().find(|known| known.name == wanted.name);
            let source = match found.and_then(|known| Some((known, known.source.upgrade()?))) {
                Some((known, source)) if known.is(&wanted.kind) => source,
                Some(_) => return Err(SourcesError::InUse { name: wanted.name.clone() }),
                None => {
                    let (started, source) = self.start(wanted, options(config, index, memory))?;
                    known.push(started);
                    source
                }
            };
            sources.push(source);
        }
        Ok(sources)
    }

    /// Has the sources of a configuration read as often as its routes need it, and reached where it says.
    pub fn follow(&self, config: &Config) {
        for known in &*self.known() {
            let Some(index) = config.sources.iter().position(|source| source.name == known.name) else { continue };
            let Some(source) = known.source.upgrade() else { continue };
            source.set_period(period(config, index));
            if let (Some(etcd), SourceKind::Etcd { endpoints, .. }) = (&known.etcd, &config.sources[index].kind)
                && etcd.move_to(&urls(endpoints), &known.access)
            {
                source.ask_members();
            }
        }
    }

    /// Every source that anybody still uses.
    pub fn all(&self) -> Vec<LockSource> {
        self.known().iter().filter_map(|known| known.source.upgrade()).collect()
    }

    /// Completes, with its name, when the thread of one has ended that somebody uses: what is known then only ages.
    pub async fn failed(&self) -> String {
        let mut tick = interval(FAILED_PERIOD);
        loop {
            tick.tick().await;
            if let Some(source) = self.all().iter().find(|source| source.has_ended()) {
                return source.name().to_owned();
            }
        }
    }

    fn start(&self, source: &Source, options: SourceOptions) -> Result<(Known, LockSource), SpawnError> {
        let name = source.name.clone();
        let access = Arc::<EtcdAccess>::default();
        let (started, etcd, cluster_id) = match &source.kind {
            SourceKind::Etcd { endpoints, cluster_id } => {
                let options_of_etcd =
                    EtcdOptions { access: Arc::clone(&access), ..etcd_options(endpoints, *cluster_id) };
                let etcd = EtcdStore::new(&options_of_etcd);
                let store = etcd.clone();
                (LockSource::spawn(&name, options, move || store)?, Some(etcd), *cluster_id)
            }
            SourceKind::Memory => {
                let store = self.store.clone();
                (LockSource::spawn(&name, options, move || store)?, None, None)
            }
        };
        Ok((Known { source: started.downgrade(), name, cluster_id, etcd, access }, started))
    }

    fn known(&self) -> MutexGuard<'_, Vec<Known>> {
        self.known.lock().expect("nothing panics while it looks at the sources")
    }
}

impl Known {
    fn is(&self, kind: &SourceKind) -> bool {
        match kind {
            SourceKind::Etcd { cluster_id, .. } => self.etcd.is_some() && self.cluster_id == *cluster_id,
            SourceKind::Memory => self.etcd.is_none(),
        }
    }
}

fn options(config: &Config, index: usize, memory: Option<&Memory>) -> SourceOptions {
    let name = &config.sources[index].name;
    SourceOptions {
        period: period(config, index),
        tracked_locks_max: config.limits.tracked_locks_max as u64,
        caution: Some(caution),
        highest_seen: memory.and_then(|memory| memory.highest_seen(name)),
        memory: memory.map(|memory| memory.of_source(name)),
        ..SourceOptions::default()
    }
}

/// How often a source is read: often enough for the most impatient of its routes.
fn period(config: &Config, source: usize) -> Duration {
    let max_ages = config.routes.iter().filter(|route| route.mode.lock().is_some_and(|lock| lock.source == source));
    max_ages.map(|route| route.max_age).min().unwrap_or(Duration::from_secs(5)) / 5
}

/// What there is to warn of in a member of a store.
pub(crate) fn caution(member: &Member) -> Option<String> {
    let version = member.version.as_ref().ok()?;
    known_stale_reads(version).then(|| {
        format!(
            "{} runs etcd {version}, which can answer a linearizable read with old data after pauses (etcd-io/etcd#20418, fixed in \
             3.4.42, 3.5.28 and 3.6.9): max_age may be exceeded once in such a case",
            member.endpoint
        )
    })
}

/// How the etcd of a source is reached.
pub(crate) fn etcd_options(endpoints: &[HostPort], cluster_id: Option<u64>) -> EtcdOptions {
    EtcdOptions { endpoints: urls(endpoints), cluster_id, ..EtcdOptions::default() }
}

fn urls(endpoints: &[HostPort]) -> Vec<String> {
    endpoints.iter().map(|endpoint| format!("http://{endpoint}")).collect()
}
