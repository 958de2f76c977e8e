//! A machine on which a proxy is started, killed and started again, and the network on which it
//! depends. The proxies of several hosts are members of one group.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use fencepost_policy::Revision;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::checks::Seen;
use crate::disk::Disk;
use crate::ledger::Ledger;
use crate::life::Proxy;
use crate::store::Watches;

pub(crate) struct Host {
    pub(crate) number: usize,
    pub(crate) disk: Disk,
    pub(crate) ledger: Ledger,
    pub(crate) proxy: RefCell<Option<Rc<Proxy>>>,
    /// When the present life began.
    pub(crate) started: Cell<Instant>,
    pub(crate) seen: RefCell<BTreeMap<usize, Seen>>,
    pub(crate) watches: RefCell<Watches>,
    /// Up to which revision some life of the proxy has shown that it distrusts the store; nothing
    /// once that was accepted.
    pub(crate) noticed: Cell<Option<Revision>>,
    /// Up to which revision this life of the proxy does.
    pub(crate) distrusted: Cell<Option<Revision>>,
    pub(crate) unanswered: Cell<i64>,
    /// The proxy takes no requests any more.
    pub(crate) drains: Cell<bool>,
    /// For how long the proxies of this host have stood still.
    pub(crate) stood_still: Cell<Duration>,
    /// When one of them went on last.
    pub(crate) went_on: Cell<Option<Instant>>,
    /// Notified when a request has been let in.
    pub(crate) lets_in: Notify,
    /// Of which lock that was.
    pub(crate) last_let_in: Cell<usize>,
    /// Something befalls the proxy that nothing else may interrupt.
    pub(crate) is_taken: Cell<bool>,
    cut_off_until: Cell<Instant>,
}

impl Host {
    pub(crate) fn new(number: usize, start: Instant) -> Host {
        Host {
            number,
            disk: Disk::default(),
            ledger: Ledger::default(),
            proxy: RefCell::new(None),
            started: Cell::new(start),
            seen: RefCell::default(),
            watches: RefCell::default(),
            noticed: Cell::new(None),
            distrusted: Cell::new(None),
            unanswered: Cell::new(0),
            drains: Cell::new(false),
            stood_still: Cell::new(Duration::ZERO),
            went_on: Cell::new(None),
            lets_in: Notify::new(),
            last_let_in: Cell::new(0),
            is_taken: Cell::new(false),
            cut_off_until: Cell::new(start),
        }
    }

    pub(crate) fn proxy(&self) -> Option<Rc<Proxy>> {
        self.proxy.borrow().clone()
    }

    pub(crate) fn is_cut_off(&self) -> bool {
        Instant::now() < self.cut_off_until.get()
    }

    /// The store is out of reach of this host.
    pub(crate) fn cut_off(&self, until: Instant) {
        self.cut_off_until.set(until);
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "proxy {}", self.number)
    }
}
