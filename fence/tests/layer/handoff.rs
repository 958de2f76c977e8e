//! A tenure waits until nothing of the one before it runs, in the order of arrival.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use fencepost_fence::{FenceLayer, RequestBody, ResponseBody};
use fencepost_tests::{PATIENCE, eventually};
use http::{Request, Response};
use http_body_util::Full;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tower::service_fn;

use crate::scene::{
    Door, LONG, Log, SHORT, Scene, answer, outcome, request, running, send, text, verdict,
    waits_by_now,
};

/// A handler that waits before a door, then answers.
async fn behind(
    door: Door,
    log: Log,
    request: Request<RequestBody<Full<Bytes>>>,
) -> Response<Full<Bytes>> {
    let revision = running(&request).revision();
    log.add(format!("begin {revision}"));
    door.pass().await;
    log.add(format!("end {revision}"));
    Response::new(Full::from("done"))
}

/// Sends a request that waits before a door, and returns when it is there.
pub(crate) async fn waits_there(
    layer: &FenceLayer,
    door: &Door,
    log: &Log,
    owner: &'static str,
    revision: u64,
) -> JoinHandle<Response<ResponseBody<Full<Bytes>>>> {
    let (layer, inside, log) = (layer.clone(), door.clone(), log.clone());
    let handler = service_fn(move |request| {
        let (door, log) = (inside.clone(), log.clone());
        async move { Ok(behind(door, log, request).await) }
    });
    let sent = tokio::spawn(async move { send(&layer, handler, request(owner, revision)).await });
    timeout(PATIENCE, door.reached.opened()).await.expect("the request is let in");
    sent
}

#[tokio::test]
async fn a_new_tenure_waits_for_the_last_request_of_the_old_one() {
    let scene = Scene::new();
    let layer = scene.layer(|lock| lock.handoff_timeout(LONG));
    let (first, second, log) = (Door::default(), Door::default(), Log::default());
    let old = scene.takes("a");
    let one = waits_there(&layer, &first, &log, "a", old).await;
    let two = waits_there(&layer, &second, &log, "a", old).await;
    let new = scene.takes("b");
    let (layer_of_new, log_of_new) = (layer.clone(), log.clone());
    let handler = service_fn(move |request| {
        log_of_new.add(format!("begin {new}"));
        answer(request)
    });
    let third = tokio::spawn(async move { send(&layer_of_new, handler, request("b", new)).await });
    first.open.open();
    assert_eq!(text(one.await.unwrap()).await, "done");
    second.open.open();
    drop(two.await.unwrap());
    assert_eq!(outcome(&timeout(PATIENCE, third).await.unwrap().unwrap()), "200");
    let [begin, end] = ["begin", "end"].map(|what| format!("{what} {old}"));
    assert_eq!(log.lines(), [begin.clone(), begin, end.clone(), end, format!("begin {new}")]);
}

#[tokio::test]
async fn who_waits_too_long_is_told_so_and_the_barrier_still_stands() {
    let scene = Scene::new();
    let layer = scene.impatient_layer();
    let (door, log) = (Door::default(), Log::default());
    let old = scene.takes("a");
    let running = waits_there(&layer, &door, &log, "a", old).await;
    let new = scene.takes("b");
    for _ in 0..3 {
        let refused = send(&layer, service_fn(answer), request("b", new)).await;
        assert_eq!(outcome(&refused), "503 handoff-timeout");
        assert_eq!(refused.headers()["retry-after"], "1");
    }
    assert_eq!(
        verdict(&layer, "a", old).await,
        "412 stale-tenure",
        "the old tenure is over all the same"
    );
    door.open.open();
    drop(running.await.unwrap());
    assert_eq!(verdict(&layer, "b", new).await, "200");
}

#[tokio::test]
async fn those_that_wait_are_let_in_in_the_order_in_which_they_came() {
    let scene = Scene::new();
    let layer = scene.layer(|lock| lock.handoff_timeout(LONG));
    let (door, log) = (Door::default(), Log::default());
    let old = scene.takes("a");
    let running = waits_there(&layer, &door, &Log::default(), "a", old).await;
    let new = scene.is_known_to_take("b").await;
    let mut waiting = Vec::new();
    for number in 0..20 {
        let (log, layer) = (log.clone(), layer.clone());
        let handler = service_fn(move |request| {
            log.add(number);
            answer(request)
        });
        let mut sent =
            Box::pin(async move { outcome(&send(&layer, handler, request("b", new)).await) });
        // It needs not ask the store, so that the first look brings it to its place.
        waits_by_now(&mut sent).await;
        waiting.push(tokio::spawn(sent));
    }
    door.open.open();
    drop(running.await.unwrap());
    // The barrier is open, and the waiting requests have not been woken yet. A new request queues
    // behind them.
    let last = log.clone();
    let handler = service_fn(move |request| {
        last.add(20);
        answer(request)
    });
    assert_eq!(outcome(&send(&layer, handler, request("b", new)).await), "200");
    for waits in waiting {
        assert_eq!(timeout(PATIENCE, waits).await.unwrap().unwrap(), "200");
    }
    assert_eq!(log.lines(), (0..=20).map(|number| number.to_string()).collect::<Vec<_>>());
}

