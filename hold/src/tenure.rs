//! A lock that is held, and what keeps it so.

use std::sync::Arc;
use std::time::Duration;

use fencepost_policy::{LockKey, Owner, Revision};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tracing::debug;

use crate::clock::{Alarm, BootInstant};
use crate::error::{ReleaseError, StoreError};
use crate::etcd::{Change, Etcd, Mine};
use crate::lease::{Lease, attempt_within, retry_after, until_due};
use crate::stamp::StampLayer;
use crate::standing::{Ledger, Over, Standing, sure_for};

/// A tenure of ours: one unbroken period in which we hold a lock. It is renewed for as long as this
/// value lives.
///
/// Dropping it gives the lock back in the background ([`Etcd::settled`]); [`Tenure::release`] says
/// whether that was done.
#[derive(Debug)]
pub struct Tenure {
    mine: Arc<Mine>,
    revision: Revision,
    // Ends before the lease is given back.
    keeping: Keeping,
    lease: Lease,
}

/// The keeper at work, and what it writes down.
#[derive(Debug)]
struct Keeping {
    ledger: Arc<Ledger>,
    task: JoinHandle<()>,
}

impl Tenure {
    /// Begins to keep a lock that was taken, whose last renewal that counts was sent at that
    /// moment; if it has to be renewed first, etcd has so long to answer. `NoLease` if it was lost
    /// at once.
    pub(crate) async fn begin(
        etcd: Etcd,
        mine: Mine,
        lease: Lease,
        mut confirmed: BootInstant,
        answer_within: Duration,
        alarm: Alarm,
    ) -> Result<Tenure, StoreError> {
        let revision =
            u64::try_from(mine.created).ok().and_then(Revision::new).ok_or(StoreError::NoLease)?;
        let (ttl, mine) = (lease.ttl, Arc::new(mine));
        // The wait may have used up what the last renewal made sure of: a new holder has most of it
        // before it.
        if BootInstant::now().since(confirmed) > ttl / 3 {
            confirmed = renewed(&etcd, &mine, ttl, answer_within).await?;
        }
        let ledger = Arc::new(Ledger::held_until(confirmed + sure_for(ttl)));
        let keeper = Keeper { etcd, mine: Arc::clone(&mine), ttl, ledger: Arc::clone(&ledger) };
        let keeping = Keeping { ledger, task: tokio::spawn(keeper.keep(confirmed, alarm)) };
        Ok(Tenure { mine, revision, keeping, lease })
    }

    /// The lock.
    pub fn key(&self) -> &LockKey {
        &self.mine.key
    }

    /// In whose name it is held. As text it is what a request presents: visible ASCII, everything
    /// else percent-encoded.
    pub fn owner(&self) -> &Owner {
        &self.mine.owner
    }

    /// The revision that names this tenure: of the write that took the lock. No other tenure, of
    /// any lock, has it, and those of later tenures are higher.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// For how long the lock stays taken after its holder was last heard of, as etcd granted it: it
    /// may be more than was asked for.
    pub fn ttl(&self) -> Duration {
        self.lease.ttl
    }

    /// Whether the lock is surely held now: not lost, and renewed less than three quarters of its
    /// time to live ago. Costs no call. Once false, it stays false.
    pub fn is_held(&self) -> bool {
        self.keeping.ledger.standing().is_held_at(BootInstant::now())
    }

    /// How it stands, now and later.
    pub fn standing(&self) -> watch::Receiver<Standing> {
        self.keeping.ledger.subscribe()
    }

    /// Returns when the tenure is over, however that came: at the very moment at which
    /// [`Tenure::is_held`] becomes false.
    ///
    /// # Cancel safety
    /// May be given up and called again.
    pub fn lost(&self) -> impl Future<Output = Over> + Send + use<> {
        let mut standings = self.keeping.ledger.subscribe();
        async move {
            loop {
                if let Standing::Over(over) = *standings.borrow_and_update() {
                    return over;
                }
                if standings.changed().await.is_err() {
                    // The tenure was dropped.
                    return Over::Released;
                }
            }
        }
    }

    /// A layer that puts this tenure on requests, and refuses to send them once it is over.
    pub fn stamp(&self) -> StampLayer {
        StampLayer::new(
            self.mine.key.clone(),
            &self.mine.owner,
            self.revision,
            self.keeping.ledger.subscribe(),
        )
    }

    /// Gives the lock back, so that a waiting contender gets it now and not when the lease has run
    /// out. The tenure is over at once; another holder's record is never touched. Call it only when
    /// all work under the tenure has ended, also if the tenure was lost.
    ///
    /// # Cancel safety
    /// A future that is dropped leaves the rest to the background: the lease is revoked there, or
    /// runs out.
    ///
    /// # Errors
    /// If etcd does not confirm it within 3 s. The lock then gets free by itself.
    pub async fn release(self) -> Result<(), ReleaseError> {
        let Tenure { keeping, lease, .. } = self;
        drop(keeping);
        let within = lease.ttl;
        lease.give_back().await.map_err(|source| ReleaseError { within, source })
    }
}

