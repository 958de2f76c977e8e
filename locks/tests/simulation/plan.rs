//! What may happen in the world of a seed.

use std::time::Duration;

use fencepost_locks::GroupOptions;
use fencepost_policy::Layout;
use fencepost_policy::group::Timing;

use crate::chance::Chance;
use crate::world::ORPHAN_TIMEOUT;

pub(crate) const TEMPLATE: &str = "t/";
pub(crate) const MEMBERS: &str = "g/";

/// What may happen in a world.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// How many proxies there are. Two or more are a group.
    pub(crate) members: usize,
    pub(crate) member_ttl: Duration,
    /// An operator deletes keys of the group.
    pub(crate) deletes_keys: bool,
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
            members: 1,
            member_ttl: Duration::ZERO,
            deletes_keys: false,
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

    /// For a group. What nobody promises a group does not happen.
    pub(crate) fn of_group(seed: u64) -> Plan {
        let mut chance = Chance::of(seed, "group");
        Plan {
            members: 2 + chance.index(2),
            member_ttl: Duration::from_millis([450, 600, 900][chance.index(3)]),
            deletes_keys: chance.one_in(4),
            lost_calls: [30, 1_000][chance.index(2)],
            stale_reads: false,
            rewinds: false,
            shadows: false,
            proceeds: false,
            admits: false,
            ..Plan::of(seed)
        }
    }

    /// How the proxy of that host takes part in the group.
    pub(crate) fn group(&self, host: usize) -> Option<GroupOptions> {
        let timing = Timing { member_ttl: self.member_ttl, orphan_timeout: ORPHAN_TIMEOUT };
        (self.members > 1).then(|| GroupOptions {
            name: "g".to_owned(),
            prefix: MEMBERS.to_owned(),
            timing,
            host: host.to_string(),
            version: "0".to_owned(),
        })
    }
}
