//! A proxy that forwards everything, between raw clients and raw workers. The test decides what
//! happens when.

mod client;
mod frames;
mod http2;
mod proxy;
mod scene;
mod tenures;
mod tls;
mod worker;

pub(crate) use client::{
    Client, assert_field, assert_is_asked, field, write_until_blocked, write_zeros,
};
pub(crate) use frames::{Frame, Frames};
pub(crate) use http2::{Http2Client, Http2Worker, read, some};
pub(crate) use proxy::{Event, Proxy, Settings};
pub(crate) use scene::Scene;
pub(crate) use tenures::Tenures;
pub(crate) use tls::{Certificates, TlsPeer, TlsWorker, trusting};
pub(crate) use worker::{Peer, Worker};

use std::time::Duration;

/// Longer than anything takes that works.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// Long enough for what ought not to happen to be seen if it does.
pub(crate) const MOMENT: Duration = Duration::from_millis(150);
