//! The dashboard, read in a real browser while requests go through the proxy.

use std::time::Duration;

use fencepost_tests::{Browser, EtcdVersion, Relay};
use serde_json::{Value, json};

use crate::fencepost::Route;
use crate::page::Page;
use crate::refusal::assert_refused;
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

/// How long a tenure of the story lasts: one of less has a bar that is too narrow to be told from
/// its neighbours. It is part of what is played, and nothing is waited for by it.
async fn let_a_bar_grow() {
    tokio::time::sleep(Duration::from_millis(800)).await;
}

fn decision(answer: &fencepost_tests::Response) -> String {
    answer.header("fence-decision").expect("a refusal has an id").to_owned()
}

/// All bars of a lock, the hatched tails, and the dots, with where they are in the window.
const DRAWN: &str = "
    const all = (selector, part) => [...document.querySelectorAll(selector)].map((one) => {
        const box = (part ? one.querySelector(part) : one).getBoundingClientRect();
        return { owner: one.dataset.owner, first: Number(one.dataset.first), ended: one.dataset.ended !== undefined,
            decision: one.dataset.decision, left: box.left, right: box.right, top: box.top, bottom: box.bottom };
    });
    return { bars: all('#rows .tenure', '.bar'), tails: all('#rows .tail', '.tail-bar'), dots: all('#rows a[data-decision]') };";

#[tokio::test]
async fn the_delayed_request_is_on_the_bar_of_its_ended_tenure() {
    let browser = Browser::start().await;
    let [shards, _] = routes();
    let scene = Scene::open(VERSION, &[shards]).await;
    let page = Page::open(browser, scene.fence.admin, "").await;
    page.until_there("#timeline-empty:not([hidden])").await;
    page.until_there("#decisions-empty:not([hidden])").await;
    assert!(page.text("#timeline-empty").await.contains("No lock is known yet"), "says what to do");
    assert!(page.text("#decisions-empty").await.contains("Nothing was refused yet"));

    let path = "/shards/2/jobs";
    let [one, two] = [scene.store.session("shard-1").await, scene.store.session("shard-2").await];
    let first = scene.store.acquire(Layout::Key, LOCK, &one).await;
    let r1 = first.tenure.clone();
    scene.admits(path, &r1).await;
    let_a_bar_grow().await;
    scene.store.release(first).await;
    scene.until_known(LOCK, None).await;
    let_a_bar_grow().await;
    let second = scene.store.acquire(Layout::Key, LOCK, &two).await;
    let r2 = second.tenure.clone();
    scene.admits(path, &r2).await;
    let_a_bar_grow().await;
    scene.store.crash(&two).await;
    let third = scene.store.acquire(Layout::Key, LOCK, &one).await;
    let r3 = third.tenure.clone();
    scene.admits(path, &r3).await;
    let_a_bar_grow().await;
    let refused = scene.send(Ask::post(path).under(&r1)).await;
    assert_refused(&refused, "replayed-tenure", LOCK, &r3);
    let id = decision(&refused);

    // The id that the client was given is on the page.
    page.until_there(&format!("#decision-rows tr[data-id='{id}']")).await;
    let row = page.text(&format!("#decision-rows tr[data-id='{id}']")).await;
    for shown in ["replayed-tenure", LOCK, "shard-1", &format!("@{}", r1.revision), &id, "412"] {
        assert!(row.contains(shown), "{shown} is not in {row}");
    }

    // The timeline follows the decisions within a second. Fitted before that, it may leave out the dot.
    page.until_there(&format!("#rows a[data-decision='{id}']")).await;

    // Everything in sight, and standing still before any of it has moved out.
    let fit =
        "document.querySelector('#timeline').dispatchEvent(new KeyboardEvent('keydown', { key: 'f', bubbles: true }));
        document.querySelector('#to-now').click()";
    page.browser.run(fit, &[]).await;
    page.until_there(&format!("#rows a[data-decision='{id}']")).await;
    let drawn = page.browser.run(DRAWN, &[]).await;
    let bars = drawn["bars"].as_array().unwrap();
    let shown = bars.iter().map(|bar| json!([bar["owner"], bar["first"], bar["ended"]]));
    let expected = [(&r1, true), (&r2, true), (&r3, false)];
    let expected = expected.map(|(tenure, ended)| json!([tenure.owner, tenure.revision, ended]));
    assert_eq!(shown.collect::<Vec<_>>(), expected, "{drawn}");
    let at = |thing: &Value, side: &str| thing[side].as_f64().unwrap();
    assert!(
        at(&bars[1], "left") - at(&bars[0], "right") > 5.0,
        "nobody held it for a while: {drawn}"
    );

    // The dot lies after the end of the bar, on the tail that continues it.
    let one = |kind: &str, field: &str, value: Value| {
        drawn[kind].as_array().unwrap().iter().find(|one| one[field] == value).unwrap()
    };
    let (dot, tail) =
        (one("dots", "decision", json!(id)), one("tails", "first", json!(r1.revision)));
    let middle_of = |begin, end| (at(dot, begin) + at(dot, end)) / 2.0;
    let middle = (middle_of("left", "right"), middle_of("top", "bottom"));
    assert!(at(&bars[2], "left") < middle.0, "it arrived in the third tenure: {drawn}");
    let gap = at(tail, "left") - at(&bars[0], "right");
    assert!(gap.abs() < 2.0, "the tail begins where the bar ends: {drawn}");
    assert!(at(tail, "left") < middle.0 && middle.0 < at(tail, "right"), "{drawn}");
    assert!(at(tail, "top") < middle.1 && middle.1 < at(tail, "bottom"), "{drawn}");

    // A click on it leads to the decision.
    page.point(&format!("#rows a[data-decision='{id}']")).await;
    page.until_there("#detail[open]").await;
    let detail = page.text("#detail").await;
    for shown in [
        "replayed-tenure",
        &id,
        LOCK,
        "delayed write of an earlier tenure",
        "nothing was forwarded",
    ] {
        assert!(detail.contains(shown), "{shown} is not in {detail}");
    }
    assert_eq!(
        page.browser.run("return location.hash.includes(arguments[0])", &[json!(id)]).await,
        true
    );

    // So does the address, elsewhere and later.
    page.go(&format!("decision={id}")).await;
    page.until_there("#detail[open]").await;
    assert!(page.text("#detail").await.contains(&id));

    let handoff = page.text("#handoffs tr:first-child").await;
    assert!(handoff.contains("shard-2") && handoff.contains("shard-1"), "{handoff}");
    let zombie = page.text("#handoffs td.zombie").await;
    assert!(zombie.contains("1 refused"), "{zombie}");
    let words = "return [...document.querySelectorAll('#rows svg')].some((row) => row.getAttribute('aria-label').includes(arguments[0]))";
    let held = format!("{LOCK}: held by shard-1, revision {}", r3.revision);
    page.browser.until("the row is told in words", words, &[json!(held)]).await;
    assert_eq!(page.complaints().await, Vec::<String>::new());
    scene.finish().await;
}

