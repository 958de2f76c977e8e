//! What the dashboard says while it does not know all yet, hears late, or hears more than it can
//! take.

use fencepost_tests::{Browser, EtcdVersion, FreePort};
use serde_json::{Value, json};

use crate::fencepost::{Fencepost, Route};
use crate::page::Page;
use crate::scene::{Ask, Scene, send};

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
    let held = scene.store.hold(LOCK, "shard-1").await;
    scene.admits("/shards/2/", &held).await;
    let says_holder = async |holder: &str| {
        let says = "return [...document.querySelectorAll('#rows .holder')].some((one) => one.innerText.replace(/\\s+/g, ' ').startsWith(arguments[0]))";
        page.browser.until(holder, says, &[json!(holder)]).await;
    };
    says_holder("shard-1").await;
    scene.etcd.pause().await;
    page.until_there("#trouble .bad").await;
    let bad = page.text("#trouble .bad").await;
    let says = "Lock store main does not answer: enforced routes (shards) answer 503 unverifiable.";
    assert!(bad.starts_with(says), "{bad}");
    says_holder("last known: shard-1").await;
    scene.etcd.resume();
    page.until_count("#trouble .bad", 0).await;
    says_holder("shard-1").await;
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

/// What the page makes of readings of one route: each after so many seconds, by the process that
/// began then, in the mode since then, with so many requests admitted and refused, and its times.
const RATES: &str = "
    const { Rates, rateText, timesTexts } = await import('/dashboard/rates.js');
    const rates = new Rates();
    for (const [at, started_ms, since_ms, admit, refused, verdict_seconds] of given[0]) {
        const requests = { admit, reject: refused ? { 'no-owner': refused } : {}, pass: 0 };
        const route = { name: 'r', since_ms, requests, verdict_seconds, upstream_seconds: {} };
        rates.take({ now_ms: 1000 * at, process: { started_ms }, routes: [route] });
    }
    const lately = rates.lately('r');
    return lately && [rateText(lately.requests), rateText(lately.refused), timesTexts(lately.verdict).join(), timesTexts(lately.worker).join()];";

#[tokio::test]
async fn rates_are_differences_of_what_one_process_counted() {
    let browser = Browser::start().await;
    let [shards, _] = routes();
    let scene = Scene::open(VERSION, &[shards]).await;
    let page = Page::open(browser, scene.fence.admin, "").await;
    let minutes: Vec<Value> =
        (0..=400).map(|at| json!([at, 1, 1, 7 * at, 0, { "0.005": 7 * at }])).collect();
    let before = json!([0, 1, 1, 500, 0, { "2": 500 }]);
    let after = json!([10, 1, 1, 1500, 10, { "2": 500, "0.00002": 980, ">2": 30 }]);
    for (readings, expected) in [
        (json!([before]), Value::Null),
        (json!([before, after]), json!(["101", "1", "p50 ≤ 20 µs,p99 > 2.0 s", ""])),
        (json!(minutes), json!(["7", "0", "p50 ≤ 5 ms,p99 ≤ 5 ms", ""])),
        // Another process, or another mode, has counted anew: there is one reading.
        (json!([[0, 1, 1, 500, 0, {}], [10, 2, 1, 600, 0, {}]]), Value::Null),
        (json!([[0, 1, 1, 500, 0, {}], [10, 1, 2, 600, 0, {}]]), Value::Null),
        // A page that was hidden for long, and a clock that was set back.
        (json!([[0, 1, 1, 500, 0, {}], [200, 1, 1, 600, 0, {}]]), Value::Null),
        (json!([[100, 1, 1, 500, 0, {}], [90, 1, 1, 600, 0, {}]]), Value::Null),
    ] {
        let made = page.browser.run_async(RATES, std::slice::from_ref(&readings)).await;
        assert_eq!(made, expected, "{readings}");
    }

    page.until_there("#routes tr").await; // It has read what was counted before.
    let held = scene.store.hold(LOCK, "shard-1").await;
    scene.admits("/shards/2/", &held).await;
    scene.send(Ask::post("/shards/2/")).await;
    let says = "return document.querySelector('#routes tr').innerText.includes('/s refused')";
    page.browser.until("the route has a rate of refusals", says, &[]).await;
    page.until_there("#routes .spark-refused").await;
    let row = page.text("#routes tr").await;
    assert_eq!(row.matches("p50 ").count(), 2, "of verdicts and of the worker: {row}");
    assert_eq!(page.complaints().await, Vec::<String>::new());
    scene.finish().await;
}

