//! What a request has to present, and what it is told.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use fencepost_fence::{Fence, InvalidLock, Layout, Refused, Rejection, RequestBody};
use fencepost_tests::PATIENCE;
use http::{Request, Response};
use http_body_util::Full;
use tokio::time::timeout;
use tower::service_fn;

use crate::scene::{
    LOCK, LONG, Log, Scene, answer, outcome, request, running, send, text, verdict,
};

fn bare(headers: &[(&'static str, &str)]) -> Request<Full<Bytes>> {
    let mut request = Request::post("/apply").body(Full::default()).unwrap();
    for (name, value) in headers {
        request.headers_mut().append(*name, value.parse().unwrap());
    }
    request
}

#[tokio::test]
async fn a_missing_or_ambiguous_token_never_reaches_the_handler() {
    let scene = Scene::new();
    let revision = scene.takes("a").to_string();
    let layer = scene.layer(|lock| lock);
    let token = [("fence-owner", "a"), ("fence-revision", &*revision)];
    let log = Log::default();
    let counted = log.clone();
    let handler = service_fn(move |request| {
        counted.add("handled");
        answer(request)
    });
    for (headers, expected) in [
        (vec![], "428 token-missing"),
        (vec![token[0]], "428 token-missing"),
        (vec![token[1]], "428 token-missing"),
        (vec![token[0], token[1], token[1]], "400 token-malformed"),
        (vec![token[0], token[0], token[1]], "400 token-malformed"),
        (vec![token[0], ("fence-revision", "+1")], "400 token-malformed"),
        (vec![token[0], ("fence-revision", "01")], "400 token-malformed"),
        (vec![token[0], token[1], ("connection", "close, Fence-Revision")], "400 token-malformed"),
        (vec![token[0], ("fence-revision", "9223372036854775807")], "412 ahead-of-store"),
        (vec![("fence-owner", "b"), token[1]], "412 not-owner"),
    ] {
        assert_eq!(
            outcome(&send(&layer, handler.clone(), bare(&headers)).await),
            expected,
            "{headers:?}"
        );
    }
    assert_eq!(log.lines(), [""; 0]);
    assert_eq!(outcome(&send(&layer, handler, bare(&token)).await), "200");
    assert_eq!(log.lines(), ["handled"]);
}

#[tokio::test]
async fn the_headers_may_have_other_names() {
    let scene = Scene::new();
    let revision = scene.takes("a");
    let names = ["x-owner", "x-revision", "x-lock"].map(http::HeaderName::from_static);
    let [owner, number, lock] = names;
    let layer = scene.layer(|builder| builder.headers(owner, number, lock));
    assert_eq!(verdict(&layer, "a", revision).await, "428 token-missing");
    let named = bare(&[("x-owner", "a"), ("x-revision", &revision.to_string())]);
    assert_eq!(outcome(&send(&layer, service_fn(answer), named).await), "200");
}

#[tokio::test]
async fn a_refusal_is_a_problem_document_with_an_extension() {
    let scene = Scene::new();
    let revision = scene.takes("a");
    scene.takes("b");
    let layer = scene.layer(|lock| lock);
    let refused = send(&layer, service_fn(answer), request("a", revision)).await;
    assert_eq!(refused.headers()["content-type"], "application/problem+json");
    assert_eq!(refused.headers()["cache-control"], "no-store");
    let lock = Some(fencepost_fence::LockKey::new(LOCK).unwrap());
    assert_eq!(refused.extensions().get(), Some(&Refused { reason: Rejection::StaleTenure, lock }));
    let decision = refused.headers()["fence-decision"].to_str().unwrap().to_owned();
    let problem: serde_json::Value = serde_json::from_str(&text(refused).await).unwrap();
    assert_eq!(problem["reason"], "stale-tenure");
    assert_eq!(problem["status"], 412);
    assert_eq!(problem["lock"], LOCK);
    assert_eq!(problem["decision"], *decision);
    assert_eq!(problem["forwarded"], false);
    assert!(
        !problem.to_string().contains("\"b\""),
        "the present owner is no business of a zombie's: {problem}"
    );
    let again = send(&layer, service_fn(answer), request("a", revision)).await;
    assert_ne!(again.headers()["fence-decision"], *decision);
}

#[tokio::test]
async fn a_grpc_request_is_refused_as_grpc_does() {
    let scene = Scene::new();
    let layer = scene.layer(|lock| lock);
    let call = bare(&[("content-type", "application/grpc")]);
    let refused = send(&layer, service_fn(answer), call).await;
    assert_eq!(outcome(&refused), "200 token-missing");
    assert_eq!(refused.headers()["grpc-status"], "9");
}

#[tokio::test]
async fn fence_headers_of_a_handler_are_removed_those_of_a_fence_kept() {
    let scene = Scene::new();
    let revision = scene.takes("a");
    let layer = scene.layer(|lock| lock);
    let claims = service_fn(async |_: Request<RequestBody<Full<Bytes>>>| {
        let response =
            Response::builder().header("fence-reason", "no-owner").header("fence-decision", "d");
        Ok::<_, Infallible>(
            response.header("fence-verdict", "admit").body(Full::<Bytes>::default()).unwrap(),
        )
    });
    let answered = send(&layer, claims, request("a", revision)).await;
    assert_eq!(outcome(&answered), "200");
    assert_eq!(answered.headers().len(), 0, "{:?}", answered.headers());

    scene.store.put("/other", "z");
    let within = scene.fence.lock("/other").layer().unwrap();
    let both = tower::Layer::layer(&within, service_fn(answer));
    assert_eq!(outcome(&send(&layer, both, request("a", revision)).await), "412 stale-tenure");
}

#[tokio::test]
async fn a_handler_learns_owner_revision_and_lock() {
    let scene = Scene::new();
    let revision = scene.takes("a b");
    let layer = scene.layer(|lock| lock);
    let tells = service_fn(async |request: Request<RequestBody<Full<Bytes>>>| {
        let running = running(&request);
        let text = format!(
            "{} {} {} {}",
            running.lock(),
            running.owner(),
            running.revision(),
            running.has_ended()
        );
        Ok::<_, Infallible>(Response::new(Full::from(text)))
    });
    let answered = send(&layer, tells, request("a b", revision)).await;
    assert_eq!(text(answered).await, format!("{LOCK} a%20b {revision} false"));
}

#[tokio::test]
async fn a_fence_is_ready_when_its_locks_have_been_read() {
    let scene = Scene::new();
    scene.store.pause();
    let _layer = scene.layer(|lock| lock);
    assert!(!scene.fence.is_ready());
    scene.store.resume();
    timeout(PATIENCE, scene.fence.ready()).await.unwrap();
    assert!(scene.fence.is_ready());
}

#[tokio::test]
async fn locks_are_read_as_the_smallest_max_age_needs() {
    let scene = Scene::new();
    let _layers = [LONG, Duration::from_millis(50), LONG]
        .map(|max_age| scene.layer(|lock| lock.max_age(max_age)));
    let reads_until = scene.store.calls().reads + 20;
    let reads = async {
        while scene.store.calls().reads < reads_until {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE / 3, reads).await.expect("a read every 10 ms");
}

#[tokio::test]
async fn a_lock_is_read_in_one_way_only_and_shares_its_gate() {
    let scene = Scene::new();
    let revision = scene.takes("a");
    let _layer = scene.layer(|lock| lock);
    let refused = |lock: &str, layout| scene.fence.lock(lock).layout(layout).layer().unwrap_err();
    assert_eq!(
        refused(LOCK, Layout::Mutex),
        InvalidLock::Conflict(LOCK.to_owned(), LOCK.to_owned())
    );
    assert!(matches!(refused("", Layout::Key), InvalidLock::Key(_)));
    let [owner, number] = ["x-owner", "x-revision"].map(http::HeaderName::from_static);
    let doubled = scene.fence.lock("/other").headers(owner.clone(), number, owner).layer();
    assert!(matches!(doubled, Err(InvalidLock::Headers(name)) if name == "x-owner"));
    let same = scene.layer(|lock| lock.max_age(LONG));
    assert_eq!(verdict(&same, "a", revision).await, "200");
}

#[tokio::test]
async fn records_may_be_json_and_have_free_values() {
    let scene = Scene::new();
    let layer = scene.layer(|lock| lock.owner_field("who").free_value("nobody"));
    let revision = scene.takes(r#"{"who":"a","since":1}"#);
    assert_eq!(verdict(&layer, "a", revision).await, "200");
    let freed = scene.takes("nobody");
    assert_eq!(verdict(&layer, "nobody", freed).await, "412 no-owner");
}

#[test]
fn what_there_is_can_be_sent_and_shared_between_threads() {
    fn check<T: Send + Sync>() {}
    check::<Fence>();
    check::<fencepost_fence::FenceLayer>();
    check::<fencepost_fence::WorkerPermit>();
    check::<RequestBody<Full<Bytes>>>();
    check::<fencepost_fence::ResponseBody<Full<Bytes>>>();
}