#[tokio::test]
async fn hostile_names_are_shown_and_never_run() {
    let browser = Browser::start().await;
    let scene = Scene::open(VERSION, &routes()).await;
    let script = "<script>window.harmed=1</script>";
    let image = "\"><img src=x onerror=window.harmed=1>";
    let long = "A".repeat(8 * 1024);
    // As the holder of a lock, which only the store says: with a newline and a change of direction
    // too.
    let stored = format!("{script}\n\u{202e}evil{image}");
    let held = scene.store.put(LOCK, stored.as_str()).await;
    let (held, path) = (held.to_string(), "/shards/2/%3Csvg%20onload=window.harmed=1%3E");
    let others = ["javascript:window.harmed=1", "{{window.harmed=1}}", "a\u{202e}b"];
    for owner in [script, image, &long].into_iter().chain(others) {
        let answer = scene.send(Ask::post(path).token(owner, &held)).await;
        assert!(answer.header("fence-reason").is_some(), "{owner}: {answer:?}");
    }
    scene.store.hold("/shards/<b onclick=window.harmed=1>/lock", script).await;
    scene.send(Ask::post("/shards/%3Cb%20onclick=window.harmed=1%3E/x").token(image, "1")).await;

    let page = Page::open(browser, scene.fence.admin, "").await;
    page.until_there("#rows .tenure").await;
    page.until_count("#decision-rows tr", 7).await;
    // Each decision opened, each bar pointed at.
    let ids = page
        .browser
        .run("return [...document.querySelectorAll('#decision-rows tr')].map((row) => row.dataset.id)", &[])
        .await;
    for id in ids.as_array().unwrap() {
        let open = "location.hash = 'decision=' + arguments[0]";
        page.browser.run(open, std::slice::from_ref(id)).await;
        let there = "return document.querySelector('#detail').innerText.includes(arguments[0])";
        page.browser.until("its details are open", there, std::slice::from_ref(id)).await;
    }
    page.browser.press(Browser::ESCAPE).await;
    page.point("#rows .tenure .bar").await;
    page.until_there("#detail[open]").await;
    page.click("#as-table summary").await;

    let text = page.browser.run("return document.body.textContent", &[]).await;
    let text = text.as_str().unwrap();
    for shown in [script, "<img", "javascript:window.harmed=1", "{{window.harmed=1}}"] {
        assert!(text.contains(shown), "{shown} is shown as it is");
    }
    assert_eq!(page.browser.run("return typeof window.harmed", &[]).await, "undefined");
    assert_eq!(page.count("script").await, 1, "the page's own");
    assert_eq!(
        page.count("img, iframe, object, embed, b[onclick], svg[onload], [onerror], [style*=url]")
            .await,
        0
    );
    assert!(!text.contains('\u{202e}'), "nothing turns the direction of writing");
    assert!(page.fits().await);
    assert_eq!(page.complaints().await, Vec::<String>::new());

    // What no proxy of this version lets through, the page itself would spell out.
    let spelt = "const { visible } = await import('/dashboard/dom.js'); return visible(given[0])";
    let spelt = page
        .browser
        .run_async(spelt, &[json!("a\u{202e}b\n\u{0}\u{200b}\u{2028}\u{feff}c d")])
        .await;
    assert_eq!(spelt, r"a\u{202e}b\u{a}\u{0}\u{200b}\u{2028}\u{feff}c d");
    scene.finish().await;
}

