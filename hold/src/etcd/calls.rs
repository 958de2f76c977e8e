//! The calls of a lock's holder. Each may be sent twice without harm: a call whose outcome is
//! unknown is sent again.

use std::fmt;
use std::time::Duration;

use etcd_client::{
    Compare, CompareOp, GetOptions, KeyValue, PutOptions, SortOrder, SortTarget, Txn, TxnOp,
    TxnOpResponse, TxnResponse,
};
use fencepost_locks::{Event, KeyRange, Watch as _, WatchNews, Within};
use fencepost_policy::{LockKey, Owner, Revision};
use tokio::time::sleep;
use tracing::debug;

use super::Etcd;
use crate::error::{NO_LEASE, StoreError, in_words};
use crate::standing::Over;

/// How long to wait before a key is watched again, when no endpoint let us watch it.
const WATCH_PAUSE: Duration = Duration::from_millis(500);

/// How long an endpoint may take to begin a watch.
const WATCH_WITHIN: Duration = Duration::from_secs(1);

/// What becomes of an attempt to take the lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Taking {
    /// It is ours since this revision.
    Taken(i64),
    /// Somebody else has it, as of this revision of the store.
    Held(Behind, i64),
    /// Our entry in the queue is gone.
    EntryGone,
}

/// Behind whom a lock is waited for: its holder, or somebody with an earlier place in the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Behind {
    /// The key that stands in the way.
    pub key: String,
    /// Whose key it is.
    pub owner: Owner,
    /// The store's revision that created the key. etcd records no time.
    pub since: i64,
    /// Whether the key has a lease, and so goes away when its owner is gone.
    pub leased: bool,
}

impl Behind {
    fn record(record: &KeyValue) -> Behind {
        Behind {
            key: String::from_utf8_lossy(record.key()).into_owned(),
            owner: Owner::new(record.value()),
            since: record.create_revision(),
            leased: record.lease() != 0,
        }
    }
}

impl fmt::Display for Behind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Behind { key, owner, since, leased } = self;
        write!(f, "behind {}, which has {key} since revision {since}", in_words(owner))?;
        if !leased {
            f.write_str(NO_LEASE)?;
        }
        Ok(())
    }
}

/// Our place in the queue.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// The entry's key.
    pub(crate) entry: String,
    /// The revision that created it: the order of arrival.
    created: i64,
}

/// What became of a key.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Change {
    /// It was deleted.
    Deleted,
    /// It was written, or its history was compacted away: read it.
    Other,
}

/// What a quorum read shows of a key.
#[derive(Debug)]
pub(crate) struct Look {
    /// The store's revision at the time.
    pub(crate) as_of: i64,
    pub(crate) record: Option<KeyValue>,
}

impl Etcd {
    /// Takes the lock if nobody has it. With a place in the queue, the place is given up in the
    /// same step.
    pub(crate) async fn take(
        &self,
        key: &LockKey,
        owner: &Owner,
        lease: i64,
        place: Option<&Place>,
        within: Duration,
    ) -> Result<Taking, StoreError> {
        let key = key.as_str();
        let mut free = vec![Compare::create_revision(key, CompareOp::Equal, 0)];
        let mut take =
            vec![TxnOp::put(key, owner.as_bytes(), Some(PutOptions::new().with_lease(lease)))];
        if let Some(place) = place {
            free.push(Compare::create_revision(
                place.entry.as_str(),
                CompareOp::Equal,
                place.created,
            ));
            take.push(TxnOp::delete(place.entry.as_str(), None));
        }
        let txn = Txn::new().when(free).and_then(take).or_else([TxnOp::get(key, None)]);
        let answer = self.client().transact(&one(key), &txn, Within::altogether(within)).await?;
        let revision = revision_of(&answer);
        if answer.succeeded() {
            return Ok(Taking::Taken(revision));
        }
        Ok(match first_record(answer) {
            // An attempt of ours that we did not hear of: nobody else has this lease.
            Some(record) if record.lease() == lease => Taking::Taken(record.create_revision()),
            Some(record) => Taking::Held(Behind::record(&record), revision),
            None => Taking::EntryGone,
        })
    }

