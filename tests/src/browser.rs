//! A real browser (Chromium without a window), driven over WebDriver (W3C) by chromedriver, both
//! from the search path.

use std::io;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::http::Connection;
use crate::patience::{PATIENCE, eventually};
use crate::port::FreePort;
use crate::process::Process;
use crate::scratch::Scratch;

/// A browser with one page and a profile of its own. It ends with this value, chromedriver first:
/// it holds the pipe without which Chromium ends by itself.
#[derive(Debug)]
pub struct Browser {
    session: String,
    _driver: Process,
    port: FreePort,
    scratch: Scratch,
}

/// Nothing but the page: no first-run screens, no updates, no network of its own. Without a
/// sandbox, as tests may run as root, and only pages of ours are opened.
const FLAGS: [&str; 11] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--remote-debugging-pipe",
    "--lang=en-US",
];

/// How long to leave the page alone between two questions.
const PAUSE: Duration = Duration::from_millis(20);

impl Browser {
    /// Starts one.
    pub async fn start() -> Browser {
        let scratch = Scratch::new();
        let mut command = Command::new("chromedriver");
        // Asked to take any itself, it takes one of IPv6 and ends if that number is taken on IPv4.
        let port = FreePort::reserve();
        command
            .arg(format!("--port={}", port.number()))
            .env("HOME", scratch.path())
            .env("TZ", "UTC");
        let mut driver = Process::start(&command, &scratch.path().join("log"));
        eventually("chromedriver listens", async || {
            if let Some(status) = driver.ended() {
                panic!("chromedriver ended with {status}: {}", driver.log());
            }
            driver.log().contains("started successfully on port").then_some(())
        })
        .await;
        let mut browser = Browser { session: String::new(), _driver: driver, port, scratch };
        browser.begin().await;
        browser
    }

    async fn begin(&mut self) {
        let profile = format!("--user-data-dir={}", self.scratch.path().join("profile").display());
        let flags: Vec<&str> = FLAGS.into_iter().chain([profile.as_str()]).collect();
        let wanted = json!({
            "browserName": "chrome",
            "goog:loggingPrefs": { "browser": "ALL" },
            "goog:chromeOptions": { "args": flags },
            "timeouts": { "script": PATIENCE.as_millis() as u64, "pageLoad": PATIENCE.as_millis() as u64 },
        });
        let session =
            self.ask("POST", "", json!({ "capabilities": { "alwaysMatch": wanted } })).await;
        let id = session["sessionId"].as_str().expect("a session has an id");
        self.session = format!("/{id}");
    }

    /// Opens a page and waits until it is loaded.
    pub async fn open(&self, url: &str) {
        self.ask("POST", "/url", json!({ "url": url })).await;
    }

    /// Loads the page again.
    pub async fn reload(&self) {
        self.ask("POST", "/refresh", json!({})).await;
    }

    /// Runs the body of a function in the page, with these `arguments`; returns what it returns.
    /// The page's own policy does not stop it.
    pub async fn run(&self, script: &str, arguments: &[Value]) -> Value {
        self.ask("POST", "/execute/sync", json!({ "script": script, "args": arguments })).await
    }

    /// Has a script run in each page that is opened from now on, before any of its own.
    pub async fn run_first(&self, script: &str) {
        self.devtools("Page.addScriptToEvaluateOnNewDocument", json!({ "source": script })).await;
    }

    /// As [`Browser::run`], for the body of an `async` function.
    pub async fn run_async(&self, script: &str, arguments: &[Value]) -> Value {
        let script = format!(
            "const answer = arguments[arguments.length - 1]; (async (...given) => {{ {script} }})(...arguments).then(answer);"
        );
        self.ask("POST", "/execute/async", json!({ "script": script, "args": arguments })).await
    }

