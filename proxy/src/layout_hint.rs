//! Whether a lock that nobody seems to hold is kept as another layout has it: who first sets
//! fencepost up may not know how his masters do.

use std::time::Duration;

use fencepost_locks::{KeyRange, LockDescription, LockStore, RangeRead, Wanted};
use fencepost_policy::Layout;
use tokio::time::timeout;

/// How long is waited for what is only a hint.
const PATIENCE: Duration = Duration::from_secs(1);

/// What to look at, if there is something where another layout has its record. `None` too where
/// that cannot be read, as may not be permitted.
pub(crate) async fn hint(store: &impl LockStore, lock: &LockDescription) -> Option<String> {
    let is_free = lock.as_of.is_some() && lock.holder.is_none() && lock.problem.is_none();
    if !is_free || !lock.waiters.is_empty() {
        return None;
    }
    let (key, below) = (lock.key.as_str(), format!("{}/", lock.key));
    let elsewhere = match lock.layout {
        Layout::Key => KeyRange::Prefix(below.as_bytes().into()),
        Layout::Mutex | Layout::Election => KeyRange::Key(key.as_bytes().into()),
    };
    let reads = [RangeRead { range: elsewhere, wanted: Wanted::Count }];
    let answer = timeout(PATIENCE, store.read(&reads)).await.ok()?.ok()?;
    let found = answer.ranges.first().filter(|range| range.count > 0)?.count;
    Some(match lock.layout {
        Layout::Key => {
            let keys = if found == 1 { "is 1 key" } else { &format!("are {found} keys") };
            format!(
                "nobody holds it, but there {keys} below {below}: etcdctl lock keeps its locks so (layout = \"mutex\"), and \
                 etcdctl elect (layout = \"election\")"
            )
        }
        layout @ (Layout::Mutex | Layout::Election) => format!(
            "nobody holds it and nothing is below {below}, where layout = {:?} has its keys, but {key} itself is there (layout = \"key\")",
            layout.name()
        ),
    })
}
