//! Whether etcd answers in another way in which a configuration wants to reach it.

use std::collections::HashSet;
use std::time::Duration;

use fencepost_config::Config;
use fencepost_locks::{LockStore, RangeRead, StoreError, Wanted};
use futures_util::future::join_all;
use tokio::time::{Instant, sleep};

use crate::generation::{Generation, PreparedGeneration};
use crate::lock_sources::Detour;
use crate::routes::record_range;

/// How long the other way may take to answer, beside what one read may take: etcd may elect a leader, or check a password, for as long.
const TRIAL_TIME: Duration = Duration::from_secs(2);
/// How long to wait before it is asked again.
const PAUSE: Duration = Duration::from_millis(100);

/// Tries to reach sources as `new` says, over connections of their own: requests notice nothing of that.
///
/// # Errors
/// Of the file's locks, etcd shows what they are read from in the way in which it is reached until now, and not in the other. Where it
/// does not answer in the old way either, a reload is what may help.
pub(super) async fn try_detours(old: &Generation, new: &PreparedGeneration) -> Result<(), Vec<String>> {
    let detours = new.process.sources.detours(&old.config, &new.config);
    let trials = detours.iter().map(|detour| objection(&new.config, detour));
    let objections: Vec<String> = join_all(trials).await.into_iter().flatten().collect();
    if objections.is_empty() { Ok(()) } else { Err(objections) }
}

async fn objection(config: &Config, detour: &Detour) -> Option<String> {
    let reads = reads(config, &detour.name);
    if reads.is_empty() {
        return None;
    }
    let error = try_out(&detour.other, &reads, Instant::now() + TRIAL_TIME).await.err()?;
    let answers = detour.present.read(&reads).await.is_ok();
    answers.then(|| {
        let text = format!("reached as this configuration says, {error}; reached as until now, it answers");
        config.places.problem(&format!("source.{}", detour.name), text).to_string()
    })
}

/// Reads once. A store that cannot be reached is asked again until then.
pub(super) async fn try_out(store: &impl LockStore, reads: &[RangeRead], deadline: Instant) -> Result<(), StoreError> {
    loop {
        match store.read(reads).await {
            Err(StoreError::Unavailable(_)) if Instant::now() < deadline => sleep(PAUSE).await,
            outcome => return outcome.map(drop),
        }
    }
}

/// What the locks of that source are read from, without its contents.
pub(super) fn reads(config: &Config, source: &str) -> Vec<RangeRead> {
    let locks = config.routes.iter().filter_map(|route| route.mode.lock());
    let ranges = locks.filter(|lock| config.sources[lock.source].name == source).map(record_range);
    let mut known = HashSet::new();
    let once = ranges.filter(|range| known.insert(range.clone()));
    once.map(|range| RangeRead { range, wanted: Wanted::Count }).collect()
}
