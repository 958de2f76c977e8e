//! Looks at the TLS files of the process once a second, for all their users.
//!
//! Reading files may block, so a thread of its own does it, never one that serves requests.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use fencepost_tls::{Expiry, Followed, Look, TlsError};
use tokio::time::{MissedTickBehavior, interval};

use crate::file_reader::FileReader;
use crate::metrics::{TlsMetrics, TlsReload, TlsUse};

/// How often files are looked at.
const LOOK_PERIOD: Duration = Duration::from_secs(1);

/// What is made of TLS files in this process, each for as long as somebody uses it. Clones are the
/// same one.
#[derive(Clone)]
pub struct TlsFiles(Arc<Shared>);

struct Shared {
    metrics: TlsMetrics,
    reader: FileReader,
    entries: Mutex<Vec<Arc<Entry>>>,
}

/// What was made of one set of files.
struct Entry {
    of: TlsUse,
    name: String,
    followed: Weak<dyn Followed>,
    /// What was wrong with the files at the last look, while it has not been said. A certificate
    /// and its key are written one after the other: what is wrong with them is said if they are the
    /// same at the next look.
    unsaid: Mutex<Option<TlsError>>,
}

/// Whether files may be in the middle of being written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Moment {
    /// They may: nobody has said that they are ready.
    Any,
    /// They are not: somebody asks to have them read.
    Asked,
}

impl TlsFiles {
    /// None yet.
    pub fn new(metrics: TlsMetrics) -> TlsFiles {
        TlsFiles(Arc::new(Shared {
            metrics,
            reader: FileReader::default(),
            entries: Mutex::default(),
        }))
    }

    /// Follows files from now on, until nobody has what is made of them. `name` is a metric label:
    /// an address, a route, a source. Where one name is followed twice, while a reload goes on,
    /// metrics show the later one.
    pub fn follow(&self, of: TlsUse, name: &str, followed: &Arc<dyn Followed>) {
        let entry = Entry {
            of,
            name: name.to_owned(),
            followed: Arc::downgrade(followed),
            unsaid: Mutex::default(),
        };
        let expiries = followed.expiries();
        self.0.metrics.set_expiries(of, name, &expiries);
        entry.caution(&expiries);
        self.0.entries().push(Arc::new(entry));
    }

    /// Follows files under that name no more: they have another.
    pub fn unfollow(&self, of: TlsUse, name: &str, followed: &Arc<dyn Followed>) {
        let followed = Arc::downgrade(followed);
        let has_it = |entry: &mut Arc<Entry>| {
            (entry.of, entry.name.as_str()) == (of, name) && entry.followed.ptr_eq(&followed)
        };
        let mut entries = self.0.entries();
        let removed: Vec<_> = entries.extract_if(.., has_it).collect();
        self.0.forget_gone(&removed, &entries);
    }

    /// Looks at all files once a second, for as long as it is polled.
    pub async fn keep_looking(&self) {
        let mut ticks = interval(LOOK_PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.look(Moment::Any).await;
        }
    }

    /// Looks at all files now, because somebody asks for it.
    pub async fn look_now(&self) {
        self.look(Moment::Asked).await;
    }

    async fn look(&self, moment: Moment) {
        let shared = Arc::clone(&self.0);
        if shared.entries().is_empty() {
            return;
        }
        // An error means that looking panicked, which the log has.
        let _ = self.0.reader.read(move || shared.look(moment)).await;
    }
}

impl Shared {
    fn entries(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Entry>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn look(&self, moment: Moment) {
        let looked_at = self.entries().clone();
        let gone: Vec<_> =
            looked_at.iter().filter(|entry| entry.look(moment, &self.metrics).is_none()).collect();
        let mut entries = self.entries();
        entries.retain(|entry| !gone.iter().any(|other| Arc::ptr_eq(entry, other)));
        // Looking has shown those again that got another name meanwhile.
        self.forget_gone(&looked_at, &entries);
    }

    /// Metrics show nothing any more of those whose names none of the present ones has.
    fn forget_gone(&self, before: &[Arc<Entry>], present: &[Arc<Entry>]) {
        let is_present = |one: &Entry| {
            present.iter().any(|other| (other.of, &other.name) == (one.of, &one.name))
        };
        before
            .iter()
            .filter(|one| !is_present(one))
            .for_each(|one| self.metrics.forget(one.of, &one.name));
    }
}

impl Entry {
    /// `None` if nobody uses it any more.
    fn look(&self, moment: Moment, metrics: &TlsMetrics) -> Option<()> {
        let followed = self.followed.upgrade()?;
        let mut unsaid = self.unsaid.lock().unwrap_or_else(PoisonError::into_inner);
        let looked = followed.look();
        // Whoever looked first, where several have the same one.
        metrics.set_expiries(self.of, &self.name, &followed.expiries());
        match looked {
            Look::Unchanged => {}
            Look::Reloaded => {
                *unsaid = None;
                metrics.reloaded(self.of, &self.name, TlsReload::Reloaded);
                tracing::info!(r#use = self.of.name(), name = self.name, "TLS files reloaded");
                self.caution(&followed.expiries());
                return Some(());
            }
            Look::Failed(error) => {
                let first_seen = unsaid.replace(error);
                if moment == Moment::Any && first_seen.is_none() {
                    return Some(());
                }
            }
        }
        if let Some(error) = unsaid.take() {
            metrics.reloaded(self.of, &self.name, TlsReload::Failed);
            tracing::error!(
                r#use = self.of.name(),
                name = self.name,
                "{error}; what was in force stays"
            );
        }
        Some(())
    }

    /// Says what has ended or soon will, and what has not begun.
    fn caution(&self, expiries: &[Expiry]) {
        let now = SystemTime::now();
        for caution in expiries.iter().filter_map(|expiry| expiry.caution(now)) {
            tracing::warn!(r#use = self.of.name(), name = self.name, "{caution}");
        }
    }
}
