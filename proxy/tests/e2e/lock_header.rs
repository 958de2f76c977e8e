//! Routes whose callers name their lock in a header of another name.

use fencepost_tests::EtcdVersion;

use crate::fence_call::call_with;
use crate::fencepost::Route;
use crate::refusal::{assert_refused, reason};
use crate::scene::{Ask, Scene};

#[tokio::test]
async fn a_route_may_have_its_own_name_for_the_header_with_the_lock() {
    let own = Route::new("own", "/own/", r#"key = "/own/{name}", from_header = true"#);
    let usual = Route::new("usual", "/", r#"key = "/usual/{name}", from_header = true"#);
    let routes = [own.with(r#"lock_header = "X-Lock""#), usual];
    let scene = Scene::open(EtcdVersion::V3_5, &routes).await;
    for (path, lock, its_own, other) in [
        ("/own/write", "/own/a", "X-Lock", "Fence-Lock"),
        ("/write", "/usual/a", "Fence-Lock", "X-Lock"),
    ] {
        let held = scene.store.hold(lock, "shard-1").await;
        let named = |header: &str| Ask::post(path).under(&held).header(header, lock);
        let answer = scene.send(named(its_own)).await;
        assert_eq!(answer.status, 200, "{its_own}: {}", answer.text());
        assert_refused(&scene.send(named(other)).await, "token-missing", None, &held);
        // What the other name says is not looked at.
        assert_eq!(scene.send(named(its_own).header(other, "/elsewhere")).await.status, 200);

        let revision = held.revision.to_string();
        let call = |header| {
            let token = [("Fence-Owner", "shard-1"), ("Fence-Revision", revision.as_str())];
            call_with(&scene, &[token[0], token[1], (header, lock)])
        };
        let answer = call(its_own).await;
        assert_eq!((answer.status, reason(&answer)), (204, None), "{its_own}: {}", answer.text());
        assert_refused(&call(other).await, "lock-not-allowed", None, &held);
    }
    scene.finish().await;
}
