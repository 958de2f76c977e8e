//! What goes wrong again and again is not said each time.

use std::time::{Duration, Instant};

/// How often it is said, at most.
const PERIOD: Duration = Duration::from_secs(10);

/// What went wrong and was not said yet.
#[derive(Debug, Default)]
pub(crate) struct Complaints {
    unsaid: u64,
    said: Option<Instant>,
}

impl Complaints {
    /// So many more; says how many there are if it is time to say so.
    pub(crate) fn more(&mut self, times: u64, now: Instant) -> Option<u64> {
        self.unsaid += times;
        if self.said.is_some_and(|said| now < said + PERIOD) {
            return None;
        }
        self.said = Some(now);
        Some(std::mem::take(&mut self.unsaid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_warned_of_at_once_and_then_with_their_number() {
        let (mut complaints, begin) = (Complaints::default(), Instant::now());
        let said: Vec<_> =
            (0..25).map(|second| complaints.more(2, begin + Duration::from_secs(second))).collect();
        let expected = |second| (second % 10 == 0).then_some(if second == 0 { 2 } else { 20 });
        assert_eq!(said, (0..25).map(expected).collect::<Vec<_>>());
    }
}
