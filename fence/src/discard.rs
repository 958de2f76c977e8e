//! What is left of the body of a request that is answered without it.

use std::pin::pin;

use bytes::Buf;
use http::Version;
use http::header::EXPECT;
use http::request::Parts;
use http_body::Body;
use http_body_util::BodyExt;
use tokio::time::timeout;

use crate::refusal::{DISCARD_BYTES_MAX, DISCARD_TIMEOUT};

/// Reads a body that nobody wants and throws it away, within bounds, in a task of its own. Over
/// HTTP/1 a server ends the connection of a request that it has not read, and a client that writes
/// everything before it reads would see a reset in place of the answer.
///
/// What the client holds back until it sees `100 Continue` is not asked for.
pub(crate) fn discard<B: Body + Send + 'static>(head: &Parts, body: B) {
    if !body.is_end_stream() && !is_held_back(head) {
        tokio::spawn(read_out(body));
    }
}

fn is_held_back(head: &Parts) -> bool {
    let mut expectations = head.headers.get_all(EXPECT).iter();
    let waits = expectations
        .any(|expectation| expectation.as_bytes().eq_ignore_ascii_case(b"100-continue"));
    head.version == Version::HTTP_11 && waits
}

/// Reads a body and throws it away, to its end or as far as that may go: [`DISCARD_BYTES_MAX`] and
/// [`DISCARD_TIMEOUT`].
pub async fn read_out<B: Body>(body: B) {
    let mut body = pin!(body);
    let reading = async {
        let mut left = DISCARD_BYTES_MAX;
        while let Some(Ok(frame)) = body.frame().await {
            let bytes = frame.data_ref().map_or(0, Buf::remaining) as u64;
            let Some(rest) = left.checked_sub(bytes) else { return };
            left = rest;
        }
    };
    // Too late is as good as read: either way the body is dropped now.
    let _ = timeout(DISCARD_TIMEOUT, reading).await;
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::pin::Pin;
    use std::task::{Context, Poll};
    use std::time::Duration;

    use bytes::Bytes;
    use http::Request;
    use http_body::Frame;
    use tokio::sync::mpsc;
    use tokio::time::Instant;

    use super::*;

    /// A body without an end: pieces of 1 MiB, each of which is told, or none that ever comes.
    struct Endless {
        comes: bool,
        told: mpsc::UnboundedSender<()>,
    }

    impl Body for Endless {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            static PIECE: [u8; 1 << 20] = [0; 1 << 20];
            let _ = self.told.send(());
            if self.comes {
                Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&PIECE)))))
            } else {
                Poll::Pending
            }
        }
    }

    /// How often a body is looked at before it is given up, and when.
    async fn looks(comes: bool, expect: Option<&str>) -> (usize, Duration) {
        let (told, mut looks) = mpsc::unbounded_channel();
        let mut request = Request::new(());
        expect.map(|expect| request.headers_mut().insert(EXPECT, expect.parse().unwrap()));
        let since = Instant::now();
        discard(&request.into_parts().0, Endless { comes, told });
        let mut count = 0;
        while looks.recv().await.is_some() {
            count += 1;
        }
        (count, since.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_nobody_wants_is_read_up_to_16_mib_or_5_s() {
        assert_eq!(looks(true, None).await.0, 17);
        let (looks, waited) = looks(false, None).await;
        assert!(
            looks >= 1 && waited >= Duration::from_secs(5) && waited < Duration::from_secs(6),
            "{waited:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_is_held_back_is_not_asked_for() {
        assert_eq!(looks(true, Some("100-Continue")).await, (0, Duration::ZERO));
    }
}