#[tokio::test]
async fn filters_narrow_the_decisions_and_stand_in_the_address() {
    let browser = Browser::start().await;
    let scene = Scene::open(VERSION, &routes()).await;
    let stale = scene.store.hold(LOCK, "shard-2").await;
    scene.store.hold(LOCK, "shard-1").await;
    scene.store.hold("/k", "shard-7").await;
    let refused = decision(&scene.send(Ask::post("/shards/2/a").under(&stale)).await);
    let missing = decision(&scene.send(Ask::post("/shards/2/b")).await);
    let forwarded = scene.send(Ask::post("/c").under(&Tenure::new("shard-8", 1))).await;
    assert_eq!(forwarded.status, 200, "shadow mode: {forwarded:?}");

    let page = Page::open(browser, scene.fence.admin, "").await;
    let listed = async |page: &Page| {
        let rows = "return [...document.querySelectorAll('#decision-rows tr')].map((row) => row.dataset.id).sort()";
        page.browser.run(rows, &[]).await
    };
    let until_listed = async |page: &Page, mut ids: Vec<&str>| {
        ids.sort_unstable();
        let script = "return JSON.stringify([...document.querySelectorAll('#decision-rows tr')].map((row) => row.dataset.id).sort()) === arguments[0]";
        page.browser
            .until(&format!("just {ids:?}"), script, &[json!(json!(ids).to_string())])
            .await;
    };
    page.until_count("#decision-rows tr", 3).await;
    let all = listed(&page).await;
    let watched = all
        .as_array()
        .unwrap()
        .iter()
        .find(|id| **id != refused.as_str() && **id != missing.as_str());
    let watched = watched.unwrap().as_str().unwrap();

    page.go("reason=token-missing").await;
    until_listed(&page, vec![&missing]).await;
    page.go("verdict=shadow").await;
    until_listed(&page, vec![watched]).await;
    assert!(page.text("#decision-rows tr").await.contains("forwarded"), "and marked as such");
    page.go("owner=SHARD-2").await;
    until_listed(&page, vec![&refused]).await;
    page.go(&format!("find={missing}")).await;
    until_listed(&page, vec![&missing]).await;
    page.go("lock=nowhere").await;
    until_listed(&page, vec![]).await;
    page.click("#clear-filters").await;
    until_listed(&page, vec![&refused, &missing, watched]).await;

    // Typed and chosen; what comes meanwhile is filtered too.
    page.click("#filters [name=lock]").await;
    page.browser.press("/shards/2").await;
    until_listed(&page, vec![&refused, &missing]).await;
    let later = decision(&scene.send(Ask::post("/shards/2/d").under(&stale)).await);
    until_listed(&page, vec![&refused, &missing, &later]).await;
    assert_eq!(
        page.browser
            .run("return new URLSearchParams(location.hash.slice(1)).get('lock')", &[])
            .await,
        "/shards/2"
    );
    page.click("#reason-legend button[data-reason=token-missing]").await;
    until_listed(&page, vec![&missing]).await;

    // Paused, the table stands still.
    page.click("#clear-filters").await;
    page.click("#pause").await;
    scene.send(Ask::post("/shards/2/e").under(&stale)).await;
    let button = "return document.querySelector('#pause').textContent.includes('1 new')";
    page.browser.until("the page counts what it holds back", button, &[]).await;
    assert_eq!(page.count("#decision-rows tr").await, 4);
    page.click("#pause").await;
    page.until_count("#decision-rows tr", 5).await;
    assert_eq!(page.complaints().await, Vec::<String>::new());
    scene.finish().await;
}

