//! A timer that is moved far more often than it goes off.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use tokio::task::{JoinHandle, spawn_local};
use tokio::time::{Instant, Sleep, sleep_until};

use super::caught_up;

/// A timer that is moved far more often than it goes off.
///
/// Every request moves a deadline on that is almost never reached. Registering each of them with
/// the runtime's timer wheel costs a lock twice a request. So the registered time is left where it
/// is while it is the earlier one; when it goes off too soon, and only then, it is moved to what is
/// due by now.
///
/// When its time has come, its thread reads first what has come by then: that may move it.
#[derive(Default)]
pub struct Alarm {
    sleep: Option<Pin<Box<Sleep>>>,
    /// Whom it wakes; `None` if it has to be told again.
    wakes: Option<Waker>,
    /// `None` unless its time has come.
    caught_up: Option<JoinHandle<()>>,
}

impl Alarm {
    /// An alarm that has registered nothing yet.
    pub fn new() -> Alarm {
        Alarm::default()
    }

    /// Ready when `due` has come. Each call may name another time.
    pub fn poll(&mut self, cx: &mut Context<'_>, due: Instant) -> Poll<()> {
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep_until(due)));
        if due < sleep.deadline() {
            self.wakes = None;
            sleep.as_mut().reset(due);
        }
        // To tell it again whom to wake takes four locked instructions and 150 others, on each
        // connection for each request.
        if !sleep.is_elapsed()
            && self.wakes.as_ref().is_some_and(|wakes| wakes.will_wake(cx.waker()))
        {
            return due_out_of_turn(due);
        }
        loop {
            // A task whose sockets have used up its share of the thread's time is not told by the
            // runtime that time has come: a peer that sends without end would never be too late.
            if sleep.as_mut().poll(cx).is_pending() {
                // It was not listened to if the task's turn is over.
                self.wakes = (!is_out_of_turn()).then(|| cx.waker().clone());
                return due_out_of_turn(due);
            }
            if due <= Instant::now() {
                break;
            }
            (self.caught_up, self.wakes) = (None, None);
            sleep.as_mut().reset(due);
        }
        let caught_up = self.caught_up.get_or_insert_with(|| spawn_local(caught_up()));
        if Pin::new(caught_up).poll(cx).is_pending() && !is_out_of_turn() {
            return Poll::Pending;
        }
        self.caught_up = None;
        Poll::Ready(())
    }
}

/// Whether it is due although nothing has been heard of that: a task whose turn is over hears of
/// nothing.
fn due_out_of_turn(due: Instant) -> Poll<()> {
    if is_out_of_turn() && due <= Instant::now() { Poll::Ready(()) } else { Poll::Pending }
}

/// Whether the runtime makes everything in this task wait until others have had their turn.
fn is_out_of_turn() -> bool {
    !tokio::task::coop::has_budget_remaining()
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::Wake;
    use std::time::Duration;

    use tokio::io::AsyncReadExt;
    use tokio::net::{TcpListener, TcpStream};
    use tokio::task::LocalSet;

    use super::*;

    async fn goes_off_after(alarm: &mut Alarm, wait: Duration) -> Duration {
        let start = Instant::now();
        poll_fn(|cx| alarm.poll(cx, start + wait)).await;
        start.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn an_alarm_goes_off_when_it_is_due_however_often_it_was_moved() {
        LocalSet::new()
            .run_until(async {
                let mut alarm = Alarm::new();
                for seconds in [5, 1, 30, 30, 2] {
                    let wait = Duration::from_secs(seconds);
                    // Tokio's timers have a resolution of a millisecond.
                    let took = goes_off_after(&mut alarm, wait).await;
                    assert!(
                        took >= wait && took <= wait + Duration::from_millis(2),
                        "{took:?} instead of {wait:?}"
                    );
                }
            })
            .await;
    }

    #[tokio::test]
    async fn an_alarm_goes_off_also_in_a_task_whose_turn_is_over() {
        LocalSet::new()
            .run_until(async {
                let mut alarm = Alarm::new();
                let due = Instant::now() + Duration::from_millis(1);
                let goes_off = poll_fn(|cx| {
                    // As a socket that always has more.
                    let mut busy = pin!(async {
                        loop {
                            tokio::task::coop::consume_budget().await;
                        }
                    });
                    let _: Poll<()> = busy.as_mut().poll(cx);
                    alarm.poll(cx, due)
                });
                tokio::time::timeout(Duration::from_secs(10), goes_off).await.expect("it goes off");
            })
            .await;
    }

    #[tokio::test(start_paused = true)]
    async fn an_alarm_that_was_moved_on_keeps_quiet_at_its_first_time() {
        LocalSet::new()
            .run_until(async {
                let mut alarm = Alarm::new();
                let start = Instant::now();
                let early = start + Duration::from_secs(1);
                poll_fn(|cx| Poll::Ready(alarm.poll(cx, early).is_pending())).await;
                let late = start + Duration::from_secs(10);
                poll_fn(|cx| alarm.poll(cx, late)).await;
                assert!(Instant::now() >= late);
            })
            .await;
    }

    #[derive(Default)]
    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Woken>) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn moved_alarm_wakes_the_task_that_asked_last() {
        LocalSet::new()
            .run_until(async {
                let mut alarm = Alarm::new();
                let mut is_due = |task: &Arc<Woken>, due| {
                    let waker = Waker::from(Arc::clone(task));
                    alarm.poll(&mut Context::from_waker(&waker), due).is_ready()
                };
                let [first, last] = [(); 2].map(|()| Arc::<Woken>::default());
                let is_woken = |task: &Woken| task.0.swap(false, Ordering::SeqCst);
                let (start, second) = (Instant::now(), Duration::from_secs(1));
                for (asks, due) in [(&first, 9), (&first, 2), (&first, 5), (&last, 5), (&last, 6)] {
                    assert!(!is_due(asks, start + due * second));
                }
                // When it goes off at its first time it is moved to what is due by now.
                for at in [2, 6] {
                    tokio::time::sleep_until(start + at * second + second / 100).await;
                    assert!(!is_woken(&first) && is_woken(&last), "after {at} s");
                    assert!(!is_due(&last, start + 6 * second), "what has come is read first");
                }
            })
            .await;
    }

    /// A process that had been stopped took a peer for silent whose words lay unread in its socket.
    #[tokio::test]
    async fn what_has_come_is_read_before_an_alarm_goes_off() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut peer = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (socket, _) = listener.accept().await.unwrap();
        LocalSet::new()
            .run_until(async {
                std::io::Write::write_all(&mut peer, b"here").unwrap();
                // As after a stop: its time has come long ago, and nobody has looked at the socket
                // since.
                let due = Instant::now() - Duration::from_secs(1);
                assert_eq!(says_before_it_is_late(socket, due).await, *b"here");
            })
            .await;
    }

    /// What a peer says before the alarm goes off. It is handed on from task to task, as by HTTP/2.
    async fn says_before_it_is_late(mut socket: TcpStream, due: Instant) -> [u8; 4] {
        let mut reads = spawn_local(async move {
            let mut word = [0; 4];
            socket.read_exact(&mut word).await.unwrap();
            word
        });
        for _ in 0..3 {
            reads = spawn_local(async { reads.await.unwrap() });
        }
        let mut alarm = Alarm::new();
        poll_fn(|cx| {
            if let Poll::Ready(word) = Pin::new(&mut reads).poll(cx) {
                return Poll::Ready(word.unwrap());
            }
            assert!(alarm.poll(cx, due).is_pending(), "it went off");
            Poll::Pending
        })
        .await
    }
}
