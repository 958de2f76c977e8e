//! The calls of a lock's holder. Each may be sent twice without harm: a call whose outcome is unknown is sent again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use etcd_client::{
    Compare, CompareOp, Error, GetOptions, LeaseGrantOptions, PutOptions, SortOrder, SortTarget, Txn, TxnOp,
    TxnOpResponse, TxnResponse,
};
use fencepost_policy::{LockKey, Owner};

use super::Etcd;
use super::failed::Failed;
use super::turn::{Keys, Within};
use crate::error::StoreError;

/// What becomes of an attempt to take the lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Taking {
    /// It is ours since this revision.
    Taken(i64),
    /// Somebody else has it, as of this revision of the store.
    Held {
        /// Who.
        owner: Owner,
        /// The store's revision at the time.
        as_of: i64,
    },
    /// Our entry in the queue is gone.
    EntryGone,
}

/// Our place in the queue.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// The entry's key.
    pub(crate) entry: String,
    /// The revision that created it: the order of arrival.
    created: i64,
}

/// What a look at a key shows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Look {
    /// The store's revision at the time.
    pub(super) as_of: i64,
    pub(super) exists: bool,
}

impl Etcd {
    /// Makes sure that there is this lease; its number is of our own choice, so that the call may be repeated. Returns its
    /// time to live, and sets the flag once there may be one: before anything is sent, but only with a connection to send it on.
    pub(crate) async fn grant(
        &self,
        lease: i64,
        ttl: Duration,
        within: Duration,
        may_stand: &AtomicBool,
    ) -> Result<Duration, Failed> {
        let seconds = i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX);
        let options = LeaseGrantOptions::new().with_id(lease);
        self.call(Keys::None, Within::altogether(within), |mut client| {
            let options = options.clone();
            may_stand.store(true, Ordering::Relaxed);
            async move {
                match client.lease_grant(seconds, Some(options)).await {
                    Ok(granted) => Ok(seconds_of(granted.ttl())),
                    // An attempt of ours that we did not hear of.
                    Err(Error::GRpcStatus(status)) if status.message().contains("lease already exists") => {
                        Ok(seconds_of(client.lease_time_to_live(lease, None).await?.granted_ttl()))
                    }
                    Err(error) => Err(error),
                }
            }
        })
        .await
    }

    /// Renews the lease.
    pub(crate) async fn keep_alive(&self, lease: i64, within: Within) -> Result<(), Failed> {
        self.call(Keys::None, within, |mut client| async move {
            // One message each way; the stream ends here, so that no renewal waits behind a lost one.
            client.lease_keep_alive(lease).await?;
            Ok(())
        })
        .await
    }

    /// Makes sure that the lease is gone, and all that hangs on it.
    pub(crate) async fn revoke(&self, lease: i64, within: Duration) -> Result<(), StoreError> {
        let revoked = self.call(Keys::None, Within::altogether(within), |mut client| async move {
            client.lease_revoke(lease).await?;
            Ok(())
        });
        match revoked.await {
            Ok(()) | Err(Failed::NoLease) => Ok(()),
            Err(Failed::Store(error)) => Err(error),
        }
    }

    /// Takes the lock if nobody has it. With a place in the queue, the place is given up in the same step.
    pub(crate) async fn take(
        &self,
        key: &LockKey,
        owner: &Owner,
        lease: i64,
        place: Option<&Place>,
        within: Duration,
    ) -> Result<Taking, Failed> {
        let key = key.as_str();
        let mut free = vec![Compare::create_revision(key, CompareOp::Equal, 0)];
        let mut take = vec![TxnOp::put(key, owner.as_bytes(), Some(PutOptions::new().with_lease(lease)))];
        if let Some(place) = place {
            free.push(Compare::create_revision(place.entry.as_str(), CompareOp::Equal, place.created));
            take.push(TxnOp::delete(place.entry.as_str(), None));
        }
        let txn = Txn::new().when(free).and_then(take).or_else([TxnOp::get(key, None)]);
        let answer = self.transact(Keys::One(key), txn, within).await?;
        let revision = revision_of(&answer);
        if answer.succeeded() {
            return Ok(Taking::Taken(revision));
        }
        Ok(match first_record(answer) {
            // An attempt of ours that we did not hear of: nobody else has this lease.
            Some(record) if record.lease() == lease => Taking::Taken(record.create_revision()),
            Some(record) => Taking::Held { owner: Owner::new(record.value()), as_of: revision },
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
    ) -> Result<Place, Failed> {
        let entry = format!("{queue}{lease:016x}");
        let absent = Compare::create_revision(entry.as_str(), CompareOp::Equal, 0);
        let put = TxnOp::put(entry.as_str(), owner.as_bytes(), Some(PutOptions::new().with_lease(lease)));
        let txn = Txn::new().when([absent]).and_then([put]).or_else([TxnOp::get(entry.as_str(), None)]);
        let answer = self.transact(Keys::Below(queue), txn, within).await?;
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
    ) -> Result<Option<(String, i64)>, Failed> {
        let last_before = GetOptions::new()
            .with_prefix()
            .with_max_create_revision(place.created - 1)
            .with_sort(SortTarget::Create, SortOrder::Descend)
            .with_limit(1)
            .with_keys_only();
        let answer = self
            .call(Keys::Below(queue), Within::altogether(within), |mut client| {
                let (queue, options) = (queue.to_owned(), last_before.clone());
                async move { client.get(queue, Some(options)).await }
            })
            .await?;
        let as_of = answer.header().map_or(0, |header| header.revision());
        let predecessor = answer.kvs().first();
        Ok(predecessor.map(|record| (String::from_utf8_lossy(record.key()).into_owned(), as_of)))
    }

    /// By a quorum read: does the key still stand as it was written under this lease? `None` if it does not exist.
    pub(crate) async fn stands(&self, mine: &Mine, within: Within) -> Result<Option<bool>, Failed> {
        let answer = self
            .call(Keys::One(mine.key.as_str()), within, |mut client| {
                let key = mine.key.as_str().to_owned();
                async move { client.get(key, None).await }
            })
            .await?;
        Ok(answer.kvs().first().map(|record| mine.is(record)))
    }

    /// Looks at a key, by a quorum read.
    pub(super) async fn look(&self, key: &str, within: Within) -> Result<Look, Failed> {
        let answer = self
            .call(Keys::One(key), within, |mut client| {
                let key = key.to_owned();
                async move { client.get(key, Some(GetOptions::new().with_keys_only())).await }
            })
            .await?;
        let as_of = answer.header().map_or(0, |header| header.revision());
        Ok(Look { as_of, exists: !answer.kvs().is_empty() })
    }

    async fn transact(&self, keys: Keys<'_>, txn: Txn, within: Duration) -> Result<TxnResponse, Failed> {
        self.call(keys, Within::altogether(within), |mut client| {
            let txn = txn.clone();
            async move { client.txn(txn).await }
        })
        .await
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
    /// Whether this is it. Its holder may write it again, as long as it says the same.
    pub(crate) fn is(&self, record: &etcd_client::KeyValue) -> bool {
        record.create_revision() == self.created
            && record.lease() == self.lease
            && record.value() == self.owner.as_bytes()
    }
}

fn seconds_of(ttl: i64) -> Duration {
    Duration::from_secs(ttl.unsigned_abs())
}

fn revision_of(answer: &TxnResponse) -> i64 {
    answer.header().map_or(0, |header| header.revision())
}

fn first_record(answer: TxnResponse) -> Option<etcd_client::KeyValue> {
    match answer.op_responses().into_iter().next() {
        Some(TxnOpResponse::Get(mut found)) => found.take_kvs().into_iter().next(),
        _ => None,
    }
}
