//! Polling a future inside of the task that feeds it.

use std::mem;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

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
    /// Whom the bell wakes, to see without a lock whether that is still so.
    wakes: Option<Waker>,
}

struct Bell {
    /// [`POLLING`] and [`RUNG`].
    state: AtomicU8,
    task: Mutex<Option<Waker>>,
}

/// Somebody polls, and looks for a ring at the end. Otherwise whoever rings wakes the task.
const POLLING: u8 = 1;
/// It has rung. While nobody polls, nobody looks at this.
const RUNG: u8 = 2;

impl Default for Nested {
    fn default() -> Nested {
        let bell = Arc::new(Bell { state: AtomicU8::new(0), task: Mutex::default() });
        Nested { waker: Waker::from(Arc::clone(&bell)), bell, wakes: None }
    }
}

impl Nested {
    /// Wakes nobody until it is polled again: whoever polled it last has nothing more to do with it.
    pub(crate) fn leave(&mut self) {
        if self.wakes.take().is_some() {
            self.bell.set_task(None);
        }
    }

    /// Polls `all` until it is ready or nothing in it wakes anything else in it.
    pub(crate) fn poll<T>(
        &mut self,
        cx: &mut Context<'_>,
        mut all: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        if !self.wakes.as_ref().is_some_and(|task| task.will_wake(cx.waker())) {
            self.bell.set_task(Some(cx.waker().clone()));
            self.wakes = Some(cx.waker().clone());
        }
        let mut nested = Context::from_waker(&self.waker);
        for _ in 0..POLLS_MAX {
            // Whoever rang at rest wakes the task, so that their ring may be overwritten: all is polled once more.
            self.bell.state.store(POLLING, Ordering::Relaxed);
            let polled = all(&mut nested);
            let has_rung = self.bell.state.swap(0, Ordering::AcqRel) & RUNG != 0;
            if polled.is_ready() {
                return polled; // Whoever asked polls again.
            }
            if !has_rung {
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Bell {
    fn set_task(&self, task: Option<Waker>) {
        let _before = mem::replace(&mut *self.task.lock().unwrap_or_else(PoisonError::into_inner), task);
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Bell>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Bell>) {
        // Written in any case: what was done before the ring is seen by whoever finds it.
        if self.state.fetch_or(RUNG, Ordering::AcqRel) & POLLING == 0
            && let Some(task) = &*self.task.lock().unwrap_or_else(PoisonError::into_inner)
        {
            task.wake_by_ref();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::atomic::Ordering::SeqCst;

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
        let (task, mut nested) = (Waker::from(Arc::clone(&count)), Nested::default());
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
        let (task, mut nested) = (Waker::from(Arc::clone(&count)), Nested::default());
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

    /// Wakes a thread that polls like a task's runtime: again after each time that it was woken.
    struct Unpark(std::thread::Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Unpark>) {
            self.0.unpark();
        }
    }

    #[test]
    fn no_ring_of_another_thread_is_lost_whenever_it_comes() {
        const RINGS: usize = 20_000;
        let (said, heard) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (hands_over, handed_over) = std::sync::mpsc::channel();
        let listener = {
            let (said, heard) = (Arc::clone(&said), Arc::clone(&heard));
            std::thread::spawn(move || {
                let task = Waker::from(Arc::new(Unpark(std::thread::current())));
                let mut nested = Nested::default();
                hands_over.send(nested.waker.clone()).unwrap();
                while heard.load(SeqCst) < RINGS {
                    let _: Poll<()> = nested.poll(&mut Context::from_waker(&task), |_| {
                        heard.store(said.load(Ordering::Relaxed), SeqCst);
                        Poll::Pending
                    });
                    if heard.load(SeqCst) < RINGS {
                        std::thread::park_timeout(std::time::Duration::from_secs(60));
                    }
                }
            })
        };
        let bell = handed_over.recv().unwrap();
        let began = std::time::Instant::now();
        for ring in 1..=RINGS {
            said.store(ring, Ordering::Relaxed);
            bell.wake_by_ref();
            while heard.load(SeqCst) < ring {
                assert!(began.elapsed() < std::time::Duration::from_secs(50), "ring {ring} was not heard");
                std::thread::yield_now();
            }
        }
        listener.join().unwrap();
    }
}
