//! The dashboard in a real browser.

use std::net::SocketAddr;

use fencepost_tests::Browser;
use serde_json::{Value, json};

/// The dashboard of a running fencepost, opened in Chromium.
pub(crate) struct Page {
    pub(crate) browser: Browser,
    address: SocketAddr,
}

/// A point of the window, in CSS pixels.
pub(crate) type Point = (f64, f64);

impl Page {
    /// Opens the dashboard of that admin listener, with this after `#`, and waits until it is live.
    pub(crate) async fn open(browser: Browser, admin: SocketAddr, shows: &str) -> Page {
        let page = Page { browser, address: admin };
        page.go(shows).await;
        page
    }

    /// Loads the page anew, with this after `#`.
    pub(crate) async fn go(&self, shows: &str) {
        self.browser.open("about:blank").await;
        self.browser.open(&format!("http://{}/#{shows}", self.address)).await;
        self.until_state("live").await;
    }

    /// Waits until the page says that its connection is in this state.
    pub(crate) async fn until_state(&self, state: &str) {
        let script = "return document.querySelector('#connection').dataset.state === arguments[0]";
        self.browser.until(&format!("the page is {state}"), script, &[json!(state)]).await;
    }

    /// What is written in the only element that the selector finds, as it is shown.
    pub(crate) async fn text(&self, selector: &str) -> String {
        let script = "const found = document.querySelectorAll(arguments[0]); return found.length === 1 ? found[0].innerText : null";
        let text = self
            .browser
            .until(&format!("there is one {selector}"), script, &[json!(selector)])
            .await;
        text.as_str().expect("text").to_owned()
    }

    pub(crate) async fn until_there(&self, selector: &str) {
        let script = "return document.querySelector(arguments[0]) !== null";
        self.browser.until(&format!("there is {selector}"), script, &[json!(selector)]).await;
    }

    /// Waits until the selector finds so many elements.
    pub(crate) async fn until_count(&self, selector: &str, count: u64) {
        let script = "return document.querySelectorAll(arguments[0]).length === arguments[1]";
        self.browser
            .until(&format!("{count} times {selector}"), script, &[json!(selector), json!(count)])
            .await;
    }

    pub(crate) async fn count(&self, selector: &str) -> u64 {
        let script = "return document.querySelectorAll(arguments[0]).length";
        self.browser.run(script, &[json!(selector)]).await.as_u64().expect("a number")
    }

    /// The middle of an element, brought into sight.
    pub(crate) async fn middle(&self, selector: &str) -> Point {
        let script = "const one = document.querySelector(arguments[0]); if (!one) return null; \
             one.scrollIntoView({ block: 'center', behavior: 'instant' }); const box = one.getBoundingClientRect(); \
             return [box.left + box.width / 2, box.top + box.height / 2]";
        let at = self
            .browser
            .until(&format!("{selector} is somewhere"), script, &[json!(selector)])
            .await;
        (at[0].as_f64().expect("a number"), at[1].as_f64().expect("a number"))
    }

    /// Uses a link, a button or a field, wherever it stands: a page that has just been opened still
    /// grows.
    pub(crate) async fn click(&self, selector: &str) {
        let script = "const one = document.querySelector(arguments[0]); one?.focus(); one?.click(); return one !== null";
        self.browser.until(&format!("{selector} can be clicked"), script, &[json!(selector)]).await;
    }

    /// Clicks with the mouse on what is drawn at the middle of an element. The page must have come
    /// to rest: what stands on top of it moves all else.
    pub(crate) async fn point(&self, selector: &str) {
        self.until_there("#trouble li").await;
        let (x, y) = self.middle(selector).await;
        self.browser.click(x, y).await;
    }

    /// What the browser complained of: errors in scripts, and what the page's policy stopped. What
    /// the proxy does not answer is no error of the page.
    pub(crate) async fn complaints(&self) -> Vec<String> {
        let log = self.browser.log().await;
        log.into_iter().filter(|line| !line.starts_with("network: ")).collect()
    }

    /// Whether nothing is wider than the window.
    pub(crate) async fn fits(&self) -> bool {
        let script = "return document.documentElement.scrollWidth <= innerWidth && document.body.scrollWidth <= innerWidth";
        self.browser.run(script, &[]).await == Value::Bool(true)
    }
}
