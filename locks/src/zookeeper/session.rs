//! A session, and how it reads locks.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fencepost_policy::{Content, Layout, Owner, Revision, Seen, Sighting, Stamp, Waiter};
use futures_util::future::{join_all, try_join, try_join_all};
use zookeeper_client::{Client, Error, MultiWriteError, Stat};

use super::queue::in_order;
use super::watches::{WatchSender, Watched};
use super::{ZookeeperOptions, ZookeeperUser};
use crate::cache::LockSpec;
use crate::record_store::RecordAnswer;
use crate::store::StoreError;

/// How long a server may take to take a connection, and to answer on it, before another one is
/// tried.
const SERVER_TIMEOUT: Duration = Duration::from_secs(1);

/// How many contenders of a lock are read: the holder, and those who wait longest.
const CONTENDERS_MAX: usize = 64;

/// How often a queue is listed in one read, if it changes between the list and the contenders.
const LISTS_MAX: usize = 8;

/// ZooKeeper has one history, which shows no name. A restore shows by lower numbers.
const LINEAGE: u64 = 0;

/// A session. Clones share it, and it ends with the last one.
#[derive(Debug, Clone)]
pub(super) struct Session {
    client: Client,
    watched: Watched,
    watch_sender: WatchSender,
}

/// Why one lock shows no record.
enum Fault {
    /// This lock alone, in words that name it.
    Lock { reach: Option<Revision>, problem: String },
    /// The session.
    Session(Error),
}

/// What is seen of a lock, with the highest number given out.
struct Record {
    reach: Option<Revision>,
    seen: Seen,
    waiters: Arc<[Waiter]>,
}

impl Session {
    pub(super) async fn open(
        options: &ZookeeperOptions,
        watch_sender: &WatchSender,
    ) -> Result<Session, StoreError> {
        let mut connector = Client::connector()
            .with_session_timeout(options.session_timeout)
            .with_connection_timeout(SERVER_TIMEOUT)
            .with_fail_eagerly();
        if let Some(user) = &options.user {
            let credentials = ZookeeperUser::credentials(user).await?;
            connector = connector.with_auth("digest", credentials.as_bytes());
        }
        let servers = options.servers.join(",");
        let client = connector.connect(&servers).await.map_err(|error| {
            let why = if error == Error::NoHosts {
                format!("none of {servers} opens a session")
            } else {
                format!("{servers}: {error}")
            };
            StoreError::Unavailable(why.into())
        })?;
        watch_sender.opened();
        let watch_sender = watch_sender.clone();
        Ok(Session { client, watched: Watched::default(), watch_sender })
    }

    /// Reads locks: one answer for each, no older than this call.
    ///
    /// # Errors
    /// If the session is of no more use.
    pub(super) async fn read(&self, locks: &[&LockSpec]) -> Result<Vec<RecordAnswer>, Error> {
        // The client sends when it is called. So the barrier goes out before every read, and the
        // server answers what one connection asks in the order of asking. Should the client have
        // to connect anew in between, no server takes the session that has applied less than the
        // barrier's answer showed.
        let barrier = self.barrier();
        let reads = locks.iter().map(|lock| self.read_lock(lock));
        try_join(barrier, try_join_all(reads)).await.map(|((), answers)| answers)
    }

    /// Has a quorum say that this server shows all that was acknowledged before.
    fn barrier(&self) -> impl Future<Output = Result<(), Error>> {
        let mut transaction = self.client.new_multi_writer();
        let added = transaction.add_check_version("/", -1);
        let committed = transaction.commit();
        async move {
            added?;
            match committed.await {
                // A check that fails is agreed on by the quorum like one that succeeds.
                Ok(_) | Err(MultiWriteError::OperationFailed { .. }) => Ok(()),
                Err(MultiWriteError::RequestFailed { source }) => Err(source),
            }
        }
    }

    async fn read_lock(&self, lock: &LockSpec) -> Result<RecordAnswer, Error> {
        let record = match lock.format.layout {
            Layout::Key => self.read_node(lock).await,
            Layout::Election | Layout::Mutex => self.read_queue(lock).await,
        };
        let (record, problem) = match record {
            Ok(record) => (record, None),
            Err(Fault::Lock { reach, problem }) => {
                (Record { reach, ..Record::of(Seen::Unreadable) }, Some(problem.into()))
            }
            Err(Fault::Session(error)) => return Err(error),
        };
        let Record { reach, seen, waiters } = record;
        Ok(RecordAnswer { sighting: Sighting { lineage: LINEAGE, reach, seen, waiters }, problem })
    }

