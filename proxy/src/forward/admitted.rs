//! What lets a request out to the worker, and what becomes of that.

/// A request with what lets it out to the worker.
///
/// [`ReadyConnection::send`](super::ReadyConnection::send) takes nothing else. The proof is the permit: whoever makes
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

/// A request's place at the worker: held from just before its first byte is written until it is told how that ended.
///
/// # Contract
///
/// `finished` is called exactly once, `overdue` at most once and only before it. Neither depends on the client: it may
/// have left long ago. A permit that comes back in [`SendError::Unsent`](super::SendError::Unsent) gets neither call.
pub trait Permit: 'static {
    /// The worker has been silent for longer than it may. Its connection is still read, for
    /// [`Timeouts::late`](super::Timeouts::late): the end may yet be seen.
    fn overdue(&mut self) {}

    /// The request is no longer seen at the worker.
    fn finished(self, how: Ending);
}

/// How a request's stay at the worker ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The worker's response has ended, and nothing more of the request will be written. It is over.
    Complete,
    /// The connection was lost before the response had ended. The request may still be running.
    Reset,
    /// The worker was silent for too long, or went on for too long after the client had left. It may still be running.
    TimedOut,
    /// The request's body was cut, and the response did not end. The worker may be working on the part that it has.
    BodyCut,
}

/// A permit that is told of its end in any case: at the latest when it is dropped with its request, which happens when
/// the worker thread is cut off.
pub(super) struct Held<P: Permit>(Option<P>);

impl<P: Permit> Held<P> {
    pub(super) fn new(permit: P) -> Held<P> {
        Held(Some(permit))
    }

    pub(super) fn overdue(&mut self) {
        if let Some(permit) = &mut self.0 {
            permit.overdue();
        }
    }

    pub(super) fn finished(mut self, how: Ending) {
        if let Some(permit) = self.0.take() {
            permit.finished(how);
        }
    }

    /// Gives the permit back: its request has not been sent.
    pub(super) fn into_inner(mut self) -> P {
        self.0.take().expect("a permit is held until it is finished")
    }
}

impl<P: Permit> Drop for Held<P> {
    fn drop(&mut self) {
        if let Some(permit) = self.0.take() {
            permit.finished(Ending::Reset);
        }
    }
}
