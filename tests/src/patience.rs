//! How long a test waits before it fails.

use std::time::{Duration, Instant};

/// How long anything here may take before the test fails: far more than it needs on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// How long to leave a foreign process alone between two questions.
const PAUSE: Duration = Duration::from_millis(5);

/// Asks until the answer is there: for what lies in another process and sends no event.
pub async fn eventually<T>(what: &str, mut probe: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = probe().await {
            return answer;
        }
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(PAUSE).await;
    }
}

/// Asks until the condition holds, like [`eventually`].
pub async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    eventually(what, async || condition().await.then_some(())).await;
}
