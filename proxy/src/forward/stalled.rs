//! Responses that their clients do not read, on connections that others wait for.

use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// How long a client may leave a piece of its response lying while others wait for a connection.
const STALL_MAX: Duration = Duration::from_secs(1);

/// The responses of a pool that are being read for clients.
#[derive(Default)]
pub(super) struct Stalled {
    responses: RefCell<Vec<Weak<dyn Stalls>>>,
}

/// A response that comes no faster than its client reads it.
pub(super) trait Stalls {
    /// Since when its client has left a piece of it lying. `None` while the worker is the one to go on.
    fn since(&self) -> Option<Instant>;

    /// Has the rest read without the client, which loses it.
    fn leave_client(&self);
}

impl Stalled {
    /// Looks after a response for as long as it is there.
    pub(super) fn add(&self, response: Weak<dyn Stalls>) {
        let mut responses = self.responses.borrow_mut();
        if responses.len() == responses.capacity() {
            responses.retain(|response| response.strong_count() > 0);
        }
        responses.push(response);
    }

    /// Makes room for one request after the other, for as long as this is polled: the client that has stalled longest loses its
    /// response, if that is long enough. A client that reads, however slowly, takes a piece now and then; one that reads nothing, or
    /// next to nothing, would keep its connection until `body_timeout`, and a few thousand of them all connections.
    pub(super) async fn make_room(&self) -> ! {
        let mut looks_at = Instant::now();
        loop {
            sleep_until(looks_at).await;
            let now = Instant::now();
            looks_at = now + STALL_MAX;
            let Some((since, response)) = self.longest() else { continue };
            if since + STALL_MAX <= now {
                response.leave_client();
            } else {
                looks_at = since + STALL_MAX;
            }
        }
    }

    fn longest(&self) -> Option<(Instant, Rc<dyn Stalls>)> {
        let responses = self.responses.borrow();
        let responses = responses.iter().filter_map(Weak::upgrade);
        responses.filter_map(|response| Some((response.since()?, response))).min_by_key(|(since, _)| *since)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::time::{advance, timeout};

    use super::*;

    #[derive(Default)]
    struct Response {
        since: Cell<Option<Instant>>,
        is_left: Cell<bool>,
    }

    impl Stalls for Response {
        fn since(&self) -> Option<Instant> {
            self.since.get().filter(|_| !self.is_left.get())
        }

        fn leave_client(&self) {
            self.is_left.set(true);
        }
    }

    /// Which have been left after room was made for so long.
    async fn left(stalled: &Stalled, responses: &[Rc<Response>; 3], wait: Duration) -> [bool; 3] {
        assert!(timeout(wait, stalled.make_room()).await.is_err(), "it goes on for as long as somebody waits");
        [0, 1, 2].map(|index| responses[index].is_left.get())
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_has_stalled_longest_is_left_once_that_is_long_enough_one_at_a_time() {
        let stalled = Stalled::default();
        let responses: [Rc<Response>; 3] = Default::default();
        for response in &responses {
            stalled.add(Rc::downgrade(response) as Weak<dyn Stalls>);
        }
        let millis = Duration::from_millis;
        assert_eq!(left(&stalled, &responses, 5 * STALL_MAX).await, [false; 3], "the worker is the one to go on");
        responses[1].since.set(Some(Instant::now()));
        advance(millis(10)).await;
        responses[0].since.set(Some(Instant::now()));
        assert_eq!(left(&stalled, &responses, STALL_MAX - millis(50)).await, [false; 3]);
        assert_eq!(left(&stalled, &responses, millis(100)).await, [false, true, false]);
        assert_eq!(left(&stalled, &responses, millis(1)).await, [true, true, false], "another waits");
        responses[2].since.set(Some(Instant::now()));
        drop(responses);
        assert!(stalled.longest().is_none());
    }
}
