//! The templated locks that are kept though nobody holds them, so that they need not be loaded each time.
//!
//! What is kept no more while somebody holds it is found again in the [`Registry`](super::registry::Registry), which also
//! says why forgetting the others can't admit an ended tenure.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use super::by_prefix::ByPrefix;
use super::record::{LockSpec, RecordFormat, TemplateSpec};
use super::tracked::TrackedLock;

/// How many locks are kept that have no record.
const WITHOUT_RECORD_MAX: usize = 10_000;

/// How many are passed over at most for each that makes room: all may be in use.
const SPARED_MAX: usize = 32;

/// All that are kept, apart by whether the store has a record: a flood of made-up keys pushes out made-up keys only.
#[derive(Debug)]
pub(crate) struct KeptLocks(Mutex<Rings>);

#[derive(Debug)]
struct Rings {
    with_record: Ring,
    without_record: Ring,
    /// Whose locks are kept; `None` as long as nobody has said so. Requests that came before go on to ask for others.
    templates: Option<Templates>,
}

/// Up to so many locks, in the order in which they came.
///
/// For one more, the first goes; but if it was asked for since it was last first, it becomes the last instead. That is near
/// enough to the one that nobody has asked for for longest, and asking writes a byte, once a round. To keep them in the order
/// in which they were asked for, each request would touch the lock's neighbours there, which are anywhere in memory.
#[derive(Debug)]
struct Ring {
    which: u8,
    max: usize,
    locks: VecDeque<Arc<TrackedLock>>,
}

/// Where a lock is kept. Changes with the rings only.
#[derive(Debug, Default)]
pub(crate) struct Place {
    /// The ring that has it; [`NOWHERE`].
    ring: AtomicU8,
    was_asked_for: AtomicBool,
}

const NOWHERE: u8 = 0;
const WITH_RECORD: u8 = 1;
const WITHOUT_RECORD: u8 = 2;

impl KeptLocks {
    pub(crate) fn new(with_record_max: u64) -> KeptLocks {
        let with_record_max = usize::try_from(with_record_max).unwrap_or(usize::MAX);
        let ring = |which, max| Ring { which, max, locks: VecDeque::new() };
        KeptLocks(Mutex::new(Rings {
            with_record: ring(WITH_RECORD, with_record_max),
            without_record: ring(WITHOUT_RECORD, WITHOUT_RECORD_MAX),
            templates: None,
        }))
    }

    /// Keeps a lock that somebody has asked for. Of those without a record that have one by now it becomes one of the others.
    pub(crate) fn keep(&self, lock: &Arc<TrackedLock>) {
        let place = lock.place();
        match place.ring.load(Ordering::Relaxed) {
            WITHOUT_RECORD if lock.exists() => {}
            WITH_RECORD | WITHOUT_RECORD => {
                // Most find it so, and need not take the cache line from other threads.
                if !place.was_asked_for.load(Ordering::Relaxed) {
                    place.was_asked_for.store(true, Ordering::Relaxed);
                }
                return;
            }
            _ => {}
        }
        let gone = self.rings().put(lock);
        drop(gone); // Here: a lock's end looks for it in the registry.
    }

    /// Keeps locks of these templates only, from now on, and lets go of all others.
    pub(crate) fn keep_only<'t>(&self, templates: impl Iterator<Item = &'t TemplateSpec>) {
        let templates: Templates = templates.collect();
        let mut rings = self.rings();
        let Rings { with_record, without_record, templates: kept } = &mut *rings;
        let gone = [with_record, without_record].map(|ring| ring.let_go_unless(|lock| templates.name(lock.spec())));
        *kept = Some(templates);
        drop(rings);
        drop(gone);
    }

    /// How many those are.
    pub(crate) fn len(&self) -> usize {
        let rings = self.rings();
        rings.with_record.locks.len() + rings.without_record.locks.len()
    }

    fn rings(&self) -> MutexGuard<'_, Rings> {
        self.0.lock().expect("nothing panics while it moves a lock")
    }
}

/// The formats of templates, by their prefixes.
#[derive(Debug)]
struct Templates(ByPrefix<Vec<Arc<RecordFormat>>>);

impl Templates {
    /// Whether any of them names that lock: see [`TemplateSpec::names`].
    fn name(&self, lock: &LockSpec) -> bool {
        self.0.of(lock.key.as_str()).flatten().any(|format| *format == lock.format)
    }
}

impl<'t> FromIterator<&'t TemplateSpec> for Templates {
    fn from_iter<I: IntoIterator<Item = &'t TemplateSpec>>(templates: I) -> Templates {
        let mut by_prefix: ByPrefix<Vec<Arc<RecordFormat>>> = ByPrefix::default();
        for TemplateSpec { prefix, format } in templates {
            let formats = by_prefix.at(prefix);
            if !formats.contains(format) {
                formats.push(Arc::clone(format));
            }
        }
        Templates(by_prefix)
    }
}

impl Rings {
    /// Returns those that are kept no more.
    fn put(&mut self, lock: &Arc<TrackedLock>) -> Vec<Arc<TrackedLock>> {
        let (exists, was_in) = (lock.exists(), lock.place().ring.load(Ordering::Relaxed));
        if was_in == WITH_RECORD || was_in == WITHOUT_RECORD && !exists {
            return Vec::new(); // Another thread was faster.
        }
        if self.templates.as_ref().is_some_and(|kept| !kept.name(lock.spec())) {
            return Vec::new(); // Of a configuration that is in force no more.
        }
        if was_in == WITHOUT_RECORD {
            self.without_record.locks.retain(|other| !Arc::ptr_eq(other, lock));
        }
        let ring = if exists { &mut self.with_record } else { &mut self.without_record };
        let gone = ring.make_room();
        ring.add(Arc::clone(lock));
        gone
    }
}

impl Ring {
    fn add(&mut self, lock: Arc<TrackedLock>) {
        let place = lock.place();
        place.ring.store(self.which, Ordering::Relaxed);
        place.was_asked_for.store(false, Ordering::Relaxed);
        self.locks.push_back(lock);
    }

    /// Makes room for one more, which is not there yet: it is not to go for another.
    fn make_room(&mut self) -> Vec<Arc<TrackedLock>> {
        let (mut gone, mut spared) = (Vec::new(), 0);
        while self.locks.len() >= self.max
            && let Some(first) = self.locks.pop_front()
        {
            let was_asked_for = first.place().was_asked_for.load(Ordering::Relaxed);
            if was_asked_for && spared < SPARED_MAX {
                spared += 1;
                self.add(first);
            } else {
                first.place().ring.store(NOWHERE, Ordering::Relaxed);
                gone.push(first);
            }
        }
        gone
    }

    fn let_go_unless(&mut self, is_kept: impl Fn(&TrackedLock) -> bool) -> Vec<Arc<TrackedLock>> {
        let (kept, gone) = std::mem::take(&mut self.locks).into_iter().partition(|lock| is_kept(lock));
        self.locks = kept;
        let gone: VecDeque<Arc<TrackedLock>> = gone;
        gone.iter().for_each(|lock| lock.place().ring.store(NOWHERE, Ordering::Relaxed));
        gone.into()
    }
}
