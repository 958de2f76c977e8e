//! Taking a lock: at once, or in turn.

use std::time::Duration;

use fencepost_policy::{InvalidLockKey, LockKey, Owner};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::debug;

use crate::clock::{Alarm, BootInstant};
use crate::error::{AcquireError, StoreError};
use crate::etcd::{Behind, Etcd, Mine, Taking};
use crate::lease::Lease;
use crate::tenure::Tenure;

/// How many bytes an owner's name may have. Percent-encoded it is of three times as many at most:
/// enough room is left in the head of a request as proxies take it, and in the pipe by which a
/// command is told.
const OWNER_BYTES_MAX: usize = 4096;

/// How many refusals in a row end the wait for a lock. Not one: a new password may stand in its
/// file before etcd knows it.
const REFUSALS_MAX: u32 = 3;

/// Why there is no such lock.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidLock {
    /// The key is not a valid lock key.
    #[error("not a lock key")]
    Key(#[from] InvalidLockKey),
    /// Its owner's name is of so many bytes: none, or too many.
    #[error("an owner's name is of 1 to {OWNER_BYTES_MAX} bytes, not of {0}")]
    Owner(usize),
    /// Its time to live is not from 1 s to a day, in whole seconds, as etcd counts.
    #[error("a lock's time to live is from 1 s to 24 h, in whole seconds, not {0:?}")]
    Ttl(Duration),
}

/// A lock, and who would hold it. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Lock {
    etcd: Etcd,
    key: LockKey,
    owner: Owner,
    ttl: Duration,
    queue: bool,
    answer_within: Duration,
    behind: watch::Sender<Option<Behind>>,
}

/// Says how a lock is to be taken.
#[derive(Debug, Clone)]
pub struct LockBuilder {
    key: String,
    owner: Owner,
    ttl: Duration,
    queue: bool,
    answer_within: Duration,
}

impl LockBuilder {
    /// For how long the lock stays taken after its holder was last heard of: 1 s to 24 h, in whole
    /// seconds; 10 s unless said. etcd may grant more: not less than one and a half of its election
    /// timeouts.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> LockBuilder {
        self.ttl = ttl;
        self
    }

    /// Whether to wait in line, below `<key>.queue/`, instead of racing with all others when the
    /// lock gets free. Those who don't queue may still come first.
    #[must_use]
    pub fn queue(mut self, queue: bool) -> LockBuilder {
        self.queue = queue;
        self
    }

    /// How long etcd may take to answer a call before acquiring fails; 10 s unless said. Waiting
    /// for the lock is no call: it goes on for as long as it takes, also while etcd is away.
    #[must_use]
    pub fn answer_within(mut self, answer_within: Duration) -> LockBuilder {
        self.answer_within = answer_within;
        self
    }

    /// The lock. Nothing is sent yet.
    ///
    /// # Errors
    /// If the key is empty or over 1024 bytes, the owner's name is, or over 4096, or the time to
    /// live out of its bounds.
    pub fn build(self, etcd: &Etcd) -> Result<Lock, InvalidLock> {
        let LockBuilder { key, owner, ttl, queue, answer_within } = self;
        let bounds = Duration::from_secs(1)..=Duration::from_secs(24 * 3600);
        if !bounds.contains(&ttl) || ttl.subsec_nanos() != 0 {
            return Err(InvalidLock::Ttl(ttl));
        }
        let owner_bytes = owner.as_bytes().len();
        if !(1..=OWNER_BYTES_MAX).contains(&owner_bytes) {
            return Err(InvalidLock::Owner(owner_bytes));
        }
        let (etcd, key, behind) = (etcd.clone(), LockKey::new(&key)?, watch::Sender::new(None));
        Ok(Lock { etcd, key, owner, ttl, queue, answer_within, behind })
    }
}

/// A lock that was taken.
struct Won {
    /// The revision of the write that took it.
    created: i64,
    /// When the last renewal of its lease was sent that was confirmed before that write was asked
    /// for: it is the write that makes such a renewal count (`renewed-by-quorum`).
    confirmed: BootInstant,
}

