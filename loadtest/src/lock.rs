//! A lock in etcd, taken and given up as its users do.

mod handoff;
mod leases;
mod many;

use std::time::Duration;

use anyhow::{Context, bail};
use clap::ValueEnum;
use etcd_client::{
    Client, Compare, CompareOp, GetOptions, LockOptions, PutOptions, ResponseHeader, SortOrder, SortTarget, Txn, TxnOp,
    TxnOpResponse,
};

pub(crate) use self::handoff::{Handoff, Successor};
pub(crate) use self::many::acquire_all;

use self::leases::Leases;

use crate::cli::LockSettings;
use crate::token::Token;

/// How a lock is laid out in etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Layout {
    /// One key; its value is the owner.
    Key,
    /// A queue of keys below the lock's; the oldest one's value is the owner (etcd's election service, `etcdctl elect`).
    Election,
    /// A queue of keys below the lock's; the oldest one's name is the owner (etcd's lock service, `etcdctl lock`).
    Mutex,
}

/// A lock in etcd.
#[derive(Clone)]
pub(crate) struct Lock {
    etcd: Client,
    key: String,
    layout: Layout,
    lease_seconds: i64,
    leases: Leases,
}

/// The lock, held: the proof for the worker, and the lease that it hangs on.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) token: Token,
    lease: i64,
    /// Whether other locks hang on the lease too, so that this one's end must not be the lease's.
    shares_lease: bool,
}

/// How long each call may take, and a handoff.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// How often a user logs in.
const LOGIN_EVERY: Duration = Duration::from_secs(60);
/// How many calls are under way at a time.
const CALLS_MAX: usize = 16;
/// How long a lock stays taken after a crash. As long as the run goes on its leases are kept alive.
const LEASE_SECONDS: i64 = 90;

impl Lock {
    /// Connects to etcd and makes sure that nobody has the lock.
    pub(crate) async fn open(settings: &LockSettings, layout: Layout) -> anyhow::Result<Lock> {
        let endpoints = &settings.etcd;
        let options = settings.access.options()?.with_timeout(CALL_TIMEOUT).with_connect_timeout(CALL_TIMEOUT);
        let unreachable = || format!("etcd at {} does not answer", endpoints.join(", "));
        let etcd = Client::connect(endpoints, Some(options)).await.with_context(unreachable)?;
        if let Some(user) = settings.access.user()? {
            tokio::spawn(stay_logged_in(etcd.clone(), user));
        }
        let leases = Leases::new(etcd.clone());
        let lock = Lock { etcd, key: settings.lock.clone(), layout, lease_seconds: LEASE_SECONDS, leases };
        if let Some(lease) = lock.oldest_lease().await.with_context(unreachable)? {
            let wait = match lease {
                0 => String::new(),
                lease => {
                    let left = lock.etcd.clone().lease_time_to_live(lease, None).await.with_context(unreachable)?;
                    format!(", or wait until its lease is over, in {} s if nobody renews it", left.ttl().max(0))
                }
            };
            bail!("the lock {} is not free: end its holder{wait}", lock.key);
        }
        Ok(lock)
    }

    /// Takes the lock when it is free, as its users do: by a transaction, by etcd's election service, or by its lock service.
    pub(crate) async fn acquire(&self, owner: &str) -> anyhow::Result<Held> {
        let lease = self.lease().await?;
        let token = match self.layout {
            Layout::Key => self.put_if(self.is_absent(), owner, lease).await,
            Layout::Election => self.campaign(owner, lease).await,
            Layout::Mutex => self.enter_mutex(lease).await,
        };
        Ok(Held { token: token.with_context(|| self.refused(owner))?, lease, shares_lease: false })
    }

    /// Takes the lock from its holder without waiting for it. With a plain key one transaction replaces the holder's record, so
    /// that the lock is never free; else the holder goes first, and etcd's own service gives out the free lock.
    pub(crate) async fn take_from(&self, predecessor: Held, owner: &str) -> anyhow::Result<Held> {
        match self.layout {
            Layout::Key => {
                let lease = predecessor.lease;
                let unchanged =
                    Compare::mod_revision(self.key.as_str(), CompareOp::Equal, predecessor.token.revision());
                let token = self.put_if(unchanged, owner, lease).await;
                Ok(Held { token: token.with_context(|| self.refused(owner))?, ..predecessor })
            }
            Layout::Election | Layout::Mutex => {
                self.release(&predecessor).await?;
                self.acquire(owner).await
            }
        }
    }

