//! How many files and sockets the process may have open, and how many connections to clients and
//! workers that allows.

use std::num::NonZeroUsize;

use fencepost_config::Config;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::upstream::ConnectionQuota;

/// Connections to the admin listener. Descriptors for them are set aside, so that it answers
/// however many clients there are.
pub(crate) const ADMIN_CONNECTIONS: usize = 256;
/// Listeners, event queues, lock stores, journal, logs.
const OTHERS: usize = 256;

/// How many connections the descriptors of the process allow.
pub(crate) struct Connections {
    /// With clients: as many as configured, or fewer.
    pub(crate) with_clients: usize,
    /// To workers: all that is left, whatever upstreams are put in force later.
    pub(crate) to_workers: ConnectionQuota,
}

impl Connections {
    /// Raises the limit of the process as far as it may be, and shares it out. What is fewer than
    /// configured is said in the log.
    pub(crate) fn of(config: &Config, threads: NonZeroUsize) -> Connections {
        let wanted = config.limits.connections_max;
        let Some(descriptors) = raise() else {
            return Connections { with_clients: wanted, to_workers: ConnectionQuota::unlimited() };
        };
        let mut upstreams: Vec<_> = config.routes.iter().map(|route| &route.upstream).collect();
        upstreams.sort_by_key(|upstream| upstream.to_string());
        upstreams.dedup();
        let of_one = threads.get() * config.limits.upstream_connections_max;
        let (with_clients, to_workers) = shared_out(descriptors, wanted, upstreams.len() * of_one);
        if with_clients < wanted || to_workers < of_one {
            tracing::warn!(
                connections_max = wanted,
                in_force = with_clients,
                to_workers,
                descriptors,
                "the process may not have as many descriptors (ulimit -n, LimitNOFILE=) as connections_max and upstream_connections_max need"
            );
        }
        Connections { with_clients, to_workers: ConnectionQuota::of(to_workers, threads) }
    }
}

/// The connections with clients and those to workers that so many descriptors allow. Clients, of
/// whom up to `wanted` are to be served, get as many as leaves `to_workers` of them, but half of
/// all at least.
fn shared_out(descriptors: usize, wanted: usize, to_workers: usize) -> (usize, usize) {
    let left = descriptors.saturating_sub(ADMIN_CONNECTIONS + OTHERS);
    let with_clients = wanted.min(left.saturating_sub(to_workers).max(left / 2)).max(1);
    (with_clients, left.saturating_sub(with_clients).max(1))
}

/// Raises the descriptor limit of the process to its maximum, and returns the limit; `None` if the
/// number of descriptors is unlimited.
pub(crate) fn raise() -> Option<usize> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    let limit = if raised.is_ok() { maximum } else { current };
    limit.and_then(|limit| usize::try_from(limit).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_set_aside_for_workers_the_admin_listener_and_the_rest() {
        for (descriptors, to_workers, expected) in [
            (1_048_576, 2_048, (10_000, 1_038_064)),
            (1_048_576, 10_000_000, (10_000, 1_038_064)),
            (12_000, 2_048, (9_440, 2_048)),
            (4_608, 2_048, (2_048, 2_048)),
            (4_608, 100_000, (2_048, 2_048)),
            (1_024, 2_048, (256, 256)),
            (100, 2_048, (1, 1)),
        ] {
            assert_eq!(
                shared_out(descriptors, 10_000, to_workers),
                expected,
                "{descriptors} descriptors"
            );
        }
    }
}
