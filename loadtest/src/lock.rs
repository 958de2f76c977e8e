//! A lock in etcd, taken and released as its users do. Does not look at the proxy.

mod handoff;
mod leases;
mod many;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use etcd_client::{
    Compare, CompareOp, GetOptions, LockOptions as MutexOptions, PutOptions, ResponseHeader, Txn,
    TxnOp,
};
use fencepost_locks::{EtcdAccess, EtcdClient, EtcdTls, EtcdUser, KeyRange, Within, cluster};

pub(crate) use self::handoff::Handoff;
pub(crate) use self::many::{HeldLocks, acquire_all};

use self::leases::Leases;
use crate::cli::{Layout, LockOptions};
use crate::client::{Token, client_files, client_tls};

#[derive(Clone)]
pub(crate) struct Lock {
    etcd: EtcdClient,
    key: String,
    layout: Layout,
    lease_length: Duration,
    leases: Leases,
}

/// A tenure: its token, and the lease of its record.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) token: Token,
    lease: i64,
    /// Whether other locks use the lease too, so that it must outlive this tenure.
    shares_lease: bool,
}

const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// For calls that must not be sent twice.
const ONCE: Within = Within::one_attempt(CALL_TIMEOUT);
/// For calls that may be sent to one endpoint after another.
const REPEATED: Within = Within::altogether(CALL_TIMEOUT).each(CALL_TIMEOUT);
const CONCURRENT_CALLS_MAX: usize = 16;
/// How long a lock stays taken after a crash. A running program renews its leases.
const LEASE_LENGTH: Duration = Duration::from_secs(90);

impl Lock {
    /// Connects to etcd, for a run of this length.
    /// Fails if etcd does not answer, or somebody holds the lock.
    pub(crate) async fn open(options: &LockOptions, run: Duration) -> Result<Lock> {
        let unreachable = || format!("etcd at {} does not answer", options.etcd.join(", "));
        let template = options.lock.as_ref().context("--etcd needs --lock")?;
        let etcd = EtcdClient::new(&options.etcd, &Arc::new(access(options)?));
        let (leases, lease_length) = (Leases::new(etcd.clone()), LEASE_LENGTH.saturating_add(run));
        let (key, layout) = (template.of(0), options.layout);
        let lock = Lock { etcd, key, layout, lease_length, leases };
        let is_free = lock.is_free().await.with_context(unreachable)?;
        ensure!(is_free, "the lock {} is not free: end its holder, or await its lease", lock.key);
        Ok(lock)
    }

    pub(crate) fn named(&self, key: String) -> Lock {
        Lock { key, ..self.clone() }
    }

    /// Takes the free lock: by a transaction, by etcd's election service, or by its lock service.
    pub(crate) async fn acquire(&self, owner: &str) -> Result<Held> {
        let lease = self.lease().await?;
        let token = match self.layout {
            Layout::Key => self.put_if(self.is_absent(), owner, lease).await,
            Layout::Election => self.campaign(owner, lease).await,
            Layout::Mutex => self.enter_mutex(lease).await,
        };
        let token = token.with_context(|| self.refused(owner))?;
        Ok(Held { token, lease, shares_lease: false })
    }

    /// Takes the lock from its holder without waiting. With a plain key one transaction replaces
    /// the record, so the lock is never free. Otherwise the holder releases first.
    pub(crate) async fn take_from(&self, predecessor: Held, owner: &str) -> Result<Held> {
        if self.layout != Layout::Key {
            self.release(&predecessor).await?;
            return self.acquire(owner).await;
        }
        let revision = predecessor.token.revision();
        let unchanged = Compare::mod_revision(self.key.as_str(), CompareOp::Equal, revision);
        let token = self.put_if(unchanged, owner, predecessor.lease).await;
        Ok(Held { token: token.with_context(|| self.refused(owner))?, ..predecessor })
    }

