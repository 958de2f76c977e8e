//! What is said in turns: by how many calls of the kernel it is written, and that nothing of it is lost, kept or said twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};

use proptest::prelude::*;

use super::*;

/// Takes as much as there is room for, and remembers what came by which call.
#[derive(Default)]
struct Calls {
    made: Vec<Vec<u8>>,
    room: usize,
    flushes: usize,
    is_broken: bool,
    takes_nothing: bool,
    is_shut: bool,
}

type Shared = Rc<RefCell<Calls>>;

struct Recorder(Shared);

impl AsyncWrite for Recorder {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut calls = self.0.borrow_mut();
        if calls.is_broken {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if calls.takes_nothing {
            return Poll::Ready(Ok(0));
        }
        let mut bytes = slices.iter().flat_map(|slice| slice.to_vec()).collect::<Vec<_>>();
        bytes.truncate(calls.room);
        if bytes.is_empty() {
            return Poll::Pending;
        }
        calls.room -= bytes.len();
        let count = bytes.len();
        calls.made.push(bytes);
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.borrow_mut().flushes += 1;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.borrow_mut().is_shut = true;
        Poll::Ready(Ok(()))
    }
}

/// Counts how often its task is woken.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Woken>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn gathered(room: usize) -> (Gathered<tokio::io::Empty, Recorder>, Turns<Recorder>, Shared) {
    let calls = Rc::new(RefCell::new(Calls { room, ..Calls::default() }));
    let turns = Turns::new(Recorder(Rc::clone(&calls)));
    (turns.gather(tokio::io::empty()), turns, calls)
}

/// Writes a piece as h2 does: a head and a payload, and a flush behind them.
fn write(
    gathered: &mut Gathered<tokio::io::Empty, Recorder>,
    cx: &mut Context<'_>,
    piece: &[u8],
) -> Poll<io::Result<usize>> {
    let (head, payload) = piece.split_at(piece.len().min(9));
    let slices = [IoSlice::new(head), IoSlice::new(payload)];
    let written = ready!(Pin::new(&mut *gathered).poll_write_vectored(cx, &slices))?;
    ready!(Pin::new(gathered).poll_flush(cx))?;
    Poll::Ready(Ok(written))
}

