use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::task::LocalSet;

use super::*;
use crate::wire::caught_up;

/// A connection that has said something in its turn, which is not over, and its worker.
async fn amid_its_turn(outbox: &Outbox) -> (Http1, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let socket = Socket::upstream(ours.into());
    let mut connection = Http1::new(socket.clone(), None, Place::for_tests(), outbox.clone()).await.unwrap();
    assert_eq!(connection.remains(), Remains::Usable);
    let turns = &connection.driver.turns;
    let mut io = turns.gather(socket);
    poll_fn(|cx| {
        let _: Poll<()> = turns.poll(cx, outbox, |cx| {
            assert!(Pin::new(&mut io).poll_write(cx, b"a request").is_ready());
            Poll::Pending
        });
        Poll::Ready(())
    })
    .await;
    (connection, theirs)
}

#[tokio::test]
async fn what_was_not_written_when_its_connection_was_given_up_never_is() {
    LocalSet::new()
        .run_until(async {
            let outbox = Outbox::default();
            let (connection, mut worker) = amid_its_turn(&outbox).await;
            drop(connection);
            let mut read = Vec::new();
            worker.read_to_end(&mut read).await.unwrap();
            assert_eq!(read, b"");
        })
        .await;
}

#[tokio::test]
async fn an_end_is_seen_as_soon_as_the_runtime_has_heard_of_it_and_after_a_while_before_that() {
    for says_more in [false, true] {
        let (ours, mut worker) = UnixStream::pair().unwrap();
        let socket = Socket::upstream(ours.into());
        let connection = Http1::new(socket, None, Place::for_tests(), Outbox::default()).await.unwrap();
        caught_up().await;
        assert!(connection.is_quiet(Duration::ZERO) && connection.is_quiet(JUST_NOW));
        if says_more {
            worker.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
        } else {
            drop(worker);
        }
        assert!(!connection.is_quiet(JUST_NOW), "the kernel is asked");
        caught_up().await;
        assert!(!connection.is_quiet(Duration::ZERO), "the runtime is asked");
    }
}

#[tokio::test]
async fn what_was_not_written_of_a_request_that_took_too_long_never_is() {
    LocalSet::new()
        .run_until(async {
            let outbox = Outbox::default();
            let (connection, mut worker) = amid_its_turn(&outbox).await;
            connection.stop_writing();
            let mut read = Vec::new();
            worker.read_to_end(&mut read).await.unwrap();
            assert_eq!(read, b"");
            assert!(connection.is_usable(), "its answer is still read");
        })
        .await;
}

/// It counted as written in the turn in which it was said, and the connection was closed in the same.
#[tokio::test]
async fn what_is_left_of_a_request_that_was_answered_is_written_before_its_connection_is_given_up() {
    LocalSet::new()
        .run_until(async {
            let outbox = Outbox::default();
            let (mut connection, mut worker) = amid_its_turn(&outbox).await;
            assert!(connection.has_more_to_write());
            poll_fn(|cx| connection.poll_written(cx)).await;
            drop(connection);
            let mut read = Vec::new();
            worker.read_to_end(&mut read).await.unwrap();
            assert_eq!(read, b"a request");
        })
        .await;
}

#[tokio::test]
async fn a_connection_is_not_used_again_before_all_of_its_last_request_is_written() {
    LocalSet::new()
        .run_until(async {
            let outbox = Outbox::default();
            let (mut connection, mut worker) = amid_its_turn(&outbox).await;
            assert_eq!(connection.remains(), Remains::Broken);
            let mut read = [0; 9];
            worker.read_exact(&mut read).await.unwrap();
            assert_eq!(connection.remains(), Remains::Usable);
        })
        .await;
}
