//! Asking the store where what is known does not decide.

use fencepost_locks::{LoadError, Timing, TrackedLock, Unconfirmed};
use fencepost_policy::{FenceToken, Rejection, Verdict};
use tokio::time::Instant;

/// What asking the store came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Confirmed {
    /// The token is its holder's.
    Admitted,
    /// It is not.
    Refused(Rejection),
    /// The store has not answered by the deadline.
    Unanswered,
}

impl Confirmed {
    /// Whether the token stands.
    ///
    /// # Errors
    /// The reason why it does not; `unverifiable` if the store did not answer in time.
    pub fn verdict(self) -> Result<(), Rejection> {
        match self {
            Confirmed::Admitted => Ok(()),
            Confirmed::Refused(reason) => Err(reason),
            Confirmed::Unanswered => Err(Rejection::Unverifiable),
        }
    }
}

/// Asks the store until it is clear whether a token stands. `timing` says by what measure it is judged, at each look.
pub async fn confirm<O: AsRef<[u8]>>(
    lock: &TrackedLock,
    token: &FenceToken<O>,
    deadline: Instant,
    timing: impl Fn() -> Timing,
) -> Confirmed {
    let mut asked_at = timing().arrived;
    loop {
        let is_decided = || lock.view().judge(token, &timing()) != Verdict::Confirm;
        let answered = lock.confirm_unless(asked_at, deadline, is_decided).await;
        match lock.view().judge(token, &timing()) {
            Verdict::Admit => return Confirmed::Admitted,
            Verdict::Reject(reason) => return Confirmed::Refused(reason),
            Verdict::Confirm if answered.is_err() || Instant::now() >= deadline => return Confirmed::Unanswered,
            Verdict::Confirm => asked_at = Instant::now(), // The request has waited for so long that the answer has aged.
        }
    }
}

/// What it means for a request that its lock could not be read.
pub fn unloaded(error: &LoadError) -> Rejection {
    match error {
        LoadError::Unread(Unconfirmed::Regressed) => Rejection::StoreRegressed,
        LoadError::Invalid(_) | LoadError::Outside => Rejection::LockNotAllowed,
        LoadError::Conflict(_) | LoadError::Overloaded | LoadError::Unread(_) => Rejection::Unverifiable,
    }
}
