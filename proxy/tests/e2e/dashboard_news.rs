//! What the dashboard says while it does not know all yet, hears late, or hears more than it can
//! take.

use fencepost_tests::{Browser, EtcdVersion, FreePort, Relay};
use serde_json::{Value, json};

use crate::fencepost::Route;
use crate::page::Page;
use crate::scene::{Ask, Scene};

const VERSION: EtcdVersion = EtcdVersion::V3_5;
const LOCK: &str = "/shards/2/lock";

fn routes() -> [Route; 2] {
    [
        Route::new("shards", "/shards/{shard}/", r#"key = "/shards/{shard}/lock""#),
        Route::new("watched", "/", r#"key = "/k""#).with("mode = \"shadow\""),
    ]
}

/// The first answers to the page's questions are late, and `asked` has what it asked for, when, and
/// when it was answered; `flood(n)` has its stream of decisions tell of the last one that it told
/// of so many times more, each under another id.
const FLOODED: &str = "
    const ask = window.fetch;
    window.asked = [];
    window.fetch = async (path, ...how) => {
        const asks = [path, performance.now(), 0];
        window.asked.push(asks);
        const answer = await ask(path, ...how);
        if (window.asked.length <= 3) await new Promise((resolve) => setTimeout(resolve, 2500));
        asks[2] = performance.now();
        return answer;
    };
    window.EventSource = class extends EventSource {
        constructor(path) {
            super(path);
            let last;
            if (path === '/decisions') this.addEventListener('decision', (message) => last ??= JSON.parse(message.data));
            if (path === '/decisions') window.flood = (count) => {
                if (last) for (let at = 0; at < count; at += 1)
                    this.dispatchEvent(new MessageEvent('decision', { data: JSON.stringify({ ...last, id: 'flood-' + at }) }));
                return last !== undefined;
            };
        }
    };";

#[tokio::test]
async fn a_flood_of_decisions_leaves_the_page_time_for_all_else() {
    let browser = Browser::start().await;
    let scene = Scene::open(VERSION, &routes()).await;
    let stale = scene.store.hold(LOCK, "shard-2").await;
    scene.store.hold(LOCK, "shard-1").await;
    browser.run_first(FLOODED).await;
    let page = Page::open(browser, scene.fence.admin, "").await;
    scene.send(Ask::post("/shards/2/a").under(&stale)).await;
    page.browser.until("a flood of 5,001", "return window.flood(5000)", &[]).await;
    let count = "return document.querySelector('#decisions-count').innerText.includes('more came too fast and are left out of this page')";
    page.browser.until("it says that it left some out", count, &[]).await;
    let drawn = "return document.querySelectorAll('#decision-rows tr').length";
    assert_eq!(page.browser.run(drawn, &[]).await, 100);

    // A page that was slow for a while asked for nothing for ten times as long.
    let gaps = "const of = asked.filter(([path]) => path === '/routes'); return of.length > 2 && of.slice(1).map(([, at], i) => at - of[i][2])";
    let gaps = page.browser.until("it has asked three times for the routes", gaps, &[]).await;
    let longest = gaps.as_array().unwrap().iter().filter_map(Value::as_f64).fold(0.0, f64::max);
    assert!(longest < 20_000.0, "{gaps}");

    // With 100,000 locks, a list of them is 44 MB.
    let asked =
        page.browser.run("return [...new Set(asked.map(([path]) => path))].sort()", &[]).await;
    assert_eq!(
        asked,
        json!(["/config", "/decisions?limit=1000", "/routes", "/shadow", "/sources"])
    );

    // What the proxy has counted is true, whatever the page was told.
    let refused = "#tiles [href='#decisions']";
    let says = "return document.querySelector(arguments[0]).innerText.includes('stale-tenure')";
    page.browser.until("the tile says so", says, &[json!(refused)]).await;
    let tile = page.text(&format!("{refused} strong")).await;
    assert_eq!(tile, "1 refused");
    let told = scene.fence.admin_json("/routes").await;
    assert_eq!(
        told["refused_lately"],
        json!({ "seconds": 300, "reject": { "stale-tenure": 1 }, "would_reject": {} })
    );
    assert_eq!(page.complaints().await, Vec::<String>::new());
    scene.finish().await;
}

#[tokio::test]
async fn the_page_says_that_it_was_not_told_of_all() {
    let browser = Browser::start().await;
    let scene = Scene::open(VERSION, &routes()).await;
    let stale = scene.store.hold(LOCK, "shard-2").await;
    scene.store.hold(LOCK, "shard-1").await;
    let watched = scene.store.hold("/k", "shard-8").await;
    scene.store.hold("/k", "shard-7").await;
    scene.until_known("/k", Some("shard-7")).await;
    let relay = Relay::start(scene.fence.admin).await;
    let page = Page::open(browser, relay.address(), "").await;
    let refused = scene.send(Ask::post("/shards/2/a").under(&stale)).await;
    let whole =
        "const legend = document.querySelector('#reason-legend'); return legend.querySelector('button') !== null
        && !(legend.innerText + document.querySelector('#chart-peak').innerText).includes('at least')";
    page.browser.until("it was told of all", whole, &[]).await;
    let said =
        async || [page.text("#reason-legend").await, page.text("#chart-peak").await].join("; ");
    relay.cut().await;
    page.until_state("cut-off").await;
    let mut line = scene.line().await;
    for _ in 0..1_500 {
        assert_eq!(line.send(Ask::post("/c").under(&watched)).await.unwrap().status, 200);
    }
    relay.restore().await;
    let thousand =
        "return document.querySelector('#reason-legend').innerText.includes('1,000 would be')";
    for shown in ["", "verdict=reject"] {
        page.browser.until("it was told of a thousand", thousand, &[]).await;
        assert_eq!(said().await.matches("at least").count(), 2, "{}", said().await);
        let words =
            "return document.querySelector('#chart-summary').textContent.includes('at least')";
        assert_eq!(page.browser.run(words, &[]).await, true);
        page.go(shown).await;
    }
    let id = refused.header("fence-decision").unwrap();
    page.until_there(&format!("#decision-rows tr[data-id='{id}']:only-child")).await;
    assert_eq!(page.complaints().await, Vec::<String>::new());
    scene.finish().await;
}

#[tokio::test]
async fn a_weakened_fence_does_not_pass_for_the_one_before() {
    let browser = Browser::start().await;
    let [shards, _] = routes();
    let mut scene = Scene::open(VERSION, std::slice::from_ref(&shards)).await;
    let port = FreePort::reserve();
    let starting_with = |route: Route| {
        let file = scene.config.clone().routes(&[route]).toml();
        file.replace(
            r#"listen = "127.0.0.1:0""#,
            &format!("listen = {:?}", port.address().to_string()),
        )
    };
    let (enforced, weakened) = (
        starting_with(shards.clone()),
        starting_with(shards.with(r#"on_unavailable = "dangerous_admit""#)),
    );
    let weakened = weakened.replace("[admin]", "[admin]\ndangerous_unprotected = true");
    scene.start_again_as(&enforced).await;
    let page = Page::open(browser, port.address(), "").await;
    page.until_there("#tiles .tile.good[data-key=Fencing]").await;
    scene.fence.terminate().await;
    page.until_state("cut-off").await;
    scene.start_again_as(&weakened).await;
    page.until_state("live").await;
    page.until_there("#tiles .tile.bad[data-key=Fencing]").await;
    let note = page.text("#tiles [data-key=Fencing] .tile-note").await;
    assert_eq!(
        note,
        "dangerous_unprotected = true (admin), on_unavailable = dangerous_admit (shards)"
    );
    scene.finish().await;
}

#[tokio::test]
async fn a_rejected_configuration_is_shown_until_it_is_mended() {
    let browser = Browser::start().await;
    let scene = Scene::open(VERSION, &routes()).await;
    let page = Page::open(browser, scene.fence.admin, "").await;
    assert_eq!(
        scene.fence.reload(&scene.config.clone().limit("confirm_timeout = \"1 h\"")).await.status,
        422
    );
    page.until_there("#trouble .bad").await;
    let told = page.text("#trouble .bad").await;
    assert!(
        told.starts_with("The configuration file was rejected; generation 1 stays in force"),
        "{told}"
    );
    let place = format!("{}:", scene.fence.file().display());
    assert!(told.contains(&place) && told.contains("limits.confirm_timeout: "), "{told}");
    scene.fence.reloads(&scene.config).await;
    page.until_count("#trouble .bad", 0).await;
    scene.finish().await;
}

#[tokio::test]
async fn header_names_the_process_and_trouble_is_on_top() {
    let browser = Browser::start().await;
    let scene = Scene::open(VERSION, &routes()).await;
    let page = Page::open(browser, scene.fence.admin, "").await;
    page.until_there("#about b").await;
    let about = page.text("#about").await;
    let file = format!("{}, generation 1", scene.fence.file().display());
    let version = format!("fencepost {}", env!("CARGO_PKG_VERSION"));
    assert!(about.contains(&file) && about.contains(&version) && about.contains(" up "), "{about}");
    let host = about.split(" · ").next().unwrap();
    let title = page.browser.run("return document.title", &[]).await;
    assert_eq!(title, format!("{host} · fencepost"));
    let warning = page.text("#trouble .warn").await;
    assert!(warning.contains("state_dir"), "{warning}");
    scene.etcd.pause().await;
    page.until_there("#trouble .bad").await;
    let bad = page.text("#trouble .bad").await;
    let says = "Lock store main does not answer: enforced routes (shards) answer 503 unverifiable.";
    assert!(bad.starts_with(says), "{bad}");
    scene.etcd.resume();
    page.until_count("#trouble .bad", 0).await;
    assert_eq!(page.complaints().await, Vec::<String>::new());
    scene.finish().await;
}

/// Whether two owners whose names ask for one colour share it on a lane, and on two; and what one
/// gets who only claims to hold the lock.
const COLOURS: &str = "
    const { claimedClass, ownerClass } = await import('/dashboard/owners.js');
    const [one, other] = [{ source: 'main', lock: '/a' }, { source: 'main', lock: '/b' }];
    const first = ownerClass('shard-1', one);
    const claimed = claimedClass('shard-11', one) === first;
    return [ownerClass('shard-11', one) === first, ownerClass('shard-11', other) === first, ownerClass('shard-1', one) === first, claimed];";

#[tokio::test]
async fn lanes_are_ordered_by_need_and_owners_differ_on_one() {
    let browser = Browser::start().await;
    let route = |name: &str| Route::new(name, &format!("/{name}/"), &format!("key = \"/{name}\""));
    let scene = Scene::open(VERSION, &["a", "b", "c"].map(route)).await;
    let held = scene.store.hold("/a", "shard-1").await;
    let other = scene.store.hold("/b", "shard-2").await;
    scene.admits("/a/", &held).await;
    scene.admits("/b/", &other).await;
    let page = Page::open(browser, scene.fence.admin, "").await;
    let until_order = async |order: [&str; 3]| {
        let rows = "const top = (row) => parseFloat(row.style.top);
            return [...document.querySelectorAll('#rows .row')].sort((a, b) => top(a) - top(b))
                .map((row) => row.querySelector('.lock-name').innerText).join() === arguments[0].join()";
        page.browser.until(&format!("{order:?}"), rows, &[json!(order)]).await;
    };
    until_order(["/c", "/a", "/b"]).await; // Nobody holds the first.
    scene.refuses("/b/", &held, "stale-tenure", "/b", &other).await;
    until_order(["/b", "/c", "/a"]).await;
    let shared = page.browser.run_async(COLOURS, &[]).await;
    assert_eq!(shared, json!([false, true, true, true]));
    assert_eq!(page.complaints().await, Vec::<String>::new());
    scene.finish().await;
}

/// How many of 100,000 refusals of 2,000 locks a page keeps, and of the last 20,000; and how many
/// of a lock that is quiet while another has as many.
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

#[tokio::test]
async fn a_page_keeps_the_newest_refusals_of_all_locks() {
    let browser = Browser::start().await;
    let scene = Scene::open(VERSION, &routes()[..1]).await;
    let page = Page::open(browser, scene.fence.admin, "").await;
    let kept = page.browser.run_async(KEPT, &[]).await;
    let [all, newest, quiet] = [0, 1, 2].map(|at| kept[at].as_u64().expect("a number"));
    assert!(all <= 24_000, "it keeps {all}");
    assert_eq!(newest, 20_000, "of {all}");
    assert_eq!(quiet, 1, "a flood of one lock's takes no room from others");
    assert_eq!(page.complaints().await, Vec::<String>::new());
    scene.finish().await;
}

#[tokio::test]
async fn kinds_of_refusals_without_a_row_are_counted() {
    let browser = Browser::start().await;
    let scene = Scene::open(
        VERSION,
        &[Route::new("watched", "/", r#"key = "/k""#).with("mode = \"shadow\"")],
    )
    .await;
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
