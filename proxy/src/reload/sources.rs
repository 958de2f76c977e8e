//! Whether the stores of a configuration answer: those that it brings into use, and those that it
//! reaches in another way.

use std::collections::HashSet;
use std::time::Duration;

use fencepost_config::Config;
use fencepost_locks::{LockSource, LockStore, RangeRead, StoreError, Wanted};
use futures_util::future::join_all;
use tokio::time::{Instant, sleep, timeout_at};

use crate::generation::{Generation, PreparedGeneration};
use crate::lock_sources::Detour;
use crate::routes::record_range;

/// How long to wait before it is looked at again. A source says to nobody when it is ready.
const PAUSE: Duration = Duration::from_millis(10);

/// Waits until each source is ready that no route used before, and its store answers: it counts for
/// readiness from now on. One that is in use already may not be: its store has not answered yet,
/// and a reload is what may help against that.
pub(super) async fn first_answers(
    old: &Generation,
    new: &PreparedGeneration,
) -> Result<(), Vec<String>> {
    let within = new.config.limits.confirm_timeout;
    let deadline = Instant::now() + within;
    let brought = new.sources.iter().filter(|source| !uses(&old.config, source.name()));
    let answers = brought.map(|source| async move {
        let ready = timeout_at(deadline, until_ready(source)).await;
        let wrong = |text| {
            new.config.places.problem(&format!("source.{}", source.name()), text).to_string()
        };
        ready.map_err(|_| wrong(silent(source, within)))?;
        // Requests under way may have kept it going since routes used it: then it is ready by what
        // it was told before.
        let (store, reads) =
            (new.process.sources.etcd(source.name()), reads(&new.config, source.name()));
        let Some(store) = store.filter(|_| !reads.is_empty()) else { return Ok(()) };
        let answered = try_out(&store, &reads, deadline).await;
        answered.map_err(|error| wrong(error.to_string()))
    });
    let problems: Vec<String> =
        join_all(answers).await.into_iter().filter_map(Result::err).collect();
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

async fn until_ready(source: &LockSource) {
    while !source.ready() {
        sleep(PAUSE).await;
    }
}

fn silent(source: &LockSource, within: Duration) -> String {
    let (name, status) = (source.name(), source.status(Instant::now()));
    if status.distrusted_through.is_some() {
        return format!(
            "nothing that it answered within {within:?} is believed: {}",
            went_back(name)
        );
    }
    let cause = status.last_error.map(|error| format!(": {error}")).unwrap_or_default();
    format!("it has not answered within {within:?}{cause}")
}

/// The problem of a source whose store went back. An operator can accept that even if no route uses
/// the source.
pub(super) fn went_back(source: &str) -> String {
    format!(
        "store-regressed: the lock store shows less than it has shown before, or is another; POST /sources/{source}/accept-regression on the \
         admin listener accepts that, for a file that is loaded after it"
    )
}

fn uses(config: &Config, source: &str) -> bool {
    let mut locks = config.routes.iter().filter_map(|route| route.mode.lock());
    locks.any(|lock| config.sources[lock.source].name == source)
}

/// How long the other way may take to answer, beside what one read may take: etcd may elect a
/// leader, or check a password, for as long.
const TRIAL_TIME: Duration = Duration::from_secs(2);
/// How long to wait before it is asked again.
const TRIAL_PAUSE: Duration = Duration::from_millis(100);

/// Tries to reach sources as `new` says, over connections of their own: requests notice nothing of
/// that.
///
/// # Errors
/// Of the file's locks, etcd shows what they are read from in the way in which it is reached until
/// now, and not in the other. Where it does not answer in the old way either, a reload is what may
/// help.
pub(super) async fn try_detours(
    old: &Generation,
    new: &PreparedGeneration,
) -> Result<(), Vec<String>> {
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
        let text = format!(
            "reached as this configuration says, {error}; reached as until now, it answers"
        );
        config.places.problem(&format!("source.{}", detour.name), text).to_string()
    })
}

/// Reads once. A store that cannot be reached is asked again until then.
async fn try_out(
    store: &impl LockStore,
    reads: &[RangeRead],
    deadline: Instant,
) -> Result<(), StoreError> {
    loop {
        match store.read(reads).await {
            Err(StoreError::Unavailable(_)) if Instant::now() < deadline => {
                sleep(TRIAL_PAUSE).await
            }
            outcome => return outcome.map(drop),
        }
    }
}

/// What the locks of that source are read from, without its contents.
fn reads(config: &Config, source: &str) -> Vec<RangeRead> {
    let locks = config.routes.iter().filter_map(|route| route.mode.lock());
    let ranges = locks.filter(|lock| config.sources[lock.source].name == source).map(record_range);
    let mut known = HashSet::new();
    let once = ranges.filter(|range| known.insert(range.clone()));
    once.map(|range| RangeRead { range, wanted: Wanted::Count }).collect()
}
