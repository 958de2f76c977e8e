//! ZooKeeper: locks that are queues of sequential nodes, and locks that are one ephemeral node.
//!
//! A read sends a barrier and then plain reads over one connection, which ZooKeeper answers in that
//! order. The barrier is a transaction that checks a node and writes nothing, so it needs a quorum.
//! `sync` would be no barrier: a former leader that was paused answers it, and the read behind it,
//! with old data.
//!
//! Read in this order: `queue` knows the names of contenders, `session` reads one lock, `watches`
//! say when to read sooner. Every error ends the session, and the next read opens another one.

mod queue;
mod session;
mod watches;

use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::timeout;

use self::session::Session;
use self::watches::{WatchSender, Watches};
use crate::cache::LockSpec;
use crate::record_store::{Hint, RecordAnswer, RecordStore};
use crate::secret;
use crate::store::StoreError;

/// How long a read may take, with opening a session.
const READ_TIMEOUT: Duration = Duration::from_secs(3);

/// Where a ZooKeeper ensemble is, and how it lets us in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZookeeperOptions {
    /// The client addresses of its servers, such as `127.0.0.1:2181`. One is chosen at random.
    pub servers: Vec<String>,
    /// How long the ensemble keeps a session without contact; the servers have limits of their own
    /// for it.
    pub session_timeout: Duration,
    /// Who we are under the scheme `digest`; `None`: nobody.
    pub user: Option<ZookeeperUser>,
}

/// A user of ZooKeeper's scheme `digest`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZookeeperUser {
    /// The name.
    pub name: String,
    /// The file of the password: UTF-8, up to 4 KiB, without the one line's end after it. It is
    /// read whenever a session is opened.
    pub password_file: PathBuf,
}

impl ZookeeperUser {
    /// Checks that there is a password now. Reads the file on this thread.
    ///
    /// # Errors
    /// If the file can't be read, or holds nothing that can be a password.
    pub fn check(&self) -> io::Result<()> {
        secret::read_here(&self.password_file).map(|_| ())
    }

    /// What the scheme `digest` presents.
    async fn credentials(&self) -> Result<String, StoreError> {
        let ZookeeperUser { name, password_file } = self;
        let password = secret::read(password_file).await.map_err(|error| {
            let file = password_file.display();
            let why = format!("user {name:?}: the password in {file} can't be read: {error}");
            StoreError::NoLogin(why.into())
        })?;
        Ok(format!("{name}:{password}"))
    }
}

/// A store of locks in ZooKeeper. It must be used within a tokio runtime.
#[derive(Debug)]
pub struct ZookeeperStore {
    options: ZookeeperOptions,
    /// `None` before the first read, and after an error.
    session: Mutex<Option<Session>>,
    watch_sender: WatchSender,
    /// Held by the only caller of `hint`.
    watches: tokio::sync::Mutex<Watches>,
}

impl ZookeeperStore {
    /// The store in that ensemble. Connects when it is first read.
    pub fn new(options: ZookeeperOptions) -> ZookeeperStore {
        let (watch_sender, watches) = Watches::new();
        let watches = tokio::sync::Mutex::new(watches);
        ZookeeperStore { options, session: Mutex::default(), watch_sender, watches }
    }

    async fn read_by(&self, locks: &[&LockSpec]) -> Result<Vec<RecordAnswer>, StoreError> {
        let open = self.held().clone();
        let session = match open {
            Some(session) => session,
            None => {
                let session = Session::open(&self.options, &self.watch_sender).await?;
                self.held().insert(session).clone()
            }
        };
        session.read(locks).await.map_err(|error| StoreError::Unavailable(error.to_string().into()))
    }

    fn held(&self) -> std::sync::MutexGuard<'_, Option<Session>> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RecordStore for ZookeeperStore {
    async fn read(&self, locks: &[&LockSpec]) -> Result<Vec<RecordAnswer>, StoreError> {
        let outcome = timeout(READ_TIMEOUT, self.read_by(locks)).await.unwrap_or_else(|_| {
            let why = format!("no answer within {} s", READ_TIMEOUT.as_secs());
            Err(StoreError::Unavailable(why.into()))
        });
        if outcome.is_err() {
            *self.held() = None;
        }
        outcome
    }

    async fn hint(&self) -> Hint {
        self.watches.lock().await.next().await
    }
}
