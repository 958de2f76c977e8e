//! A lock in etcd, taken and released as its users do. Does not look at the proxy.

mod handoff;
mod leases;
mod many;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use etcd_client::{
    Certificate, Client, Compare, CompareOp, ConnectOptions, GetOptions, Identity, LockOptions as MutexOptions,
    PutOptions, ResponseHeader, TlsOptions, Txn, TxnOp,
};

pub(crate) use self::handoff::Handoff;
pub(crate) use self::many::{HeldLocks, acquire_all};

use self::leases::Leases;
use crate::cli::LockOptions;
use crate::client::Token;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Layout {
    /// One key; its value is the owner.
    #[default]
    Key,
    /// A queue of keys below the lock's; the oldest one's value is the owner (`etcdctl elect`).
    Election,
    /// A queue of keys below the lock's; the oldest one's name is the owner (`etcdctl lock`).
    Mutex,
}

#[derive(Clone)]
pub(crate) struct Lock {
    etcd: Client,
    key: String,
    layout: Layout,
    lease_seconds: i64,
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
/// etcd accepts a login for some minutes only, and a run may take hours.
const LOGIN_EVERY: Duration = Duration::from_secs(60);
const CONCURRENT_CALLS_MAX: usize = 16;
/// How long a lock stays taken after a crash. A running program renews its leases.
const LEASE_SECONDS: i64 = 90;

impl Lock {
    /// Connects to etcd, for a run of this length.
    /// Fails if etcd does not answer, or somebody holds the lock.
    pub(crate) async fn open(options: &LockOptions, run: Duration) -> Result<Lock> {
        let unreachable = || format!("etcd at {} does not answer", options.etcd.join(", "));
        let template = options.lock.as_ref().context("--etcd needs --lock")?;
        let user = user(options)?;
        let mut access = access(options)?;
        if let Some((name, password)) = user.clone() {
            access = access.with_user(name, password);
        }
        let etcd = Client::connect(&options.etcd, Some(access)).await.with_context(unreachable)?;
        if let Some(user) = user {
            tokio::spawn(stay_logged_in(etcd.clone(), user));
        }
        let run = i64::try_from(run.as_secs()).unwrap_or(i64::MAX / 2);
        let (leases, lease_seconds) = (Leases::new(etcd.clone()), LEASE_SECONDS.saturating_add(run));
        let (key, layout) = (template.of(0), options.layout);
        let lock = Lock { etcd, key, layout, lease_seconds, leases };
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

    /// Takes the lock from its holder without waiting. With a plain key one transaction replaces the
    /// record, so the lock is never free. Otherwise the holder releases first.
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
            let deleted = self.etcd.clone().delete(self.key.as_str(), None).await;
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
        let (key, options) = match self.layout {
            Layout::Key => (self.key.clone(), None),
            Layout::Election | Layout::Mutex => (self.below(), Some(GetOptions::new().with_prefix().with_limit(1))),
        };
        Ok(self.etcd.clone().get(key, options).await?.kvs().is_empty())
    }

    fn below(&self) -> String {
        format!("{}/", self.key)
    }

    async fn lease(&self) -> Result<i64> {
        self.leases.grant(self.lease_seconds).await
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
        let response = self.etcd.clone().txn(transaction).await?;
        ensure!(response.succeeded(), "somebody else has it");
        Token::new(owner, revision(response.header())?)
    }

    async fn campaign(&self, owner: &str, lease: i64) -> Result<Token> {
        let response = self.etcd.clone().campaign(self.key.as_str(), owner, lease).await?;
        let leader = response.leader().context("etcd names no leader key")?;
        Token::new(owner, leader.rev())
    }

    /// Enters as `etcdctl lock` does, which hands its child the key and the response's revision.
    async fn enter_mutex(&self, lease: i64) -> Result<Token> {
        let options = MutexOptions::new().with_lease(lease);
        let response = self.etcd.clone().lock(self.key.as_str(), Some(options)).await?;
        let key = std::str::from_utf8(response.key()).context("the lock's key is not text")?;
        Token::new(key, revision(response.header())?)
    }
}

fn access(options: &LockOptions) -> Result<ConnectOptions> {
    let connect = ConnectOptions::new().with_timeout(CALL_TIMEOUT);
    let connect = connect.with_connect_timeout(CALL_TIMEOUT);
    let Some(ca) = &options.etcd_ca else { return Ok(connect) };
    let mut tls = TlsOptions::new().ca_certificate(Certificate::from_pem(read("--etcd-ca", ca)?));
    if let Some((certificate, key)) = options.etcd_cert.as_ref().zip(options.etcd_key.as_ref()) {
        let certificate = read("--etcd-cert", certificate)?;
        tls = tls.identity(Identity::from_pem(certificate, read("--etcd-key", key)?));
    }
    Ok(connect.with_tls(tls))
}

fn user(options: &LockOptions) -> Result<Option<(String, String)>> {
    let named = options.etcd_user.as_ref().zip(options.etcd_password_file.as_ref());
    let Some((name, file)) = named else { return Ok(None) };
    let text = String::from_utf8(read("--etcd-password-file", file)?);
    let text = text.context("--etcd-password-file: it is not text")?;
    Ok(Some((name.clone(), text.lines().next().unwrap_or_default().to_owned())))
}

fn read(option: &str, file: &Path) -> Result<Vec<u8>> {
    std::fs::read(file).with_context(|| format!("{option}: {} cannot be read", file.display()))
}

async fn stay_logged_in(mut etcd: Client, user: (String, String)) {
    loop {
        tokio::time::sleep(LOGIN_EVERY).await;
        // The next round tries again; meanwhile calls show the error.
        let _ = etcd.update_user(Some(user.clone())).await;
    }
}

fn revision(header: Option<&ResponseHeader>) -> Result<i64> {
    Ok(header.context("etcd names no revision")?.revision())
}