impl Lock {
    /// The lock of this key, to be taken in the name of this owner. Different holders should have
    /// different names, but nothing depends on it: the revision tells their tenures apart.
    pub fn builder(key: impl Into<String>, owner: impl AsRef<[u8]>) -> LockBuilder {
        LockBuilder {
            key: key.into(),
            owner: Owner::new(owner.as_ref()),
            ttl: Duration::from_secs(10),
            queue: false,
            answer_within: Duration::from_secs(10),
        }
    }

    /// Waits for the lock and takes it.
    ///
    /// # Errors
    /// If etcd does not answer a call in time, or refuses it. While it waits, it outlasts any
    /// outage: when its lease has run out meanwhile, it waits under a new one, at the end of the
    /// queue.
    ///
    /// # Cancel safety
    /// If it is given up, so is its place in the queue, and its lease is revoked in the background
    /// ([`Etcd::settled`]).
    pub async fn acquire(&self) -> Result<Tenure, AcquireError> {
        loop {
            let alarm = self.alarm()?;
            let lease = Lease::grant(&self.etcd, self.ttl, self.answer_within).await?;
            let taken = tokio::select! {
                taken = self.take_in_turn(&lease) => taken,
                () = lease.kept() => Err(StoreError::NoLease),
            };
            if let Some(tenure) = self.begin(taken, lease, alarm).await? {
                return Ok(tenure);
            }
            debug!(lock = %self.key, "the lease ran out while waiting: waiting under a new one");
        }
    }

    /// Takes the lock if nobody holds it, even if others wait for it.
    ///
    /// # Errors
    /// [`AcquireError::Held`] if somebody holds it, the same owner's name included; else as for
    /// [`Lock::acquire`].
    ///
    /// # Cancel safety
    /// As for [`Lock::acquire`].
    pub async fn try_acquire(&self) -> Result<Tenure, AcquireError> {
        loop {
            let alarm = self.alarm()?;
            let lease = Lease::grant(&self.etcd, self.ttl, self.answer_within).await?;
            let taken = match self
                .etcd
                .take(&self.key, &self.owner, lease.id, None, self.answer_within)
                .await
            {
                Ok(Taking::Taken(created)) => Ok(Won { created, confirmed: lease.confirmed() }),
                Ok(Taking::Held(Behind { owner, leased, .. }, _)) => {
                    // What is not given back now runs out.
                    let _ = lease.give_back().await;
                    return Err(AcquireError::Held { owner, leased });
                }
                Ok(Taking::EntryGone) => Err(StoreError::NoLease),
                Err(failed) => Err(failed),
            };
            if let Some(tenure) = self.begin(taken, lease, alarm).await? {
                return Ok(tenure);
            }
        }
    }

    /// The key.
    pub fn key(&self) -> &LockKey {
        &self.key
    }

    /// Behind whom [`Lock::acquire`] waits, now and later; `None` while it waits for nobody. All
    /// clones of a lock report here.
    pub fn behind(&self) -> watch::Receiver<Option<Behind>> {
        self.behind.subscribe()
    }