#[tokio::test]
async fn a_route_that_refuses_nothing_stands_out() {
    let browser = Browser::start().await;
    let scene = Scene::open(VERSION, &routes()).await;
    let tenure = scene.store.hold(LOCK, "shard-1").await;
    scene.admits("/shards/2/a", &tenure).await;
    let watched = scene.store.hold("/k", "shard-8").await;
    scene.until_known("/k", Some("shard-8")).await;
    scene.store.hold("/k", "shard-7").await;
    scene.until_known("/k", Some("shard-7")).await;
    let forwarded = scene.send(Ask::post("/c").under(&watched)).await;
    assert_eq!(forwarded.status, 200, "shadow mode: {forwarded:?}");
    let page = Page::open(browser, scene.fence.admin, "").await;
    page.until_count("#routes tr", 2).await;
    // Nothing was refused, and nothing says so.
    let tile = "const tile = document.querySelector('#tiles [href=\"#decisions\"]'); return tile.querySelector('strong').innerText === '0 refused' \
        && tile.querySelector('.tile-second')?.innerText === '1 would be refused (shadow)'";
    page.browser.until("the tile says what would be refused", tile, &[]).await;
    for (shown, selector) in [
        ("1 would be\n(shadow)", "#routes tr[data-key=watched] td.refused"),
        ("1 would be", "#reason-legend button[data-reason=stale-tenure]"),
        ("1 would be refused", "#handoffs td.zombie"),
    ] {
        let text = page.text(selector).await;
        assert!(text.contains(shown), "{shown} is not in {text}");
    }
    page.click("#as-table summary").await;
    page.until_count("#tenures tr", 3).await;
    let refused = "return [...document.querySelectorAll('#tenures td:nth-child(6)')].map((cell) => cell.innerText).sort()";
    assert_eq!(page.browser.run(refused, &[]).await, json!(["0", "0", "1 would be"]));
    let [shards, watched] = [
        page.text("#routes tr[data-key=shards]").await,
        page.text("#routes tr[data-key=watched]").await,
    ];
    assert!(shards.contains("enforce") && shards.contains("/shards/{shard}/lock"), "{shards}");
    assert!(watched.contains("shadow") && watched.contains("/k"), "{watched}");
    page.until_there("#tiles .tile.warn[data-key=Fencing]").await;
    let tile = page.text("#tiles .tile[data-key=Fencing]").await;
    assert!(
        tile.contains("1 of 2")
            && tile.contains("routes enforce")
            && tile.contains("watched (shadow)"),
        "{tile}"
    );
    page.until_count("#shadow-rows tr", 1).await;
    let report = page.text("#shadow-rows tr").await;
    assert!(report.contains("stale-tenure") && report.contains("shard-8"), "{report}");
    let store = page.text("#sources tr").await;
    assert!(
        store.contains("main") && store.contains("answers") && store.contains("3.5"),
        "{store}"
    );

    let weakened =
        Route::k().with("on_unavailable = \"dangerous_admit\"\npartial_requests = \"harmless\"");
    let other =
        Scene::with(VERSION, &[weakened], |config| config.limit("confirm_timeout = \"50ms\""))
            .await;
    let page = Page::open(page.browser, other.fence.admin, "").await;
    page.until_there("#tiles .tile.bad[data-key=Fencing]").await;
    let tile = page.text("#tiles .tile[data-key=Fencing]").await;
    for shown in
        ["weakened", "on_unavailable = dangerous_admit (k)", "partial_requests = harmless (k)"]
    {
        assert!(tile.contains(shown), "{shown} is not in {tile}");
    }

    // What that lets past was neither admitted nor refused, and no route is in shadow mode.
    other.store.put("/k", "").await;
    other.etcd.pause().await;
    let past = other.send(Ask::post("/").under(&Tenure::new("shard-1", 1 << 40))).await;
    assert_eq!(past.status, 200, "{past:?}");
    let id = other.fence.admin_json("/decisions?verdict=pass").await["decisions"][0]["id"].take();
    page.go("verdict=pass").await;
    let chosen = page.browser.run(
        "return document.querySelector('#filters [name=verdict]').selectedOptions[0].text",
        &[],
    );
    assert_eq!(chosen.await, "let past");
    page.until_count(&format!("#decision-rows tr[data-id={id}]"), 1).await;
    let row = page.text("#decision-rows tr").await;
    assert!(row.contains("unverifiable") && row.contains("let past"), "{row}");
    page.go(&format!("decision={}", id.as_str().unwrap())).await;
    page.until_there("#detail[open]").await;
    let detail = page.text("#detail").await;
    assert!(detail.contains("Let past") && detail.contains("weakens the fence"), "{detail}");
    assert!(detail.contains("From arrival to decision"), "it has waited for the store: {detail}");
    for wrong in ["Admitted", "shadow", "othing was forwarded", "barrier"] {
        assert!(!detail.contains(wrong), "{wrong} is in {detail}");
    }
    other.etcd.resume();
    other.finish().await;
    assert_eq!(page.complaints().await, Vec::<String>::new());
    scene.finish().await;
}