    /// Reads a lock that is one ephemeral node.
    async fn read_node(&self, lock: &LockSpec) -> Result<Record, Fault> {
        let key = lock.key.as_str();
        let fault = |error| Fault::of(error, lock, key);
        if self.watched.lacks(&lock.key) {
            let (_, watcher) = self.client.check_and_watch_stat(key).await.map_err(fault)?;
            self.watch_sender.set(&lock.key, watcher, &self.watched);
        }
        let (data, stat) = match self.client.get_data(key).await {
            Ok(found) => found,
            Err(Error::NoNode) => return Ok(Record::of(Seen::Free)),
            Err(error) => return Err(fault(error)),
        };
        let revision = number(stat.czxid);
        let unreadable =
            |problem| Fault::Lock { reach: revision, problem: format!("the node {key} {problem}") };
        if !is_ephemeral(&stat) {
            return Err(unreadable(
                "is not ephemeral, so nothing tells one tenure from the next: create it anew, as an \
                 ephemeral node, for each tenure"
                    .to_owned(),
            ));
        }
        let content = lock.format.content(&Bytes::from(data)).map_err(unreadable)?;
        let seen = match (content, revision) {
            (Content::Owner(owner), Some(revision)) => {
                Seen::Held { stamp: stamp(key, &stat, &owner), owner, revision }
            }
            (Content::Free, Some(_)) => Seen::Free,
            (Content::Unreadable, _) | (_, None) => {
                return Err(unreadable("has no czxid".to_owned()));
            }
        };
        Ok(Record { reach: revision, ..Record::of(seen) })
    }

    /// Reads a lock that is the queue of its node's children.
    async fn read_queue(&self, lock: &LockSpec) -> Result<Record, Fault> {
        let mut reach = None;
        for _ in 0..LISTS_MAX {
            let Some((children, parent)) = self.children(lock).await? else {
                return Ok(Record::of(Seen::Free));
            };
            // Every child that has been created by then has a czxid of at most that.
            reach = number(parent.pzxid);
            let unreadable = |problem: String| Fault::Lock {
                reach,
                problem: format!("the children of {} {problem}", lock.key),
            };
            let mut names = in_order(children).map_err(unreadable)?;
            if names.is_empty() {
                return Ok(Record { reach, ..Record::of(Seen::Free) });
            }
            names.truncate(CONTENDERS_MAX);
            let contenders = self.contenders(lock, &names).await?;
            // Contenders are read in the order of the queue. So the first that still exists was the
            // holder when it was read, unless the lock's node was deleted and made anew in between.
            let newest = contenders.iter().map(|contender| contender.created).max();
            if newest.is_some() && newest <= reach {
                return queue(lock, reach, contenders).map_err(unreadable);
            }
        }
        let problem = format!("the children of {} change while they are read", lock.key);
        Err(Fault::Lock { reach, problem })
    }

    /// The children of a lock's node, with its stat; `None` if there is no such node.
    async fn children(&self, lock: &LockSpec) -> Result<Option<(Vec<String>, Stat)>, Fault> {
        let key = lock.key.as_str();
        let fault = |error| Fault::of(error, lock, key);
        loop {
            let lacks_watch = self.watched.lacks(&lock.key);
            let found = if lacks_watch {
                let found = self.client.get_and_watch_children(key).await;
                found.map(|(children, stat, watcher)| {
                    self.watch_sender.set(&lock.key, watcher, &self.watched);
                    (children, stat)
                })
            } else {
                self.client.get_children(key).await
            };
            match found {
                Ok(found) => return Ok(Some(found)),
                Err(Error::NoNode) if lacks_watch => {
                    let (stat, watcher) =
                        self.client.check_and_watch_stat(key).await.map_err(fault)?;
                    if stat.is_none() {
                        self.watch_sender.set(&lock.key, watcher, &self.watched);
                        return Ok(None);
                    }
                    // It was created in between.
                }
                Err(Error::NoNode) => return Ok(None),
                Err(error) => return Err(fault(error)),
            }
        }
    }

