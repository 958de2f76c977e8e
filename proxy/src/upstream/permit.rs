//! What lets a request out to the worker, and what becomes of that.

use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::time::Duration;

pub use fencepost_fence::tenure::TenureState;
use scopeguard::{ScopeGuard, guard};
use tokio::time::Instant;

use crate::wire::Socket;

/// A request with the permit that lets it out to the worker.
///
/// [`ReadyConnection::send`](super::ReadyConnection::send) takes nothing else. Code that makes
/// permits of type `P` decides what may be sent.
pub struct Admitted<R, P> {
    request: R,
    permit: P,
}

impl<R, P: Permit> Admitted<R, P> {
    /// A request and its permit.
    pub fn new(request: R, permit: P) -> Admitted<R, P> {
        Admitted { request, permit }
    }

    /// The request and its permit, apart again.
    pub fn into_parts(self) -> (R, P) {
        (self.request, self.permit)
    }
}

/// How the worker may still get something of a request that is given up, or will never be whole.
#[derive(Clone)]
pub struct LastBytes {
    /// Until when the kernel may deliver what it holds of the request.
    pub until: Instant,
    /// The connection that has to be reset before the request ceases to count, if it is there by
    /// then. `None` if it is gone, or goes on with other requests.
    pub connection: Option<Weak<Socket>>,
}

/// A request's place at the worker: held from just before its first byte is written until it is
/// told how that ended.
///
/// # Contract
///
/// `finished` is called exactly once, `lost` and `answered` at most once each and only before it,
/// `heard` any number of times between. None depends on the client: it may have
/// left long ago. A permit that comes back in [`SendError::Unsent`](super::SendError::Unsent) gets
/// no call.
pub trait Permit: 'static {
    /// The tenure that the request was admitted under, or whatever else has to last, for a request
    /// that takes so long that it may end meanwhile. `None` if the request depends on nothing. Once
    /// it was told `lost` it need not know any more.
    fn watch(&self) -> Option<Rc<dyn TenureWatch>> {
        None
    }

    /// Whether requests of this kind have no end of their own: they are cut when their tenure ends,
    /// and not waited for. Asked when it is sent.
    fn is_endless(&self) -> bool {
        false
    }

    /// Whether nobody but its client waits for its end. So its answer is not read for ever once the
    /// client has left. Asked when it is sent.
    fn may_be_left(&self) -> bool {
        false
    }

    /// The worker has been silent for longer than it may; or, if `how` is [`Ending::BodyCut`], it
    /// will never have the whole request, and what was given of that has not left its connection.
    /// The connection is still read: the end may yet be seen.
    fn lost(&mut self, _how: Ending, _: LastBytes) {}

    /// The worker has sent the head of its response, this long after the first byte. Called even if
    /// nobody waits for the response any more.
    fn answered(&self, _took: Duration) {}

    /// The worker has said something of a request that it had taken too long for, or will never
    /// have whole: it was at it until now.
    fn heard(&mut self) {}

    /// Until when the request counts, once it was told `lost`: its connection is read until then. `None`: for [`Timeouts::late`](super::Timeouts::late).
    fn counts_until(&self) -> Option<Instant> {
        None
    }

    /// The request is no longer seen at the worker. The kernel may deliver something of it until
    /// `last_bytes`.
    fn finished(self, how: Ending, last_bytes: Instant);
}

/// The tenure that a request was admitted under.
pub trait TenureWatch {
    /// How it is now.
    fn state(&self) -> TenureState;

    /// Completes when that may have changed by anything but time and news that come without a word
    /// ([`TenureWatch::fetch_news`]). To miss nothing, await it after a look at the state that was
    /// taken after this was called.
    fn changed(&self) -> Pin<Box<dyn Future<Output = ()> + '_>>;

    /// Has newer news looked for while they are too old. Says when to look at the state again at
    /// the latest: they may come without a word, as what dates many locks at once tells none of
    /// them.
    fn fetch_news(&self) -> Instant;

    /// For how long what the client sends may be held up before it is cut.
    fn pause_max(&self) -> Duration;

    /// Something of the request was cut on that account.
    fn cut(&self);
}

/// How a request's stay at the worker ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The worker's response has ended, and nothing more of the request will be written. It is
    /// over.
    Complete,
    /// The connection was lost before the response had ended. The request may still be running.
    Reset,
    /// The worker was silent for too long, or went on for too long after the client had left. It
    /// may still be running.
    TimedOut,
    /// The request was cut before all of it was written, and the response did not end. The worker
    /// may be working on the part that it has.
    BodyCut,
    /// We cut it, since its tenure has ended and it had no end of its own. The worker may be
    /// working on it.
    Cut,
}

/// A permit that learns its end in any case. At the latest, that is when it is dropped with its
/// request, because the worker thread is cut off.
pub(super) type Held<P> = ScopeGuard<P, fn(P)>;

/// Holds a permit.
pub(super) fn held<P: Permit>(permit: P) -> Held<P> {
    guard(permit, |permit| permit.finished(Ending::Reset, Instant::now()))
}
