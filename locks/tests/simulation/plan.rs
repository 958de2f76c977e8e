//! What may happen in the world of a seed.

use fencepost_policy::Layout;

use crate::chance::Chance;

pub(crate) const TEMPLATE: &str = "t/";

/// What may happen in a world.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) locks: [(&'static str, Layout); 4],
    /// Every how manieth call is lost.
    pub(crate) lost_calls: u64,
    /// How late a watch may be, in milliseconds.
    pub(crate) watch_lag: u64,
    /// Some reads show an old state of the store: what leans on quorum reads is not promised then.
    pub(crate) stale_reads: bool,
    /// Tenures are recorded, so the proxy may be killed.
    pub(crate) remembers: bool,
    pub(crate) rewinds: bool,
    /// How many templated locks are kept that nobody holds.
    pub(crate) tracked_locks_max: u64,
    /// Routes turn from watching to enforcing and back.
    pub(crate) shadows: bool,
    /// `on_handoff_timeout = "dangerous_proceed"`: only then may tenures overlap.
    pub(crate) proceeds: bool,
    /// `on_unavailable = "dangerous_admit"`: only then may go out what nobody could judge.
    pub(crate) admits: bool,
}

impl Plan {
    pub(crate) fn of(seed: u64) -> Plan {
        let mut chance = Chance::of(seed, "plan");
        let layouts = [Layout::Key, Layout::Election, Layout::Mutex];
        let queue = layouts[1 + chance.index(2)];
        let templated = layouts[chance.index(3)];
        Plan {
            locks: [("key", Layout::Key), ("queue", queue), ("t/1", templated), ("t/2", templated)],
            lost_calls: [8, 30, 1000][chance.index(3)],
            watch_lag: [20, 150, 700][chance.index(3)],
            stale_reads: chance.one_in(5),
            remembers: chance.one_in(2),
            rewinds: chance.one_in(4),
            tracked_locks_max: [1, 100][chance.index(2)],
            shadows: chance.one_in(4),
            proceeds: chance.one_in(4),
            admits: chance.one_in(6),
        }
    }
}
