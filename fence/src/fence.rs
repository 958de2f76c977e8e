//! The fence: one per process.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fencepost_locks::{LockSource, MemoryStore, SourceOptions};
use fencepost_policy::LockKey;
use http::request::Parts;
use tokio::time::sleep;

use crate::etcd::{FenceBuilder, InvalidFence};
use crate::lock::LayerBuilder;
use crate::rules::Which;
use crate::shared::Shared;

/// How often [`Fence::ready`] looks.
const READY_PERIOD: Duration = Duration::from_millis(10);

/// What is known of the locks in one etcd, and their gates. Cheap to clone; clones are the same.
///
/// Make **one** for a process, and all layers from it: two of them would each know only half of
/// what runs.
#[derive(Clone)]
pub struct Fence(pub(crate) Arc<Shared>);

impl Fence {
    /// A fence over the locks in the etcd at these endpoints: `http://host:port`, or
    /// `https://host:port`.
    pub fn etcd<E: Into<String>>(endpoints: impl IntoIterator<Item = E>) -> FenceBuilder {
        FenceBuilder::at(endpoints)
    }

    /// A fence over locks in memory, for tests of a service that has no etcd at hand.
    ///
    /// # Errors
    /// [`InvalidFence::Thread`] if the system gives no thread.
    pub fn in_memory(store: &MemoryStore) -> Result<Fence, InvalidFence> {
        let store = store.clone();
        Ok(Fence::over(LockSource::spawn("memory", SourceOptions::default(), move || store)?))
    }

    pub(crate) fn over(source: LockSource) -> Fence {
        Fence(Arc::new(Shared::new(source)))
    }

    /// A layer whose requests need this lock.
    pub fn lock(&self, key: impl Into<String>) -> LayerBuilder {
        LayerBuilder::new(self.clone(), Which::One(key.into()))
    }

    /// A layer whose requests each need a lock of their own, below `prefix`. `lock` finds it in the
    /// head of a request; `None` refuses the request with `lock-not-allowed`, and so does a key
    /// that is not below `prefix`.
    ///
    /// All that is below `prefix` in etcd is watched, so keep other things out of it: locks below
    /// it that other layers of the fence name or find have to be read in the same way. Where
    /// records are queues ([`Layout::Election`], [`Layout::Mutex`]), no key that is found may be
    /// below another, which would take it for a contender: nobody finds that out beforehand. Where
    /// the lock is found in the path, take care that your router reads the path in the same way. A
    /// call of the fence names its lock as it is: a name that is percent-encoded is that of another
    /// lock here, unlike with [`Fence::lock`].
    ///
    /// [`Layout::Election`]: crate::Layout::Election
    /// [`Layout::Mutex`]: crate::Layout::Mutex
    ///
    /// ```no_run
    /// # use fencepost_fence::{Fence, LockKey};
    /// # fn example(fence: Fence) -> Result<(), Box<dyn std::error::Error>> {
    /// // `/shards/2/jobs` needs the lock `/shards/2/lock`.
    /// let shards = fence.locks_below("/shards/", |request| {
    ///     let shard = request.uri.path().strip_prefix("/shards/")?.split('/').next()?;
    ///     let is_number = !shard.is_empty() && shard.bytes().all(|digit| digit.is_ascii_digit());
    ///     is_number.then(|| LockKey::new(&format!("/shards/{shard}/lock")).ok())?
    /// });
    /// let layer = shards.layer()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn locks_below<F>(&self, prefix: impl Into<String>, lock: F) -> LayerBuilder
    where
        F: Fn(&Parts) -> Option<LockKey> + Send + Sync + 'static,
    {
        LayerBuilder::new(
            self.clone(),
            Which::Below { prefix: prefix.into(), lock: Arc::new(lock) },
        )
    }

    /// Tells the other members of its group that this process ends, so that they wait for nothing of
    /// it; completes once they know. Every request is refused from then on. Call it when the server
    /// has ended. Without a group it does nothing.
    pub async fn leave(&self) {
        if let Some(group) = self.0.source.group() {
            group.leave().await;
        }
    }

    /// Whether the locks of all layers are watched, each lock that a layer names was read after
    /// that, and the thread of the cache lives: for readiness probes. A store or watch that is lost
    /// later does not make it false.
    pub fn is_ready(&self) -> bool {
        let stands = self.0.source.group().is_none_or(|group| group.stands());
        stands && self.0.source.ready() && !self.0.source.has_ended()
    }

    /// Completes once [`Fence::is_ready`] is true. Requests that come before are not refused for
    /// it: they wait for the store, for `confirm_timeout` at most.
    pub async fn ready(&self) {
        while !self.is_ready() {
            sleep(READY_PERIOD).await;
        }
    }
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fence").field("source", &self.0.source).finish_non_exhaustive()
    }
}
