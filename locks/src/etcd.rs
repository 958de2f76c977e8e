//! etcd v3: one client for all that read, watch or take locks, and a store of locks above it.
//!
//! Read in this order:
//! - `access`, `connect` and `login` say how a cluster lets us in, and `member_check` whether it is
//!   one that does. Each `endpoint` has connections of its own.
//! - `endpoints` are those of a cluster, in the order of their `health`. A `watch` runs on one of
//!   them.
//! - The `client` makes calls at one endpoint after another. It takes locks.
//! - The store asks `queries`, once a `cluster_check` has found which cluster they
//!   are.

mod access;
mod client;
mod cluster_check;
mod connect;
mod endpoint;
mod endpoints;
mod failure;
mod health;
mod login;
mod member_check;
mod query;
mod version;
mod watch;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use fencepost_policy::Revision;
use futures_util::future::join_all;
use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::time::Instant;

pub use self::access::{EtcdAccess, EtcdOptions, EtcdTls, EtcdUser};
pub use self::client::{EtcdClient, EtcdError, Within, cluster};
use self::cluster_check::{Status, disagreement};
use self::endpoints::Endpoints;
use self::failure::Failure;
use self::query::{QUERY_RANGES_MAX, Query};
pub use self::version::known_stale_reads;
pub use self::watch::EtcdWatch;
use self::watch::{OPEN_TIMEOUT, WATCH_TIMEOUT};
use crate::member::{Member, MemberProblem};
use crate::store::{
    KeyValue, LockStore, RangeRead, RangeWatch, ReadAnswer, StoreError, Swap, Swapped, Wanted,
};

/// How long a read may take, with all endpoints that are tried.
const READ_TIMEOUT: Duration = Duration::from_millis(1500);

/// How long a member may take to tell how it is.
const STATUS_TIMEOUT: Duration = Duration::from_secs(1);

/// How many requests of one read are under way at a time.
const REQUESTS_AT_A_TIME: usize = 16;

/// A store of locks in etcd.
///
/// Each endpoint has connections of its own. One of them, the present one, is read and watched.
/// When it fails or misses its deadline it is suspect: it is left alone for a while (10 ms to 1 s,
/// doubling), the next one becomes the present one, and watches that hang on it end.
///
/// It must be used within a tokio runtime; its background tasks run there. Clones share one store,
/// and what it knows of its endpoints.
#[derive(Debug, Clone)]
pub struct EtcdStore(Arc<ArcSwap<Endpoints>>);

impl EtcdStore {
    /// The store in that cluster. Connects when it is first asked something.
    pub fn new(options: &EtcdOptions) -> EtcdStore {
        EtcdStore(Arc::new(ArcSwap::from_pointee(Endpoints::new(options))))
    }

    /// Reaches the cluster at other addresses, or with another access, from now on. It stays the
    /// same cluster: where another one answers, it is not believed. Connections to addresses that
    /// stay are kept if the access is the very same; watches on those that go end, to be begun anew
    /// elsewhere. Says whether anything is other than before.
    pub fn move_to(&self, addresses: &[String], access: &Arc<EtcdAccess>) -> bool {
        let before = self.0.load_full();
        if before.are_at(addresses, access) {
            return false;
        }
        let after = Arc::new(before.moved_to(addresses, access));
        self.0.store(Arc::clone(&after));
        before.leave_all_but(&after);
        true
    }

    /// Makes a store of the same cluster at these addresses and with this access, over connections
    /// of its own. So the caller can try another way to the cluster while it uses this one. If the
    /// id of the cluster is not known yet, the new store asks these addresses for it.
    pub fn beside(&self, addresses: &[String], access: &Arc<EtcdAccess>) -> EtcdStore {
        let cluster_id = self.cluster_id();
        EtcdStore::new(&EtcdOptions {
            endpoints: addresses.to_vec(),
            cluster_id,
            access: Arc::clone(access),
        })
    }

    /// The id of its cluster, once it is known: because it was configured, or since the endpoints
    /// agreed.
    pub fn cluster_id(&self) -> Option<u64> {
        self.endpoints().cluster_id()
    }

    fn endpoints(&self) -> Arc<Endpoints> {
        self.0.load_full()
    }

    async fn read_once(
        &self,
        ranges: &[RangeRead],
        deadline: Instant,
    ) -> Result<ReadAnswer, StoreError> {
        if ranges.is_empty() {
            return Err(StoreError::Refused("a read of nothing".into()));
        }
        match self.read_chunks(ranges, QUERY_RANGES_MAX, deadline).await {
            // Each by itself: etcd does not say which range may not be read, or is too large. And it
            // may refuse transactions alone (etcd-io/etcd#13429).
            Err(
                StoreError::Denied { .. } | StoreError::TooLarge { .. } | StoreError::Refused(_),
            ) if ranges.len() > 1 => self.read_chunks(ranges, 1, deadline).await,
            outcome => outcome,
        }
    }