    /// Ends the tenure at once, as the end of its lease does.
    pub(crate) async fn release(&self, held: &Held) -> Result<()> {
        if held.shares_lease {
            let deleted = self.etcd.delete(&self.record(), REPEATED).await;
            let unchanged = || format!("the record of {} cannot be deleted", held.token);
            return deleted.map(|_| ()).with_context(unchanged);
        }
        let revoked = self.leases.revoke(held.lease).await;
        revoked.with_context(|| format!("the lease of {} cannot be revoked", held.token))
    }

    /// Ends all tenures of this lock and of those [named](Lock::named) after it, with their leases.
    pub(crate) async fn give_back(&self) -> Result<()> {
        self.leases.revoke_all().await
    }

    async fn is_free(&self) -> Result<bool> {
        let range = match self.layout {
            Layout::Key => self.record(),
            Layout::Election | Layout::Mutex => self.queue(),
        };
        Ok(self.etcd.get(&range, GetOptions::new().with_limit(1), REPEATED).await?.kvs().is_empty())
    }

    fn record(&self) -> KeyRange {
        KeyRange::Key(self.key.as_bytes().into())
    }

    fn below(&self) -> String {
        format!("{}/", self.key)
    }

    fn queue(&self) -> KeyRange {
        KeyRange::Prefix(self.below().into_bytes().into())
    }

    async fn lease(&self) -> Result<i64> {
        self.leases.grant(self.lease_length).await
    }

    fn refused(&self, owner: &str) -> String {
        format!("{owner} cannot take the lock {}", self.key)
    }

    fn is_absent(&self) -> Compare {
        Compare::create_revision(self.key.as_str(), CompareOp::Equal, 0)
    }

    async fn put_if(&self, condition: Compare, owner: &str, lease: i64) -> Result<Token> {
        let key = self.key.as_str();
        let put = TxnOp::put(key, owner, Some(PutOptions::new().with_lease(lease)));
        let transaction = Txn::new().when([condition]).and_then([put]);
        let response = self.etcd.transact(&self.record(), &transaction, ONCE).await?;
        ensure!(response.succeeded(), "somebody else has it");
        Token::new(owner, revision(response.header())?)
    }

    async fn campaign(&self, owner: &str, lease: i64) -> Result<Token> {
        let queue = self.queue();
        let campaign = self.etcd.call(Some(&queue), ONCE, |mut client| {
            let (key, owner) = (self.key.clone(), owner.to_owned());
            async move {
                let won = client.campaign(key, owner, lease).await?;
                Ok((cluster(won.header()), won))
            }
        });
        let response = campaign.await?;
        let leader = response.leader().context("etcd names no leader key")?;
        Token::new(owner, leader.rev())
    }

    /// Enters as `etcdctl lock` does, which hands its child the key and the response's revision.
    async fn enter_mutex(&self, lease: i64) -> Result<Token> {
        let queue = self.queue();
        let lock = self.etcd.call(Some(&queue), ONCE, |mut client| {
            let key = self.key.clone();
            async move {
                let options = MutexOptions::new().with_lease(lease);
                let locked = client.lock(key, Some(options)).await?;
                Ok((cluster(locked.header()), locked))
            }
        });
        let response = lock.await?;
        let key = std::str::from_utf8(response.key()).context("the lock's key is not text")?;
        Token::new(key, revision(response.header())?)
    }
}

fn access(options: &LockOptions) -> Result<EtcdAccess> {
    let identity = options.etcd_cert.as_ref().zip(options.etcd_key.as_ref());
    let tls = options
        .etcd_ca
        .as_deref()
        .map(|ca| client_tls("etcd", client_files(ca, identity), b"h2"))
        .transpose()?;
    let user = options.etcd_user.as_ref().zip(options.etcd_password_file.as_ref());
    let user = user.map(|(name, file)| EtcdUser::with_file(name, file));
    user.iter().try_for_each(EtcdUser::check).context("--etcd-password-file")?;
    Ok(EtcdAccess::new(tls.map(|client| EtcdTls { client, server_name: None }), user))
}

fn revision(header: Option<&ResponseHeader>) -> Result<i64> {
    Ok(header.context("etcd names no revision")?.revision())
}
