//! Which connections of a thread wait for their clients, and since when: whoever has waited longest makes room for others.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tokio::time::Instant;

use super::places::{Oldest, Place, Places};
use super::tally::Closing;

/// The connections of one thread that have no request under way, in the order in which they came to have none.
pub(super) struct Waiting {
    ring: RefCell<Ring>,
    oldest: Oldest,
    places: Arc<Places>,
    started: Instant,
}

/// A connection's place in the process, and among those of its thread that wait.
///
/// It is held by the connection, and beyond its end by those of its requests that are still at the worker.
pub(super) struct Seat {
    thread: Rc<Waiting>,
    index: usize,
    /// What keeps it from waiting: requests, and what its client has not read yet.
    busy: Cell<usize>,
    /// Whether what was written is held up by the client.
    is_held_up: Cell<bool>,
    /// Requests that are on their way or at the worker, whether or not anybody waits for their answers.
    under_way: Cell<usize>,
    place: Place,
}

/// Counts a request as under way on its connection for as long as this lives.
pub struct UnderWay(Rc<Seat>);

/// Seats in a ring that begins and ends at node 0. Those that do not wait are linked to nobody.
struct Ring {
    nodes: Vec<Node>,
    free: Vec<usize>,
}

#[derive(Default)]
struct Node {
    before: usize,
    after: usize,
    /// Since when it waits; `None` if it does not.
    since: Option<Instant>,
    /// Whether it is to close.
    is_called: bool,
    waker: Option<Waker>,
}

impl Waiting {
    pub(super) fn new(oldest: Oldest, places: Arc<Places>, started: Instant) -> Rc<Waiting> {
        let ring = Ring { nodes: vec![Node::default()], free: Vec::new() };
        Rc::new(Waiting { ring: RefCell::new(ring), oldest, places, started })
    }

    /// A seat for a connection that waits from now on.
    pub(super) fn seat(self: &Rc<Waiting>, place: Place) -> Rc<Seat> {
        let index = self.ring.borrow_mut().add();
        let seat = Seat {
            thread: Rc::clone(self),
            index,
            busy: Cell::new(0),
            is_held_up: Cell::new(false),
            under_way: Cell::new(0),
            place,
        };
        seat.wait();
        Rc::new(seat)
    }

    /// Has the connection close that has waited longest, if room is still needed.
    pub(super) fn make_room(&self) {
        let mut ring = self.ring.borrow_mut();
        let Some(first) = ring.first() else { return self.places.decline() };
        if !self.places.promise() {
            return; // Somebody else has made it, or a connection has ended.
        }
        ring.unlink(first);
        self.show_oldest(&ring);
        let node = &mut ring.nodes[first];
        node.is_called = true;
        if let Some(waker) = &node.waker {
            waker.wake_by_ref();
        }
    }

    /// Shows the other threads since when the first waits, in milliseconds.
    fn show_oldest(&self, ring: &Ring) {
        let millis = |since: Instant| (since - self.started).as_millis();
        self.oldest.show(ring.oldest().map(|since| usize::try_from(millis(since)).unwrap_or(usize::MAX - 1)));
    }

    /// A connection that was to close has a request after all.
    fn decline_room(&self) {
        self.places.decline();
    }
}

impl Seat {
    /// Something keeps it from waiting.
    fn begin(&self) {
        self.busy.set(self.busy.get() + 1);
        if self.busy.get() > 1 {
            return;
        }
        let mut ring = self.thread.ring.borrow_mut();
        let was_called = std::mem::take(&mut ring.nodes[self.index].is_called);
        let was_first = ring.first() == Some(self.index);
        ring.unlink(self.index);
        if was_first {
            self.thread.show_oldest(&ring);
        }
        drop(ring);
        if was_called {
            self.thread.decline_room();
        }
    }

    /// It no longer does.
    fn end(&self) {
        self.busy.set(self.busy.get() - 1);
        if self.busy.get() == 0 {
            self.wait();
        }
    }

    fn wait(&self) {
        let mut ring = self.thread.ring.borrow_mut();
        ring.push(self.index, Instant::now());
        if ring.first() == Some(self.index) {
            self.thread.show_oldest(&ring);
        }
        drop(ring);
        // Shown first: whoever asks for room either sees this connection or is seen here.
        if self.thread.places.is_wanted() {
            self.thread.make_room();
        }
    }

    /// Since when it waits; `None` if it does not.
    pub(super) fn waits_since(&self) -> Option<Instant> {
        self.thread.ring.borrow().nodes[self.index].since
    }

    /// A request has begun.
    pub(super) fn answers(self: &Rc<Seat>) -> Answering {
        self.begin();
        Answering(Rc::clone(self))
    }

    /// A request is on its way to the worker.
    pub(super) fn under_way(self: &Rc<Seat>) -> UnderWay {
        self.begin();
        self.under_way.set(self.under_way.get() + 1);
        UnderWay(Rc::clone(self))
    }

    /// Requests that are on their way or at the worker.
    pub(super) fn count_under_way(&self) -> usize {
        self.under_way.get()
    }

    /// Notes whether the client keeps what is written from getting out: that is still an answer under way.
    pub(super) fn set_held_up(&self, is_held_up: bool) {
        match (self.is_held_up.replace(is_held_up), is_held_up) {
            (false, true) => self.begin(),
            (true, false) => self.end(),
            (true, true) | (false, false) => {}
        }
    }

