//! What is spoken after `101 Switching Protocols`.

use bytes::Bytes;
use tokio::io::{AsyncWriteExt, copy_bidirectional_with_sizes};

use super::admitted::Permit;
use super::in_flight::InFlight;
use super::pool::Link;
use crate::wire::Socket;

/// The most that is under way in one direction.
const BUFFER_BYTES: usize = 16 * 1024;

/// The worker's end of a connection that has left HTTP. Its permit is held until both directions have ended.
pub struct WorkerEnd<P: Permit> {
    in_flight: InFlight<P>,
}

impl<P: Permit> WorkerEnd<P> {
    pub(super) fn new(in_flight: InFlight<P>) -> WorkerEnd<P> {
        WorkerEnd { in_flight }
    }

    /// Passes bytes both ways until both sides have ended theirs or one is lost.
    pub(super) async fn join(mut self: Box<Self>, client: Socket, read_already: Bytes) {
        let Link::Http1(connection) = self.in_flight.link_mut() else { return };
        let (worker, read_beyond) = connection.leave_http().await;
        client.unread(read_already);
        worker.unread(read_beyond);
        let (mut from_client, mut from_worker) = (client, worker);
        let copied =
            copy_bidirectional_with_sizes(&mut from_client, &mut from_worker, BUFFER_BYTES, BUFFER_BYTES).await;
        match copied {
            Ok(_) => self.in_flight.ended(),
            Err(_) => self.in_flight.lost(),
        }
        let _ = from_client.shutdown().await; // The client may have gone first.
    }
}
