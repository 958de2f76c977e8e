//! Waiting for what becomes of one key.

use std::time::Duration;

use fencepost_locks::{Event, Watch as _, WatchNews, Within};
use fencepost_policy::Revision;
use tokio::time::sleep;
use tracing::debug;

use super::Etcd;
use super::calls::{Look, one};
use crate::error::StoreError;

/// How long to wait for what is refused, or out of reach everywhere, before it is watched anew.
const WATCH_PAUSE: Duration = Duration::from_millis(500);

/// How long an endpoint may take to begin a watch, or a look at what is waited for.
const ATTEMPT_WITHIN: Duration = Duration::from_secs(1);

/// How many looks at what is waited for etcd refuses before whoever waits asks anew, and is told why. Not one: a password may stand in its
/// file already, and etcd not know it yet.
const REFUSALS_MAX: u32 = 3;

/// What became of a key.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Change {
    /// It was deleted.
    Deleted,
    /// It was written, at this revision of the store.
    Written(i64),
    /// That is not to be had any more: its history was compacted away. Read it.
    Unseen,
}

/// Why a key is not waited for any longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gone {
    /// It does not exist any more.
    Surely,
    /// What was known of it, and of whatever else was read with it, may be so no more: ask anew.
    Perhaps,
}

impl Etcd {
    /// Waits for the first change of a key at this revision or later, however often it has to be watched anew.
    pub(crate) async fn change(&self, key: &str, from: i64) -> Change {
        let from = u64::try_from(from).ok().and_then(Revision::new).unwrap_or(Revision::MIN);
        loop {
            match self.client().watch(&one(key), from, ATTEMPT_WITHIN).await {
                Ok(mut watch) => loop {
                    match watch.next().await {
                        Ok(WatchNews::Events { events, .. }) => match events.first() {
                            Some(Event::Put(written)) => return Change::Written(written.modified.get().cast_signed()),
                            Some(Event::Delete { .. }) => return Change::Deleted,
                            None => {}
                        },
                        Ok(WatchNews::CaughtUp) => {}
                        Ok(WatchNews::Compacted { .. }) => return Change::Unseen,
                        Err(error) => {
                            debug!(key, %error, "the watch has ended");
                            break;
                        }
                    }
                },
                Err(error) => {
                    debug!(key, %error, "no watch");
                    sleep(WATCH_PAUSE).await;
                }
            }
        }
    }

    /// Returns once a key is deleted at this revision or later, or may have been. Beside the watch it is looked at so often.
    pub(crate) async fn gone(&self, key: &str, mut from: i64, look_every: Duration) -> Gone {
        loop {
            let change = tokio::select! {
                change = self.change(key, from) => change,
                gone = self.seen_gone(key, from, look_every) => return gone,
            };
            match change {
                Change::Written(revision) => from = revision + 1,
                Change::Deleted => return Gone::Surely,
                Change::Unseen => return Gone::Perhaps,
            }
        }
    }

    /// As [`Etcd::gone`], by looking at it.
    ///
    /// A store that was taken back to a backup takes a watch from a revision that it has not reached again, and what becomes of the
    /// key until then, the watch does not tell.
    async fn seen_gone(&self, key: &str, from: i64, look_every: Duration) -> Gone {
        let mut refusals = 0;
        loop {
            sleep(look_every).await;
            match self.look(key, Within::one_attempt(ATTEMPT_WITHIN)).await {
                Ok(Look { as_of, .. }) if as_of + 1 < from => return Gone::Perhaps,
                Ok(Look { record: None, .. }) => return Gone::Surely,
                Ok(Look { record: Some(_), .. }) => refusals = 0,
                Err(error) => {
                    debug!(key, %error, "what is waited for cannot be looked at");
                    refusals += u32::from(!matches!(error, StoreError::Unavailable(_)));
                    if refusals == REFUSALS_MAX {
                        return Gone::Perhaps;
                    }
                }
            }
        }
    }
}
