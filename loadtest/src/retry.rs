//! How long a connection that fails is left alone.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_millis(250);

/// The pause after so many requests in a row that were not answered. None after the first: the connection alone may have ended. A proxy
/// that is gone must neither be flooded with attempts nor missed when it is back.
pub(crate) fn pause_after(errors_in_a_row: u32) -> Duration {
    match errors_in_a_row {
        0 | 1 => Duration::ZERO,
        more => FIRST.saturating_mul(1 << (more - 2).min(16)).min(LONGEST),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_end_somewhere() {
        let pauses: Vec<u128> = (0..9).map(|errors| pause_after(errors).as_millis()).collect();
        assert_eq!(pauses, [0, 0, 10, 20, 40, 80, 160, 250, 250]);
        assert_eq!(pause_after(u32::MAX), LONGEST);
    }
}