    /// Reads ranges at one revision, so many in one request.
    async fn read_chunks(
        &self,
        ranges: &[RangeRead],
        size: usize,
        deadline: Instant,
    ) -> Result<ReadAnswer, StoreError> {
        // What does not fit into the first request is read as it was at the revision of the first
        // answer. Reading it as it is now would mix two moments: a lock that moved from one range
        // to another in between would be seen in both or in neither. That revision is the present
        // as much as the first answer is: both are from after the call began.
        let mut chunks = ranges.chunks(size);
        let first = chunks.next().unwrap_or_default();
        let ReadAnswer { revision, ranges: mut answers, by } =
            self.read_chunk(first, None, deadline).await?;
        let rest =
            stream::iter(chunks).map(|chunk| self.read_chunk(chunk, Some(revision), deadline));
        let mut rest = pin!(rest.buffered(REQUESTS_AT_A_TIME));
        while let Some(answer) = rest.try_next().await? {
            answers.extend(answer.ranges);
        }
        Ok(ReadAnswer { revision, ranges: answers, by })
    }

    /// Reads ranges that fit into one request: as they are now, or were at a revision.
    async fn read_chunk(
        &self,
        chunk: &[RangeRead],
        at: Option<Revision>,
        deadline: Instant,
    ) -> Result<ReadAnswer, StoreError> {
        let answer = self.endpoints().ask(&Query::ranges(chunk, at), deadline).await?;
        let (revision, by) = (at.unwrap_or(answer.revision), Some(answer.by));
        Ok(ReadAnswer { revision, ranges: answer.ranges, by })
    }

    /// Which of these ranges, of which one may not be read, that is: etcd does not say.
    async fn denied(&self, ranges: &[RangeRead], deadline: Instant) -> StoreError {
        for range in ranges {
            if let Err(error) = self
                .endpoints()
                .ask(&Query::ranges(std::slice::from_ref(range), None), deadline)
                .await
            {
                return error;
            }
        }
        StoreError::Unavailable("what may be read has changed meanwhile".into())
    }

    /// Asks one member how it is. That may be told before it is known which cluster is meant, and
    /// decides nothing of that.
    async fn status(endpoints: &Endpoints, index: usize) -> Result<Status, Failure> {
        let of = |client| async move {
            let status = Status::of(client).await?;
            if endpoints.cluster_id().is_some() {
                endpoints.check_cluster(status.cluster)?;
            }
            Ok(status)
        };
        endpoints.call(index, STATUS_TIMEOUT, of).await
    }
}

impl LockStore for EtcdStore {
    type Watch = EtcdWatch;

    async fn read(&self, ranges: &[RangeRead]) -> Result<ReadAnswer, StoreError> {
        let deadline = Instant::now() + READ_TIMEOUT;
        loop {
            match self.read_once(ranges, deadline).await {
                // History was compacted between two requests: begin again. Not for ever, because of
                // the deadline.
                Err(StoreError::Compacted) => {}
                outcome => return outcome,
            }
        }
    }

    async fn read_at(&self, key: &[u8], at: Revision) -> Result<Option<KeyValue>, StoreError> {
        let mut answer =
            self.endpoints().ask(&Query::key_at(key, at), Instant::now() + READ_TIMEOUT).await?;
        Ok(answer.ranges.swap_remove(0).keys.pop())
    }

    async fn watch(&self, ranges: &[RangeWatch]) -> Result<EtcdWatch, StoreError> {
        if ranges.is_empty() {
            return Err(StoreError::Refused("a watch of nothing".into()));
        }
        let deadline = Instant::now() + WATCH_TIMEOUT;
        let endpoints = self.endpoints();
        endpoints.know_cluster(deadline).await?;
        match EtcdWatch::begin(&endpoints, ranges, OPEN_TIMEOUT, deadline).await {
            Ok(watch) => Ok(watch),
            Err(Failure::Store(error)) => Err(error),
            Err(_) => {
                let read = |range: &RangeWatch| RangeRead {
                    range: range.range.clone(),
                    wanted: Wanted::Count,
                };
                Err(self.denied(&ranges.iter().map(read).collect::<Vec<_>>(), deadline).await)
            }
        }
    }

    async fn swap(&self, swap: &Swap) -> Result<Swapped, StoreError> {
        self.endpoints().swap(swap, Instant::now() + READ_TIMEOUT).await
    }

    async fn members(&self) -> Vec<Member> {
        let endpoints = &*self.endpoints();
        let statuses = (0..endpoints.len()).map(|index| async move {
            let address = &endpoints.get(index).address;
            let status =
                EtcdStore::status(endpoints, index).await.map_err(|failure| failure.at(address));
            (Arc::clone(address), status)
        });
        let statuses = join_all(statuses).await;
        let told = statuses.iter().filter_map(|(address, status)| {
            Some((Arc::clone(address), status.as_ref().ok()?.cluster))
        });
        // Once one cluster is meant, those of others have failed.
        let unbelieved = disagreement(&told.collect::<Vec<_>>());
        let member = |(endpoint, status): (Arc<str>, Result<Status, StoreError>)| match status
            .and_then(|status| unbelieved.clone().map_or(Ok(status), Err))
        {
            Ok(Status { version, mut problems, .. }) => {
                if known_stale_reads(&version) {
                    problems.push(MemberProblem::StaleReads(Arc::clone(&version)));
                }
                Member { endpoint, version: Ok(version), problems }
            }
            Err(error) => {
                let problems = MemberProblem::of_silence(&error).into_iter().collect();
                Member { endpoint, version: Err(error), problems }
            }
        };
        statuses.into_iter().map(member).collect()
    }
}