impl Drop for Keeping {
    fn drop(&mut self) {
        self.ledger.end(Over::Released);
        self.task.abort();
    }
}

/// What keeps a tenure: it renews the lease, watches the key, and looks at the clock.
struct Keeper {
    etcd: Etcd,
    mine: Arc<Mine>,
    ttl: Duration,
    ledger: Arc<Ledger>,
}

impl Keeper {
    async fn keep(self, confirmed: BootInstant, mut alarm: Alarm) {
        let over = tokio::select! {
            // Looked at first: whoever wakes up too late must not begin with a renewal.
            biased;
            () = self.runs_out(&mut alarm) => Over::NotRenewed,
            over = self.changes() => over,
            over = self.renewals(confirmed) => over,
        };
        // After a standstill, etcd's word may be heard before the alarm. The time had run out
        // before that.
        let over = if self.has_run_out() { Over::NotRenewed } else { over };
        self.ledger.end(over);
        debug!(lock = %self.mine.key, %over, "the tenure is over");
    }

    fn has_run_out(&self) -> bool {
        matches!(self.ledger.standing(), Standing::Held { until } if until <= BootInstant::now())
    }

    /// Returns when no renewal was confirmed in time.
    async fn runs_out(&self, alarm: &mut Alarm) {
        while let Standing::Held { until } = self.ledger.standing() {
            if until <= BootInstant::now() {
                return;
            }
            // A renewal meanwhile moves the moment on, never back: it is looked at again then.
            alarm.until(until).await;
        }
    }

    /// Returns when the key is no longer ours.
    async fn changes(&self) -> Over {
        let mut from = self.mine.created + 1;
        loop {
            match self.etcd.change(self.mine.key.as_str(), from).await {
                Change::Deleted => return Over::KeyDeleted,
                // A watch does not tell whose lease a write has.
                Change::Other => {
                    match self.etcd.look(self.mine.key.as_str(), attempt_within(self.ttl)).await {
                        Ok(look) => match self.mine.over(look.record.as_ref()) {
                            Some(over) => return over,
                            None => from = look.as_of + 1,
                        },
                        Err(error) => {
                            debug!(lock = %self.mine.key, %error, "the key cannot be read");
                            sleep(retry_after(self.ttl)).await;
                        }
                    }
                }
            }
        }
    }

    /// Returns when a renewal shows that the lock is lost.
    async fn renewals(&self, mut confirmed: BootInstant) -> Over {
        loop {
            until_due(confirmed, self.ttl).await;
            let sent = BootInstant::now();
            match renew(&self.etcd, &self.mine, self.ttl).await {
                Ok(None) => {
                    confirmed = sent;
                    self.ledger.renewed(sent + sure_for(self.ttl));
                }
                Ok(Some(over)) => return over,
                Err(StoreError::NoLease) => return Over::LeaseGone,
                Err(error) => {
                    debug!(lock = %self.mine.key, %error, "the tenure is not renewed");
                    sleep(retry_after(self.ttl)).await;
                }
            }
        }
    }
}

/// Renews a lock until that is confirmed, for as long as etcd may take to answer; returns when that
/// was sent.
async fn renewed(
    etcd: &Etcd,
    mine: &Mine,
    ttl: Duration,
    answer_within: Duration,
) -> Result<BootInstant, StoreError> {
    let deadline = BootInstant::now() + answer_within;
    loop {
        let sent = BootInstant::now();
        match renew(etcd, mine, ttl).await {
            Ok(None) => return Ok(sent),
            Ok(Some(_)) => return Err(StoreError::NoLease),
            Err(StoreError::Unavailable(why)) if BootInstant::now() < deadline => {
                debug!(lock = %mine.key, why, "a lock that was taken is not renewed");
                sleep(retry_after(ttl)).await;
            }
            Err(failed) => return Err(failed),
        }
    }
}

/// One renewal; says why the tenure is over if that is what it shows.
///
/// The answer to the renewal alone proves little: a member gives it without asking the others, and
/// some versions of etcd give it for a lease that was revoked. The quorum read after it is what
/// proves that the key still stands.
async fn renew(etcd: &Etcd, mine: &Mine, ttl: Duration) -> Result<Option<Over>, StoreError> {
    let within = attempt_within(ttl);
    etcd.client().keep_alive(mine.lease, within).await?;
    let look = etcd.look(mine.key.as_str(), within).await?;
    Ok(mine.over(look.record.as_ref()))
}
