//! Hold a lock in etcd, know until when it is surely held, and stamp requests with it.
//!
//! A *tenure* is one unbroken period in which one owner holds one lock. fencepost stands before a
//! worker and lets a request through only while its sender's tenure lasts; a request says so with
//! two headers, `Fence-Owner` and `Fence-Revision`. This crate is the sender's side: [`Lock`] takes
//! the lock, [`Tenure`] keeps it and knows when it must be taken for lost, [`Stamp`] puts it on
//! requests and turns what fencepost refuses into a typed [`Refusal`].
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use fencepost_hold::{Etcd, Lock};
//!
//! # async fn work() {}
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let etcd = Etcd::at(["http://127.0.0.1:2379"])?;
//! let lock = Lock::builder("/shards/2/lock", "shard-1").ttl(Duration::from_secs(10)).queue(true).build(&etcd)?;
//!
//! let tenure = lock.acquire().await?;
//! println!("{} holds {} under revision {}", tenure.owner(), tenure.key(), tenure.revision());
//! tokio::select! {
//!     () = work() => tenure.release().await?,
//!     over = tenure.lost() => eprintln!("stopped working: {over}"),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # What is in etcd
//!
//! The lock is one key (fencepost's `layout = "key"`): created, with the owner's name as its value,
//! under a lease, by a transaction that succeeds only where there is no such key. The revision of
//! that write names the tenure. It is removed by revoking the lease, which removes exactly what
//! hangs on it: never another holder's record.
//!
//! A waiting contender watches the key. Beside the renewals of its lease, it tries again every
//! third of the time to live, every 10 s at least, since a watch tells nothing more when etcd was
//! taken back to a backup. With [`LockBuilder::queue`], it also has an entry below `<key>.queue/`,
//! and takes its turn in the order of arrival. One that comes without `queue` may still be faster
//! when the lock gets free. Choose no lock key below `<key>.queue/`.
//!
//! # Until when a lock is held
//!
//! The lease is renewed every third of its time to live. A renewal counts when etcd has answered it
//! *and* a quorum read after it has shown that the key is still the tenure's own; it is dated by
//! the moment at which it was sent. [`Tenure::is_held`] is true for three quarters of the time to
//! live after that moment: the last quarter is for stopping, before etcd may give the lock to
//! somebody else. Once false, it stays false. The clock is CLOCK_BOOTTIME, which goes on while the
//! machine is suspended.
//!
//! None of this protects a worker from a request that is already under way: that is what the
//! revision in the request, and fencepost, are for.
//!
//! # Limits
//!
//! Linux only, for its clock. Everything runs in tasks of the tokio runtime on which the lock was
//! acquired: a runtime that is blocked for half a time to live loses its tenures.

mod clock;
pub mod command;
mod error;
mod etcd;
mod lease;
mod lock;
mod refusal;
mod stamp;
mod standing;
mod tenure;

pub use fencepost_locks::EtcdUser;
pub use fencepost_policy::{Action, InvalidLockKey, LockKey, Owner, Rejection, Revision};
pub use fencepost_tls::{ClientFiles, IdentityFiles, Look, TlsError};

pub use self::clock::{Alarm, BootInstant};
pub use self::error::{AcquireError, InvalidEtcd, ReleaseError, StoreError};
pub use self::etcd::{Behind, Etcd, EtcdBuilder};
pub use self::lock::{InvalidLock, Lock, LockBuilder};
pub use self::refusal::{Reason, Refusal};
pub use self::stamp::{Answer, Stamp, StampError, StampLayer};
pub use self::standing::{Over, Standing};
pub use self::tenure::Tenure;
