//! Waiting for what becomes of one key.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Client, Error, EventType, KeyValue, WatchOptions, WatchStream};
use tokio::time::{sleep, timeout};
use tracing::debug;

use super::Etcd;
use super::connection::Session;
use super::failed::Failed;
use super::turn::{ATTEMPT_TIMEOUT, Backoff, Left, Turn, Within};

/// How many looks at what is waited for etcd refuses before whoever waits asks anew, and is told why. Not one: a password may stand in its
/// file already, and etcd not know it yet.
const REFUSALS_MAX: u32 = 3;

/// What became of a key.
#[derive(Debug, Clone)]
pub(crate) enum Change {
    /// It was deleted.
    Deleted,
    /// It was written, at this revision of the store.
    Written(KeyValue),
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
    /// Waits for the first change of a key at this revision or later, however often the endpoint has to be changed.
    pub(crate) async fn change(&self, key: &str, from: i64) -> Change {
        let mut backoff = None;
        loop {
            let (turn, mut turns) = self.turn();
            let watched = tokio::select! {
                watched = watch(&turn, key, from) => watched,
                // Others have found that this endpoint does not answer: such a watch may be silent for ever.
                _ = turns.changed() => continue,
            };
            match watched {
                Ok(change) => return change,
                Err((left, failed)) => self.leave(&turn, left, &format!("{failed:?}")),
            }
            sleep(backoff.get_or_insert_with(|| Backoff::new(turn.endpoints())).next()).await;
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
                Change::Written(record) => from = record.mod_revision() + 1,
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
            match self.look(key, Within::one_attempt(ATTEMPT_TIMEOUT)).await {
                Ok(look) if look.as_of + 1 < from => return Gone::Perhaps,
                Ok(look) if !look.exists => return Gone::Surely,
                Ok(_) => refusals = 0,
                Err(failed) => {
                    debug!(key, ?failed, "what is waited for cannot be looked at");
                    refusals += u32::from(failed.is_refusal());
                    if refusals == REFUSALS_MAX {
                        return Gone::Perhaps;
                    }
                }
            }
        }
    }
}

async fn watch(turn: &Arc<Turn>, key: &str, from: i64) -> Result<Change, (Left, Failed)> {
    // Whoever watches makes calls, sooner or later.
    turn.calls().begin();
    let session = connected(turn).await?;
    let watched = async {
        let mut stream = open(session.client.clone(), key, from).await?;
        follow(&mut stream).await
    };
    watched.await.map_err(|error| (Left::Failing, error.into()))
}

/// Where there are other endpoints, this one is not waited for longer than for an answer.
async fn connected(turn: &Turn) -> Result<Arc<Session>, (Left, Failed)> {
    let session = match turn.endpoints() {
        1 => turn.watches().session().await,
        _ => timeout(ATTEMPT_TIMEOUT, turn.watches().session())
            .await
            .map_err(|_| (Left::Slow, Failed::late(ATTEMPT_TIMEOUT)))?,
    };
    session.map_err(|failed| (Left::Failing, failed))
}

async fn follow(stream: &mut WatchStream) -> Result<Change, Error> {
    while let Some(answer) = stream.message().await? {
        if answer.compact_revision() > 0 {
            return Ok(Change::Unseen);
        }
        if answer.canceled() {
            return Err(Error::WatchError(format!("the watch was cancelled: {}", answer.cancel_reason())));
        }
        if let Some(event) = answer.events().first() {
            return Ok(match (event.event_type(), event.kv()) {
                (EventType::Put, Some(record)) => Change::Written(record.clone()),
                (EventType::Put, None) | (EventType::Delete, _) => Change::Deleted,
            });
        }
    }
    Err(Error::WatchError("the watch has ended".to_owned()))
}

/// Opening has a limit of its own: on a stopped member it would never return.
async fn open(mut client: Client, key: &str, from: i64) -> Result<WatchStream, Error> {
    let opening = client.watch(key, Some(WatchOptions::new().with_start_revision(from)));
    let timed_out = |_| Error::WatchError(format!("no watch within {ATTEMPT_TIMEOUT:?}"));
    timeout(ATTEMPT_TIMEOUT, opening).await.map_err(timed_out)?
}
