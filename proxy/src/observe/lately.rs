//! How many requests were refused of late, or would have been.

use std::collections::VecDeque;
use std::time::Duration;

use fencepost_policy::Rejection;
use tokio::time::Instant;

use super::record::Outcome;

/// How far "of late" goes back.
pub const SPAN: Duration = Duration::from_secs(5 * 60);

/// What is counted together.
const STEP: Duration = Duration::from_secs(1);

/// How many requests, by the reason, in the order of [`Rejection::ALL`].
type ByReason = [u64; Rejection::ALL.len()];

/// How many requests a reason spoke against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Refusals {
    /// Those that were refused.
    pub refused: ByReason,
    /// Those that would have been, had their route done more than watch.
    pub would_be: ByReason,
}

/// The refusals of each second that had any, within the last [`SPAN`].
#[derive(Debug, Default)]
pub struct Lately(VecDeque<(Instant, Refusals)>);

impl Lately {
    /// Counts what became of a request, if that is a refusal.
    pub fn note(&mut self, now: Instant, outcome: Outcome) {
        let (would_be, reason) = match outcome {
            Outcome::Refused(reason) => (false, reason),
            Outcome::WouldBeRefused(reason) => (true, reason),
            Outcome::LetPast(_) | Outcome::Admitted => return,
        };
        if self.0.back().is_none_or(|(began, _)| now.duration_since(*began) >= STEP) {
            self.forget(now);
            self.0.push_back((now, Refusals::default()));
        }
        let (_, counts) = self.0.back_mut().expect("the present second has been put in");
        let counts = if would_be { &mut counts.would_be } else { &mut counts.refused };
        counts[reason as usize] += 1;
    }

    /// How many there were within the last [`SPAN`].
    pub fn refusals(&mut self, now: Instant) -> Refusals {
        self.forget(now);
        let mut all = Refusals::default();
        for (_, Refusals { refused, would_be }) in &self.0 {
            for reason in 0..Rejection::ALL.len() {
                all.refused[reason] += refused[reason];
                all.would_be[reason] += would_be[reason];
            }
        }
        all
    }

    fn forget(&mut self, now: Instant) {
        while self.0.front().is_some_and(|(began, _)| now.duration_since(*began) >= SPAN) {
            self.0.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_refused_before_the_last_five_minutes_does_not_count() {
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        let mut lately = Lately::default();
        for second in 0..1_000 {
            lately.note(at(second), Outcome::Refused(Rejection::StaleTenure));
            (0..2)
                .for_each(|_| lately.note(at(second), Outcome::WouldBeRefused(Rejection::NoOwner)));
            lately.note(at(second), Outcome::Admitted);
        }
        let mut counted = |second| {
            let Refusals { refused, would_be } = lately.refusals(at(second));
            (refused[Rejection::StaleTenure as usize], would_be[Rejection::NoOwner as usize])
        };
        assert_eq!([999, 1_099, 2_000].map(&mut counted), [(300, 600), (200, 400), (0, 0)]);
        assert!(lately.0.is_empty(), "what is remembered is bounded");
    }
}
