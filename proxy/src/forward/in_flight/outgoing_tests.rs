use std::cell::Cell;
use std::pin::Pin;

use http::Request;
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::task::{LocalSet, yield_now};
use tokio::time::Instant;

use super::*;
use crate::downstream::Protocol;
use crate::forward::TenureWatch;
use crate::forward::http1::{First, HeadFuture};
use crate::forward::pool::{Place, Pool};
use crate::forward::request_body::RequestBody;
use crate::forward::upstream::{Speaks, Timeouts, Upstream, UpstreamAddress};
use crate::wire::{Background, Socket, caught_up};

#[derive(Clone, Default)]
struct Tenure {
    has_ended: Rc<Cell<bool>>,
    finished: Rc<Cell<Option<Ending>>>,
}

impl Permit for Tenure {
    fn watch(&self) -> Option<Rc<dyn TenureWatch>> {
        Some(Rc::new(self.clone()))
    }

    fn finished(self, how: Ending, _: Instant) {
        self.finished.set(Some(how));
    }
}

impl TenureWatch for Tenure {
    fn standing(&self) -> TenureState {
        let until = Instant::now() + Duration::from_secs(60);
        if self.has_ended.get() { TenureState::Ended } else { TenureState::Good { until } }
    }

    fn changed(&self) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        Box::pin(poll_fn(|_| if self.has_ended.get() { Poll::Ready(()) } else { Poll::Pending }))
    }

    fn fetch_news(&self) -> Instant {
        Instant::now()
    }

    fn pause_max(&self) -> Duration {
        Duration::ZERO
    }

    fn cut(&self) {}
}

/// A request that was given to a connection.
async fn sent(ours: UnixStream, tenure: &Tenure) -> (InFlight<Tenure>, HeadFuture) {
    let background = Background::default();
    let (place, outbox) = (Place::for_tests(), background.outbox().clone());
    let mut connection = Http1::new(Socket::upstream(ours.into()), None, place, outbox).await.unwrap();
    let request = Request::get("/").header("host", "test").body(RequestBody::Empty).unwrap();
    let head = connection.send(Box::new(request));
    let address = UpstreamAddress::Unix("/nowhere".into());
    let pool = Pool::new(Upstream::new(address, Speaks::Cleartext(Protocol::Http1)), background);
    let outgoing = Outgoing { body: None, unwritten: None, is_head: false, has_body: false };
    let link = Link::Http1(Box::new(connection));
    (InFlight::new(link, pool, tenure.clone(), outgoing, Timeouts::default(), Instant::now()), head)
}

/// In the turn in which its answer had ended.
#[tokio::test]
async fn an_upload_that_is_cut_right_behind_its_answer_is_over_when_its_worker_has_closed() {
    let work = async {
        let (tenure, (ours, worker)) = (Tenure::default(), UnixStream::pair().unwrap());
        let (mut in_flight, _head) = sent(ours, &tenure).await;
        let body = Rc::new(BodyState::new());
        let Link::Http1(connection) = &in_flight.link else { unreachable!() };
        body.goes_to(connection.socket().clone());
        in_flight.body = Some(Rc::clone(&body));
        Box::new(in_flight).complete();
        body.seal();
        for _ in 0..100 {
            yield_now().await;
        }
        assert_eq!(tenure.finished.get(), None, "the worker may still be reading");
        drop(worker);
        while tenure.finished.get().is_none() {
            yield_now().await;
        }
        assert_eq!(tenure.finished.get(), Some(Ending::Complete));
    };
    LocalSet::new().run_until(work).await;
}

async fn until_end(worker: &mut UnixStream) -> Vec<u8> {
    let mut read = Vec::new();
    let end = timeout(Duration::from_secs(5), worker.read_to_end(&mut read)).await;
    assert!(end.is_ok(), "no end, but {:?}", String::from_utf8_lossy(&read));
    read
}

/// As the last of a long one is, if it is short. That it was not left yet was taken for its being written.
#[tokio::test]
async fn what_waits_for_the_end_of_a_turn_is_cut_by_who_hears_of_the_end_before() {
    let work = async {
        let (tenure, (ours, mut worker)) = (Tenure::default(), UnixStream::pair().unwrap());
        let (mut in_flight, mut head) = sent(ours, &tenure).await;
        assert!(in_flight.watch_tenure());
        poll_fn(|cx| {
            assert!(in_flight.poll_driven(cx, First::Drive, |cx| head.as_mut().poll(cx)).is_pending());
            assert!(in_flight.poll_seal(cx).is_pending());
            tenure.has_ended.set(true);
            assert!(in_flight.poll_seal(cx).is_ready());
            assert!(in_flight.poll_cut_left(cx).is_pending());
            Poll::Ready(())
        })
        .await;
        yield_now().await;
        assert_eq!(until_end(&mut worker).await, b"");
    };
    LocalSet::new().run_until(work).await;
}

/// Its tenure was not watched yet: that began when the next try had failed as well.
#[tokio::test]
async fn what_could_not_be_written_at_the_end_of_its_turn_is_not_tried_again_without_a_look() {
    let work = async {
        let (tenure, (ours, mut worker)) = (Tenure::default(), UnixStream::pair().unwrap());
        let mut before = 0;
        while let Ok(written) = ours.try_write(&[0; 1024]) {
            before += written;
        }
        let (mut in_flight, mut head) = sent(ours, &tenure).await;
        poll_fn(|cx| {
            assert!(in_flight.poll_driven(cx, First::Drive, |cx| head.as_mut().poll(cx)).is_pending());
            in_flight.watch_if_left(cx);
            Poll::Ready(())
        })
        .await;
        while !in_flight.is_held_up() {
            yield_now().await;
        }
        worker.read_exact(&mut vec![0; before]).await.unwrap();
        caught_up().await; // The runtime has heard that there is room.
        tenure.has_ended.set(true);
        poll_fn(|cx| {
            assert!(in_flight.poll_driven(cx, First::Drive, |cx| head.as_mut().poll(cx)).is_pending());
            Poll::Ready(())
        })
        .await;
        assert_eq!(until_end(&mut worker).await, b"");
    };
    LocalSet::new().run_until(work).await;
}
