//! Whether a lock that nobody seems to hold is kept as another layout has it: who first sets
//! fencepost up may not know how his masters do. Decides nothing: it only tells people.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fencepost_config::Lock;
use fencepost_locks::{
    KeyRange, LockDescription, LockStore, RangeAnswer, RangeRead, TrackedLock, Wanted,
};
use fencepost_policy::{Layout, LockKey};
use serde_json::{Value, json};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use crate::lock_sources::LockSources;
use crate::routes::record_range;

/// How long is waited for what is only a hint.
const PATIENCE: Duration = Duration::from_secs(1);

/// How often one lock is looked at, if there is one to look at: made-up keys cost the store no more.
const TICK: Duration = Duration::from_millis(500);

/// For how long what was found of a lock counts. It is logged no more often.
const FRESH_FOR: Duration = Duration::from_secs(60);

/// How many locks are remembered. Each of them shows an operator that the layout is wrong.
const LOCKS_MAX: usize = 1_000;

/// The locks for which requests were refused as `no-owner`, and what is where another layout has
/// its record.
#[derive(Debug, Default)]
pub struct LayoutHints(Mutex<HashMap<(String, LockKey), Suspect>>);

/// A lock, and since when it is as it is.
#[derive(Debug, Default)]
struct Suspect {
    looked_at: Option<Instant>,
    /// Whether a request was refused since.
    refused: bool,
    hint: Option<String>,
}

impl Suspect {
    fn is_fresh(&self) -> bool {
        self.looked_at.is_some_and(|looked_at| looked_at.elapsed() < FRESH_FOR)
    }
}

impl LayoutHints {
    /// A request was refused because nobody holds that lock.
    pub fn suspect(&self, lock: &TrackedLock) {
        let mut locks = self.lock();
        let place = (lock.source().to_owned(), lock.key().clone());
        if locks.len() < LOCKS_MAX || locks.contains_key(&place) {
            locks.entry(place).or_default().refused = true;
        }
    }

    /// A request was refused because its owner does not hold that lock. If the lock is a `mutex`, and
    /// the owner is the end of its holder's key, the sender sees that through a namespace.
    pub fn suspect_owner(&self, lock: &TrackedLock, claimed: &[u8]) {
        let LockDescription { key, layout: Layout::Mutex, holder: Some((owner, ..)), .. } =
            lock.describe(Instant::now())
        else {
            return;
        };
        let namespace = owner.as_bytes().strip_suffix(claimed).filter(|_| claimed.contains(&b'/'));
        let Some(namespace) = namespace.filter(|namespace| !namespace.is_empty()) else { return };
        let hint = format!(
            "its holder's key is {owner}, and requests name the end of it as their owner, as of a client with the namespace {:?} \
             (clientv3/namespace): the owner is the whole key",
            String::from_utf8_lossy(namespace)
        );
        let mut locks = self.lock();
        let place = (lock.source().to_owned(), key);
        let is_known = locks.get(&place).is_some_and(Suspect::is_fresh);
        if is_known || (locks.len() >= LOCKS_MAX && !locks.contains_key(&place)) {
            return;
        }
        tracing::warn!(source = lock.source(), lock = %place.1, "requests are refused as not-owner: {hint}");
        let hint = Some(hint);
        locks.insert(place, Suspect { looked_at: Some(Instant::now()), refused: false, hint });
    }

    /// What is known of a lock.
    pub fn of(&self, source: &str, key: &LockKey) -> Option<String> {
        self.lock().get(&(source.to_owned(), key.clone()))?.hint.clone()
    }

    /// All locks for which there is a hint, for people: a sentence each.
    pub fn to_text(&self) -> String {
        let locks = self.lock();
        let hints = locks.iter().filter_map(|((source, key), suspect)| {
            Some(format!("Lock {key} of source {source}: {}.\n", suspect.hint.as_ref()?))
        });
        let mut hints: Vec<String> = hints.collect();
        hints.sort();
        hints.concat()
    }

    /// All locks for which there is a hint, for programs.
    pub fn to_json(&self) -> Value {
        let locks = self.lock();
        let hints = locks.iter().filter_map(|((source, key), suspect)| {
            let hint = suspect.hint.as_ref()?;
            Some(json!({ "source": source, "lock": key.as_str(), "hint": hint }))
        });
        let mut hints: Vec<Value> = hints.collect();
        hints.sort_by_key(|hint| hint["lock"].to_string());
        json!(hints)
    }

