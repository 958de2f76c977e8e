use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWrite};
use tokio::task::LocalSet;

use super::super::places::{Oldest, Places};
use super::*;
use crate::wire::{Gathered, Socket};

/// Says its last word and has ended, or goes on.
struct Says {
    io: Gathered<tokio::io::Empty, Socket>,
    ends: bool,
}

impl Future for Says {
    type Output = hyper::Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<hyper::Result<()>> {
        let said = Pin::new(&mut self.io).poll_write(cx, b"last");
        if self.ends { said.map(|_| Ok(())) } else { Poll::Pending }
    }
}

impl Serving for Says {
    fn leave(&mut self) {}
}

/// A connection whose client has much to read before anything else, that much, and its client.
async fn behind_much(ends: bool) -> (Rc<Connection>, InTurns<Says>, usize, tokio::net::UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    for end in [&ours, &theirs] {
        end.set_nonblocking(true).unwrap();
    }
    let mut full = 0;
    while let Ok(written) = (&ours).write(&[b'x'; 4096]) {
        full += written;
    }
    let [ours, theirs] = [ours, theirs].map(|end| tokio::net::UnixStream::from_std(end).unwrap());
    let connection = Connection::for_tests(Limits::default(), Socket::downstream(ours.into())).await;
    let says = Says { io: connection.writes.gather(tokio::io::empty()), ends };
    let serving = InTurns::new(says, &connection);
    (connection, serving, full, theirs)
}

async fn is_last(full: usize, client: &mut tokio::net::UnixStream) -> bool {
    let mut read = vec![0; full + 4];
    client.read_exact(&mut read).await.unwrap();
    read.ends_with(b"xlast")
}

/// Its socket may be a tunnel from then on, and what is said there comes behind.
#[tokio::test]
async fn a_connection_has_ended_well_when_all_that_it_said_is_written() {
    let (_connection, mut serving, full, mut client) = behind_much(true).await;
    let is_pending = poll_fn(|cx| Poll::Ready(Pin::new(&mut serving).poll(cx).is_pending())).await;
    assert!(is_pending, "the client has not read");
    let (ended, is_last) = tokio::join!(serving, is_last(full, &mut client));
    assert!(ended.is_ok() && is_last);
}

#[tokio::test]
async fn whoever_does_not_take_what_it_is_told_just_now_does_not_make_room() {
    let local = LocalSet::new();
    let (connection, mut serving, full, mut client) = local.run_until(behind_much(false)).await;
    let waiting = Waiting::new(Oldest::none(), Places::new(&Limits::default()), Instant::now());
    let thread = Thread::new(Limits::default(), Background::default(), waiting, Box::new(|_, _| {}));
    let stage = StageWatch::new(thread).await;
    connection.seat.call();
    let begun = Begun { connection, stage, started: Instant::now(), _counted: CountedIn::new(&Arc::default()) };
    let driven = drive(&mut serving, &begun, Stage::Closing);
    let reading = async {
        let mut driven = pin!(driven);
        let is_pending = poll_fn(|cx| Poll::Ready(driven.as_mut().poll(cx).is_pending())).await;
        assert!(is_pending, "it goes on");
        tokio::select! {
            is_last = is_last(full, &mut client) => assert!(is_last),
            _ = driven => panic!("it is not called any more"),
        }
    };
    local.run_until(reading).await;
}
