//! Takes what of a body has come with its head: short bodies in chunks go on as one piece.
//! It waits for nothing but a turn of the connection.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame};

/// In how many pieces at most a body may be here: they may be empty, and come without end.
const PIECES_MAX: usize = 64;
/// How often the connection is given a turn to bring the next piece: it may have that already.
const TURNS_MAX: usize = 2;

/// What of a body is here.
pub(super) struct Here<E> {
    pub(super) data: Bytes,
    /// What was found behind the data: trailers, or how the body failed.
    pub(super) next: Option<Result<Frame<Bytes>, E>>,
    /// Whether that is all of it.
    pub(super) is_all: bool,
}

impl<E> Here<E> {
    /// Nothing yet.
    pub(super) fn nothing() -> Here<E> {
        Here { data: Bytes::new(), next: None, is_all: false }
    }

    /// Reads pieces until they have so many bytes, or what follows has not come.
    pub(super) async fn read<B>(body: &mut B, bytes_wanted: usize) -> Here<E>
    where
        B: Body<Data = Bytes, Error = E> + Unpin,
    {
        let (mut here, mut pieces, mut bytes) = (Here::nothing(), Vec::new(), 0);
        while bytes < bytes_wanted && pieces.len() < PIECES_MAX {
            match next_here(body).await {
                Some(Some(Ok(frame))) => match frame.into_data() {
                    Ok(piece) => {
                        bytes += piece.len();
                        pieces.push(piece);
                    }
                    Err(trailers) => here.next = Some(Ok(trailers)),
                },
                Some(Some(Err(error))) => here.next = Some(Err(error)),
                // One that ends before its length is not whole.
                Some(None) => here.is_all = body.size_hint().exact().is_none_or(|left| left == 0),
                None => break,
            }
            here.is_all |= here.next.is_none() && body.is_end_stream();
            if here.is_all || here.next.is_some() {
                break;
            }
        }
        here.data = joined(pieces, bytes);
        here
    }
}

/// The next frame, or the end, if it is here.
async fn next_here<B: Body + Unpin>(
    body: &mut B,
) -> Option<Option<Result<Frame<B::Data>, B::Error>>> {
    let mut turns = 0;
    poll_fn(|cx| match Pin::new(&mut *body).poll_frame(cx) {
        Poll::Ready(frame) => Poll::Ready(Some(frame)),
        Poll::Pending if turns < TURNS_MAX => {
            turns += 1;
            cx.waker().wake_by_ref(); // Comes back behind the connection's task.
            Poll::Pending
        }
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

/// Pieces put together. A single one, the usual case, is not copied.
fn joined(mut pieces: Vec<Bytes>, bytes: usize) -> Bytes {
    if pieces.len() < 2 {
        return pieces.pop().unwrap_or_default();
    }
    let mut joined = BytesMut::with_capacity(bytes);
    pieces.iter().for_each(|piece| joined.extend_from_slice(piece));
    joined.freeze()
}
