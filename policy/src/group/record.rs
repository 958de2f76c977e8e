//! What a member writes into its key, for all others to read.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use crate::{Layout, LockKey, Revision};

/// Names one start of a member: random bits, so that no process takes over the name of an earlier
/// one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub u128);

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// A lock, as all members name it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SharedLock {
    /// The id of the store's cluster.
    pub cluster: u64,
    /// The lock in that store.
    pub key: LockKey,
    /// How its record is read. Members that read one lock in two ways do not agree on its tenures.
    pub layout: Layout,
}

/// The tenure of a lock that a revision names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamedTenure {
    /// The lock.
    pub lock: SharedLock,
    /// A revision within the tenure. Members may know different ones of it as its first, after the
    /// store has compacted its history.
    pub revision: Revision,
}

/// The question whether anything of earlier tenures is at the worker through others.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Ask {
    /// Numbers rise, and none is used twice by a member.
    pub number: u64,
    /// The tenure that wants to begin.
    pub tenure: NamedTenure,
}

/// Which asks of one member another one has answered.
#[derive(Debug, Default, Clone, PartialEq, Eq, Hash)]
pub struct Answers {
    /// All up to that number are answered.
    pub through: u64,
    /// But these are not yet.
    pub open: BTreeSet<u64>,
    /// Of the answered ones, those of locks that the answering member cannot seal, since its route
    /// only watches them.
    pub unfenced: BTreeSet<u64>,
}

impl Answers {
    /// Whether the ask of that number is answered.
    pub fn contain(&self, number: u64) -> bool {
        number <= self.through && !self.open.contains(&number)
    }
}

/// Whether a member still lets requests in.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum MemberState {
    /// It does, or may.
    Live,
    /// It has ended in good order. Requests of these locks may still be at the worker, as orphans.
    Left(BTreeSet<SharedLock>),
    /// Another member has found it silent, and has replaced the write of this revision by this
    /// mark.
    GivenUp(Revision),
}

/// All that a member has to say: heartbeat, asks, answers and facts in one write.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MemberRecord {
    /// Its `member_ttl`.
    pub member_ttl: Duration,
    /// The longest `orphan_timeout` of its routes.
    pub orphan_timeout: Duration,
    /// Whether it still lets requests in.
    pub state: MemberState,
    /// Whether it may ever have let in one. Who has not leaves nothing behind.
    pub has_let_in: bool,
    /// Its open asks, in the order of their numbers.
    pub asks: Vec<Ask>,
    /// What it has answered to others.
    pub answers: BTreeMap<MemberId, Answers>,
    /// Tenures that it has found clear, the newest last.
    pub clear: Vec<NamedTenure>,
}
