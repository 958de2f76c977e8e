//! How many files and sockets the process may have open, and how many client connections that allows.

use std::num::NonZeroUsize;

use fencepost_config::Config;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Connections to the admin listener. Descriptors for them are set aside, so that it answers however many clients there are.
pub(crate) const ADMIN_CONNECTIONS: usize = 256;
/// Listeners, event queues, lock stores, journal, logs.
const OTHERS: usize = 256;

/// Raises the limit of the process as far as it may be, and returns how many client connections fit in it beside what
/// they need: as many as configured, or fewer, which is then said in the log.
pub(crate) fn connections_max(config: &Config, threads: NonZeroUsize) -> usize {
    let wanted = config.limits.connections_max;
    let Some(descriptors) = raise() else { return wanted };
    let mut upstreams: Vec<_> = config.routes.iter().map(|route| &route.upstream).collect();
    upstreams.sort_by_key(|upstream| upstream.to_string());
    upstreams.dedup();
    let to_workers = upstreams.len() * threads.get() * config.limits.upstream_connections_max;
    let fitting = fitting(descriptors, to_workers);
    if fitting < wanted {
        tracing::warn!(
            connections_max = wanted,
            in_force = fitting,
            descriptors,
            "the process may not have as many descriptors (ulimit -n, LimitNOFILE=) as connections_max needs"
        );
    }
    wanted.min(fitting)
}

/// The connections that so many descriptors allow, if each needs one to a worker too, up to `to_workers`.
fn fitting(descriptors: usize, to_workers: usize) -> usize {
    let left = descriptors.saturating_sub(ADMIN_CONNECTIONS + OTHERS);
    left.saturating_sub(to_workers).max(left / 2).max(1)
}

/// Raises the limit of the process as far as it may be, and returns it; `None` if there is none.
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
            (65_536, 2_048, 62_976),
            (20_000, 2_048, 17_440),
            (4_608, 2_048, 2_048),
            (4_608, 100_000, 2_048),
            (1_024, 2_048, 256),
            (100, 2_048, 1),
        ] {
            assert_eq!(fitting(descriptors, to_workers), expected, "{descriptors} descriptors");
        }
    }
}
