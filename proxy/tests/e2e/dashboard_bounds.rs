//! The dashboard where there is more than it has room for, or a browser takes.

use fencepost_tests::{Browser, EtcdVersion};
use serde_json::json;

use crate::fencepost::Route;
use crate::page::Page;
use crate::scene::{Ask, Scene};

const VERSION: EtcdVersion = EtcdVersion::V3_5;
const LOCK: &str = "/shards/2/lock";

fn shards() -> Route {
    Route::new("shards", "/shards/{shard}/", r#"key = "/shards/{shard}/lock""#)
}

/// How many of 100,000 refusals of 2,000 locks a page keeps, and of the last 20,000; and how many of a lock that is quiet while another
/// has as many.
const KEPT: &str = "
    const { Model } = await import('/dashboard/model.js');
    const made = (lockOf) => {
        const model = new Model();
        for (let at = 0; at < 100000; at += 1) {
            model.add({ id: `1-1-${at}`, time_ms: at, verdict: 'reject', reason: 'token-missing', forwarded: false, source: 'main', lock: lockOf(at) });
        }
        return model;
    };
    const known = (model, lock) => model.refusals({ source: 'main', lock });
    const many = made((at) => `/${at % 2000}`);
    const kept = Array.from({ length: 2000 }, (_, at) => known(many, `/${at}`)).flat();
    const one = made((at) => (at === 0 ? '/quiet' : '/flooded'));
    return [kept.length, kept.filter(({ time_ms }) => time_ms >= 80000).length, known(one, '/quiet').length];";

/// It kept 1,200 of each of 2,000 locks, which made-up ones without any token are enough for: a gigabyte.
#[tokio::test]
async fn a_page_keeps_the_newest_refusals_of_all_locks_together() {
    let browser = Browser::start().await;
    let scene = Scene::open(VERSION, &[shards()]).await;
    let page = Page::open(browser, scene.fence.admin, "").await;
    let kept = page.browser.run_async(KEPT, &[]).await;
    let [all, newest, quiet] = [0, 1, 2].map(|at| kept[at].as_u64().expect("a number"));
    assert!(all <= 24_000, "it keeps {all}");
    assert_eq!(newest, 20_000, "of {all}");
    assert_eq!(quiet, 1, "a flood of one lock's takes no room from others");
    assert_eq!(page.complaints().await, Vec::<String>::new());
    scene.finish().await;
}

/// Of 70 owners 50 were shown, as though they were all. A master that seldom writes is among the others.
#[tokio::test]
async fn kinds_of_would_be_refusals_that_have_no_row_are_counted_below() {
    let browser = Browser::start().await;
    let scene = Scene::open(VERSION, &[Route::new("watched", "/", r#"key = "/k""#).with("mode = \"shadow\"")]).await;
    scene.store.hold("/k", "shard-1").await;
    scene.until_known("/k", Some("shard-1")).await;
    let page = Page::open(browser, scene.fence.admin, "").await;
    let mut line = scene.line().await;
    let mut owners = 0..;
    for (all, said) in [
        (50, ""),
        (51, "1 more kind, 1 request: /shadow?format=text"),
        (70, "20 more kinds, 20 requests: /shadow?format=text"),
        // Of so many the proxy itself does not tell all apart.
        (1_003, "at least 950 more kinds, 953 requests: /shadow?format=text"),
    ] {
        while owners.start < all {
            let owner = format!("owner-{}", owners.next().unwrap());
            assert_eq!(line.send(Ask::post("/").token(&owner, "1")).await.unwrap().status, 200);
        }
        page.until_count("#shadow-rows tr", 50).await;
        let says = "const more = document.querySelector('#shadow-more'); return (more.hidden ? '' : more.innerText) === arguments[0]";
        page.browser.until(&format!("it says {said:?}"), says, &[json!(said)]).await;
    }
    let links = "return document.querySelector('#shadow-more a').getAttribute('href')";
    assert_eq!(page.browser.run(links, &[]).await, "/shadow?format=text");
    assert_eq!(page.complaints().await, Vec::<String>::new());
    scene.finish().await;
}

/// Turns the wheel by 300 steps; counts in `written` how often the address is changed.
const WHEEL: &str = "
    window.written = 0;
    const replace = history.replaceState.bind(history);
    history.replaceState = (...given) => { window.written += 1; replace(...given); };
    const step = () => new WheelEvent('wheel', { deltaY: 3, ctrlKey: true, bubbles: true, cancelable: true });
    for (let at = 0; at < 300; at += 1) document.querySelector('#timeline').dispatchEvent(step());
    return window.written;";

/// What was typed after it was taken away again: a browser drops changes of the address beyond some 200 in 10 s.
#[tokio::test]
async fn a_wheel_that_zooms_fast_leaves_filters_their_place_in_the_address() {
    let browser = Browser::start().await;
    let scene = Scene::open(VERSION, &[shards()]).await;
    let page = Page::open(browser, scene.fence.admin, "").await;
    let at_once = page.browser.run(WHEEL, &[]).await;
    page.click("#filters [name=owner]").await;
    page.browser.press("shard-1").await;
    let typed = "return document.querySelector('#filters [name=owner]').value";
    assert_eq!(page.browser.run(typed, &[]).await, "shard-1");
    let address =
        "const shown = new URLSearchParams(location.hash.slice(1)); return shown.has('span') && shown.get('owner')";
    assert_eq!(page.browser.until("the span is in the address", address, &[]).await, "shard-1");
    assert_eq!(at_once, 0, "each step is written");
    let written = page.browser.run("return window.written", &[]).await.as_u64().unwrap();
    assert!(written <= 8, "{written} times: for each letter, and once for the span");
    assert_eq!(page.complaints().await, Vec::<String>::new());
    scene.finish().await;
}

/// `tell(decision)` has the stream of decisions tell of one more.
const TOLD: &str = "
    window.EventSource = class extends EventSource {
        constructor(path) {
            super(path);
            if (path !== '/decisions') return;
            window.tell = (decision) => this.dispatchEvent(new MessageEvent('decision', { data: JSON.stringify(decision) }));
        }
    };";

/// Enter opened the tenure of the present holder.
#[tokio::test]
async fn an_old_refusal_of_a_quiet_lock_is_opened_with_the_keyboard() {
    const TURN: usize = 1_000;
    let browser = Browser::start().await;
    let scene = Scene::open(VERSION, &[shards()]).await;
    let stale = scene.store.hold(LOCK, "shard-2").await;
    scene.store.hold(LOCK, "shard-1").await;
    let refused = scene.send(Ask::post("/shards/2/x").under(&stale)).await;
    let id = refused.header("fence-decision").expect("it is refused").to_owned();
    let like = scene.fence.admin_json("/decisions").await["decisions"][0].take();
    browser.run_first(TOLD).await;
    let page = Page::open(browser, scene.fence.admin, "").await;
    page.until_there(&format!("#decision-rows tr[data-id='{id}']")).await;
    page.until_there("#rows .row").await;
    // More than the table keeps, as many at a time as the page takes in one turn.
    let later = "const [like, from, to] = arguments;
        for (let at = from; at < to; at += 1) window.tell({ ...like, id: 'later-' + at, lock: '/shards/9/lock', time_ms: like.time_ms + 1 });";
    for from in (0..7 * TURN).step_by(TURN) {
        page.browser.run(later, &[like.clone(), json!(from), json!(from + TURN)]).await;
        page.until_there(&format!("#decision-rows tr[data-id='later-{}']", from + TURN - 1)).await;
    }
    let listen = "const news = document.querySelector('#news');
        window.said = [];
        new MutationObserver(() => window.said.push(news.textContent)).observe(news, { childList: true });
        document.querySelector('#timeline').focus()";
    page.browser.run(listen, &[]).await;
    page.browser.press(Browser::DOWN).await;
    page.browser.press(",").await;
    page.browser.press(Browser::ENTER).await;
    let open = "return document.querySelector('#detail').open && document.querySelector('#detail-title').innerText";
    assert_eq!(page.browser.until("something is open", open, &[]).await, "Refused");
    assert!(page.text("#detail").await.contains(&id));
    let said = format!("return window.said.some((text) => text.endsWith('decision {id}'))");
    page.browser.until("a screen reader is told of it", &said, &[]).await;
    assert_eq!(page.complaints().await, Vec::<String>::new());
    scene.finish().await;
}
