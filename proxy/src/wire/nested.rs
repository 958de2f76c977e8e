//! Polling a future inside of the task that feeds it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;

/// How often something is polled again at once because it was woken by what was polled with it. After that others have their turn.
const POLLS_MAX: usize = 4;

/// Polls several futures of one task that wake each other, such as a connection and a request on it, until they have nothing more to
/// say to each other.
///
/// With the task's own waker each word between them would have the whole task polled once more: twice per request, which was a sixth
/// of what a GET costs. Here a wake-up from inside is answered by polling again at once, and only one from outside wakes the task.
pub(crate) struct Nested {
    bell: Arc<Bell>,
    waker: Waker,
}

#[derive(Default)]
struct Bell {
    task: AtomicWaker,
    is_polling: AtomicBool,
    has_rung: AtomicBool,
}

impl Default for Nested {
    fn default() -> Nested {
        let bell = Arc::<Bell>::default();
        Nested { waker: Waker::from(Arc::clone(&bell)), bell }
    }
}

impl Nested {
    /// Wakes nobody until it is polled again: whoever polled it last has nothing more to do with it.
    pub(crate) fn leave(&self) {
        self.bell.task.take();
    }

    /// Polls `all` until it is ready or nothing in it wakes anything else in it.
    pub(crate) fn poll<T>(&self, cx: &mut Context<'_>, mut all: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
        let bell = &*self.bell;
        bell.task.register(cx.waker());
        let mut nested = Context::from_waker(&self.waker);
        bell.is_polling.store(true, SeqCst);
        let mut polled = Poll::Pending;
        for _ in 0..POLLS_MAX {
            bell.has_rung.store(false, SeqCst);
            polled = all(&mut nested);
            if polled.is_ready() || !bell.has_rung.load(SeqCst) {
                break;
            }
        }
        bell.is_polling.store(false, SeqCst);
        // Whoever is ready is polled again by whoever asked.
        if polled.is_pending() && bell.has_rung.swap(false, SeqCst) {
            cx.waker().wake_by_ref();
        }
        polled
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Bell>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Bell>) {
        self.has_rung.store(true, SeqCst);
        // If the polling has ended since, nobody else looks.
        if !self.is_polling.load(SeqCst) && self.has_rung.swap(false, SeqCst) {
            self.task.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// Counts how often its task is woken.
    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Count>) {
            self.0.fetch_add(1, SeqCst);
        }
    }

    /// Polls what wakes itself that many times before it is ready: how often it was polled, whether it is ready, and how often the
    /// task was woken.
    fn poll_what_rings(rings: usize) -> (usize, bool, usize) {
        let count = Arc::<Count>::default();
        let (task, nested) = (Waker::from(Arc::clone(&count)), Nested::default());
        let mut polls = 0;
        let polled = nested.poll(&mut Context::from_waker(&task), |cx| {
            polls += 1;
            if polls > rings {
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        });
        (polls, polled.is_ready(), count.0.load(SeqCst))
    }

    #[test]
    fn what_wakes_itself_is_polled_again_and_its_task_is_not_woken() {
        assert_eq!(poll_what_rings(0), (1, true, 0));
        assert_eq!(poll_what_rings(3), (4, true, 0));
    }

    #[test]
    fn what_wakes_itself_without_end_lets_others_have_their_turn() {
        assert_eq!(poll_what_rings(usize::MAX), (POLLS_MAX, false, 1));
    }

    #[test]
    fn what_is_woken_from_outside_wakes_its_task_once_unless_that_has_left() {
        let count = Arc::<Count>::default();
        let (task, nested) = (Waker::from(Arc::clone(&count)), Nested::default());
        let mut kept = None;
        let polled: Poll<()> = nested.poll(&mut Context::from_waker(&task), |cx| {
            kept = Some(cx.waker().clone());
            Poll::Pending
        });
        assert!(polled.is_pending());
        assert_eq!(count.0.load(SeqCst), 0);
        let kept = kept.unwrap();
        let again = kept.clone();
        std::thread::spawn(move || kept.wake()).join().unwrap();
        assert_eq!(count.0.load(SeqCst), 1);

        let _: Poll<()> = nested.poll(&mut Context::from_waker(&task), |_| Poll::Pending);
        nested.leave();
        again.wake();
        assert_eq!(count.0.load(SeqCst), 1);
    }
}