#[tokio::test]
async fn more_handoffs_are_shown_on_request() {
    let browser = Browser::start().await;
    let scene = Scene::open(VERSION, &[Route::k()]).await;
    for at in 0..23 {
        scene.store.hold("/k", &format!("shard-{at}")).await;
    }
    scene.until_known("/k", Some("shard-22")).await;
    let page = Page::open(browser, scene.fence.admin, "").await;
    page.until_count("#handoffs tr", 20).await;
    assert_eq!(page.text("#handoffs-count").await, "20 of 22 shown");
    page.click("#more-handoffs").await;
    page.until_count("#handoffs tr", 22).await;
    page.until_there("#more-handoffs[hidden]").await;
    assert_eq!(page.complaints().await, Vec::<String>::new());
    scene.finish().await;
}

#[tokio::test]
async fn of_300_locks_those_in_sight_are_drawn() {
    let browser = Browser::start().await;
    let route = |at: usize| {
        Route::new(&format!("r{at}"), &format!("/{at}/"), &format!("key = \"/lock-{at}\""))
    };
    let scene = Scene::open(VERSION, &(0..300).map(route).collect::<Vec<_>>()).await;
    let page = Page::open(browser, scene.fence.admin, "").await;
    let says = "return document.querySelector('#timeline-count').innerText === arguments[0]";
    page.browser.until("it says how many", says, &[json!("300 locks")]).await;
    page.until_count("#routes tr", 300).await;
    let drawn = page.count("#rows .row").await;
    assert!((5..40).contains(&drawn), "{drawn} rows");
    let shown = "return [...document.querySelectorAll('#rows .lock-name')].some((one) => one.innerText === arguments[0])";
    page.browser.run("document.querySelector('#timeline').scrollTop = 1e6", &[]).await;
    page.browser.until("the last one is in sight", shown, &[json!("/lock-299")]).await;
    assert!(page.count("#rows .row").await <= drawn + 2, "those out of sight are gone");
    page.click("#lock-find").await;
    page.browser.press("LOCK-29").await;
    page.browser.until("it says how many of them", says, &[json!("11 of 300 locks")]).await;
    let height = page.browser.run("return document.documentElement.scrollHeight", &[]).await;
    assert!(height.as_u64() < Some(6000), "tables scroll: {height}");
    scene.etcd.pause().await;
    page.until_there("#trouble .bad").await;
    let bad = page.text("#trouble .bad").await;
    assert!(bad.contains("enforced routes (r0, r1, r2, r3, r4, r5, r6, r7 and 292 more)"), "{bad}");
    scene.etcd.resume();
    assert_eq!(page.complaints().await, Vec::<String>::new());
    scene.finish().await;
}

#[tokio::test]
async fn a_group_is_shown_with_who_holds_up_whom() {
    let browser = Browser::start().await;
    let group = "[group]\nname = \"jobs\"\nmember_ttl = \"3s\"";
    let route = Route::k().with("handoff_timeout = \"1m\"");
    let scene = Scene::with(VERSION, &[route], |config| config.section(group)).await;
    let other = Fencepost::serve(&scene.config).await;
    let page = Page::open(browser, other.admin, "").await;
    page.until_count("#members tr", 2).await;
    let [own, first] = ["#members tr:first-child", "#members tr:last-child"];
    let rows = [page.text(own).await, page.text(first).await];
    assert!(rows[0].contains("this one") && rows[0].contains("stands"), "{rows:?}");
    let id = scene.fence.admin_json("/group").await["member"].as_str().unwrap()[..8].to_owned();
    assert!(rows[1].contains(&id) && rows[1].contains("live"), "{rows:?}");
    page.until_there("#asks[hidden]").await;

    let old = scene.store.hold("/k", "shard-1").await;
    let held = scene.held(Ask::post("/held").under(&old)).await;
    let new = scene.store.hold("/k", "shard-2").await;
    let (listener, ledger) = (other.listener.clone(), scene.ledger.clone());
    let ask = Ask::post("/next").under(&new);
    let waiting = tokio::spawn(async move { send(&listener, &ledger, ask).await });
    let says = "return [...document.querySelectorAll(arguments[0])].some((one) => one.innerText.includes(arguments[1]))";
    let waits = format!("A new tenure of lock /k (revision {}) waits for ", new.revision);
    page.browser.until("it is on top", says, &[json!("#trouble .warn"), json!(waits)]).await;
    page.until_count("#ask-rows tr", 1).await;
    let row = page.text("#ask-rows tr").await;
    assert!(row.contains("/k") && row.contains(&id), "{row}");
    assert_eq!(page.count("#group[hidden]").await, 0);
    held.ends().await;
    assert_eq!(waiting.await.unwrap().status, 200);
    page.until_there("#asks[hidden]").await;

    scene.etcd.pause().await;
    let stopped = "This member of group jobs does not stand: ";
    page.browser.until("it is on top", says, &[json!("#trouble .bad"), json!(stopped)]).await;
    scene.etcd.resume();
    page.until_count("#trouble .bad", 0).await;
    assert_eq!(page.complaints().await, Vec::<String>::new());
    scene.finish().await;
}