    /// In whose name it is taken.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    fn alarm(&self) -> Result<Alarm, AcquireError> {
        Alarm::new().map_err(|error| AcquireError::Clock(error.to_string()))
    }

    /// Begins the tenure; `None` if the lease ran out too soon.
    async fn begin(
        &self,
        taken: Result<Won, StoreError>,
        lease: Lease,
        alarm: Alarm,
    ) -> Result<Option<Tenure>, AcquireError> {
        let begun = match taken {
            Ok(Won { created, confirmed }) => {
                let mine = Mine {
                    key: self.key.clone(),
                    owner: self.owner.clone(),
                    lease: lease.id,
                    created,
                };
                Tenure::begin(self.etcd.clone(), mine, lease, confirmed, self.answer_within, alarm)
                    .await
            }
            Err(failed) => Err(failed),
        };
        match begun {
            Ok(tenure) => Ok(Some(tenure)),
            Err(StoreError::NoLease) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes the lock when it is free and, if we queue, everybody before us has had it.
    ///
    /// It tries again when the watch tells of a change, and every [`look_every`] besides: a watch
    /// is silent of much when the store was taken back to a backup. Once it waits, it outlasts that
    /// etcd does not answer, and some refusals.
    async fn take_in_turn(&self, lease: &Lease) -> Result<Won, StoreError> {
        let pause = look_every(lease.ttl);
        // How often etcd has refused in a row; `None` before we wait.
        let mut refusals = None;
        loop {
            let error = match self.try_turn(lease).await {
                Ok(Turn::Won(won)) => {
                    self.behind.send_replace(None);
                    return Ok(won);
                }
                Ok(Turn::Behind(behind, as_of)) => {
                    debug!(lock = %self.key, key = behind.key, "waiting");
                    refusals = Some(0);
                    // Which of the two came does not matter.
                    self.behind.send_if_modified(|known| {
                        let is_news = known.as_ref() != Some(&behind);
                        *known = Some(behind.clone());
                        is_news
                    });
                    let _ = timeout(pause, self.etcd.change(&behind.key, as_of + 1)).await;
                    continue;
                }
                Err(error) => error,
            };
            match &mut refusals {
                Some(_) if matches!(error, StoreError::Unavailable(_)) => {}
                Some(count) if *count + 1 < REFUSALS_MAX => *count += 1,
                Some(_) | None => return Err(error),
            }
            debug!(lock = %self.key, %error, "the lock cannot be looked at");
            sleep(pause).await;
        }
    }

    /// Takes the lock, unless somebody else has it or is before us in the queue. Each waits for the
    /// one before it only, so that a place that gets free wakes one.
    async fn try_turn(&self, lease: &Lease) -> Result<Turn, StoreError> {
        loop {
            let mut place = None;
            if self.queue {
                let queue = format!("{}.queue/", self.key);
                // Where our place still stands, it is the one we get.
                let ours =
                    self.etcd.enqueue(&queue, &self.owner, lease.id, self.answer_within).await?;
                if let Some((behind, as_of)) =
                    self.etcd.predecessor(&queue, &ours, self.answer_within).await?
                {
                    return Ok(Turn::Behind(behind, as_of));
                }
                place = Some(ours);
            }
            let confirmed = lease.confirmed();
            match self
                .etcd
                .take(&self.key, &self.owner, lease.id, place.as_ref(), self.answer_within)
                .await?
            {
                Taking::Taken(created) => return Ok(Turn::Won(Won { created, confirmed })),
                Taking::Held(behind, as_of) => return Ok(Turn::Behind(behind, as_of)),
                // Somebody has removed our entry meanwhile: we queue anew, at the end.
                Taking::EntryGone => {}
            }
        }
    }
}

/// What an attempt to take a lock came to.
enum Turn {
    Won(Won),
    /// Somebody has the lock or an earlier place in the queue, as of this revision of the store.
    Behind(Behind, i64),
}

/// How often a waiting contender tries again: as often as it renews its lease, and often enough for
/// the longest of them.
fn look_every(ttl: Duration) -> Duration {
    (ttl / 3).min(Duration::from_secs(10))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_to_live_is_whole_seconds_from_one_second_to_a_day() {
        let etcd = Etcd::at(["http://127.0.0.1:1"]).unwrap();
        let built = |ttl| Lock::builder("/lock", "a").ttl(ttl).build(&etcd).map(drop);
        for seconds in [1, 10, 86_400] {
            assert_eq!(built(Duration::from_secs(seconds)), Ok(()));
        }
        for ttl in [Duration::ZERO, Duration::from_millis(1500), Duration::from_secs(86_401)] {
            assert_eq!(built(ttl), Err(InvalidLock::Ttl(ttl)));
        }
    }

    #[test]
    fn an_owner_has_a_name_of_4_kib_at_most() {
        let etcd = Etcd::at(["http://127.0.0.1:1"]).unwrap();
        let built = |bytes| Lock::builder("/lock", "a".repeat(bytes)).build(&etcd).map(drop);
        assert_eq!([built(4096), built(4097)], [Ok(()), Err(InvalidLock::Owner(4097))]);
    }

    #[test]
    fn a_key_is_not_empty() {
        let etcd = Etcd::at(["http://127.0.0.1:1"]).unwrap();
        let refused = Lock::builder("", "a").build(&etcd).map(drop);
        assert_eq!(refused, Err(InvalidLock::Key(fencepost_policy::InvalidLockKey::Empty)));
    }
}
