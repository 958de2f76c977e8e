//! What the dashboard says while it does not know all yet, hears late, or hears more than it can take.

use std::ops::Range;

use fencepost_tests::{Answer, Behaviour, Browser, EtcdVersion, FreePort, Latch, Relay, Worker, eventually};
use serde_json::{Value, json};

use crate::fencepost::{Config, Fencepost, Route};
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

/// The page's questions have no answer before `letGo()`; `tiles()` is what stands in each tile, and `drawn` what has stood in the one of
/// the refusals, one after the other.
const HELD_BACK: &str = "
    const { promise, resolve } = Promise.withResolvers();
    const ask = window.fetch;
    window.letGo = resolve;
    window.fetch = (...asked) => promise.then(() => ask(...asked));
    window.tiles = () => [...document.querySelectorAll('#tiles strong')].map((value) => value.innerText);
    window.drawn = [];
    const look = () => {
        const value = document.querySelector('#tiles [href=\"#decisions\"] strong')?.innerText;
        if (value !== undefined && window.drawn.at(-1) !== value) window.drawn.push(value);
    };
    new MutationObserver(look).observe(document, { subtree: true, childList: true, characterData: true });";

#[tokio::test]
async fn what_is_not_known_yet_is_not_called_nothing() {
    let browser = Browser::start().await;
    let routes = routes().map(|route| route.with(r#"handoff_timeout = "1h""#));
    let scene = Scene::open(VERSION, &routes).await;
    let stale = scene.store.hold(LOCK, "shard-2").await;
    let latch = Latch::new();
    scene.worker.on("/shards/2/held", Behaviour::Hold(latch.clone(), Answer::ok("held")));
    let at_worker = scene.start_at_worker(Ask::post("/shards/2/held").under(&stale)).await;
    let held = scene.store.hold(LOCK, "shard-1").await;
    let waiting = [1, 2].map(|_| scene.start(Ask::post("/shards/2/a").under(&held)));
    eventually("both wait at the barrier", async || {
        (scene.fence.admin_json("/routes").await["routes"][0]["waiting"] == 2).then_some(())
    })
    .await;
    scene.send(Ask::post("/shards/2/a").under(&stale)).await;
    // It said "0, nothing in the last 5 min" for seconds, until the second time that it asked.
    browser.run_first(HELD_BACK).await;
    let page = Page::open(browser, scene.fence.admin, "").await;
    // The timeline alone is known, and says who waits.
    page.browser.until("the barrier's tile is drawn", "return window.tiles()[4] === '▲ 2'", &[]).await;
    let tiles = page.browser.run("return window.tiles()", &[]).await;
    assert_eq!(tiles, json!(["…", "…", "…", "…", "▲ 2", "…"]));
    assert_eq!(page.count("#decisions-empty[hidden]").await, 1, "something was refused before");
    assert_eq!(page.text("#chart-peak").await, "none seen in this span");
    page.browser.run("window.letGo()", &[]).await;
    page.browser.until("all is known", "return !window.tiles().includes('…')", &[]).await;
    let tiles = page.browser.run("return window.tiles()", &[]).await;
    assert_eq!(
        tiles,
        json!(["✓ answers", "▲ 1 of 2 open", "1 held", "1", "▲ 2", "1 in flight"]),
        "those that wait are not at the worker"
    );
    let cell = async |number: u8| page.text(&format!("#routes tr[data-key=shards] td:nth-child({number})")).await;
    assert_eq!((cell(9).await, cell(10).await), ("1".to_owned(), "2".to_owned()));
    assert_eq!(page.browser.run("return window.drawn", &[]).await, json!(["…", "1"]), "nothing else in between");
    page.until_there("#decision-rows tr").await;
    latch.open();
    for request in waiting.into_iter().chain([at_worker]) {
        assert_eq!(request.await.unwrap().status, 200);
    }

    // Nor is what a filter finds.
    page.go("verdict=pass").await;
    assert_eq!(page.count("#decisions-empty[hidden]").await, 1);
    page.browser.run("window.letGo()", &[]).await;
    page.until_there("#decisions-empty:not([hidden])").await;
    assert_eq!(page.text("#decisions-empty").await, "No decision passes the filters.");
    scene.finish().await;
}

/// The first answers to the page's questions are late, and `asked` has what it asked for, when, and when it was answered; `flood(n)` has its stream of decisions tell of
/// the last one that it told of so many times more, each under another id.
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
    let asked = page.browser.run("return [...new Set(asked.map(([path]) => path))].sort()", &[]).await;
    assert_eq!(asked, json!(["/config", "/decisions?limit=1000", "/routes", "/shadow", "/sources"]));

    // What the proxy has counted is true, whatever the page was told.
    let refused = "#tiles [href='#decisions']";
    page.browser
        .until(
            "the tile says so",
            "return document.querySelector(arguments[0]).innerText.includes('stale-tenure')",
            &[json!(refused)],
        )
        .await;
    let tile = page.text(&format!("{refused} strong")).await;
    assert_eq!(tile, "1");
    let told = scene.fence.admin_json("/routes").await;
    assert_eq!(told["refused_lately"], json!({ "seconds": 300, "reject": { "stale-tenure": 1 }, "would_reject": {} }));
    assert_eq!(page.complaints().await, Vec::<String>::new());
    scene.finish().await;
}

/// The legend took the thousand that the page was told of for all, and "refused" found none among so many that only would have been.
#[tokio::test]
async fn what_the_page_was_not_told_of_is_neither_left_out_in_silence_nor_called_nothing() {
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
    let said = async || [page.text("#reason-legend").await, page.text("#chart-peak").await].join("; ");
    relay.cut().await;
    page.until_state("cut-off").await;
    let mut line = scene.line().await;
    for _ in 0..1_500 {
        assert_eq!(line.send(Ask::post("/c").under(&watched)).await.unwrap().status, 200);
    }
    relay.restore().await;
    let thousand = "return document.querySelector('#reason-legend').innerText.includes('1,000 would be')";
    for shown in ["", "verdict=reject"] {
        page.browser.until("it was told of a thousand", thousand, &[]).await;
        assert_eq!(said().await.matches("at least").count(), 2, "{}", said().await);
        let words = "return document.querySelector('#chart-summary').textContent.includes('at least')";
        assert_eq!(page.browser.run(words, &[]).await, true);
        page.go(shown).await;
    }
    let id = refused.header("fence-decision").unwrap();
    page.until_there(&format!("#decision-rows tr[data-id='{id}']:only-child")).await;
    assert_eq!(page.complaints().await, Vec::<String>::new());
    scene.finish().await;
}

/// The proxy keeps all decisions, or says that until now they came too fast for that.
const NOT_KEPT: &str = "
    window.keepsAll = true;
    const ask = window.fetch;
    window.fetch = async (path, how) => {
        const answer = await ask(path, how);
        if (!path.startsWith('/decisions')) return answer;
        const told = await answer.json();
        return new Response(JSON.stringify(window.keepsAll ? told : { ...told, not_all_until_ms: told.now_ms }), answer);
    };";

/// After a flood the page took what the proxy had kept for all there was.
#[tokio::test]
async fn what_the_proxy_has_not_kept_for_the_page_is_not_left_out_in_silence() {
    let browser = Browser::start().await;
    let scene = Scene::open(VERSION, &routes()).await;
    let stale = scene.store.hold(LOCK, "shard-2").await;
    scene.store.hold(LOCK, "shard-1").await;
    let relay = Relay::start(scene.fence.admin).await;
    browser.run_first(NOT_KEPT).await;
    let page = Page::open(browser, relay.address(), "").await;
    for (refused, keeps_all, said) in [(1, true, 0), (2, false, 2)] {
        page.browser.run("window.keepsAll = arguments[0]", &[json!(keeps_all)]).await;
        relay.cut().await;
        page.until_state("cut-off").await;
        scene.send(Ask::post("/shards/2/a").under(&stale)).await;
        relay.restore().await;
        let known = "return document.querySelector('#chart-summary').textContent.endsWith(arguments[0])";
        page.browser.until("it was told", known, &[json!(format!(": stale-tenure: {refused}."))]).await;
        let legend = [page.text("#reason-legend").await, page.text("#chart-peak").await].join("; ");
        assert_eq!(legend.matches("at least").count(), said, "{legend}");
    }
    assert_eq!(page.complaints().await, Vec::<String>::new());
    scene.finish().await;
}

/// `asked` has what the page has asked for.
const ASKED: &str = "
    const ask = window.fetch;
    window.asked = [];
    window.fetch = (path, ...how) => {
        window.asked.push(path);
        return ask(path, ...how);
    };";

/// The table was empty without a word, and the proxy asked every two seconds for what it had refused to tell.
#[tokio::test]
async fn a_link_with_a_filter_that_there_is_not_is_said_to_have_one_and_not_asked_about_again() {
    let browser = Browser::start().await;
    let scene = Scene::open(VERSION, &routes()).await;
    let stale = scene.store.hold(LOCK, "shard-2").await;
    scene.store.hold(LOCK, "shard-1").await;
    scene.send(Ask::post("/shards/2/a").under(&stale)).await;
    browser.run_first(ASKED).await;
    let page = Page::open(browser, scene.fence.admin, "").await;
    page.until_count("#decision-rows tr", 1).await;
    for (filter, said) in [
        ("reason=stale", "Fencepost does not take these filters: unknown reason \"stale\"; there are "),
        (
            "verdict=refused",
            "Fencepost does not take these filters: unknown verdict \"refused\"; there are admit, reject, pass.",
        ),
    ] {
        page.go(filter).await;
        page.until_there("#decisions-empty:not([hidden])").await;
        let empty = page.text("#decisions-empty").await;
        assert!(empty.starts_with(said), "{empty}");
        assert_eq!(page.count("#decision-rows tr").await, 0);
        // It would ask again as often as for the routes.
        page.browser.run("window.asked = window.asked.filter((path) => path !== '/routes')", &[]).await;
        let later = "return window.asked.filter((path) => path === '/routes').length > 2";
        page.browser.until("it has asked for more", later, &[]).await;
        let asked = "return window.asked.filter((path) => path.includes(arguments[0])).length";
        assert_eq!(page.browser.run(asked, &[json!(filter)]).await, 1);
    }
    page.click("#clear-filters").await;
    page.until_count("#decision-rows tr", 1).await;
    assert_eq!(page.complaints().await, Vec::<String>::new());
    scene.finish().await;
}

/// What is to be done in some seconds is done soon; `told()` counts the refusals that a screen reader was told of.
const READ_ALOUD: &str = "
    const wait = window.setTimeout;
    window.setTimeout = (step, ms) => wait(step, ms > 3000 ? ms / 20 : ms);
    const said = [];
    window.told = () => said.reduce((sum, text) => sum + Number(text.match(/\\d+/)[0]), 0);
    new MutationObserver((changes) => {
        for (const { target } of changes) if (target.id === 'news') said.push(target.textContent);
    }).observe(document, { subtree: true, childList: true });";

/// It was told of the first of a burst, and of the others when another came, hours later.
#[tokio::test]
async fn a_screen_reader_is_told_of_all_refusals_of_a_burst() {
    let browser = Browser::start().await;
    let scene = Scene::open(VERSION, &routes()).await;
    let stale = scene.store.hold(LOCK, "shard-2").await;
    scene.store.hold(LOCK, "shard-1").await;
    browser.run_first(READ_ALOUD).await;
    let page = Page::open(browser, scene.fence.admin, "").await;
    for (burst, all) in [(1, 1), (3, 4)] {
        for _ in 0..burst {
            scene.send(Ask::post("/shards/2/a").under(&stale)).await;
        }
        page.browser.until(&format!("{all} are told of"), "return window.told() === arguments[0]", &[json!(all)]).await;
    }
    assert_eq!(page.complaints().await, Vec::<String>::new());
    scene.finish().await;
}

/// The page waits a tenth as long as it would for answers about routes, which do not come before `letGo()`. `late` counts the questions
/// that it gave up, and `streams` the streams that it opened.
const LATE: &str = "
    const [ask, timeout] = [window.fetch, AbortSignal.timeout.bind(AbortSignal)];
    AbortSignal.timeout = (ms) => timeout(ms / 10);
    window.letGo = () => { window.fetch = ask; };
    window.late = 0;
    window.fetch = (path, how) => path !== '/routes' ? ask(path, { ...how, signal: null }) : new Promise((_, reject) => {
        how.signal.addEventListener('abort', () => { window.late += 1; reject(how.signal.reason); });
    });
    window.streams = 0;
    window.EventSource = class extends EventSource {
        constructor(path) {
            super(path);
            window.streams += 1;
        }
    };";

/// It was cut off, connected again and was live, until the next answer was late.
#[tokio::test]
async fn a_page_that_hears_late_says_that_it_is_behind_and_goes_on_listening() {
    let browser = Browser::start().await;
    let scene = Scene::open(VERSION, &routes()).await;
    browser.run_first(LATE).await;
    let page = Page::open(browser, scene.fence.admin, "").await;
    page.browser.until("it has given up four times", "return window.late >= 4", &[]).await;
    page.until_state("behind").await;
    assert_eq!(page.text("#connection").await, "behind");
    // Two would be opened after each answer that is late. On a busy machine some break for other reasons.
    let streams = page.browser.run("return window.streams", &[]).await.as_u64().unwrap();
    assert!(streams < 2 * 4, "it has opened {streams} streams instead of listening as from the beginning");
    page.browser.run("window.letGo()", &[]).await;
    page.until_state("live").await;
    scene.finish().await;
}

/// The page had looked at a generation 1, and took another process's for the same one: it called the fence enforced for ever.
#[tokio::test]
async fn a_process_that_weakens_the_fence_does_not_pass_for_the_one_before() {
    let browser = Browser::start().await;
    let [shards, _] = routes();
    let mut scene = Scene::open(VERSION, std::slice::from_ref(&shards)).await;
    let port = FreePort::reserve();
    let starting_with = |route: Route| {
        let file = scene.config.clone().routes(&[route]).toml();
        file.replace(r#"listen = "127.0.0.1:0""#, &format!("listen = {:?}", port.address().to_string()))
    };
    let (enforced, weakened) =
        (starting_with(shards.clone()), starting_with(shards.with(r#"on_unavailable = "dangerous_admit""#)));
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
    assert_eq!(note, "dangerous_unprotected = true (admin), on_unavailable = dangerous_admit (shards)");
    scene.finish().await;
}

/// It said "configuration 1" and no more, as if the file were that.
#[tokio::test]
async fn a_configuration_file_that_was_rejected_is_told_of_until_it_is_mended() {
    let browser = Browser::start().await;
    let scene = Scene::open(VERSION, &routes()).await;
    let page = Page::open(browser, scene.fence.admin, "").await;
    assert_eq!(scene.fence.reload(&scene.config.clone().limit("confirm_timeout = \"1 h\"")).await.status, 422);
    page.until_there("#generation .badge.warn").await;
    assert_eq!(page.text("#generation").await, "configuration 1 its file was rejected: the log says why");
    scene.fence.reloads(&scene.config).await;
    page.until_count("#generation .badge", 0).await;
    assert_eq!(page.text("#generation").await, "configuration 1");
    scene.finish().await;
}

/// A lock that nobody has read was one without a holder, and a store that nobody asks one that is down.
#[tokio::test]
async fn what_was_never_read_is_neither_free_nor_down() {
    let browser = Browser::start().await;
    let (worker, nobody) = (Worker::start().await, FreePort::reserve());
    let dead = format!("http://{}", nobody.address());
    let unused = format!("[source.unused]\nkind = \"etcd\"\nendpoints = [{dead:?}]\n");
    let route = Route::new("k", "/", r#"key = "/k""#);
    let config = Config::new(&[dead], &worker.endpoint().to_string(), &[route]).section(&unused);
    let fence = Fencepost::launch(&config).await;
    let page = Page::open(browser, fence.admin, "").await;
    page.until_there("#tiles .tile[data-key=Locks] .tile-note:not(:empty)").await;
    assert_eq!(page.text("#tiles .tile[data-key=Locks] .tile-note").await, "1 not read yet");
    page.until_there("#sources tr[data-key=main] .badge.bad").await;
    assert_eq!(page.text("#sources tr[data-key=unused] .badge").await, "not in use");
    assert_eq!(page.complaints().await, Vec::<String>::new());
}

/// It called all but the thousand that it has rows for unknown, and kept each that it was ever told of.
#[tokio::test]
async fn a_page_with_more_locks_than_rows_says_so_and_keeps_no_more_of_them() {
    let browser = Browser::start().await;
    let [shards, _] = routes();
    browser.screen(1440, 900, "light").await; // Where a row is 54 pixels high.
    let scene = Scene::open(VERSION, &[shards]).await;
    let held = scene.store.hold(LOCK, "shard-1").await;
    scene.admits("/shards/2/x", &held).await;
    let mut line = scene.line().await;
    let mut ask_for = async |shards: Range<u32>| {
        for shard in shards {
            // So many locks without a record may be read at once, and so many a second: on a quick machine it has to wait.
            eventually("it has been read", async || {
                let answer = line.send(Ask::post(&format!("/shards/{shard}/x")).token("shard-1", "1")).await.unwrap();
                match answer.header("fence-reason") {
                    Some("no-owner") => Some(()),
                    Some("unverifiable") => None,
                    _ => panic!("{answer:?}"),
                }
            })
            .await;
        }
    };
    ask_for(1_000..1_999).await;
    let page = Page::open(browser, scene.fence.admin, "").await;
    let until_told = async |tile: &str, count: &str, rows: u64| {
        let told = "return [document.querySelector('#tiles [href=\"#timeline-title\"]').innerText.split('\\n').slice(1).join(', '),
            document.querySelector('#timeline-count').innerText, document.querySelector('#rows').offsetHeight / 54].join('; ') === arguments[0]";
        let expected = format!("{tile}; {count}; {rows}");
        page.browser.until(&format!("it says {expected}"), told, &[json!(expected)]).await;
    };
    until_told("1 held, 999 without a holder", "", 1_000).await;
    ask_for(1_999..2_002).await;
    until_told("1,003 tracked, 1 held of 1,000 shown", "1,000 of 1,003 locks", 1_000).await;

    // A page that comes later is told so, and not of the one that nobody has heard of for longest.
    page.go("").await;
    until_told("1,003 tracked, 0 held of 1,000 shown", "1,000 of 1,003 locks", 1_000).await;
    page.click("#lock-find").await;
    page.browser.press(LOCK).await;
    page.until_there("#timeline-empty:not([hidden]) a[href='/locks/%2Fshards%2F2%2Flock']").await;
    let empty = page.text("#timeline-empty").await;
    assert!(empty.contains("among the 1,000 locks that were heard of last"), "{empty}");
    assert_eq!(page.complaints().await, Vec::<String>::new());
    scene.finish().await;
}
