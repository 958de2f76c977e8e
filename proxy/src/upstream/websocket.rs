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

use super::at_worker::AtWorker;
use super::both_ways::pass_both_ways;
use super::link::Link;
use super::permit::{Ending, Permit, TenureWatch};
use super::tenure::{PieceCheck, Way};
use crate::server::TunnelEnd;
use crate::wire::Socket;

/// The worker's end of a connection that has left HTTP. Its permit is held until both directions
/// have ended, or one has and nothing moves for as long as a worker may go on unseen, or until it
/// is cut because the tenure has ended, be the client's end there by then or not: a client that
/// leaves the answers before it unread lets it wait.
pub struct WorkerEnd<P: Permit> {
    at_worker: Rc<Kept<P>>,
    /// The task that cuts it as long as it is not joined, if its request depends on a tenure.
    watcher: Option<AbortHandle>,
}

/// `None` once it is joined, or cut.
type Kept<P> = RefCell<Option<Box<AtWorker<P>>>>;

impl<P: Permit> WorkerEnd<P> {
    pub(super) fn new(mut at_worker: Box<AtWorker<P>>) -> WorkerEnd<P> {
        at_worker.watch_tenure();
        let is_watched = at_worker.watch().is_some();
        let at_worker = Rc::new(RefCell::new(Some(at_worker)));
        let watcher = is_watched
            .then(|| tokio::task::spawn_local(cut_in_time(Rc::clone(&at_worker))).abort_handle());
        WorkerEnd { at_worker, watcher }
    }

    /// What is left of it, if it has not been cut. It is watched no more.
    fn take(&mut self) -> Option<Box<AtWorker<P>>> {
        if let Some(watcher) = self.watcher.take() {
            watcher.abort();
        }
        self.at_worker.take()
    }

    /// Passes bytes both ways until both sides have ended theirs, one is lost, or has ended and
    /// does not hear that the other has not, or the tenure has ended.
    pub(super) async fn join(
        mut self: Box<Self>,
        mut client: Socket,
        read_already: Bytes,
    ) -> TunnelEnd {
        let end = match self.take() {
            Some(at_worker) => join(at_worker, &mut client, read_already).await,
            None => TunnelEnd::Cut,
        };
        // Nothing is waited for: a client that does not read would keep its connection for ever.
        client.shut_write();
        end
    }
}

impl<P: Permit> Drop for WorkerEnd<P> {
    fn drop(&mut self) {
        if let Some(at_worker) = self.take() {
            at_worker.end_tunnel(Ending::Reset);
        }
    }
}

/// Cuts it when its tenure has ended.
async fn cut_in_time<P: Permit>(kept: Rc<Kept<P>>) {
    poll_fn(|cx| match &mut *kept.borrow_mut() {
        Some(at_worker) => at_worker.poll_tenure_end(cx),
        None => Poll::Ready(()),
    })
    .await;
    let cut = kept.take();
    if let Some(at_worker) = cut {
        at_worker.end_tunnel(Ending::Cut);
    }
}

async fn join<P: Permit>(
    mut at_worker: Box<AtWorker<P>>,
    client: &mut Socket,
    read_already: Bytes,
) -> TunnelEnd {
    let Link::Http1(connection) = at_worker.link_mut() else { return TunnelEnd::Cut };
    let (worker, read_beyond) = connection.leave_http().await;
    client.unread(read_already);
    worker.unread(read_beyond);
    worker.keep_alive(); // It has to say nothing, nor has the client, which is asked from the beginning.
    let half_ended = Rc::new(Notify::new());
    let overdue = stands_still(worker.clone(), Rc::clone(&half_ended), at_worker.late());
    let ends = Rc::<Ends>::default();
    at_worker.watch_tunnel();
    let (watch, check) = (at_worker.watch(), PieceCheck::default());
    let mut from_worker = Guarded { worker, watch, check, half_ended, ends: Rc::clone(&ends) };
    let copied = tokio::select! {
        biased;
        () = poll_fn(|cx| at_worker.poll_tenure_end(cx)) => None,
        () = overdue => Some(Err(io::ErrorKind::TimedOut.into())),
        copied = pass_both_ways(client, &mut from_worker) => Some(copied),
    };
    let ending = match copied {
        Some(Ok(())) => {
            // A worker that has ended first may not have taken what came behind that: it is not
            // delivered later.
            if ends.first.get() == Some(Side::Client)
                && let Link::Http1(connection) = at_worker.link_mut()
            {
                connection.ends_in_order();
            }
            Ending::Complete
        }
        Some(Err(_)) if !ends.is_cut.get() => Ending::Reset,
        Some(Err(_)) | None => Ending::Cut,
    };
    at_worker.end_tunnel(ending);
    if ending == Ending::Complete { TunnelEnd::Whole } else { TunnelEnd::Cut }
}

/// Waits until one side has ended and nothing has moved to the worker or from it for that long
/// since.
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
    watch: Option<Rc<dyn TenureWatch>>,
    check: PieceCheck,
    /// Told when the worker has ended its side, or the client's end is passed on to it.
    half_ended: Rc<Notify>,
    ends: Rc<Ends>,
}

/// How a tunnel has ended so far.
#[derive(Default)]
struct Ends {
    first: Cell<Option<Side>>,
    is_cut: Cell<bool>,
}

/// A side of a tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Client,
    Worker,
}

impl Guarded {
    fn end(&self, of: Side) {
        self.ends.first.set(self.ends.first.get().or(Some(of)));
        self.half_ended.notify_one();
    }

    fn poll_way(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(watch) = &self.watch else { return Poll::Ready(Ok(())) };
        match self.check.way(watch, cx) {
            Way::Open => Poll::Ready(Ok(())),
            Way::Paused => Poll::Pending,
            Way::Cut => {
                self.ends.is_cut.set(true);
                Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))
            }
        }
    }
}

impl AsyncRead for Guarded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.worker).poll_read(cx, buffer))?;
        if buffer.filled().len() == before {
            self.end(Side::Worker);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Guarded {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_way(cx))?;
        Pin::new(&mut self.worker).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.worker).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_way(cx))?;
        self.end(Side::Client);
        Pin::new(&mut self.worker).poll_shutdown(cx)
    }
}
