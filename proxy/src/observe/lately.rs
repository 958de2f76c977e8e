//! How many requests were refused of late, or were to be, by what was counted: of a flood of
//! refusals not each decision is kept.

use std::collections::VecDeque;
use std::time::Duration;

use fencepost_policy::Rejection;
use tokio::time::Instant;

/// How many requests, by the reason, in the order of [`Rejection::ALL`].
pub type ByReason = [u64; Rejection::ALL.len()];

/// How many requests a reason spoke against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Refusals {
    /// Those that were refused.
    pub refused: ByReason,
    /// Those that would have been, had their route done more than watch.
    pub would_be: ByReason,
}

/// How far "of late" goes back.
pub const SPAN: Duration = Duration::from_secs(5 * 60);

/// What had been counted when, within the last [`SPAN`], and once before it.
#[derive(Debug, Default)]
pub struct Lately(VecDeque<(Instant, Refusals)>);

impl Lately {
    /// Notes what has been counted since the start. How often that is done, bounds how exact the
    /// answer is.
    pub fn note(&mut self, now: Instant, counted: Refusals) {
        while self.0.get(1).is_some_and(|(at, _)| now.duration_since(*at) >= SPAN) {
            self.0.pop_front();
        }
        self.0.push_back((now, counted));
    }

    /// How many were refused within the last [`SPAN`], if so many were since the start.
    pub fn refused(&self, now: Instant, counted: Refusals) -> Refusals {
        let before = self.0.iter().rev().find(|(at, _)| now.duration_since(*at) >= SPAN);
        // Without a look at what was before, the process is younger than that.
        let before = before.map_or_else(Refusals::default, |(_, before)| *before);
        let since = |counted: ByReason, before: ByReason| {
            std::array::from_fn(|reason| counted[reason].saturating_sub(before[reason]))
        };
        Refusals {
            refused: since(counted.refused, before.refused),
            would_be: since(counted.would_be, before.would_be),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(stale: u64) -> Refusals {
        let mut counted = Refusals::default();
        counted.refused[Rejection::StaleTenure as usize] = stale;
        counted.would_be[Rejection::NoOwner as usize] = 2 * stale;
        counted
    }

    #[test]
    fn what_was_refused_before_the_last_five_minutes_does_not_count() {
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        let mut lately = Lately::default();
        assert_eq!(lately.refused(began, counted(2)), counted(2), "all since the start");
        // One in each second.
        for second in 0..1_000 {
            lately.note(at(second), counted(second));
        }
        assert_eq!(lately.refused(at(1_000), counted(1_000)), counted(300));
        assert_eq!(lately.refused(at(1_100), counted(1_000)), counted(200));
        assert_eq!(lately.refused(at(2_000), counted(1_000)), counted(1));
        assert!(lately.0.len() <= 302, "what is remembered is bounded: {}", lately.0.len());
    }
}
