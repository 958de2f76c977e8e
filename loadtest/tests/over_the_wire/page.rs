//! The report as a page, in a real browser.

use fencepost_testsupport::{Browser, Etcd, EtcdVersion, FreePort, Scratch};

use crate::support::{ReportFile, loadtest};

/// Pairs of texts of one drawing that cover each other, and what is wider than the screen, or than its place on it.
const OVERLAPS: &str = "
    const found = [];
    for (const drawing of document.querySelectorAll('svg')) {
        const texts = [...drawing.querySelectorAll('text')].map(text => [text.textContent, text.getBoundingClientRect()]);
        for (const [one, a] of texts) for (const [two, b] of texts)
            if (one < two && a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom)
                found.push(drawing.getAttribute('aria-label') + ': ' + one + ' / ' + two);
        const whole = drawing.getBoundingClientRect();
        for (const [text, a] of texts)
            if (a.left < whole.left - 1 || a.right > whole.right + 1 || a.bottom > whole.bottom + 1) found.push('outside: ' + text);
    }
    for (const part of document.querySelectorAll('main, section, div, dl, dd, table, td, th, p'))
        if (part.scrollWidth > part.clientWidth + 1 && part.clientWidth > 0) found.push('cut off: ' + part.textContent);
    if (document.documentElement.scrollWidth > innerWidth) found.push('wider than the screen');
    return found;";

#[tokio::test]
async fn the_page_has_the_figures_and_its_plots_fit_on_every_screen() {
    let (etcd, worker) = (Etcd::start(EtcdVersion::V3_5).await, FreePort::reserve());
    let (scratch, report) = (Scratch::new(), ReportFile::new());
    let page = scratch.path().join("report.html");
    let (address, url, etcd) = (worker.address().to_string(), format!("http://{}", worker.address()), etcd.endpoint());
    let file = page.to_str().expect("a scratch directory's path is text");
    let wire = ["closed", "--proxy", &url, "--worker-listen", &address, "--etcd", &etcd, "--lock", "/lock"];
    let moves =
        ["--handoff-every", "100ms", "--duration", "2s", "--connections", "4", "--json", report.path(), "--html", file];
    // Nothing fences here, so that there is something wrong to be shown.
    loadtest(&[&wire[..], &moves].concat()).await.ended_with(1);
    let report = report.read();

    let text = std::fs::read_to_string(&page).expect("the page was written");
    for elsewhere in ["<script", "src=", "href=", "url(", "@import"] {
        assert!(!text.contains(elsewhere), "{elsewhere} in the page");
    }
    let browser = Browser::start().await;
    browser.open(&format!("file://{file}")).await;
    let shown = browser.run("return document.body.innerText", &[]).await;
    let shown = shown.as_str().expect("text is text");
    assert!(shown.contains("Not as it should be"), "{shown}");
    for figure in ["false_admissions", "answered"] {
        assert!(shown.contains(&report[figure].to_string()), "{figure} of {report:#} is not in {shown}");
    }
    let dots = browser.run("return document.querySelectorAll('.dot').length", &[]).await;
    assert!(
        dots.as_u64() >= Some(3) && dots.as_u64() <= report["handoffs"]["count"].as_u64(),
        "{dots} handoffs are drawn"
    );
    let lines = browser.run("return document.querySelectorAll('path.data').length", &[]).await;
    assert!(lines.as_u64() >= Some(6), "a curve, three percentiles, and what was served and wrong over time");
    // What never was has no line, which would lie on the axis, and no place in the key.
    assert!(key_of_requests(&text).eq(["served", "wrong"]), "{text}");
    for of_the_run in [
        report["run"]["began"].as_str().expect("the run began"),
        concat!("fencepost-loadtest ", env!("CARGO_PKG_VERSION")),
        &format!("fencepost-loadtest closed --proxy {url} --worker-listen {address}"),
        "a lock handed over every 100ms",
        "Up: latency, logarithmic.",
        "Up: requests a second, linear, from 0.",
    ] {
        assert!(shown.contains(of_the_run), "{of_the_run:?} is not in {shown}");
    }
    for (width, scheme) in [(360, "light"), (400, "dark"), (1280, "light"), (1280, "dark")] {
        browser.screen(width, 900, scheme).await;
        let overlaps = browser.run(OVERLAPS, &[]).await;
        assert_eq!(overlaps, serde_json::json!([]), "at {width} pixels");
        let letters = browser.run("return Math.min(...[...document.querySelectorAll('svg text')].map(text => text.getBoundingClientRect().height))", &[]).await;
        assert!(letters.as_f64() >= Some(9.0), "letters of {letters} pixels at {width}");
    }
    assert_eq!(browser.log().await, Vec::<String>::new());
}

/// What the key of the plot of requests over time names.
fn key_of_requests(page: &str) -> impl Iterator<Item = &str> {
    let plot = page.split("<h2>Requests a second").nth(1).and_then(|plot| plot.split("</ul>").next());
    let names = plot.expect("there is this plot").split("</i>").skip(1);
    names.map(|name| name.split('<').next().unwrap_or_default())
}
