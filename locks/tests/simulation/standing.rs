//! Whether a request may still be written to the worker, as `wire/group_writes.rs` of the proxy has
//! it.

use std::future::pending;
use std::sync::Arc;

use fencepost_locks::Membership;
use fencepost_policy::Revision;
use fencepost_policy::group::Standing;
use tokio::time::sleep;

/// The writes of one request that was let in.
pub(crate) struct Writes {
    /// The group, and since when the proxy was a member of it as the request came in.
    group: Option<(Arc<Membership>, Option<Revision>)>,
}

impl Writes {
    pub(crate) fn of(group: Option<&Arc<Membership>>) -> Writes {
        Writes { group: group.map(|group| (Arc::clone(group), group.stands_since())) }
    }

    pub(crate) fn is_in_group(&self) -> bool {
        self.group.is_some()
    }

    fn standing(group: &Membership, joined: Option<Revision>) -> Standing {
        match group.stands_since() {
            Some(now) if Some(now) == joined => Standing::Stands,
            Some(_) => Standing::Cut,
            None if group.standing() == Standing::Cut => Standing::Cut,
            None => Standing::Lapsed,
        }
    }

    /// Returns once the next byte may be written, in the very step in which it is. False: the
    /// connection is reset.
    pub(crate) async fn may_write(&self) -> bool {
        let Some((group, joined)) = &self.group else { return true };
        self.until(|standing| standing != Standing::Lapsed).await;
        Writes::standing(group, *joined) == Standing::Stands
    }

    /// Completes when the connection is reset.
    pub(crate) async fn cut(&self) {
        self.until(|standing| standing == Standing::Cut).await;
    }

    async fn until(&self, is_there: impl Fn(Standing) -> bool) {
        let Some((group, joined)) = &self.group else { return pending().await };
        loop {
            let changed = group.changed(); // Before the look, so that no change is missed.
            if is_there(Writes::standing(group, *joined)) {
                return;
            }
            match group.changes_in() {
                Some(time) => tokio::select! {
                    biased;
                    () = changed => {}
                    () = sleep(time) => {}
                },
                None => changed.await,
            }
        }
    }
}
