//! What is spoken after `101 Switching Protocols`.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::sleep;

use super::admitted::Permit;
use super::body_state::{BodyState, Way};
use super::both_ways::pass_both_ways;
use super::in_flight::InFlight;
use super::pool::Link;
use crate::downstream::TunnelEnd;
use crate::wire::Socket;

/// The worker's end of a connection that has left HTTP. Its permit is held until both directions have ended, or one has and nothing moves
/// for as long as a worker may go on unseen, or until it is cut because the tenure has ended, be the client's end there by then or not: a
/// client that leaves the answers before it unread lets it wait.
pub struct WorkerEnd<P: Permit> {
    in_flight: Rc<Kept<P>>,
    /// The task that cuts it as long as it is not joined, if its request depends on a tenure.
    watcher: Option<AbortHandle>,
}

/// `None` once it is joined, or cut.
type Kept<P> = RefCell<Option<Box<InFlight<P>>>>;

impl<P: Permit> WorkerEnd<P> {
    pub(super) fn new(mut in_flight: Box<InFlight<P>>) -> WorkerEnd<P> {
        let is_watched = in_flight.watch_tenure();
        let in_flight = Rc::new(RefCell::new(Some(in_flight)));
        let watcher = is_watched.then(|| tokio::task::spawn_local(cut_in_time(in_flight.clone())).abort_handle());
        WorkerEnd { in_flight, watcher }
    }

    /// What is left of it, if it has not been cut. It is watched no more.
    fn take(&mut self) -> Option<Box<InFlight<P>>> {
        if let Some(watcher) = self.watcher.take() {
            watcher.abort();
        }
        self.in_flight.take()
    }

    /// Passes bytes both ways until both sides have ended theirs, one is lost, or has ended and does not hear that the other has not,
    /// or the tenure has ended.
    pub(super) async fn join(mut self: Box<Self>, mut client: Socket, read_already: Bytes) -> TunnelEnd {
        let end = match self.take() {
            Some(in_flight) => join(in_flight, &mut client, read_already).await,
            None => TunnelEnd::Cut,
        };
        // Nothing is waited for: a client that does not read would keep its connection for ever.
        client.shut_write();
        end
    }
}

impl<P: Permit> Drop for WorkerEnd<P> {
    fn drop(&mut self) {
        drop(self.take());
    }
}

/// Cuts it when its tenure has ended.
async fn cut_in_time<P: Permit>(in_flight: Rc<Kept<P>>) {
    poll_fn(|cx| match &mut *in_flight.borrow_mut() {
        Some(in_flight) => in_flight.poll_seal(cx),
        None => Poll::Ready(()),
    })
    .await;
    let sealed = in_flight.take();
    if let Some(sealed) = sealed {
        sealed.cut();
    }
}

async fn join<P: Permit>(mut in_flight: Box<InFlight<P>>, client: &mut Socket, read_already: Bytes) -> TunnelEnd {
    let Link::Http1(connection) = in_flight.link_mut() else { return TunnelEnd::Cut };
    let (worker, read_beyond) = connection.leave_http().await;
    client.unread(read_already);
    worker.unread(read_beyond);
    worker.keep_alive(); // It has to say nothing, nor has the client, which is asked from the beginning.
    let inflow = Rc::new(BodyState::new());
    inflow.goes_to(worker.clone());
    in_flight.watch_tunnel(&inflow);
    let half_ended = Rc::new(Notify::new());
    let overdue = stands_still(worker.clone(), half_ended.clone(), in_flight.late());
    let first_end = Rc::<Cell<Option<FirstEnd>>>::default();
    let mut from_worker = Guarded { worker, inflow: inflow.clone(), half_ended, first_end: first_end.clone() };
    let cut = poll_fn(|cx| {
        if in_flight.poll_seal(cx).is_ready() {
            return Poll::Ready(());
        }
        inflow.poll_cut(cx) // The news may have been too old for too long.
    });
    let copied = tokio::select! {
        biased;
        () = cut => None,
        () = overdue => Some(Err(io::ErrorKind::TimedOut.into())),
        copied = pass_both_ways(client, &mut from_worker) => Some(copied),
    };
    match copied {
        Some(Ok(())) => {
            // A worker that has ended first may not have taken what came behind that: it is not delivered later.
            if first_end.get() == Some(FirstEnd::Clients)
                && let Link::Http1(connection) = in_flight.link_mut()
            {
                connection.ends_in_order();
            }
            in_flight.ended();
            return TunnelEnd::Whole;
        }
        Some(Err(_)) if !inflow.is_cut() => in_flight.lost(),
        Some(Err(_)) | None => in_flight.cut(),
    }
    TunnelEnd::Cut
}

/// Waits until one side has ended and nothing has moved to the worker or from it for that long since.
async fn stands_still(worker: Socket, half_ended: Rc<Notify>, for_long: Duration) {
    half_ended.notified().await;
    let mut moved = None;
    while moved.replace(worker.bytes_moved()) != Some(worker.bytes_moved()) {
        sleep(for_long).await;
    }
}

/// The worker's socket, which takes what the client sends only as long as the tenure goes on.
struct Guarded {
    worker: Socket,
    inflow: Rc<BodyState>,
    /// Told when the worker has ended its side, or the client's end is passed on to it.
    half_ended: Rc<Notify>,
    first_end: Rc<Cell<Option<FirstEnd>>>,
}

/// Which side of a tunnel has ended first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FirstEnd {
    Clients,
    Workers,
}

impl Guarded {
    fn end(&self, of: FirstEnd) {
        self.first_end.set(self.first_end.get().or(Some(of)));
        self.half_ended.notify_one();
    }

    fn poll_way(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.inflow.way(cx.waker()) {
            Way::Open => Poll::Ready(Ok(())),
            Way::Paused => Poll::Pending,
            Way::Cut(_) => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }
}

impl AsyncRead for Guarded {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.worker).poll_read(cx, buffer))?;
        if buffer.filled().len() == before {
            self.end(FirstEnd::Workers);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Guarded {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_way(cx))?;
        Pin::new(&mut self.worker).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.worker).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_way(cx))?;
        self.end(FirstEnd::Clients);
        Pin::new(&mut self.worker).poll_shutdown(cx)
    }
}
