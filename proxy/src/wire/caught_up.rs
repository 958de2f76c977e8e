//! Reading first what has come.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use hyper::rt::{Sleep, Timer};
use tokio::task::{JoinHandle, spawn_local, yield_now};

/// How often this thread looks at its sockets: what one task reads may be for another, and one look
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

/// A timer for hyper that goes off only after that.
pub(crate) struct PatientTimer;

struct PatientSleep {
    sleep: Pin<Box<tokio::time::Sleep>>,
    /// `None` unless its time has come.
    caught_up: Option<JoinHandle<()>>,
}

impl Timer for PatientTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        self.sleep_until(Instant::now() + duration)
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        let sleep = Box::pin(tokio::time::sleep_until(deadline.into()));
        Box::pin(PatientSleep { sleep, caught_up: None })
    }
}

impl Sleep for PatientSleep {}

impl Future for PatientSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        ready!(self.sleep.as_mut().poll(cx));
        let caught_up = self.caught_up.get_or_insert_with(|| spawn_local(caught_up()));
        Pin::new(caught_up).poll(cx).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;
    use tokio::task::LocalSet;

    use super::*;

    #[tokio::test]
    async fn what_has_come_is_read_before_hypers_times_are_over() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut peer = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut socket, _) = listener.accept().await.unwrap();
        let work = async {
            peer.write_all(b"pong").unwrap();
            // As after a stop: its time has come long ago, and nobody has looked at the socket
            // since.
            let late = PatientTimer.sleep_until(Instant::now() - Duration::from_secs(1));
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
