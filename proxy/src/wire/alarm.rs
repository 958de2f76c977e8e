//! Timers that go off only once their thread has read what has come by then.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::rt;
use tokio::task::coop::unconstrained;
use tokio::task::{JoinHandle, spawn_local, yield_now};
use tokio::time::{Instant, Sleep, sleep_until};

/// How often a thread looks at its sockets: what one task reads may be for another, and one look
/// tells of a thousand sockets.
const LOOKS: usize = 16;

/// Completes when this thread has looked at its sockets and the tasks that waited for them have
/// run.
///
/// A timeout of a silent peer waits for this first. To a process that stood still (SIGSTOP, a
/// frozen container) all times come at once when it goes on, and the runtime may tell of them
/// before it has looked at any socket.
pub(crate) async fn caught_up() {
    for _ in 0..LOOKS {
        yield_now().await; // Comes back behind those whom the next look wakes.
    }
}

/// A timer that is moved far more often than it goes off.
///
/// Every request moves a deadline on that is almost never reached. Registering each of them with
/// the runtime's timer wheel costs a lock twice a request. So the registered time is left where it
/// is while it is the earlier one; when it goes off too soon, and only then, it is moved to what is
/// due by now.
#[derive(Default)]
pub struct Alarm {
    sleep: Option<Pin<Box<Sleep>>>,
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
        // The runtime tells a task nothing of time once its sockets have used up its share of the
        // thread: a peer that sends without end would never be too late.
        pin!(unconstrained(poll_fn(|cx| self.goes_off(cx, due)))).poll(cx)
    }

    fn goes_off(&mut self, cx: &mut Context<'_>, due: Instant) -> Poll<()> {
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep_until(due)));
        if due < sleep.deadline() {
            sleep.as_mut().reset(due);
        }
        ready!(sleep.as_mut().poll(cx));
        while Instant::now() < due {
            self.caught_up = None;
            sleep.as_mut().reset(due);
            ready!(sleep.as_mut().poll(cx));
        }
        let caught_up = self.caught_up.get_or_insert_with(|| spawn_local(caught_up()));
        let _ = ready!(Pin::new(caught_up).poll(cx)); // An error means that the runtime ends.
        self.caught_up = None;
        Poll::Ready(())
    }
}

/// Timers for hyper, which go off like an [`Alarm`].
pub(crate) struct PatientTimer;

struct PatientSleep {
    alarm: Alarm,
    due: Instant,
}

impl rt::Timer for PatientTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn rt::Sleep>> {
        self.sleep_until(std::time::Instant::now() + duration)
    }

    fn sleep_until(&self, deadline: std::time::Instant) -> Pin<Box<dyn rt::Sleep>> {
        Box::pin(PatientSleep { alarm: Alarm::new(), due: deadline.into() })
    }
}

impl rt::Sleep for PatientSleep {}

impl Future for PatientSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let due = self.due;
        self.alarm.poll(cx, due)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use hyper::rt::Timer as _;
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

    /// A process that had been stopped took a peer for silent whose words lay unread in its socket.
    #[tokio::test]
    async fn what_has_come_is_read_before_an_alarm_goes_off() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut peer = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (socket, _) = listener.accept().await.unwrap();
        LocalSet::new()
            .run_until(async {
                peer.write_all(b"here").unwrap();
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

    #[tokio::test]
    async fn what_has_come_is_read_before_hypers_times_are_over() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut peer = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut socket, _) = listener.accept().await.unwrap();
        let work = async {
            peer.write_all(b"pong").unwrap();
            // As after a stop: its time has come long ago, and nobody has looked at the socket
            // since.
            let late = PatientTimer.sleep_until(std::time::Instant::now() - Duration::from_secs(1));
            let mut read = [0; 4];
            tokio::select! {
                biased;
                () = late => panic!("it has come by then"),
                read = socket.read_exact(&mut read) => drop(read.unwrap()),
            }
            assert_eq!(read, *b"pong");
        };
        LocalSet::new().run_until(work).await;
    }
}