    /// Ready when the connection is to make room. Asked after it has looked for a request.
    pub(super) fn poll_called(&self, cx: &mut Context<'_>) -> Poll<()> {
        let node = &mut self.thread.ring.borrow_mut().nodes[self.index];
        if node.is_called {
            return Poll::Ready(());
        }
        if !node.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            node.waker = Some(cx.waker().clone());
        }
        Poll::Pending
    }

    /// Waits until the connection is to make room.
    pub(super) async fn called(&self) {
        poll_fn(|cx| self.poll_called(cx)).await;
    }

    /// Notes that a limit ends the connection.
    pub(super) fn close(&self, closing: Closing) {
        self.place.places().tally.close(closing);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut ring = self.thread.ring.borrow_mut();
        let was_first = ring.first() == Some(self.index);
        ring.unlink(self.index);
        ring.nodes[self.index] = Node::default();
        ring.free.push(self.index);
        if was_first {
            self.thread.show_oldest(&ring);
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.set(self.0.under_way.get() - 1);
        self.0.end();
    }
}

/// Keeps a connection from making room for as long as this lives: a request of it has not been answered.
pub(super) struct Answering(Rc<Seat>);

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl Ring {
    fn add(&mut self) -> usize {
        if let Some(index) = self.free.pop() {
            self.nodes[index] = Node { before: index, after: index, ..Node::default() };
            return index;
        }
        let index = self.nodes.len();
        self.nodes.push(Node { before: index, after: index, ..Node::default() });
        index
    }

    fn first(&self) -> Option<usize> {
        Some(self.nodes[0].after).filter(|first| *first != 0)
    }

    fn oldest(&self) -> Option<Instant> {
        self.first().and_then(|first| self.nodes[first].since)
    }

    fn push(&mut self, index: usize, since: Instant) {
        let last = self.nodes[0].before;
        self.nodes[last].after = index;
        self.nodes[0].before = index;
        let node = &mut self.nodes[index];
        (node.before, node.after, node.since) = (last, 0, Some(since));
    }

    fn unlink(&mut self, index: usize) {
        let Node { before, after, .. } = self.nodes[index];
        if before == index {
            return;
        }
        self.nodes[before].after = after;
        self.nodes[after].before = before;
        let node = &mut self.nodes[index];
        (node.before, node.after, node.since) = (index, index, None);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::time::Duration;

    use super::*;
    use crate::downstream::{ClientAddress, Limits};

    /// A thread with three connections, as many as there may be.
    async fn full() -> (Rc<Waiting>, Arc<Places>, [Option<Rc<Seat>>; 3]) {
        let places = Places::new(&Limits { connections_max: 3, ..Limits::default() });
        let waiting = Waiting::new(Oldest::none(), Arc::clone(&places), Instant::now());
        let mut seats = [None, None, None];
        for seat in &mut seats {
            let client = places.of_client(ClientAddress::Unix).unwrap();
            let place = places.take(client, || unreachable!("there is room")).await.unwrap();
            *seat = Some(waiting.seat(place));
        }
        (waiting, places, seats)
    }

    /// Which of them are told to close.
    fn called(seats: &[Option<Rc<Seat>>]) -> Vec<usize> {
        let mut context = Context::from_waker(Waker::noop());
        let mut is_called = |seat: &Rc<Seat>| seat.poll_called(&mut context).is_ready();
        (0..3).filter(|index| seats[*index].as_ref().is_some_and(&mut is_called)).collect()
    }

    /// As acceptors do it.
    fn ask(waiting: &Waiting) {
        if waiting.oldest.since().is_some() {
            waiting.make_room();
        }
    }

    fn poll<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> Poll<T> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[tokio::test]
    async fn whoever_has_waited_longest_since_its_last_request_makes_room() {
        let (waiting, places, mut seats) = full().await;
        drop(seats[0].as_ref().unwrap().answers());
        let mut taken = Vec::new();
        for longest in [1, 2, 0] {
            let client = places.of_client(ClientAddress::Unix).unwrap();
            let mut take = pin!(places.take(client, || ask(&waiting)));
            assert!(poll(take.as_mut()).is_pending());
            assert_eq!(called(&seats), [longest]);
            seats[longest] = None;
            let Poll::Ready(Ok(place)) = poll(take) else { panic!("there is room now") };
            taken.push(place);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_waits_from_the_end_of_its_last_request() {
        let (_waiting, _places, seats) = full().await;
        let seat = seats[0].as_ref().unwrap();
        let accepted = Instant::now();
        assert_eq!(seat.waits_since(), Some(accepted));
        let under_way = seat.under_way();
        drop(seat.answers());
        assert_eq!(seat.waits_since(), None, "one goes on at the worker");
        tokio::time::advance(Duration::from_secs(1)).await;
        drop(under_way);
        assert_eq!(seat.waits_since(), Some(accepted + Duration::from_secs(1)));
    }

    #[tokio::test]
    async fn whoever_has_a_request_or_an_answer_that_is_not_read_makes_none_before_that_is_over() {
        let (waiting, places, mut seats) = full().await;
        let seat = |index: usize| seats[index].as_ref().unwrap();
        let answering = seat(0).answers();
        seat(1).set_held_up(true);
        let under_way = seat(2).under_way();
        let client = places.of_client(ClientAddress::Unix).unwrap();
        let mut take = pin!(places.take(client, || ask(&waiting)));
        for _ in 0..3 {
            assert!(poll(take.as_mut()).is_pending());
            assert!(called(&seats).is_empty());
        }
        seat(1).set_held_up(false);
        assert_eq!(called(&seats), [1]);
        // A request has come before it could close: another takes its turn, as soon as there is one.
        let late = seat(1).answers();
        assert!(called(&seats).is_empty());
        assert!(poll(take.as_mut()).is_pending());
        drop(under_way);
        assert_eq!(called(&seats), [2]);
        seats[2] = None;
        assert!(poll(take).is_ready());
        drop((answering, late));
    }
}
