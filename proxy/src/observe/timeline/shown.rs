//! The timeline as JSON, whole or what has changed.

use std::time::SystemTime;

use fencepost_policy::Tenure;
use serde_json::{Value, json};

use super::{Bar, LockId, Outage, RowContext, Timeline, WaitBar};
use crate::observe::record::millis;
use crate::observe::text::shown_owner;

impl Timeline {
    /// All but the rows, for which it has an empty list.
    pub fn without_rows(&self, now: SystemTime) -> Value {
        json!({
            "now_ms": millis(now),
            "since_ms": millis(self.since),
            "truncated": self.truncated,
            "locks": [],
            "outages": self.outages_json(),
        })
    }

    /// The locks whose rows have changed after that number, ordered by source and lock.
    pub fn changed_after(&self, version: u64) -> Vec<LockId> {
        let changed = self.rows.iter().filter(|(_, row)| row.version > version);
        let mut locks: Vec<_> = changed.map(|(id, _)| id.clone()).collect();
        locks.sort_unstable();
        locks
    }

    /// The row of a lock, as long as it has one.
    pub fn row_json(
        &self,
        id: &LockId,
        RowContext { routes, present }: &RowContext,
    ) -> Option<Value> {
        let (row, (source, lock)) = (self.rows.get(id)?, id);
        Some(json!({
            "source": &**source,
            "lock": lock.as_str(),
            "layout": row.layout.name(),
            "routes": routes,
            "tenures": row.tenures.iter().map(|bar| bar.to_json(present.as_ref())).collect::<Vec<_>>(),
            "waits": row.waits.iter().map(WaitBar::to_json).collect::<Vec<_>>(),
        }))
    }

    /// The outages, if they have changed after that number.
    pub fn outages_after(&self, version: u64) -> Option<Value> {
        (self.outages_version > version).then(|| self.outages_json())
    }

    fn outages_json(&self) -> Value {
        let outage = |outage: &Outage| {
            json!({
                "source": &*outage.source,
                "kind": outage.trouble.name(),
                "began_ms": millis(outage.began),
                "ended_ms": outage.ended.map(|end| millis(end.at)),
                "end": outage.ended.map(|end| end.how.name()),
            })
        };
        self.outages.iter().map(outage).collect()
    }
}

impl Bar {
    /// A tenure that goes on may have more revisions by now than when it was noted.
    fn to_json(&self, present: Option<&Tenure>) -> Value {
        let goes_on = |present: &&Tenure| {
            self.ended.is_none() && self.owner == shown_owner(present.owner.as_bytes())
        };
        let last = present.filter(goes_on).map_or(self.last, |present| present.last.max(self.last));
        json!({
            "owner": &*self.owner,
            "first": self.first.get(),
            "last": last.get(),
            "began_ms": millis(self.began),
            "began_seen": self.began_seen,
            "ended_ms": self.ended.map(|end| millis(end.at)),
            "end": self.ended.map(|end| end.how.name()),
            "refused": self.refused,
            "would_be_refused": self.would_be_refused,
            "last_refused_ms": self.last_refused.map(millis),
        })
    }
}

impl WaitBar {
    fn to_json(&self) -> Value {
        json!({
            "owner": &*self.owner,
            "revision": self.revision.get(),
            "began_ms": millis(self.began),
            "ended_ms": self.ended.map(millis),
            "requests": self.requests,
            "waiting": self.waiting,
            "drained": self.drained,
            "outcome": self.outcome,
        })
    }
}
