//! Who may open an HTTP/1.1 connection, and who waits for one.

use std::rc::{Rc, Weak};

use tokio::time::{Instant, timeout_at};

use super::{Shared, Wants};
use crate::forward::error::UpstreamError;
use crate::forward::http1::Http1;
use crate::forward::quota::{QUOTA_LOOK, QuotaPermit};

/// What a waiting request gets.
pub(in crate::forward) enum Turn {
    Connection(Box<Http1>),
    Place(Place),
    /// There is something else that may do.
    LookAgain,
}

/// The right to one HTTP/1.1 connection. Whoever has waited longest gets it when it is dropped, if the quota has room for it.
pub(in crate::forward) struct Place {
    pool: Weak<Shared>,
    /// `None` once a connection has it that is none of HTTP/1.1.
    permit: Option<QuotaPermit>,
}

impl Place {
    /// The right to a connection that turned out to be none of HTTP/1.1.
    pub(in crate::forward) fn into_permit(mut self) -> QuotaPermit {
        self.permit.take().expect("a place has its permit until it is given up")
    }

    /// A place in a pool that is gone.
    #[cfg(test)]
    pub(in crate::forward) fn for_tests() -> Place {
        Place { pool: Weak::new(), permit: None }
    }
}

impl Shared {
    /// A place for a new HTTP/1.1 connection, or one that another request is done with, as soon as there is either.
    pub(in crate::forward) async fn turn(
        self: &Rc<Self>,
        wants: Wants,
        deadline: Instant,
    ) -> Result<Turn, UpstreamError> {
        if let Some(place) = self.free_place() {
            return Ok(Turn::Place(place));
        }
        // Boxed, as all that is rare and large: each request would move the room for it.
        match Box::pin(self.wait_for_turn(wants, deadline)).await? {
            Turn::Connection(connection) if !self.is_usable(&connection) => Ok(Turn::Place((*connection).into_place())),
            turn @ (Turn::Connection(_) | Turn::Place(_) | Turn::LookAgain) => Ok(turn),
        }
    }

    fn free_place(self: &Rc<Self>) -> Option<Place> {
        if self.places_taken.get() >= self.upstream.connections_max {
            return None;
        }
        self.place(self.upstream.quota.take(self.connections())?)
    }

    /// How many connections are open or being opened.
    pub(in crate::forward) fn connections(&self) -> usize {
        self.places_taken.get() + self.http2.connections()
    }

    /// A place for a connection that the quota has room for, unless this pool has as many as it may have.
    pub(in crate::forward) fn place(self: &Rc<Self>, permit: QuotaPermit) -> Option<Place> {
        let taken = self.places_taken.get();
        if taken >= self.upstream.connections_max {
            return None;
        }
        self.places_taken.set(taken + 1);
        Some(Place { pool: Rc::downgrade(self), permit: Some(permit) })
    }

    async fn wait_for_turn(self: &Rc<Self>, wants: Wants, deadline: Instant) -> Result<Turn, UpstreamError> {
        let (_waiting, turn) = self.queue.join(wants, self.upstream.waiting_max).ok_or(UpstreamError::Crowded)?;
        if !self.serving.replace(true) {
            tokio::task::spawn_local(serve_queue(Rc::downgrade(self)));
        }
        let turn = timeout_at(deadline, async {
            tokio::select! {
                turn = turn => turn,
                never = self.stalled.make_room(deadline) => never,
            }
        });
        let turn = turn.await.map_err(|_| UpstreamError::Crowded)?;
        turn.map_err(|_| UpstreamError::Timeout) // The pool is gone, and the thread with it.
    }

    /// Gives those who wait what there is that nobody hands on to them: what other pools have left of the quota, and streams of an HTTP/2
    /// connection. Whether it is the quota that they wait for.
    fn serve_queue(self: &Rc<Self>) -> bool {
        if self.http2.has_free_stream(&self.upstream) {
            for waiter in self.queue.take_those_who_take_either() {
                let _ = waiter.send(Turn::LookAgain);
            }
        }
        while !self.queue.is_empty() {
            let Some(place) = self.free_place() else { return self.places_taken.get() < self.upstream.connections_max };
            if let Some(waiter) = self.queue.next() {
                let _ = waiter.send(Turn::Place(place));
            }
        }
        false
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some(shared) = self.pool.upgrade() else { return };
        shared.places_taken.set(shared.places_taken.get() - 1);
        self.permit = None; // Where others have fewer connections, it may be for them.
        if !shared.queue.is_empty()
            && let Some(place) = shared.free_place()
            && let Some(waiter) = shared.queue.next()
        {
            let _ = waiter.send(Turn::Place(place));
        }
    }
}

/// Looks after those who wait, as long as there are any.
async fn serve_queue(shared: Weak<Shared>) {
    let mut wanted = None;
    loop {
        let Some(shared) = shared.upgrade() else { return };
        if shared.queue.is_empty() {
            shared.serving.set(false);
            return;
        }
        wanted = shared.serve_queue().then(|| wanted.take().unwrap_or_else(|| shared.upstream.quota.want()));
        drop(shared);
        tokio::time::sleep(QUOTA_LOOK).await;
    }
}