/// A turn of the connection, and the end of its thread's.
fn turn<T>(
    turns: &Turns<Recorder>,
    cx: &mut Context<'_>,
    connection: impl FnOnce(&mut Context<'_>) -> Poll<T>,
) -> Poll<T> {
    let polled = turns.poll_in_turn(cx, connection);
    if turns.ends_turn(cx) {
        turns.writes.leave();
    }
    polled
}

fn cx() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

#[test]
fn what_is_said_in_a_turn_is_written_by_one_call_at_its_end() {
    let (mut gathered, turns, calls) = gathered(usize::MAX);
    let ended = turn(&turns, &mut cx(), |cx| {
        for piece in [b"one", b"two", b"six"] {
            assert!(matches!(write(&mut gathered, cx, piece), Poll::Ready(Ok(3))));
        }
        assert!(calls.borrow().made.is_empty());
        Poll::Ready("ended")
    });
    assert!(matches!(ended, Poll::Ready("ended")));
    assert_eq!(calls.borrow().made, [b"onetwosix"]);
    assert_eq!(calls.borrow().flushes, 1);
    assert!(matches!(write(&mut gathered, &mut cx(), b"ten"), Poll::Ready(Ok(3))), "outside of a turn, at once");
    assert_eq!(calls.borrow().made.last().unwrap(), b"ten");
}

#[test]
fn a_long_piece_takes_what_was_held_along_by_its_own_call() {
    let (mut gathered, turns, calls) = gathered(usize::MAX);
    let long = vec![b'x'; PIECE_BYTES_MAX + 1];
    let _: Poll<()> = turn(&turns, &mut cx(), |cx| {
        assert!(write(&mut gathered, cx, b"head").is_ready());
        assert!(matches!(write(&mut gathered, cx, &long), Poll::Ready(Ok(written)) if written == long.len()));
        Poll::Pending
    });
    assert_eq!(calls.borrow().made, [[b"head", &long[..]].concat()]);
}

#[test]
fn no_more_is_held_than_may_be_whoever_does_not_read() {
    let (mut gathered, turns, calls) = gathered(100);
    let piece = [b'x'; 1000];
    let mut taken = 0;
    for _ in 0..100 {
        let _: Poll<()> = turn(&turns, &mut cx(), |cx| {
            while let Poll::Ready(written) = write(&mut gathered, cx, &piece) {
                taken += written.unwrap();
            }
            Poll::Pending
        });
    }
    assert_eq!(calls.borrow().made.concat().len(), 100);
    assert!(taken > HELD_BYTES_MAX - piece.len() && taken <= HELD_BYTES_MAX + 100, "{taken} bytes were taken");
    calls.borrow_mut().room = usize::MAX;
    assert!(matches!(turn(&turns, &mut cx(), |cx| Pin::new(&mut gathered).poll_flush(cx)), Poll::Ready(Ok(()))));
    assert_eq!(calls.borrow().made.concat().len(), taken);
}

#[test]
fn a_connection_that_has_written_all_keeps_no_memory() {
    for length in (1..=HELD_BYTES_MAX).step_by(111).chain([HELD_BYTES_MAX]) {
        let (mut gathered, turns, _) = gathered(usize::MAX);
        let _: Poll<()> = turn(&turns, &mut cx(), |cx| {
            for piece in vec![b'x'; length].chunks(PIECE_BYTES_MAX) {
                assert!(write(&mut gathered, cx, piece).is_ready());
            }
            assert!(turns.writes.borrow().held.capacity() <= HELD_BYTES_MAX);
            Poll::Pending
        });
        assert_eq!(turns.writes.borrow().held.capacity(), 0, "after {length} bytes");
    }
}

#[test]
fn the_end_is_behind_all_that_was_said() {
    let (mut gathered, turns, calls) = gathered(2);
    let mut end = |said: &[u8]| {
        turn(&turns, &mut cx(), |cx| {
            if !said.is_empty() {
                assert!(write(&mut gathered, cx, said).is_ready());
            }
            Pin::new(&mut gathered).poll_shutdown(cx)
        })
    };
    assert!(end(b"last").is_pending());
    assert!(!calls.borrow().is_shut);
    calls.borrow_mut().room = 2;
    assert!(matches!(end(b""), Poll::Ready(Ok(()))));
    assert!(calls.borrow().is_shut);
    assert_eq!(calls.borrow().made.concat(), b"last");
}

#[test]
fn what_the_kernel_does_not_take_goes_out_by_the_connections_own_task_and_meanwhile_nothing_more_is_held() {
    let (mut gathered, turns, calls) = gathered(2);
    let woken = Arc::<Woken>::default();
    let waker = Waker::from(Arc::clone(&woken));
    let mut cx = Context::from_waker(&waker);
    let _: Poll<()> = turn(&turns, &mut cx, |cx| {
        assert!(write(&mut gathered, cx, b"said").is_ready());
        Poll::Pending
    });
    assert_eq!(woken.0.load(Ordering::SeqCst), 1, "nobody else would go on");
    assert!(!turns.is_all_written());
    let _: Poll<()> = turn(&turns, &mut cx, |_| Poll::Pending);
    assert_eq!(calls.borrow().made.concat(), b"sa");
    calls.borrow_mut().room = 1;
    let _: Poll<()> = turn(&turns, &mut cx, |cx| write(&mut gathered, cx, b"more").map(|_| ()));
    assert_eq!(calls.borrow().made.concat(), b"sai");
    assert_eq!(turns.writes.borrow().held, b"said", "and nothing more");
    calls.borrow_mut().room = usize::MAX;
    assert!(turn(&turns, &mut cx, |cx| Pin::new(&mut gathered).poll_flush(cx)).is_ready());
    assert_eq!(calls.borrow().made.concat(), b"said");
    assert!(turns.is_all_written());
}

#[test]
fn what_is_held_up_goes_out_with_the_next_turn_though_nothing_more_is_said() {
    let (mut gathered, turns, calls) = gathered(2);
    let _: Poll<()> = turn(&turns, &mut cx(), |cx| write(&mut gathered, cx, b"said").map(|_| ()));
    calls.borrow_mut().room = usize::MAX;
    let _: Poll<()> = turns.poll_in_turn(&mut cx(), |_| Poll::Pending);
    assert!(!turns.ends_turn(&mut cx()), "it is not posted");
    assert_eq!(calls.borrow().made.concat(), b"said");
    assert!(turns.is_all_written());
}

#[test]
fn what_was_written_at_once_is_flushed_at_once() {
    let (mut gathered, turns, calls) = gathered(usize::MAX);
    let long = vec![b'x'; PIECE_BYTES_MAX + 1];
    let _: Poll<()> = turns.poll_in_turn(&mut cx(), |cx| write(&mut gathered, cx, &long).map(|_| ()));
    assert_eq!(calls.borrow().flushes, 1);
}

#[test]
fn whoever_waits_for_the_kernel_is_not_forgotten_for_what_was_posted_before() {
    let (mut gathered, turns, calls) = gathered(0);
    let long = vec![b'x'; PIECE_BYTES_MAX + 1];
    let _: Poll<()> = turns.poll_in_turn(&mut cx(), |cx| write(&mut gathered, cx, b"short").map(|_| ()));
    assert!(turns.ends_turn(&mut cx()), "it is posted");
    let _: Poll<()> = turns.poll_in_turn(&mut cx(), |cx| write(&mut gathered, cx, &long).map(|_| ()));
    assert!(!turns.ends_turn(&mut cx()));
    calls.borrow_mut().room = usize::MAX;
    // Written by another than its task, it would not hear that there is room.
    turns.writes.leave();
    assert!(calls.borrow().made.is_empty());
    assert!(matches!(write(&mut gathered, &mut cx(), &long), Poll::Ready(Ok(_))));
    assert_eq!(calls.borrow().made.concat(), [b"short", &long[..]].concat());
}

#[test]
fn whoever_goes_on_with_what_was_posted_is_not_forgotten_either() {
    let (mut gathered, turns, calls) = gathered(0);
    let _: Poll<()> = turns.poll_in_turn(&mut cx(), |cx| write(&mut gathered, cx, b"said").map(|_| ()));
    assert!(turns.ends_turn(&mut cx()), "it is posted");
    turns.write_out(&mut cx());
    calls.borrow_mut().room = usize::MAX;
    turns.writes.leave();
    assert!(calls.borrow().made.is_empty());
}

#[test]
fn what_went_out_with_what_was_said_later_is_not_looked_at_again() {
    let (mut gathered, turns, calls) = gathered(usize::MAX);
    let _: Poll<()> = turns.poll_in_turn(&mut cx(), |cx| write(&mut gathered, cx, b"short").map(|_| ()));
    assert!(turns.ends_turn(&mut cx()), "it is posted");
    let long = vec![b'x'; PIECE_BYTES_MAX + 1];
    let _: Poll<()> = turns.poll_in_turn(&mut cx(), |cx| write(&mut gathered, cx, &long).map(|_| ()));
    turns.writes.leave();
    assert_eq!(
        (calls.borrow().made.len(), calls.borrow().flushes),
        (1, 1),
        "whoever has the socket by now may wait for it"
    );
}

#[test]
fn a_connection_has_spoken_if_it_said_something_in_its_last_turn_whether_or_not_that_is_written() {
    let (mut gathered, turns, calls) = gathered(usize::MAX);
    let _: Poll<()> = turns.poll_in_turn(&mut cx(), |cx| write(&mut gathered, cx, b"answer").map(|_| ()));
    assert!(turns.has_spoken() && calls.borrow().made.is_empty());
    let _: Poll<()> = turns.poll_in_turn(&mut cx(), |_| Poll::Pending);
    assert!(!turns.has_spoken() && !turns.is_all_written());
    turns.write_out(&mut cx());
    assert_eq!(calls.borrow().made, [b"answer"]);
}

#[test]
fn the_turns_in_which_a_connection_ends_are_one() {
    let (mut gathered, turns, calls) = gathered(0);
    let _: Poll<()> = turns.poll_in_turn(&mut cx(), |cx| {
        assert!(write(&mut gathered, cx, b"its last word").is_ready());
        Pin::new(&mut gathered).poll_shutdown(cx).map(|_| ())
    });
    calls.borrow_mut().room = usize::MAX;
    let ended = turns.poll_in_turn(&mut cx(), |cx| Pin::new(&mut gathered).poll_shutdown(cx));
    assert!(matches!(ended, Poll::Ready(Ok(()))) && turns.has_spoken());
}

#[test]
fn a_connection_hears_once_that_what_it_said_is_lost() {
    for (is_broken, why) in [(true, io::ErrorKind::BrokenPipe), (false, io::ErrorKind::WriteZero)] {
        let (mut gathered, turns, calls) = gathered(usize::MAX);
        (calls.borrow_mut().is_broken, calls.borrow_mut().takes_nothing) = (is_broken, !is_broken);
        let woken = Arc::<Woken>::default();
        let waker = Waker::from(Arc::clone(&woken));
        let mut cx = Context::from_waker(&waker);
        let _: Poll<()> = turn(&turns, &mut cx, |cx| {
            assert!(write(&mut gathered, cx, b"lost").is_ready());
            Poll::Pending
        });
        assert_eq!(woken.0.load(Ordering::SeqCst), 1);
        let heard = turn(&turns, &mut cx, |cx| Pin::new(&mut gathered).poll_flush(cx));
        assert!(matches!(heard, Poll::Ready(Err(error)) if error.kind() == why));
        assert_eq!(woken.0.load(Ordering::SeqCst), 1);
    }
}

proptest! {
    #[test]
    fn what_is_said_arrives_in_its_order(
        pieces in prop::collection::vec((1..3 * PIECE_BYTES_MAX, any::<bool>()), 1..40),
        rooms in prop::collection::vec(0..3 * HELD_BYTES_MAX, 1..20),
    ) {
        let said: Vec<Vec<u8>> =
            pieces.iter().zip(0u8..).map(|((length, _), number)| vec![number; *length]).collect();
        let (mut gathered, turns, calls) = gathered(0);
        let mut rooms = rooms.into_iter().chain([usize::MAX].into_iter().cycle());
        let (mut next, mut from) = (0, 0);
        while next < said.len() {
            calls.borrow_mut().room = rooms.next().unwrap();
            let _: Poll<()> = turn(&turns, &mut cx(), |cx| {
                while next < said.len()
                    && let Poll::Ready(written) = write(&mut gathered, cx, &said[next][from..])
                {
                    from += written.unwrap();
                    if from == said[next].len() {
                        (next, from) = (next + 1, 0);
                        if pieces[next - 1].1 {
                            break; // The turn ends here.
                        }
                    }
                }
                Poll::Pending
            });
        }
        calls.borrow_mut().room = usize::MAX;
        let _: Poll<()> = turn(&turns, &mut cx(), |_| Poll::Pending);
        prop_assert_eq!(calls.borrow().made.concat(), said.concat());
    }
}
