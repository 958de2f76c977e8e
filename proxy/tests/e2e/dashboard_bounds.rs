//! The dashboard where there is more than it has room for, or a browser takes.

use fencepost_testsupport::{Browser, EtcdVersion};

use crate::fencepost::Route;
use crate::page::Page;
use crate::scene::Scene;

const VERSION: EtcdVersion = EtcdVersion::V3_5;

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