    /// Takes a place at the end of the queue, which are the keys that begin so.
    pub(crate) async fn enqueue(
        &self,
        queue: &str,
        owner: &Owner,
        lease: i64,
        within: Duration,
    ) -> Result<Place, StoreError> {
        let entry = format!("{queue}{lease:016x}");
        let absent = Compare::create_revision(entry.as_str(), CompareOp::Equal, 0);
        let put =
            TxnOp::put(entry.as_str(), owner.as_bytes(), Some(PutOptions::new().with_lease(lease)));
        let txn =
            Txn::new().when([absent]).and_then([put]).or_else([TxnOp::get(entry.as_str(), None)]);
        let answer =
            self.client().transact(&below(queue), &txn, Within::altogether(within)).await?;
        let created = match answer.succeeded() {
            true => revision_of(&answer),
            // An attempt of ours that we did not hear of.
            false => first_record(answer).map_or(0, |record| record.create_revision()),
        };
        Ok(Place { entry, created })
    }

    /// Who is next before that place in the queue, and the store's revision at the time.
    pub(crate) async fn predecessor(
        &self,
        queue: &str,
        place: &Place,
        within: Duration,
    ) -> Result<Option<(Behind, i64)>, StoreError> {
        let last_before = GetOptions::new()
            .with_max_create_revision(place.created - 1)
            .with_sort(SortTarget::Create, SortOrder::Descend)
            .with_limit(1);
        let Look { as_of, record } =
            self.read(&below(queue), last_before, Within::altogether(within)).await?;
        Ok(record.map(|record| (Behind::record(&record), as_of)))
    }

    /// Looks at a key, by a quorum read.
    pub(crate) async fn look(&self, key: &str, within: Within) -> Result<Look, StoreError> {
        self.read(&one(key), GetOptions::new(), within).await
    }

    /// Waits for the first change of a key at this revision or later, however often it has to be
    /// watched anew.
    pub(crate) async fn change(&self, key: &str, from: i64) -> Change {
        let from = u64::try_from(from).ok().and_then(Revision::new).unwrap_or(Revision::MIN);
        loop {
            match self.client().watch(&one(key), from, WATCH_WITHIN).await {
                Ok(mut watch) => loop {
                    match watch.next().await {
                        Ok(WatchNews::Events { events, .. }) => match events.first() {
                            Some(Event::Put(_)) => return Change::Other,
                            Some(Event::Delete { .. }) => return Change::Deleted,
                            None => {}
                        },
                        Ok(WatchNews::CaughtUp) => {}
                        Ok(WatchNews::Compacted { .. }) => return Change::Other,
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

    async fn read(
        &self,
        range: &KeyRange,
        options: GetOptions,
        within: Within,
    ) -> Result<Look, StoreError> {
        let mut answer = self.client().get(range, options, within).await?;
        let as_of = answer.header().map_or(0, |header| header.revision());
        Ok(Look { as_of, record: answer.take_kvs().into_iter().next() })
    }
}

/// What the record of a tenure looks like.
#[derive(Debug, Clone)]
pub(crate) struct Mine {
    pub(crate) key: LockKey,
    pub(crate) owner: Owner,
    pub(crate) lease: i64,
    pub(crate) created: i64,
}

impl Mine {
    /// Why the tenure is over, if the record shows that. Its holder may write it again, as long as
    /// it says the same.
    pub(crate) fn over(&self, record: Option<&KeyValue>) -> Option<Over> {
        let Some(record) = record else { return Some(Over::KeyDeleted) };
        let stands = record.create_revision() == self.created
            && record.lease() == self.lease
            && record.value() == self.owner.as_bytes();
        (!stands).then_some(Over::KeyChanged)
    }
}

fn one(key: &str) -> KeyRange {
    KeyRange::Key(key.as_bytes().into())
}

fn below(prefix: &str) -> KeyRange {
    KeyRange::Prefix(prefix.as_bytes().into())
}

fn revision_of(answer: &TxnResponse) -> i64 {
    answer.header().map_or(0, |header| header.revision())
}

fn first_record(answer: TxnResponse) -> Option<KeyValue> {
    match answer.op_responses().into_iter().next() {
        Some(TxnOpResponse::Get(mut found)) => found.take_kvs().into_iter().next(),
        _ => None,
    }
}
