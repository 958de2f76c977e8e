//! The lock store, as masters use it.

use etcd_client::{
    AlarmAction, AlarmType, Certificate, Client, Compare, CompareOp, ConnectOptions, GetOptions,
    Identity, LeaderKey, LockOptions, ProclaimOptions, PutOptions, ResignOptions, TlsOptions, Txn,
    TxnOp,
};
use fencepost_tests::{Etcd, EtcdSecurity};

/// A client of the lock store.
#[derive(Clone)]
pub(crate) struct Store(Client);

/// How a lock's record is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    Key,
    Election,
    Mutex,
}

/// A master's session: whatever it holds goes with its lease.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub(crate) owner: String,
    lease: i64,
}

/// A period in which one owner holds a lock, named as its holder would.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tenure {
    pub(crate) owner: String,
    pub(crate) revision: i64,
}

/// A lock that is held.
pub(crate) struct Held {
    pub(crate) tenure: Tenure,
    how: How,
}

enum How {
    Key(String),
    Election(LeaderKey),
    Mutex(Vec<u8>),
}

impl Layout {
    pub(crate) const ALL: [Layout; 3] = [Layout::Key, Layout::Election, Layout::Mutex];

    /// As in the configuration.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Layout::Key => "key",
            Layout::Election => "election",
            Layout::Mutex => "mutex",
        }
    }
}

impl Tenure {
    pub(crate) fn new(owner: &str, revision: i64) -> Tenure {
        Tenure { owner: owner.to_owned(), revision }
    }
}

impl Store {
    pub(crate) async fn of(etcd: &Etcd) -> Store {
        Store(Client::connect([etcd.endpoint()], None).await.unwrap())
    }

    /// As `root`, over TLS.
    pub(crate) async fn secure(etcd: &Etcd, security: &EtcdSecurity) -> Store {
        let read = |file| std::fs::read(file).unwrap();
        let (certificate, key) = security.client();
        let tls = TlsOptions::new()
            .ca_certificate(Certificate::from_pem(read(security.ca())))
            .identity(Identity::from_pem(read(certificate), read(key)));
        let options = ConnectOptions::new()
            .with_tls(tls)
            .with_user("root", "root")
            .with_auto_token_refresh(true);
        Store(Client::connect([etcd.endpoint()], Some(options)).await.unwrap())
    }

    /// Gives a user another password.
    pub(crate) async fn change_password(&self, user: &str, password: &str) {
        self.0.clone().user_change_password(user, password).await.unwrap();
    }

    /// Writes a key; returns the revision.
    pub(crate) async fn put(&self, key: &str, value: impl Into<Vec<u8>>) -> i64 {
        let answer = self.0.clone().put(key, value, None).await.unwrap();
        answer.header().unwrap().revision()
    }

    /// As [`Store::put`], for a store that may have no leader just now.
    pub(crate) async fn try_put(&self, key: &str, value: &str) -> Option<i64> {
        let mut client = self.0.clone();
        let put =
            tokio::time::timeout(std::time::Duration::from_secs(1), client.put(key, value, None));
        Some(put.await.ok()?.ok()?.header()?.revision())
    }

    /// Writes a key of an owner and says under which token the owner holds the lock then.
    pub(crate) async fn hold(&self, key: &str, owner: &str) -> Tenure {
        Tenure::new(owner, self.put(key, owner).await)
    }

    /// Removes a key; returns the revision.
    pub(crate) async fn delete(&self, key: &str) -> i64 {
        self.0.clone().delete(key, None).await.unwrap().header().unwrap().revision()
    }

    /// Raises an alarm, as a member does.
    pub(crate) async fn raise(&self, alarm: AlarmType) {
        let mut client = self.0.maintenance_client();
        client.alarm(AlarmAction::Activate, alarm, None).await.unwrap();
    }

    /// Forgets all history before a revision.
    pub(crate) async fn compact(&self, revision: i64) {
        self.0.clone().compact(revision, None).await.unwrap();
    }

    /// The store's revision.
    pub(crate) async fn revision(&self) -> i64 {
        self.0.clone().get("none", None).await.unwrap().header().unwrap().revision()
    }

    /// The names and create revisions of all keys with a prefix, the oldest first.
    pub(crate) async fn queue(&self, prefix: &str) -> Vec<(String, i64)> {
        let answer =
            self.0.clone().get(prefix, Some(GetOptions::new().with_prefix())).await.unwrap();
        let mut keys: Vec<(String, i64)> = answer
            .kvs()
            .iter()
            .map(|entry| (entry.key_str().unwrap().to_owned(), entry.create_revision()))
            .collect();
        keys.sort_by_key(|(_, created)| *created);
        keys
    }

    pub(crate) async fn session(&self, owner: &str) -> Session {
        let lease = self.0.clone().lease_grant(600, None).await.unwrap().id();
        Session { owner: owner.to_owned(), lease }
    }

    /// Ends a session as if its master had crashed.
    pub(crate) async fn crash(&self, session: &Session) {
        self.0.clone().lease_revoke(session.lease).await.unwrap();
    }

    /// Takes a lock as etcd's own clients do; waits for it where the layout has a queue.
    pub(crate) async fn acquire(&self, layout: Layout, key: &str, session: &Session) -> Held {
        let mut client = self.0.clone();
        match layout {
            Layout::Key => {
                let free = Compare::create_revision(key, CompareOp::Equal, 0);
                let leased = PutOptions::new().with_lease(session.lease);
                let put = TxnOp::put(key, session.owner.as_str(), Some(leased));
                let answer = client.txn(Txn::new().when([free]).and_then([put])).await.unwrap();
                assert!(answer.succeeded(), "{key} is free for {}", session.owner);
                let revision = answer.header().unwrap().revision();
                Held {
                    tenure: Tenure::new(&session.owner, revision),
                    how: How::Key(key.to_owned()),
                }
            }
            Layout::Election => {
                let mut answer =
                    client.campaign(key, session.owner.as_str(), session.lease).await.unwrap();
                let leader = answer.take_leader().unwrap();
                Held {
                    tenure: Tenure::new(&session.owner, leader.rev()),
                    how: How::Election(leader),
                }
            }
            Layout::Mutex => {
                let options = LockOptions::new().with_lease(session.lease);
                let answer = client.lock(key, Some(options)).await.unwrap();
                let own_key = String::from_utf8(answer.key().to_vec()).unwrap();
                let revision = answer.header().unwrap().revision();
                Held {
                    tenure: Tenure::new(&own_key, revision),
                    how: How::Mutex(answer.key().to_vec()),
                }
            }
        }
    }

    /// Gives a lock back. The session goes on.
    pub(crate) async fn release(&self, held: Held) {
        let mut client = self.0.clone();
        match held.how {
            How::Key(key) => {
                client.delete(key, None).await.unwrap();
            }
            How::Election(leader) => {
                client.resign(Some(ResignOptions::new().with_leader(leader))).await.unwrap();
            }
            How::Mutex(key) => {
                client.unlock(key).await.unwrap();
            }
        }
    }

    /// Changes the name that the holder of an election goes by.
    pub(crate) async fn proclaim(&self, held: &Held, name: &str) {
        let How::Election(leader) = &held.how else {
            panic!("only the holder of an election proclaims")
        };
        let options = ProclaimOptions::new().with_leader(leader.clone());
        self.0.clone().proclaim(name, Some(options)).await.unwrap();
    }
}
