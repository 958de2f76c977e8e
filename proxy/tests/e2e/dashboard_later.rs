//! What the dashboard makes of what it hears later: after a break of its connection, and of a tenure that it shows already.

use fencepost_tests::{Browser, EtcdVersion, Relay};
use serde_json::json;

use crate::fencepost::Route;
use crate::page::Page;
use crate::scene::{Ask, Scene};
use crate::store::{Layout, Tenure};

const VERSION: EtcdVersion = EtcdVersion::V3_5;
const LOCK: &str = "/shards/2/lock";

fn routes() -> [Route; 2] {
    [
        Route::new("shards", "/shards/{shard}/", r#"key = "/shards/{shard}/lock""#),
        Route::new("watched", "/", r#"key = "/k""#).with("mode = \"shadow\""),
    ]
}

/// Sends a request that is refused; returns the id of the decision.
async fn refuse(scene: &Scene, stale: &Tenure) -> String {
    let answer = scene.send(Ask::post("/shards/2/x").under(stale)).await;
    answer.header("fence-decision").expect("it is refused").to_owned()
}

/// What was decided while the connection was broken filled the table anew, and the button counted none of it.
#[tokio::test]
async fn a_table_that_is_paused_stands_still_when_the_page_connects_again() {
    let browser = Browser::start().await;
    let scene = Scene::open(VERSION, &routes()).await;
    let stale = scene.store.hold(LOCK, "shard-2").await;
    scene.store.hold(LOCK, "shard-1").await;
    let relay = Relay::start(scene.fence.admin).await;
    let page = Page::open(browser, relay.address(), "").await;
    let before = refuse(&scene, &stale).await;
    page.until_there(&format!("#decision-rows tr[data-id='{before}']")).await;
    page.click("#pause").await;
    relay.cut().await;
    page.until_state("cut-off").await;
    for _ in 0..3 {
        refuse(&scene, &stale).await;
    }
    relay.restore().await;
    let counted = "return document.querySelector('#pause').innerText === 'Resume (3 new)'";
    page.browser.until("the page counts what it holds back", counted, &[]).await;
    assert_eq!(page.count("#decision-rows tr").await, 1);
    page.click("#pause").await;
    page.until_count("#decision-rows tr", 4).await;
    assert_eq!(page.text("#pause").await, "Pause");
    assert_eq!(page.complaints().await, Vec::<String>::new());
    scene.finish().await;
}

/// It said that the proxy no longer kept what the proxy had not been asked about, for as long as the page was open.
#[tokio::test]
async fn a_decision_that_could_not_be_asked_about_is_shown_once_the_page_connects_again() {
    let browser = Browser::start().await;
    let scene = Scene::open(VERSION, &routes()).await;
    let stale = scene.store.hold(LOCK, "shard-2").await;
    scene.store.hold(LOCK, "shard-1").await;
    let relay = Relay::start(scene.fence.admin).await;
    let page = Page::open(browser, relay.address(), "").await;
    relay.cut().await;
    page.until_state("cut-off").await;
    let id = refuse(&scene, &stale).await;
    page.browser.run("location.hash = 'decision=' + arguments[0]", &[json!(id)]).await;
    let says = async |text: &str| {
        let script = "return document.querySelector('#detail').innerText.includes(arguments[0])";
        page.browser.until(&format!("the drawer says {text}"), script, &[json!(text)]).await;
    };
    says(&format!("could not be asked about the decision {id}")).await;
    relay.restore().await;
    says("stale-tenure").await;
    page.browser.run("location.hash = 'decision=0-0-0'", &[]).await;
    says("no longer keeps the decision 0-0-0").await;
    assert_eq!(page.complaints().await, Vec::<String>::new());
    scene.finish().await;
}

/// "it holds the lock now" stood there for as long as the drawer was open.
#[tokio::test]
async fn an_open_tenure_is_seen_to_end_and_to_be_refused() {
    let browser = Browser::start().await;
    let scene = Scene::open(VERSION, &routes()[..1]).await;
    let one = scene.store.session("shard-1").await;
    let held = scene.store.acquire(Layout::Key, LOCK, &one).await;
    let stale = held.tenure.clone();
    scene.admits("/shards/2/x", &stale).await;
    let page = Page::open(browser, scene.fence.admin, "").await;
    page.until_there("#rows .tenure").await;
    page.browser.run("document.querySelector('#timeline').focus()", &[]).await;
    page.browser.press(Browser::DOWN).await;
    page.browser.press(Browser::ENTER).await;
    page.until_there("#detail[open]").await;
    let until = async |term: &str, pattern: &str| {
        let script = "const fact = [...document.querySelectorAll('#detail dl div')].find((one) => one.firstChild.innerText === arguments[0]);
            return fact !== undefined && new RegExp(arguments[1]).test(fact.lastChild.innerText)";
        page.browser.until(&format!("{term}: {pattern}"), script, &[json!(term), json!(pattern)]).await;
    };
    until("Ended", "^it holds the lock now$").await;
    scene.store.release(held).await;
    until("Ended", r"\d\d:\d\d:\d\d\.\d{3}").await;
    scene.store.hold(LOCK, "shard-2").await;
    let first = refuse(&scene, &stale).await;
    until("Refused", "^1$").await;
    let line = |id: &str| format!("#detail .refusals li[data-id='{id}']");
    page.until_there(&line(&first)).await;
    assert!(page.text("#detail").await.contains("was still sending"));

    // The focus stays where it is while more is written around it.
    page.browser.run("document.querySelector('#detail .refusals a').focus()", &[]).await;
    let second = refuse(&scene, &stale).await;
    page.until_there(&format!("{} + li[data-id='{first}']", line(&second))).await;
    let focused = "return document.activeElement.closest('li')?.dataset.id";
    assert_eq!(page.browser.run(focused, &[]).await, json!(first));
    assert_eq!(page.complaints().await, Vec::<String>::new());
    scene.finish().await;
}

/// A refusal stood beside the tenure that it came after, as though that had gone on.
#[tokio::test]
async fn what_is_refused_within_the_millisecond_of_its_tenures_end_comes_after_it() {
    let browser = Browser::start().await;
    let scene = Scene::open(VERSION, &routes()[..1]).await;
    let page = Page::open(browser, scene.fence.admin, "").await;
    let tails = "const { tailOf } = await import('/dashboard/model.js');
        return given[0].map(([ended_ms, end, last_refused_ms]) => tailOf({ ended_ms, end, last_refused_ms }))";
    let tenures = json!([[7, "seen", 6], [7, "seen", 7], [7, "seen", 9], [7, "untracked", 7], [null, null, 7]]);
    assert_eq!(page.browser.run_async(tails, &[tenures]).await, json!([null, 0, 2, null, null]));
    scene.finish().await;
}

/// It said "behind", and "20 s ago" of what came that moment, for as long as it was open.
#[tokio::test]
async fn a_page_that_is_open_while_a_clock_is_set_goes_by_the_new_time() {
    let browser = Browser::start().await;
    let [shards, _] = routes(); // With a route in shadow mode a page asks for that report, too, which has a time.
    let scene = Scene::open(VERSION, &[shards]).await;
    let page = Page::open(browser, scene.fence.admin, "").await;
    let set = "const { now } = await import('/dashboard/time.js');
        const real = Date.now.bind(Date);
        window.off = () => Math.abs(now() - real());
        Date.now = () => real() + 20000;
        return window.off() > 10000";
    assert_eq!(page.browser.run_async(set, &[]).await, true);
    page.browser.until("it has the proxy's time again", "return window.off() < 5000", &[]).await;
    assert_eq!(page.complaints().await, Vec::<String>::new());
    scene.finish().await;
}

/// It was called @9223372036854776000.
#[tokio::test]
async fn a_revision_that_is_no_number_in_javascript_is_shown_as_it_was_presented() {
    let browser = Browser::start().await;
    let scene = Scene::open(VERSION, &routes()).await;
    scene.store.hold(LOCK, "shard-1").await;
    let page = Page::open(browser, scene.fence.admin, "").await;
    for opened in [false, true] {
        let id = scene.send(Ask::post("/shards/2/x").token("shard-1", "9223372036854775807")).await;
        let id = id.header("fence-decision").expect("it is refused").to_owned();
        if opened {
            page.go("").await; // What was decided before comes in another way.
        }
        page.until_there(&format!("#decision-rows tr[data-id='{id}']")).await;
        let row = page.text(&format!("#decision-rows tr[data-id='{id}']")).await;
        assert!(row.contains("@9223372036854775807"), "{row}");
    }
    assert_eq!(page.complaints().await, Vec::<String>::new());
    scene.finish().await;
}