/// The barrier stays closed to a later request until the handler of the first waiter has begun,
/// even if the later request runs on a faster thread.
#[tokio::test]
async fn nobody_overtakes_a_waiter_before_its_handler_begins() {
    let scene = Scene::new();
    let layer = scene.layer(|lock| lock.handoff_timeout(LONG));
    let (door, log) = (Door::default(), Log::default());
    let old = scene.takes("a");
    let running = waits_there(&layer, &door, &Log::default(), "a", old).await;
    let new = scene.is_known_to_take("b").await;
    let (of_late, noted) = (layer.clone(), log.clone());
    let handler = service_fn(move |request| {
        let (layer, log) = (of_late.clone(), noted.clone());
        async move {
            let mut late = Box::pin(verdict(&layer, "b", new));
            tokio::select! {
                biased;
                answered = &mut late => log.add(format!("overtaken: {answered}")),
                () = std::future::ready(()) => log.add("began"),
            }
            answer(request).await
        }
    });
    let mut waits = Box::pin(send(&layer, handler, request("b", new)));
    waits_by_now(&mut waits).await;
    door.open.open();
    drop(running.await.unwrap());
    assert_eq!(outcome(&waits.await), "200");
    assert_eq!(log.lines(), ["began"]);
}

/// Those behind it need not ask: their layer takes older news.
#[tokio::test]
async fn a_waiter_with_old_news_lets_others_pass_while_it_asks() {
    let scene = Scene::new();
    let max_age = SHORT * 10;
    let asks =
        scene.layer(|lock| lock.handoff_timeout(LONG).max_age(max_age).confirm_timeout(SHORT * 50));
    let layer = scene.layer(|lock| lock.handoff_timeout(LONG).max_age(LONG));
    let (door, log) = (Door::default(), Log::default());
    let old = scene.takes("a");
    let running = waits_there(&layer, &door, &log, "a", old).await;
    let new = scene.is_known_to_take("b").await;
    let [mut first, mut second] = [&asks, &layer].map(|layer| Box::pin(verdict(layer, "b", new)));
    tokio::select! {
        biased;
        answered = &mut first => panic!("{answered}"),
        answered = &mut second => panic!("{answered}"),
        () = std::future::ready(()) => {}
    }
    let before = scene.store.calls().reads;
    eventually("there are news since it came", async || {
        (scene.store.calls().reads >= before + 2).then_some(())
    })
    .await;
    scene.store.pause();
    let impatient =
        scene.layer(|lock| lock.handoff_timeout(SHORT).max_age(max_age).confirm_timeout(SHORT));
    let is_unsure =
        async || (verdict(&impatient, "b", new).await == "503 unverifiable").then_some(());
    eventually("its news are too old", is_unsure).await;
    door.open.open();
    drop(running.await.unwrap());
    tokio::select! {
        biased;
        answered = &mut second => assert_eq!(answered, "200"),
        answered = &mut first => panic!("{answered}"),
    }
    scene.store.resume();
    assert_eq!(first.await, "200");
}

#[tokio::test]
async fn requests_let_in_in_order_run_side_by_side() {
    let scene = Scene::new();
    let layer = scene.layer(|lock| lock.handoff_timeout(LONG));
    let (door, log) = (Door::default(), Log::default());
    let old = scene.takes("a");
    let running = waits_there(&layer, &door, &log, "a", old).await;
    let new = scene.is_known_to_take("b").await;
    // Each answers when all are there.
    let together = Arc::new(tokio::sync::Barrier::new(3));
    let sent = (0..3).map(|_| {
        let (layer, together) = (layer.clone(), Arc::clone(&together));
        let handler = service_fn(move |request| {
            let together = Arc::clone(&together);
            async move {
                together.wait().await;
                answer(request).await
            }
        });
        tokio::spawn(async move { outcome(&send(&layer, handler, request("b", new)).await) })
    });
    let sent: Vec<_> = sent.collect();
    tokio::task::yield_now().await;
    door.open.open();
    drop(running.await.unwrap());
    for sent in sent {
        assert_eq!(timeout(PATIENCE, sent).await.unwrap().unwrap(), "200");
    }
}

#[tokio::test]
async fn a_thousand_wait_at_a_barrier_and_one_more_is_refused() {
    let scene = Scene::new();
    let layer = scene.layer(|lock| lock.handoff_timeout(LONG));
    let (door, log) = (Door::default(), Log::default());
    let old = scene.takes("a");
    let running = waits_there(&layer, &door, &log, "a", old).await;
    let new = scene.is_known_to_take("b").await;
    let mut waiting = Vec::new();
    for _ in 0..1000 {
        let mut sent = Box::pin(verdict(&layer, "b", new));
        waits_by_now(&mut sent).await;
        waiting.push(sent);
    }
    assert_eq!(verdict(&layer, "b", new).await, "503 handoff-timeout");
    drop(waiting.pop());
    door.open.open();
    drop(running.await.unwrap());
    for waits in waiting {
        assert_eq!(waits.await, "200");
    }
}

/// Is ready once it was asked, as services with limits are.
#[derive(Default)]
struct AsksFirst {
    is_ready: bool,
}

impl Clone for AsksFirst {
    fn clone(&self) -> AsksFirst {
        AsksFirst::default()
    }
}

impl tower::Service<Request<RequestBody<Full<Bytes>>>> for AsksFirst {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Response<Full<Bytes>>, Infallible>>;

    fn poll_ready(
        &mut self,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), Infallible>> {
        self.is_ready = true;
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<RequestBody<Full<Bytes>>>) -> Self::Future {
        assert!(std::mem::take(&mut self.is_ready), "called without having been asked");
        std::future::ready(Ok(Response::new(Full::from("done"))))
    }
}

#[tokio::test]
async fn the_service_that_is_called_is_the_one_that_was_ready() {
    let scene = Scene::new();
    let layer = scene.layer(|lock| lock);
    let revision = scene.takes("a");
    let mut service = tower::Layer::layer(&layer, AsksFirst::default());
    for _ in 0..2 {
        let ready = tower::ServiceExt::ready(&mut service).await.unwrap();
        let answered = tower::Service::call(ready, request("a", revision)).await.unwrap();
        assert_eq!(text(answered).await, "done");
    }
}
