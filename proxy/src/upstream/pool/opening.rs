//! Opening a connection for those who wait for one.

use std::rc::Rc;

use tokio::time::{Instant, timeout_at};

use super::{Place, Shared};
use crate::server::Protocol;
use crate::upstream::connect::{Opened, open};
use crate::upstream::error::UpstreamError;
use crate::upstream::http1::Http1;
use crate::upstream::http2::Http2;
use crate::upstream::quota::QuotaPermit;
use crate::upstream::target::Wants;

/// A connection that is being opened.
pub(super) struct Opening {
    pub(super) pool: Rc<Shared>,
    /// How many had ever waited when it began.
    pub(super) began: u64,
    pub(super) is_for_all: bool,
    /// `None` if it is for all, or taken.
    pub(super) place: Option<Place>,
    /// `None` once it is taken.
    pub(super) permit: Option<QuotaPermit>,
    pub(super) deadline: Instant,
}

impl Opening {
    pub(super) async fn run(mut self, wants: Wants) {
        let opened = timeout_at(self.deadline, self.open(wants))
            .await
            .unwrap_or(Err(UpstreamError::Timeout));
        if self.is_for_all {
            self.pool.has_failed.set(opened.is_err());
        }
        if let Err(error) = &opened {
            if matches!(error, UpstreamError::Tls { .. }) {
                self.pool.complain(error);
            }
            self.pool.fail(error, (wants, self.began), self.is_for_all);
        }
    }

    /// Opens it, and takes it in.
    async fn open(&mut self, wants: Wants) -> Result<(), UpstreamError> {
        let pool = Rc::clone(&self.pool);
        let opened = open(&pool.upstream, wants).await?;
        if wants == Wants::Either {
            pool.picked.set(opened.protocol);
        }
        let Opened { socket, .. } = &opened;
        let socket = socket.clone();
        match opened.protocol {
            Protocol::Http1
                if self.is_for_all && pool.http1_open.get() >= pool.upstream.connections_max => {}
            Protocol::Http1 => {
                let mut place = self.place.take().unwrap_or_else(|| pool.place());
                place.permit = self.permit.take();
                let made = Http1::new(socket, opened.made_with, Box::new(place)).await;
                pool.take_in(made.map_err(UpstreamError::handshake)?);
            }
            Protocol::Http2 => {
                let permit = self.permit.take().expect("it is opened once");
                let weak = Rc::downgrade(&pool);
                let changed = Rc::new(move || {
                    weak.upgrade().inspect(Shared::serve);
                });
                let begun = Http2::begin(opened, permit, pool.upstream.streams_max, changed).await;
                let connection = begun.inspect_err(|_| pool.complain_of_loss(&socket))?;
                pool.http2.borrow_mut().push(connection);
                pool.sweep();
            }
        }
        Ok(())
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        let pool = &self.pool;
        if self.is_for_all {
            pool.opening_for_all.set(false);
        } else {
            pool.opening_for_one.set(pool.opening_for_one.get() - 1);
        }
        self.place = None;
        self.permit = None;
        pool.serve();
    }
}
