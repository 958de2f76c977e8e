//! Who may write: fence tokens, tenures, verdicts and the gate.
//!
//! Everything here is pure: functions take what is known as values, and return what follows from it
//! as values. There is no I/O, no clock, no lock and no async; the caller brings them.
//!
//! Read in this order. A request presents a [`FenceToken`]. A [`Tenure`] is one holder's time with
//! a lock. A [`Snapshot`] is what we last learnt of a lock: [`KeyTrack`] or [`QueueTrack`] builds
//! it from the store's writes, [`RecordTrack`] from records that name their own tenures. [`judge`] compares the token with the snapshot. The [`Gate`] lets an
//! admitted request out, once. A [`Group`](group::Group) of proxies shares its gates.

mod gate;
pub mod group;
mod judge;
mod key_track;
mod lock;
mod queue_track;
mod record_track;
mod small_map;
mod snapshot;
mod token;

pub use gate::{
    Admission, AskedGate, EnterError, Gate, GateState, Moment, OrphanId, Predecessor,
    TenureAtWorker, Term,
};
pub use judge::{Action, Known, News, Rejection, Verdict, judge};
pub use key_track::{Content, KeyEvent, KeyTrack, Reading, Step, Walk, Write};
pub use lock::{InvalidLockKey, Layout, LockKey};
pub use queue_track::{Contender, MissedEvent, QueueEvent, QueueTrack};
pub use record_track::{RecordTrack, Seen, Sighting, Stamp, Worth};
pub use snapshot::{Holding, Snapshot, Tenure, Waiter};
pub use token::{FenceToken, InvalidRevision, Owner, Revision, percent_encoded};