#[tokio::test]
async fn the_page_is_light_fits_a_phone_and_names_its_controls() {
    let browser = Browser::start().await;
    let scene = Scene::open(VERSION, &routes()).await;
    let stale = scene
        .store
        .hold("/shards/a-rather-long-name-of-a-shard-that-has-no-room-on-a-phone/lock", "shard-2")
        .await;
    let path = "/shards/a-rather-long-name-of-a-shard-that-has-no-room-on-a-phone/x";
    scene.admits(path, &stale).await;
    scene.send(Ask::post(path).token(&"long-owner-".repeat(20), &stale.revision.to_string())).await;
    let page = Page::open(browser, scene.fence.admin, "").await;
    page.until_there("#rows .tenure").await;

    let loaded = "return [...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')] \
        .filter((entry) => new URL(entry.name).pathname.match(/^\\/($|dashboard\\/)/) || !entry.name.startsWith(location.origin)) \
        .map((entry) => [entry.name, entry.transferSize])";
    let loaded = page.browser.run(loaded, &[]).await;
    let loaded = loaded.as_array().unwrap();
    let bytes: u64 = loaded.iter().map(|entry| entry[1].as_u64().unwrap()).sum();
    assert!(loaded.len() > 10 && (10_000..200_000).contains(&bytes), "{bytes} bytes: {loaded:?}");
    let own = |entry: &Value| {
        entry[0].as_str().unwrap().starts_with(&format!("http://{}/", scene.fence.admin))
    };
    assert!(loaded.iter().all(own), "nothing comes from elsewhere: {loaded:?}");

    let lightness = "return getComputedStyle(document.body).backgroundColor.match(/[0-9.]+/g).slice(0, 3).reduce((a, b) => a + Number(b), 0)";
    for (width, height) in [(1440, 900), (768, 1024), (390, 844)] {
        let mut background = Vec::new();
        for scheme in ["light", "dark"] {
            page.browser.screen(width, height, scheme).await;
            page.go("").await;
            page.until_there("#rows .tenure").await;
            assert!(page.fits().await, "{width}, {scheme}");
            background.push(page.browser.run(lightness, &[]).await.as_f64().unwrap());
            page.click("#decision-rows a").await;
            page.until_there("#detail[open]").await;
            assert!(page.fits().await, "{width}, {scheme}, with details");
        }
        assert!(background[0] > 600.0 && background[1] < 150.0, "{background:?}");
    }
    page.click("#detail-close").await;
    page.browser.screen(1440, 900, "light").await;
    page.click("#theme").await; // From the system's to light,
    page.click("#theme").await; // and on to dark.
    page.go("").await;
    assert!(
        page.browser.run(lightness, &[]).await.as_f64().unwrap() < 150.0,
        "the choice outlives the page"
    );

    let unnamed = "return [...document.querySelectorAll('button, a, input, select, [role=region], [role=application], section, table')]
        .filter((one) => one.checkVisibility() && !(one.getAttribute('aria-label') || one.labels?.[0]?.innerText.trim() || one.innerText?.trim()
            || document.getElementById(one.getAttribute('aria-labelledby'))?.textContent.trim()))
        .map((one) => one.outerHTML.slice(0, 200))";
    assert_eq!(page.browser.run(unnamed, &[]).await, json!([]), "every control has a name");
    page.until_there("#decision-rows a").await;
    // Whoever speaks to a computer says what they read (WCAG 2.5.3).
    let called_otherwise =
        "return [...document.querySelectorAll('a[aria-label], button[aria-label]')]
        .map((one) => [one.innerText?.trim() ?? '', one.getAttribute('aria-label')])
        .filter(([text, label]) => /[\\p{L}\\p{N}]/u.test(text) && !label.includes(text))";
    assert_eq!(
        page.browser.run(called_otherwise, &[]).await,
        json!([]),
        "a name has the text that is seen"
    );
    let namesakes = "const names = [...document.querySelectorAll('section, [role=region]')]
        .map((one) => one.getAttribute('aria-label') ?? document.getElementById(one.getAttribute('aria-labelledby')).textContent);
        return names.filter((name, at) => names.indexOf(name) !== at)";
    assert_eq!(page.browser.run(namesakes, &[]).await, json!([]), "no two regions have one name");
    assert_eq!(page.count("html[lang]").await, 1);
    assert_eq!(page.count("h1").await, 1);
    assert_eq!(page.count("th:not([scope])").await, 0);
    assert_eq!(page.complaints().await, Vec::<String>::new());
    scene.finish().await;
}

