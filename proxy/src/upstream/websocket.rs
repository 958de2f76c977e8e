//! Carries the bytes of a tunnel, after `101 Switching Protocols`.
//! It does not read what is spoken there.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use scopeguard::ScopeGuard;
use tokio::io::{AsyncRead, AsyncWriteExt, ReadBuf};
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep};

use super::at_worker::AtWorker;
use super::link::Link;
use super::permit::{Ending, Permit, TenureWatch};
use super::tenure::goes_on;
use crate::server::{Tunnel, TunnelEnd};
use crate::wire::Socket;

/// The most that is under way in one direction.
const PIECE_BYTES: usize = 16 * 1024;

/// Where a request whose worker has switched protocols waits for its client's end.
pub(super) type ToWorker = oneshot::Sender<ClientEnd>;

/// A client's connection that has left HTTP.
pub struct ClientEnd {
    socket: Socket,
    /// What was read of it already.
    read_already: Bytes,
    ended: oneshot::Sender<TunnelEnd>,
}

/// A side of a tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Client,
    Worker,
}

/// Joins a client's connection to the worker's.
pub(super) fn tunnel(worker: ToWorker) -> Tunnel {
    Box::new(|client, read_already| {
        Box::pin(async move {
            let (ended, end) = oneshot::channel();
            // Where the tunnel has been cut already, nobody takes it.
            let _ = worker.send(ClientEnd { socket: client.clone(), read_already, ended });
            let end = end.await.unwrap_or(TunnelEnd::Cut);
            // Nothing is waited for: a client that does not read would keep its connection for ever.
            client.shut_write();
            end
        })
    })
}

impl<P: Permit> AtWorker<P> {
    /// Passes bytes both ways until both sides have ended theirs, one is lost, one has ended and
    /// nothing moves for as long as a worker may go on unseen, or the tenure has ended: also before
    /// the client's end is there, since a client that leaves earlier answers unread lets it wait.
    pub(super) async fn tunnel(mut self: Box<Self>, client: oneshot::Receiver<ClientEnd>) {
        self.watch_tenure();
        let joined = tokio::select! {
            biased;
            () = self.tenure_end() => return self.end_tunnel(Ending::Cut),
            joined = client => joined,
        };
        let (Ok(client), Link::Http1(connection)) = (joined, &mut self.link) else {
            return self.end_tunnel(Ending::Reset);
        };
        let ClientEnd { socket: client, read_already, mut ended } = client;
        let (worker, read_beyond) = connection.leave_http().await;
        client.unread(read_already);
        worker.unread(read_beyond);
        worker.keep_alive(); // It has to say nothing, nor has the client, which is asked from the beginning.
        self.watch_tunnel();
        let (watch, late) = (self.watch.clone(), self.timeouts.late);
        let (first_end, half_ended) = (Cell::new(None), Notify::new());
        let note_end = |side| {
            first_end.set(first_end.get().or(Some(side)));
            half_ended.notify_one();
        };
        let ending = tokio::select! {
            biased;
            () = self.tenure_end() => Ending::Cut,
            () = stands_still(&worker, &half_ended, late) => Ending::Reset,
            () = ended.closed() => Ending::Reset,
            passed = async { tokio::try_join!(
                pass(client.clone(), worker.clone(), watch, || note_end(Side::Client)),
                pass(worker.clone(), client.clone(), None, || note_end(Side::Worker)),
            ) } => if passed.is_ok() { Ending::Complete } else { Ending::Reset },
        };
        // A worker that has ended first may not have taken what came behind that: it is not
        // delivered later.
        if ending == Ending::Complete
            && first_end.get() == Some(Side::Client)
            && let Link::Http1(connection) = &mut self.link
        {
            connection.ends_in_order();
        }
        self.end_tunnel(ending);
        let is_whole = ending == Ending::Complete;
        let _ = ended.send(if is_whole { TunnelEnd::Whole } else { TunnelEnd::Cut });
    }

    fn end_tunnel(self, how: Ending) {
        let AtWorker { link, permit, watch, .. } = self;
        if how == Ending::Cut {
            watch.iter().for_each(|watch| watch.cut());
        }
        drop(link);
        ScopeGuard::into_inner(permit).finished(how, Instant::now());
    }
}

/// Passes on what comes of one end, and its end behind that; each piece only while the tenure goes
/// on. `note_end` is called before the end is passed on.
async fn pass(
    mut from: Socket,
    mut to: Socket,
    watch: Option<Rc<dyn TenureWatch>>,
    note_end: impl FnOnce(),
) -> io::Result<()> {
    loop {
        let piece = next_piece(&mut from).await?;
        if let Some(watch) = &watch {
            goes_on(&**watch).await;
        }
        if piece.is_empty() {
            note_end();
            return to.shutdown().await;
        }
        to.write_all(&piece).await?;
        to.flush().await?;
    }
}

/// What comes next, empty at the end. Takes no room as long as there is nothing: of ten thousand
/// tunnels nearly all wait.
async fn next_piece(from: &mut Socket) -> io::Result<Bytes> {
    poll_fn(|cx| {
        let mut room = [MaybeUninit::uninit(); PIECE_BYTES];
        let mut room = ReadBuf::uninit(&mut room);
        ready!(Pin::new(&mut *from).poll_read(cx, &mut room))?;
        Poll::Ready(Ok(Bytes::copy_from_slice(room.filled())))
    })
    .await
}

/// Waits until one side has ended and nothing has moved to the worker or from it for that long
/// since.
async fn stands_still(worker: &Socket, half_ended: &Notify, for_long: Duration) {
    half_ended.notified().await;
    let mut moved = None;
    while moved.replace(worker.bytes_moved()) != Some(worker.bytes_moved()) {
        sleep(for_long).await;
    }
}