    /// Looks at the locks that requests were refused for, once per lock and minute, and logs what it
    /// finds. Looks again for as long as it finds something. Never ends.
    pub(crate) async fn keep_looking(&self, sources: &LockSources) {
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            let Some(((source, key), refused)) = self.due() else { continue };
            let hint = look(sources, &source, &key).await;
            if let Some(hint) = hint.as_ref().filter(|_| refused) {
                tracing::warn!(source, lock = %key, "requests are refused as no-owner: {hint}");
            }
            let suspect = Suspect { looked_at: Some(Instant::now()), refused: false, hint };
            self.lock().insert((source, key), suspect);
        }
    }

    /// A lock to look at now, and whether requests were refused since the last look. Forgets those
    /// with neither a hint nor a refusal.
    fn due(&self) -> Option<((String, LockKey), bool)> {
        let mut locks = self.lock();
        locks.retain(|_, suspect| suspect.is_fresh() || suspect.refused || suspect.hint.is_some());
        let (place, suspect) = locks.iter().find(|(_, suspect)| !suspect.is_fresh())?;
        Some((place.clone(), suspect.refused))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(String, LockKey), Suspect>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn look(sources: &LockSources, source: &str, key: &LockKey) -> Option<String> {
    let store = sources.etcd(source)?;
    let all = sources.all();
    let lock = all.iter().find(|one| one.name() == source)?.find(key.as_str())?;
    hint(&store, &lock.describe(Instant::now())).await
}

/// What to look at, if there is something where another layout has its record. `None` too where
/// that cannot be read, as may not be permitted.
pub(crate) async fn hint(store: &impl LockStore, lock: &LockDescription) -> Option<String> {
    let is_free = lock.age.is_some() && lock.holder.is_none() && lock.problem.is_none();
    if !is_free || !lock.waiters.is_empty() {
        return None;
    }
    let (key, below) = (lock.key.as_str(), format!("{}/", lock.key));
    let elsewhere = match lock.layout {
        Layout::Key => KeyRange::Prefix(below.as_bytes().into()),
        Layout::Mutex | Layout::Election => KeyRange::Key(key.as_bytes().into()),
    };
    let found = read(store, elsewhere, Wanted::Count).await?.count;
    if found == 0 {
        return namespace_hint(store, lock).await;
    }
    Some(match lock.layout {
        Layout::Key => {
            let keys = if found == 1 { "is 1 key" } else { &format!("are {found} keys") };
            format!("nobody holds it, but there {keys} below {below}: {KEPT_BELOW}")
        }
        layout @ (Layout::Mutex | Layout::Election) => format!(
            "nobody holds it and nothing is below {below}, where layout = {:?} has its keys, but {key} itself is there (layout = \"key\")",
            layout.name()
        ),
    })
}

async fn read(store: &impl LockStore, range: KeyRange, wanted: Wanted) -> Option<RangeAnswer> {
    let read = [RangeRead { range, wanted }];
    timeout(PATIENCE, store.read(&read)).await.ok()?.ok()?.ranges.pop()
}

/// Where the lock is, if a client sees it through a namespace (`clientv3/namespace`): a key that ends
/// with the lock's, or, below that, with the id of a lease. Looks only at a small store.
async fn namespace_hint(store: &impl LockStore, lock: &LockDescription) -> Option<String> {
    let all = KeyRange::Prefix([].into());
    if read(store, all.clone(), Wanted::Count).await?.count > KEYS_MAX {
        return None;
    }
    let found = read(store, all, Wanted::All).await?.keys;
    let mut keys = found.iter().filter_map(|one| std::str::from_utf8(&one.key).ok());
    let namespace = keys.find_map(|key| match lock.layout {
        // `/app/k` may well be a lock of its own, beside `/k`.
        Layout::Key => key.strip_suffix(lock.key.as_str()).filter(|before| before.ends_with('/')),
        Layout::Mutex | Layout::Election => {
            let (name, lease) = key.rsplit_once('/')?;
            let is_lease = lease.bytes().all(|digit| digit.is_ascii_hexdigit());
            name.strip_suffix(lock.key.as_str()).filter(|_| is_lease)
        }
    })?;
    let key = format!("{namespace}{}", lock.key);
    let owner = match lock.layout {
        Layout::Mutex => format!(
            "; the owner is the whole name of the holder's own key then, with {namespace:?} before it"
        ),
        Layout::Key | Layout::Election => String::new(),
    };
    Some(format!(
        "nobody holds it, but there is {key}, as of a client with the namespace {namespace:?} (clientv3/namespace): write key = {key:?}{owner}"
    ))
}

const KEPT_BELOW: &str = "etcdctl lock keeps its locks so (layout = \"mutex\"), and etcdctl elect (layout = \"election\")";

/// How many keys are looked at for a template or a namespace. It is only a hint.
const KEYS_MAX: u64 = 1_000;

/// Like [`hint`], for all locks of a template: there are keys, and all are where another layout has
/// them.
pub(crate) async fn hint_of_template(store: &impl LockStore, lock: &Lock) -> Option<String> {
    let (template, layout) = (&lock.key, lock.record.layout());
    if !(1..=KEYS_MAX).contains(&read(store, record_range(lock), Wanted::Count).await?.count) {
        return None;
    }
    let found = read(store, record_range(lock), Wanted::All).await?.keys;
    let keys = || found.iter().filter_map(|one| std::str::from_utf8(&one.key).ok());
    let mut itself = keys().filter(|key| template.matches_key(key));
    let mut below = keys()
        .filter(|key| key.rsplit_once('/').is_some_and(|(above, _)| template.matches_key(above)));
    match (layout, itself.next(), below.next()) {
        (Layout::Key, None, Some(key)) => Some(format!(
            "no key is like {}, but {key} is below one: {KEPT_BELOW}",
            template.as_str()
        )),
        (Layout::Mutex | Layout::Election, Some(key), None) => Some(format!(
            "nothing is below a key like {}, where layout = {:?} has its keys, but {key} itself is there (layout = \"key\")",
            template.as_str(),
            layout.name()
        )),
        (Layout::Key | Layout::Mutex | Layout::Election, _, _) => None,
    }
}
