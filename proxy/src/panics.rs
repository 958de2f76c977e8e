//! What a panic comes to: the end of one request, a line in the log, and one more in a count. The
//! process goes on.

use std::any::Any;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::panic::{AssertUnwindSafe, PanicHookInfo, set_hook};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use futures_util::{FutureExt, TryFutureExt};

/// Panics of all threads. The hook that counts them is the process's, and so is the count.
static PANICS: AtomicU64 = AtomicU64::new(0);
static HOOK: Once = Once::new();

/// A piece of work did not come to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it panicked")]
pub struct Panicked;

/// From now on, panics are counted and leave a line in the log instead of a text on standard error.
pub fn note() {
    HOOK.call_once(|| {
        set_hook(Box::new(|panic| {
            PANICS.fetch_add(1, Ordering::Relaxed);
            log(panic);
        }));
    });
}

/// How many panics there have been since [`note`] was first called.
pub fn count() -> u64 {
    PANICS.load(Ordering::Relaxed)
}

/// Does some work that may panic.
///
/// What it shares with others is not looked after: a value that was being changed stays as it was
/// left. Here that is a connection, which is closed, a request's place at its gate, which counts on
/// as that of an orphan, or a gate, which lets in nobody any more.
///
/// # Errors
/// [`Panicked`] instead of the panic.
pub fn contained<F: Future>(work: F) -> impl Future<Output = Result<F::Output, Panicked>> {
    AssertUnwindSafe(work).catch_unwind().map_err(|_| Panicked)
}

fn log(panic: &PanicHookInfo<'_>) {
    let location = panic.location().map(ToString::to_string);
    let backtrace = Backtrace::capture(); // Only if `RUST_BACKTRACE` asks for it.
    let backtrace =
        (backtrace.status() == BacktraceStatus::Captured).then(|| backtrace.to_string());
    tracing::error!(
        thread = thread::current().name(),
        location,
        reason = reason(panic.payload()),
        backtrace,
        "panicked: what was being done is given up"
    );
}

/// What the code says of it. A text that was put together at the time may quote what somebody sent
/// (slicing a string does), and is left out.
fn reason(payload: &dyn Any) -> &'static str {
    payload
        .downcast_ref::<&'static str>()
        .copied()
        .unwrap_or("(left out, since it may quote a request)")
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;

    #[test]
    fn a_panic_is_told_in_the_words_of_the_code_and_in_no_others() {
        let secret = "Bearer s3cret ü".to_owned();
        let cut_short = secret.len() - 1;
        let quoting = catch_unwind(|| secret[..cut_short].len()).unwrap_err();
        assert!(
            quoting.downcast_ref::<String>().unwrap().contains("s3cret"),
            "the standard library quotes it"
        );
        assert_eq!(reason(&*quoting), "(left out, since it may quote a request)");

        let plain = catch_unwind(|| panic!("an invariant")).unwrap_err();
        assert_eq!(reason(&*plain), "an invariant");
    }

    #[tokio::test]
    async fn work_that_panics_comes_to_an_error() {
        assert_eq!(contained(async { 7 }).await, Ok(7));
        let panicking = contained(async {
            tokio::task::yield_now().await;
            panic!("on purpose")
        });
        assert_eq!(panicking.await, Err::<(), _>(Panicked));
    }
}