    /// Ends the tenure, as the end of its lease does: at once.
    pub(crate) async fn release(&self, held: &Held) -> anyhow::Result<()> {
        if held.shares_lease {
            let deleted = self.etcd.clone().delete(self.key.as_str(), None).await;
            deleted.with_context(|| format!("the record of {} cannot be deleted", held.token))?;
            return Ok(());
        }
        let revoked = self.leases.revoke(held.lease).await;
        revoked.with_context(|| format!("the lease of {} cannot be revoked", held.token))?;
        Ok(())
    }

    /// Ends whatever hangs on a lease.
    pub(crate) async fn end(&self, lease: i64) -> anyhow::Result<()> {
        self.leases.revoke(lease).await.context("the lease of a successor cannot be revoked")
    }

    /// Ends whatever tenures there are of this lock, and of all that were [named](Lock::named) after it, and leaves no lease behind.
    ///
    /// # Errors
    /// If etcd does not answer: then they end by themselves, after a while.
    pub(crate) async fn give_back(&self) -> anyhow::Result<()> {
        self.leases.revoke_all().await
    }

    /// The lease that the lock's oldest record hangs on, 0 if it hangs on none. `None` if it has no record: it is free.
    async fn oldest_lease(&self) -> anyhow::Result<Option<i64>> {
        let (key, options) = match self.layout {
            Layout::Key => (self.key.clone(), GetOptions::new()),
            Layout::Election | Layout::Mutex => (format!("{}/", self.key), GetOptions::new().with_prefix()),
        };
        let oldest = options.with_sort(SortTarget::Create, SortOrder::Ascend).with_limit(1);
        let response = self.etcd.clone().get(key, Some(oldest)).await?;
        Ok(response.kvs().first().map(|record| record.lease()))
    }

    async fn lease(&self) -> anyhow::Result<i64> {
        self.leases.grant(self.lease_seconds).await
    }

    fn refused(&self, owner: &str) -> String {
        format!("{owner} cannot take the lock {}", self.key)
    }

    fn is_absent(&self) -> Compare {
        Compare::create_revision(self.key.as_str(), CompareOp::Equal, 0)
    }

    /// What a client without a lock library does: one transaction.
    async fn put_if(&self, condition: Compare, owner: &str, lease: i64) -> anyhow::Result<Token> {
        let key = self.key.as_str();
        let put = TxnOp::put(key, owner, Some(PutOptions::new().with_lease(lease)));
        let transaction = Txn::new().when([condition]).and_then([put]).or_else([TxnOp::get(key, None)]);
        let response = self.etcd.clone().txn(transaction).await?;
        if !response.succeeded() {
            bail!("somebody else has it{}", holder(response.op_responses()));
        }
        Token::new(owner, revision(response.header())?)
    }

    async fn campaign(&self, owner: &str, lease: i64) -> anyhow::Result<Token> {
        let response = self.etcd.clone().campaign(self.key.as_str(), owner, lease).await?;
        let leader = response.leader().context("etcd names no leader key")?;
        Token::new(owner, leader.rev())
    }

    /// What `etcdctl lock` tells its child as `ETCD_LOCK_KEY` and `ETCD_LOCK_REV`: the revision of the response that
    /// said that the lock is ours, later than our key's own if we had to wait.
    async fn enter_mutex(&self, lease: i64) -> anyhow::Result<Token> {
        let options = LockOptions::new().with_lease(lease);
        let response = self.etcd.clone().lock(self.key.as_str(), Some(options)).await?;
        let key = std::str::from_utf8(response.key()).context("the name of the lock's key is not text")?;
        Token::new(key, revision(response.header())?)
    }
}

/// Logs in anew from time to time: etcd takes a login for some minutes only, and a run may take hours.
async fn stay_logged_in(mut etcd: Client, user: (String, String)) {
    loop {
        tokio::time::sleep(LOGIN_EVERY).await;
        // What fails is tried again next time, and shows at whatever needs it.
        let _ = etcd.update_user(Some(user.clone())).await;
    }
}

/// Who holds a lock instead, as far as a failed transaction tells.
fn holder(responses: Vec<TxnOpResponse>) -> String {
    let Some(TxnOpResponse::Get(found)) = responses.into_iter().next() else { return String::new() };
    found.kvs().first().map_or_else(String::new, |record| {
        format!(": {:?} since revision {}", String::from_utf8_lossy(record.value()), record.mod_revision())
    })
}

fn revision(header: Option<&ResponseHeader>) -> anyhow::Result<i64> {
    Ok(header.context("etcd names no revision")?.revision())
}
