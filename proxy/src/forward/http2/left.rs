//! Finding out what HTTP/2 did not write when it had its turn.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::task::{Context, Waker};

use crate::forward::unwritten::HandedOver;
use crate::wire::Socket;

/// Those of a connection who want to hear if something of what they have just handed over is left when it has had its turn.
///
/// Nobody says when that was. hyper's task gives h2 what it was handed when it has its next turn, and the connection's writes it in its own,
/// which comes before hyper's next but one. So hyper's task looks, and its second look is late enough.
pub(super) struct Left {
    socket: Socket,
    asking: RefCell<Vec<Asking>>,
    /// Whether nobody looks any more.
    has_ended: Cell<bool>,
}

struct Asking {
    handed_over: Arc<HandedOver>,
    task: Waker,
    looked_at: bool,
}

impl Left {
    pub(super) fn new(socket: Socket) -> Left {
        Left { socket, asking: RefCell::default(), has_ended: Cell::new(false) }
    }

    /// Has the task woken soon if something is left by then. False if nobody looks any more.
    pub(super) fn ask(&self, handed_over: &Arc<HandedOver>, cx: &Context<'_>) -> bool {
        if self.has_ended.get() {
            return false;
        }
        let (handed_over, task) = (Arc::clone(handed_over), cx.waker().clone());
        self.asking.borrow_mut().push(Asking { handed_over, task, looked_at: false });
        true
    }

    /// Looks at what has been asked for, after hyper has had its turn. Has it given another as long as something is to be looked at again.
    pub(super) fn look(&self, cx: &Context<'_>) {
        let is_blocked = self.socket.is_write_blocked();
        let mut asking = self.asking.borrow_mut();
        asking.retain_mut(|asking| {
            if !is_blocked && asking.handed_over.is_put_down() {
                return false;
            }
            let is_left = std::mem::replace(&mut asking.looked_at, true);
            if is_left {
                asking.task.wake_by_ref();
            }
            !is_left
        });
        if !asking.is_empty() {
            cx.waker().wake_by_ref();
        }
    }

    /// Nobody looks any more: whoever asked is to see for itself.
    pub(super) fn end(&self) {
        self.has_ended.set(true);
        self.asking.take().iter().for_each(|asking| asking.task.wake_by_ref());
    }
}
