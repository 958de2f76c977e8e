//! Who may write: fence tokens, tenures, verdicts and the gate.
//!
//! Everything here is pure: what is known comes in as values, what follows from it goes out as
//! values. There is no I/O, no clock, no lock and no async; whoever drives these rules brings them.
//!
//! Read in this order: a request presents a [`FenceToken`]; a lock is held by a [`Tenure`]; what we
//! last learnt of a lock is a [`Snapshot`], built from the store's writes by [`KeyTrack`] or
//! [`QueueTrack`]; [`judge`] holds token and snapshot together; the [`Gate`] lets an admitted
//! request out, once.

mod gate;
mod judge;
mod key_track;
mod lock;
mod queue_track;
mod small_map;
mod snapshot;
mod token;

pub use gate::{
    Admission, EnterError, Gate, GateState, Moment, OrphanId, Predecessor, TenureAtWorker, Term,
};
pub use judge::{Action, Known, News, Rejection, Verdict, judge};
pub use key_track::{Content, KeyEvent, KeyTrack, Reading, Step, Walk, Write};
pub use lock::{InvalidLockKey, Layout, LockKey};
pub use queue_track::{Contender, MissedEvent, QueueEvent, QueueTrack};
pub use snapshot::{Holding, Snapshot, Tenure, Waiter};
pub use token::{FenceToken, InvalidRevision, Owner, Revision, percent_encoded};