#[tokio::test]
async fn a_page_that_is_cut_off_says_so_and_connects_again() {
    let browser = Browser::start().await;
    let scene = Scene::open(VERSION, &routes()).await;
    let stale = scene.store.hold(LOCK, "shard-2").await;
    scene.store.hold(LOCK, "shard-1").await;
    let relay = Relay::start(scene.fence.admin).await;
    let page = Page::open(browser, relay.address(), "").await;
    let before = decision(&scene.send(Ask::post("/shards/2/x").under(&stale)).await);
    page.until_there(&format!("#decision-rows tr[data-id='{before}']")).await;
    page.until_there("#sources td:nth-child(3)").await;
    let holder = "return [...document.querySelectorAll('#rows .holder')].some((one) => one.innerText.replace(/\\s+/g, ' ').startsWith(arguments[0]))";
    let says_holder = async |says: &str| page.browser.until(says, holder, &[json!(says)]).await;
    says_holder("shard-1").await;
    relay.cut().await;
    page.until_state("cut-off").await;
    says_holder("last known: shard-1").await;
    assert!(page.text("#cut-off").await.contains("what stands below is old"));
    let age = page.text("#sources td:nth-child(3)").await;
    let older =
        "return document.querySelector('#sources td:nth-child(3)').innerText !== arguments[0]";
    page.browser.until("the news grows older by the page's own clock", older, &[json!(age)]).await;
    let meanwhile = decision(&scene.send(Ask::post("/shards/2/x").under(&stale)).await);
    relay.restore().await;
    page.until_state("live").await;
    page.until_there(&format!("#decision-rows tr[data-id='{meanwhile}']")).await;
    page.until_there("#cut-off[hidden]").await;
    says_holder("shard-1").await;

    // A connection over which nothing comes any more is noticed too.
    relay.freeze().await;
    page.until_state("cut-off").await;
    relay.restore().await;
    page.until_state("live").await;
    let after = decision(&scene.send(Ask::post("/shards/2/x").under(&stale)).await);
    page.until_there(&format!("#decision-rows tr[data-id='{after}']")).await;
    let count = "return document.querySelector('#decisions-count').textContent";
    assert_eq!(page.browser.run(count, &[]).await, "3", "what is heard again counts once");
    assert_eq!(page.complaints().await, Vec::<String>::new());
    scene.finish().await;
}

#[tokio::test]
async fn a_revision_beyond_javascript_is_shown_as_it_is() {
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
