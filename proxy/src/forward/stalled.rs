//! Responses that their clients do not read, and uploads that theirs do not go on with, on connections that others wait for.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// How long a request waits for a connection before it looks for what has stalled, half of its time at most: most get theirs
/// sooner, and a look costs more than that.
const FIRST_LOOK: Duration = Duration::from_millis(100);

/// How long a client may leave a piece of its response lying, or the next piece of its upload be waited for, while others wait for a
/// connection.
const STALL_MAX: Duration = Duration::from_secs(1);

/// What of a pool's requests waits for clients: responses that are being read for them, and uploads that came unjudged.
#[derive(Default)]
pub(super) struct Stalled {
    all: RefCell<Vec<Weak<dyn Stalls>>>,
    /// Before when none will have stalled for long enough, as the last look has shown: one look does for all who wait.
    none_before: Cell<Option<Instant>>,
}

/// A response that comes no faster than its client reads it, or an upload that goes out no faster than its client sends it.
pub(super) trait Stalls {
    /// Since when its client has let it wait. `None` while the worker is the one to go on.
    fn since(&self) -> Option<Instant>;

    /// Waits for the client no longer: the rest of a response is read without it, the rest of an upload is cut.
    fn leave_client(&self);
}

impl Stalled {
    /// Looks after one for as long as it is there.
    pub(super) fn add(&self, one: Weak<dyn Stalls>) {
        let mut all = self.all.borrow_mut();
        if all.len() == all.capacity() {
            all.retain(|one| one.strong_count() > 0);
            // As many may come before the next look at all of them as this one has found.
            let found = all.len();
            all.reserve(found);
        }
        all.push(one);
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.all.borrow().iter().all(|one| one.strong_count() == 0)
    }

    /// Waits no longer for the client that has stalled longest, if that is long enough.
    pub(super) fn leave_longest(&self) {
        if let Ok(stalled) = self.stalled_by(Instant::now()) {
            stalled.leave_client();
        }
    }

    /// Makes room for one request after the other, for as long as this is polled: the client that has stalled longest loses its
    /// response or its upload, if that is long enough. A client that reads, however slowly, takes a piece now and then; one that reads nothing, or
    /// next to nothing, would keep its connection until `body_timeout`, and a few thousand of them all connections. For uploads a byte now and
    /// then would be enough, so that their bytes are counted ([`BodyState`](super::body_state::BodyState)). Whoever can wait no
    /// longer than until `deadline` looks in time for itself or, if the worker takes longer than that for the rest, for the next.
    pub(super) async fn make_room(&self, deadline: Instant) -> ! {
        let now = Instant::now();
        let mut looks_at = now + FIRST_LOOK.min(deadline.saturating_duration_since(now) / 2);
        loop {
            sleep_until(looks_at).await;
            let now = Instant::now();
            match self.stalled_by(now) {
                Ok(stalled) => {
                    stalled.leave_client();
                    looks_at = now + STALL_MAX;
                }
                Err(none_before) => looks_at = none_before,
            }
        }
    }

    /// What has stalled longest, if that is long enough; else before when none will have.
    fn stalled_by(&self, now: Instant) -> Result<Rc<dyn Stalls>, Instant> {
        if let Some(none_before) = self.none_before.get().filter(|none_before| now < *none_before) {
            return Err(none_before);
        }
        let none_before = match self.longest() {
            Some((since, stalled)) if since + STALL_MAX <= now => return Ok(stalled),
            Some((since, _)) => since + STALL_MAX,
            None => now + STALL_MAX,
        };
        self.none_before.set(Some(none_before));
        Err(none_before)
    }

    fn longest(&self) -> Option<(Instant, Rc<dyn Stalls>)> {
        let all = self.all.borrow();
        let all = all.iter().filter_map(Weak::upgrade);
        all.filter_map(|one| Some((one.since()?, one))).min_by_key(|(since, _)| *since)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;
    use tokio::time::{advance, timeout, timeout_at};

    use super::*;

    #[derive(Default)]
    struct Response {
        since: Cell<Option<Instant>>,
        is_left: Cell<bool>,
        looks: Cell<u32>,
    }

    impl Stalls for Response {
        fn since(&self) -> Option<Instant> {
            self.looks.set(self.looks.get() + 1);
            self.since.get().filter(|_| !self.is_left.get())
        }

        fn leave_client(&self) {
            self.is_left.set(true);
        }
    }

    /// Longer than anybody waits here.
    const LONG: Duration = Duration::from_secs(60);

    /// Which have been left after room was made for so long.
    async fn left(stalled: &Stalled, responses: &[Rc<Response>; 3], wait: Duration) -> [bool; 3] {
        let room = stalled.make_room(Instant::now() + LONG);
        assert!(timeout(wait, room).await.is_err(), "it goes on for as long as somebody waits");
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
        assert_eq!(left(&stalled, &responses, FIRST_LOOK + millis(10)).await, [false, true, false]);
        assert_eq!(left(&stalled, &responses, FIRST_LOOK + millis(1)).await, [true, true, false], "another waits");
        responses[2].since.set(Some(Instant::now()));
        drop(responses);
        assert!(stalled.longest().is_none());
    }

    /// Where all who waited had given up by the first look, a client that did not read kept its connection.
    #[tokio::test(start_paused = true)]
    async fn who_has_little_time_looks_when_half_of_it_is_over() {
        for left in [10, 50, 150].map(Duration::from_millis) {
            let stalled = Stalled::default();
            let response = Rc::<Response>::default();
            stalled.add(Rc::downgrade(&response) as Weak<dyn Stalls>);
            response.since.set(Some(Instant::now()));
            advance(STALL_MAX).await;
            let deadline = Instant::now() + left;
            let is_left = async |until| {
                assert!(timeout_at(until, stalled.make_room(deadline)).await.is_err());
                response.is_left.get()
            };
            assert!(!is_left(Instant::now()).await);
            assert!(is_left(deadline).await, "{left:?}");
        }
    }

    /// Each request that had to wait looked at all responses at once, and then each second.
    #[tokio::test(start_paused = true)]
    async fn who_waits_for_a_moment_looks_at_no_response_and_a_thousand_who_wait_for_long_look_once_a_second() {
        let stalled = Stalled::default();
        let response = Rc::<Response>::default();
        stalled.add(Rc::downgrade(&response) as Weak<dyn Stalls>);
        let all = |wait| timeout(wait, join_all((0..1_000).map(|_| stalled.make_room(Instant::now() + LONG))));
        assert!(all(FIRST_LOOK / 2).await.is_err());
        assert_eq!(response.looks.get(), 0);
        assert!(all(FIRST_LOOK + 4 * STALL_MAX + FIRST_LOOK / 2).await.is_err());
        assert_eq!(response.looks.get(), 5);
    }

    /// Where there was just room for as many as are there at a time, each that came had all looked at.
    #[test]
    fn those_that_are_gone_are_looked_for_only_when_as_many_have_come_as_there_are() {
        let stalled = Stalled::default();
        let responses: Vec<_> = (0..100).map(|_| Rc::<Response>::default()).collect();
        let add = |response: &Rc<Response>| stalled.add(Rc::downgrade(response) as Weak<dyn Stalls>);
        responses.iter().for_each(add);
        let is_full = || stalled.all.borrow().len() == stalled.all.borrow().capacity();
        let looks = (0..1_000).filter(|_| {
            let looks = is_full();
            add(&Rc::default());
            looks
        });
        assert!(looks.count() <= 10);
    }
}
