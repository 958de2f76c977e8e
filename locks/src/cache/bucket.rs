//! A token bucket: so many at once, so many a second.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

/// Pays for requests that find no record.
#[derive(Debug)]
pub(crate) struct Bucket {
    burst: f64,
    per_second: f64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    tokens: f64,
    /// When it was last filled up; `None` before the first use.
    at: Option<Instant>,
}

impl Bucket {
    pub(crate) fn new(burst: u32, per_second: u32) -> Bucket {
        let burst = f64::from(burst);
        Bucket { burst, per_second: f64::from(per_second), state: Mutex::new(State { tokens: burst, at: None }) }
    }

    /// Takes a token, if there is one.
    pub(crate) fn take(&self, now: Instant) -> bool {
        let mut state = self.filled(now);
        let taken = state.tokens >= 1.0;
        if taken {
            state.tokens -= 1.0;
        }
        taken
    }

    /// Puts back a token that was not used up.
    pub(crate) fn give_back(&self) {
        let mut state = self.state.lock().expect("nothing panics while it counts");
        state.tokens = (state.tokens + 1.0).min(self.burst);
    }

    fn filled(&self, now: Instant) -> std::sync::MutexGuard<'_, State> {
        let mut state = self.state.lock().expect("nothing panics while it counts");
        let passed = state.at.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        state.tokens = (state.tokens + passed.as_secs_f64() * self.per_second).min(self.burst);
        state.at = state.at.max(Some(now));
        state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_gives_its_burst_and_then_its_rate() {
        let (bucket, start) = (Bucket::new(3, 2), Instant::now());
        let taken =
            |at: Duration| std::iter::repeat_with(|| bucket.take(start + at)).take(9).filter(|taken| *taken).count();
        assert_eq!(taken(Duration::ZERO), 3);
        assert_eq!(taken(Duration::from_secs(1)), 2);
        assert_eq!(taken(Duration::from_secs(60)), 3);
        bucket.give_back();
        assert_eq!(taken(Duration::from_secs(60)), 1);
    }
}
