//! What can happen in such a world.

use proptest::prelude::*;

/// One thing that happens. Numbers choose among what there is.
#[derive(Debug, Clone, Copy)]
pub(in crate::cache) enum Act {
    Put(usize, u8),
    Delete(usize),
    /// The same, but no watch ever tells of it: etcd before 3.4.36 and 3.5.18 can lose it when it is compacted (etcd-io/etcd#19179).
    Lose(usize),
    /// One key goes and another comes, at one revision.
    Swap(usize, usize),
    /// Something is written that is not of this scope.
    Elsewhere,
    /// The watch delivers what happened at the next revision.
    Deliver,
    /// The watch ends.
    Fail,
    /// It goes on, or another takes its place, from where the scope says.
    Resume,
    SendWindow,
    /// The store answers the windowed read.
    AnswerWindow,
    /// The answer arrives.
    MergeWindow,
    /// One key is read, for the store's revision, if no windowed read is on its way.
    SendProbe,
    AnswerProbe,
    /// Looks whether the watch has brought all up to the answer. If it never will, the probe is given up.
    VerifyProbe,
    /// Another look whether the read is verified.
    Verify,
    /// Nobody waits any longer: a new window begins.
    Begin,
    SendRead(usize),
    AnswerRead(usize),
    MergeRead(usize),
    EndWalk(usize),
}

/// A windowed read, answered at once.
pub(in crate::cache) const WINDOW: [Act; 3] = [Act::SendWindow, Act::AnswerWindow, Act::MergeWindow];

pub(in crate::cache) fn any_act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (0..4usize, b'a'..b'c').prop_map(|(key, owner)| Act::Put(key, owner)),
        4 => (0..4usize).prop_map(Act::Delete),
        1 => (0..4usize, 0..4usize).prop_map(|(gone, new)| Act::Swap(gone, new)),
        1 => Just(Act::Elsewhere),
        6 => Just(Act::Deliver),
        1 => Just(Act::Fail),
        3 => Just(Act::Resume),
        3 => Just(Act::SendWindow),
        3 => Just(Act::AnswerWindow),
        3 => Just(Act::MergeWindow),
        3 => Just(Act::SendProbe),
        3 => Just(Act::AnswerProbe),
        3 => Just(Act::VerifyProbe),
        4 => Just(Act::Verify),
        1 => Just(Act::Begin),
        2 => (0..2usize).prop_map(Act::SendRead),
        2 => (0..2usize).prop_map(Act::AnswerRead),
        2 => (0..2usize).prop_map(Act::MergeRead),
        2 => (0..2usize).prop_map(Act::EndWalk),
    ]
}
