//! What of a response comes right behind its head.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame};
use hyper::body::Incoming;

use crate::server::Protocol;

/// What of a response comes right behind its head.
#[derive(Default)]
pub(super) struct Here {
    pub(super) data: Bytes,
    /// What was found behind data that is passed on: trailers, or how it failed.
    pub(super) next: Option<Result<Frame<Bytes>, hyper::Error>>,
    pub(super) is_all: bool,
}

impl Here {
    /// Up to how much is read of a response that does not say how long it is, and in how many
    /// pieces.
    const BYTES_MAX: usize = 8 * 1024;
    const PIECES_MAX: usize = 8;
    /// How often the connection is given a turn to bring more.
    const TURNS_MAX: usize = 2;

    /// Reads what is here, and waits for no more than that.
    pub(super) async fn read(
        incoming: &mut Incoming,
        protocol: Protocol,
        is_endless: bool,
    ) -> Here {
        let mut here = Here::default();
        let length = incoming.size_hint().exact();
        // Behind a length of 0 over HTTP/2 there may be trailers, and what comes first would be
        // those.
        let is_short = length.is_some_and(|length| length > 0)
            || length.is_none() && protocol == Protocol::Http1;
        if is_endless || !is_short {
            return here;
        }
        let (mut pieces, mut turns) = (Vec::new(), 0);
        while pieces.len() < Here::PIECES_MAX {
            match poll_fn(|cx| Poll::Ready(Pin::new(&mut *incoming).poll_frame(cx))).await {
                Poll::Pending if turns < Here::TURNS_MAX => {
                    turns += 1;
                    let_others_run().await;
                    continue;
                }
                Poll::Pending => break,
                // One that ends before its length is not whole.
                Poll::Ready(None) => {
                    here.is_all = incoming.size_hint().exact().is_none();
                    break;
                }
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => pieces.push(data),
                    Err(trailers) => {
                        here.next = Some(Ok(trailers));
                        break;
                    }
                },
                Poll::Ready(Some(Err(error))) => {
                    here.next = Some(Err(error));
                    break;
                }
            }
            here.is_all = incoming.is_end_stream();
            let is_enough =
                length.is_some() || pieces.iter().map(Bytes::len).sum::<usize>() >= Here::BYTES_MAX;
            if here.is_all || is_enough {
                break;
            }
        }
        here.data = joined(pieces);
        here
    }
}

/// Lets the other tasks that are ready on this thread run once: the connection's task may have the
/// next piece already.
async fn let_others_run() {
    let mut has_waited = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut has_waited, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Pieces put together. A single one is not copied.
fn joined(mut pieces: Vec<Bytes>) -> Bytes {
    if pieces.len() < 2 {
        return pieces.pop().unwrap_or_default();
    }
    let mut joined = BytesMut::with_capacity(pieces.iter().map(Bytes::len).sum());
    pieces.iter().for_each(|piece| joined.extend_from_slice(piece));
    joined.freeze()
}