    /// Those of a lock's contenders that still exist, in the order of their names.
    async fn contenders(&self, lock: &LockSpec, names: &[String]) -> Result<Vec<Contender>, Fault> {
        let paths: Vec<String> = names.iter().map(|name| format!("{}/{name}", lock.key)).collect();
        // Sent now, in this order.
        let sent: Vec<_> = paths.iter().map(|path| self.client.get_data(path)).collect();
        let mut contenders = Vec::with_capacity(paths.len());
        for (path, found) in paths.into_iter().zip(join_all(sent).await) {
            let (data, stat) = match found {
                Ok(found) => found,
                Err(Error::NoNode) => continue,
                Err(error) => return Err(Fault::of(error, lock, &path)),
            };
            let Some(created) = number(stat.czxid) else {
                let problem = format!("the node {path} has no czxid");
                return Err(Fault::Lock { reach: None, problem });
            };
            let owner = match lock.format.layout {
                Layout::Mutex => Owner::new(path.as_bytes()),
                Layout::Key | Layout::Election => Owner::new(data),
            };
            let stamp = stamp(&path, &stat, &owner);
            contenders.push(Contender { owner, created, stamp });
        }
        Ok(contenders)
    }
}

/// A node in the queue of a lock.
struct Contender {
    owner: Owner,
    created: Revision,
    stamp: Stamp,
}

/// What a queue says, with at least one contender.
///
/// # Errors
/// What is wrong with it, in words that follow "the children of …".
fn queue(
    lock: &LockSpec,
    reach: Option<Revision>,
    contenders: Vec<Contender>,
) -> Result<Record, String> {
    let mut contenders = contenders.into_iter();
    let Some(Contender { owner, created, stamp }) = contenders.next() else {
        return Ok(Record { reach, ..Record::of(Seen::Free) });
    };
    let mut waiters = Vec::with_capacity(contenders.len());
    for Contender { owner, created: later, .. } in contenders {
        if later == created {
            return Err(format!(
                "include two that one transaction created (czxid {created}), so that no number \
                 tells them apart: delete one of them"
            ));
        }
        if later < created {
            return Err(format!(
                "are in another order by their sequence numbers than by their czxids ({created} \
                 comes before {later}): delete {} once it is free",
                lock.key
            ));
        }
        waiters.push(Waiter { owner, created: later });
    }
    let seen = Seen::Held { owner, revision: created, stamp };
    Ok(Record { reach, seen, waiters: waiters.into() })
}

impl Record {
    fn of(seen: Seen) -> Record {
        Record { reach: None, seen, waiters: Arc::from([]) }
    }
}

impl Fault {
    /// What follows from an error at a node of a lock.
    fn of(error: Error, lock: &LockSpec, path: &str) -> Fault {
        let key = &lock.key;
        let problem = if error == Error::NoAuth {
            format!(
                "the node {path} of {key} may not be read: give fencepost's user, or world:anyone, \
                 the permission READ on it"
            )
        } else if let Error::BadArguments(why) = error {
            format!(
                "{key} is no path of a ZooKeeper node ({why}): write one like \"/locks/orders\""
            )
        } else {
            return Fault::Session(error);
        };
        Fault::Lock { reach: None, problem }
    }
}

/// A zxid as a revision; `None` for those of nodes that are as old as the store.
fn number(zxid: i64) -> Option<Revision> {
    u64::try_from(zxid).ok().and_then(Revision::new)
}

/// What stays the same while a node exists and names one owner, and tells it from one that was
/// created under its number before a restore. Another owner in the same node would have its number.
fn stamp(path: &str, stat: &Stat, owner: &Owner) -> Stamp {
    let numbers = [stat.czxid, stat.ephemeral_owner, stat.ctime];
    let numbers = numbers.iter().flat_map(|number| number.to_be_bytes());
    numbers.chain(path.bytes()).chain([0]).chain(owner.as_bytes().iter().copied()).collect()
}

/// Whether the node goes with a session. Containers and nodes with a time to live have marks of
/// their own there.
fn is_ephemeral(stat: &Stat) -> bool {
    let [first, ..] = stat.ephemeral_owner.to_be_bytes();
    stat.ephemeral_owner != 0 && stat.ephemeral_owner != i64::MIN && first != 0xff
}