    /// Runs a script until it returns something other than `null`, `false` and `undefined`.
    pub async fn until(&self, what: &str, script: &str, arguments: &[Value]) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let answer = self.run(script, arguments).await;
            if !answer.is_null() && answer != Value::Bool(false) {
                return answer;
            }
            if Instant::now() >= deadline {
                let shows = self.run("return [location.href, document.body.innerText]", &[]).await;
                panic!(
                    "not within {PATIENCE:?}: {what}; the page: {shows:#}; its log: {:#?}",
                    self.log().await
                );
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Clicks with the mouse at a place of the window, in CSS pixels.
    pub async fn click(&self, x: f64, y: f64) {
        let pointer = json!([
            { "type": "pointerMove", "duration": 0, "x": x.round() as i64, "y": y.round() as i64 },
            { "type": "pointerDown", "button": 0 },
            { "type": "pointerUp", "button": 0 },
        ]);
        let actions = json!([{ "type": "pointer", "id": "mouse", "actions": pointer }]);
        self.ask("POST", "/actions", json!({ "actions": actions })).await;
    }

    /// Presses keys, one after the other; special ones by WebDriver's code points, such as
    /// [`Browser::TAB`].
    pub async fn press(&self, keys: &str) {
        let strokes = keys.chars().flat_map(|key| {
            let key = key.to_string();
            [json!({ "type": "keyDown", "value": key }), json!({ "type": "keyUp", "value": key })]
        });
        let actions = json!([{ "type": "key", "id": "keyboard", "actions": strokes.collect::<Vec<Value>>() }]);
        self.ask("POST", "/actions", json!({ "actions": actions })).await;
    }

    /// The tabulator key.
    pub const TAB: &str = "\u{e004}";
    /// The Enter key.
    pub const ENTER: &str = "\u{e007}";
    /// The Escape key.
    pub const ESCAPE: &str = "\u{e00c}";
    /// The arrow to the left.
    pub const LEFT: &str = "\u{e012}";
    /// The arrow down.
    pub const DOWN: &str = "\u{e015}";

    /// Makes the page think that it is on a screen of that size, and that its user prefers that
    /// colour scheme (`dark` or `light`).
    pub async fn screen(&self, width: u32, height: u32, scheme: &str) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.devtools("Emulation.setDeviceMetricsOverride", size).await;
        let media = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.devtools("Emulation.setEmulatedMedia", media).await;
    }

    async fn devtools(&self, command: &str, parameters: Value) {
        self.ask("POST", "/goog/cdp/execute", json!({ "cmd": command, "params": parameters }))
            .await;
    }

    /// What the browser has logged since it was last asked, each line after where it comes from:
    /// `javascript: …` (an error), `security: …` (what a policy stopped), `network: …` (what could
    /// not be had).
    pub async fn log(&self) -> Vec<String> {
        let entries = self.ask("POST", "/se/log", json!({ "type": "browser" })).await;
        let entries = entries.as_array().expect("the log is a list");
        let line = |entry: &Value| {
            let text = |field: &str| entry[field].as_str().unwrap_or_default().to_owned();
            format!("{}: {}", text("source"), text("message"))
        };
        entries.iter().map(line).collect()
    }

    /// What the page looks like, as a PNG in base 64.
    pub async fn screenshot(&self) -> String {
        let picture = self.ask("GET", "/screenshot", Value::Null).await;
        picture.as_str().expect("a screenshot is text").to_owned()
    }

    async fn ask(&self, method: &str, path: &str, body: Value) -> Value {
        let answer = self.try_ask(method, path, &body).await;
        let (status, answer) =
            answer.unwrap_or_else(|error| panic!("{method} {path} {body}: {error}"));
        assert_eq!(status, 200, "{method} {path} {body}: {answer}");
        answer["value"].clone()
    }

    async fn try_ask(&self, method: &str, path: &str, body: &Value) -> io::Result<(u16, Value)> {
        let mut connection = Connection::open(self.port.address()).await?;
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let (session, length) = (&self.session, body.len());
        // It answers only those who call it by its address.
        let head = format!(
            "{method} /session{session}{path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n",
            self.port.address()
        );
        connection.send(head + &body).await?;
        let answer = connection.final_response().await?;
        Ok((answer.status, serde_json::from_slice(&answer.body)?))
    }
}
