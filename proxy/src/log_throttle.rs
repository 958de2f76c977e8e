//! Keeps a flood of refusals from becoming a flood of log lines.

use std::sync::atomic::{AtomicU64, Ordering};

use fencepost_policy::Rejection;
use tokio::time::Instant;

use crate::server::HandshakeFailure;

/// Lines are counted by the reason of a refusal, and beside those that no route takes the request,
/// that it could not be read, and by the reason why a handshake came to nothing.
const KINDS: usize = HANDSHAKE + HandshakeFailure::ALL.len();
const NO_ROUTE: usize = Rejection::ALL.len();
const UNREAD_HEAD: usize = NO_ROUTE + 1;
const HANDSHAKE: usize = UNREAD_HEAD + 1;

/// Lets up to a hundred lines a second through for each reason. The first line of a later second
/// has the number of those that were left out; metrics count them all. Requests that no route takes
/// are a kind of their own, as are unreadable heads, and failed handshakes by their reason.
#[derive(Debug)]
pub struct LogThrottle {
    start: Instant,
    kinds: [Throttle; KINDS],
}

/// The throttle of one kind of line.
#[derive(Debug, Default)]
struct Throttle {
    /// The second since the start, and how many lines it has had: in one word, so that it changes
    /// in one step.
    second_and_lines: AtomicU64,
    /// How many were left out since a line told their number.
    left_out: AtomicU64,
}

impl LogThrottle {
    /// Lines a second, of each kind.
    const LINES_MAX: u64 = 100;

    /// Nothing has been logged yet.
    pub fn new() -> LogThrottle {
        LogThrottle { start: Instant::now(), kinds: std::array::from_fn(|_| Throttle::default()) }
    }

    /// Whether to log this refusal; if so, how many of its kind were left out before it.
    pub fn admits(&self, reason: Rejection, now: Instant) -> Option<u64> {
        self.admits_kind(reason as usize, now)
    }

    /// Like [`admits`](Self::admits), for a request that no route takes.
    pub fn admits_no_route(&self, now: Instant) -> Option<u64> {
        self.admits_kind(NO_ROUTE, now)
    }

    /// Like [`admits`](Self::admits), for a request whose head could not be read.
    pub fn admits_unread_head(&self, now: Instant) -> Option<u64> {
        self.admits_kind(UNREAD_HEAD, now)
    }

    /// Like [`admits`](Self::admits), for a handshake that failed.
    pub fn admits_handshake(&self, why: HandshakeFailure, now: Instant) -> Option<u64> {
        self.admits_kind(HANDSHAKE + why as usize, now)
    }

    fn admits_kind(&self, kind: usize, now: Instant) -> Option<u64> {
        let throttle = &self.kinds[kind];
        if !throttle.admits(now.saturating_duration_since(self.start).as_secs()) {
            throttle.left_out.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(throttle.left_out.swap(0, Ordering::Relaxed))
    }
}

impl Throttle {
    fn admits(&self, second: u64) -> bool {
        let taken = self.second_and_lines.fetch_update(
            Ordering::Relaxed,
            Ordering::Relaxed,
            |word| match (word >> 32, word & u64::from(u32::MAX)) {
                (present, lines) if present >= second && lines >= LogThrottle::LINES_MAX => None,
                (present, _) if present >= second => Some(word + 1),
                _ => Some(second << 32 | 1),
            },
        );
        taken.is_ok()
    }
}

impl Default for LogThrottle {
    fn default() -> LogThrottle {
        LogThrottle::new()
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_flood_of_refusals_is_a_hundred_lines_a_second_and_reason() {
        let throttle = LogThrottle::new();
        let at = |millis| throttle.start + Duration::from_millis(millis);
        let admits = |reason, now| throttle.admits(reason, now);
        let (stale, missing) = (Rejection::StaleTenure, Rejection::TokenMissing);
        for _ in 0..LogThrottle::LINES_MAX {
            assert_eq!(admits(stale, at(1)), Some(0));
        }
        assert_eq!(admits(stale, at(2)), None);
        assert_eq!(admits(stale, at(999)), None);
        assert_eq!(admits(missing, at(999)), Some(0));
        assert_eq!(throttle.admits_no_route(at(999)), Some(0));
        assert_eq!(throttle.admits_unread_head(at(999)), Some(0));
        for why in HandshakeFailure::ALL {
            for line in 0..=LogThrottle::LINES_MAX {
                let admitted = throttle.admits_handshake(why, at(999));
                assert_eq!(admitted, (line < LogThrottle::LINES_MAX).then_some(0), "{why:?}");
            }
            assert_eq!(throttle.admits_handshake(why, at(1000)), Some(1), "{why:?}");
        }
        assert_eq!(admits(stale, at(1000)), Some(2));
        assert_eq!(admits(stale, at(1001)), Some(0));
        assert_eq!(admits(stale, at(999)), Some(0), "a clock that is read late");
    }

    #[test]
    fn lines_tell_once_of_what_all_threads_have_left_out_be_they_ended() {
        const SECONDS: u64 = 5;
        const EACH: u64 = SECONDS * 1_000;
        let throttle = LogThrottle::new();
        let admits = |millis| {
            throttle.admits(Rejection::NotOwner, throttle.start + Duration::from_millis(millis))
        };
        let flood = || (0..EACH).filter_map(admits).collect::<Vec<_>>();
        let told: Vec<u64> = thread::scope(|scope| {
            let floods = [(); 4].map(|()| scope.spawn(flood));
            floods.into_iter().flat_map(|flood| flood.join().unwrap()).collect()
        });
        let lines = told.len() as u64;
        assert!(lines <= SECONDS * LogThrottle::LINES_MAX, "{lines} lines");
        let rest = admits(EACH).unwrap();
        assert_eq!(told.iter().sum::<u64>() + rest, 4 * EACH - lines);
    }
}
