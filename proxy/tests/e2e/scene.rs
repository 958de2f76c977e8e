//! etcd, fencepost and a worker, and a ledger of what was sent and what became of it.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

use fencepost_tests::{
    Connection, Endpoint, Etcd, EtcdVersion, Latch, PATIENCE, Response, Worker, eventually,
    request, until,
};
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::fencepost::{Config, Fencepost, Route};
use crate::refusal::{assert_refused, reason};
use crate::store::{Store, Tenure};

/// A worker behind a running fencepost, its locks in a real etcd.
pub(crate) struct Scene {
    pub(crate) etcd: Etcd,
    pub(crate) store: Store,
    pub(crate) worker: Worker,
    pub(crate) fence: Fencepost,
    /// What fencepost was started with.
    pub(crate) config: Config,
    pub(crate) ledger: Ledger,
}

/// A request that is not sent yet.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

/// A request that stays at the worker until it is let end.
pub(crate) struct Held {
    latch: Latch,
    answer: JoinHandle<Response>,
}

/// A client's connection that is kept open.
pub(crate) struct Line {
    connection: Connection,
    ledger: Ledger,
}

/// What became of each request, by the number that it carries.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger(Arc<Mutex<Vec<Option<Outcome>>>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Forwarded,
    Refused,
}

/// The header that numbers a test's requests.
const NUMBER: &str = "x-request-number";

impl Ask {
    /// `POST path`, without a token.
    pub(crate) fn post(path: &str) -> Ask {
        Ask {
            method: "POST".to_owned(),
            path: path.to_owned(),
            headers: Vec::new(),
            body: b"write".to_vec(),
        }
    }

    pub(crate) fn method(mut self, method: &str) -> Ask {
        self.method = method.to_owned();
        self.body.clear();
        self
    }

    pub(crate) fn body(mut self, body: &[u8]) -> Ask {
        self.body = body.to_vec();
        self
    }

    pub(crate) fn header(mut self, name: &str, value: &str) -> Ask {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn under(self, tenure: &Tenure) -> Ask {
        self.token(&tenure.owner, &tenure.revision.to_string())
    }

    /// With a token as it is written.
    pub(crate) fn token(self, owner: &str, revision: &str) -> Ask {
        self.header("Fence-Owner", owner).header("Fence-Revision", revision)
    }
}

impl Scene {
    pub(crate) async fn open(version: EtcdVersion, routes: &[Route]) -> Scene {
        Scene::around(Etcd::start(version).await, routes).await
    }

    /// Starts fencepost and a worker beside an etcd that runs.
    pub(crate) async fn around(etcd: Etcd, routes: &[Route]) -> Scene {
        let endpoints = [etcd.endpoint()];
        Scene::seeing(etcd, &endpoints, routes).await
    }

    /// As [`Scene::around`], where fencepost reaches etcd at these addresses.
    pub(crate) async fn seeing(etcd: Etcd, endpoints: &[String], routes: &[Route]) -> Scene {
        Scene::built(etcd, endpoints, routes, |config| config).await
    }

    /// As [`Scene::open`], with more in the configuration than routes.
    pub(crate) async fn with(
        version: EtcdVersion,
        routes: &[Route],
        more: impl FnOnce(Config) -> Config,
    ) -> Scene {
        let etcd = Etcd::start(version).await;
        let endpoints = [etcd.endpoint()];
        Scene::built(etcd, &endpoints, routes, more).await
    }

    pub(crate) async fn built(
        etcd: Etcd,
        endpoints: &[String],
        routes: &[Route],
        more: impl FnOnce(Config) -> Config,
    ) -> Scene {
        let store = Store::of(&etcd).await;
        let worker = Worker::start().await;
        let config = more(Config::new(endpoints, &worker.endpoint().to_string(), routes));
        let fence = Fencepost::serve(&config).await;
        Scene { etcd, store, worker, fence, config, ledger: Ledger::default() }
    }

    /// Starts fencepost again, as it was started before: it has ended.
    pub(crate) async fn start_again(&mut self) {
        self.fence = Fencepost::serve(&self.config).await;
    }

    pub(crate) async fn start_again_as(&mut self, file: &str) {
        self.fence = Fencepost::launch_text(file).await;
        self.fence.wait_until_ready().await;
    }

    /// Has its source taken out of the configuration, and waits until nobody uses it any more: its
    /// thread ends then.
    pub(crate) async fn take_source_out(&self) {
        self.fence.reloads(&self.config.clone().without_source()).await;
        until("the source has ended", async || {
            !self.fence.threads().iter().any(|thread| thread == "locks-main")
        })
        .await;
    }

    /// Sends a request on a connection of its own.
    pub(crate) async fn send(&self, ask: Ask) -> Response {
        send(&self.fence.listener, &self.ledger, ask).await
    }

    /// Sends a request on a connection of its own, and waits for the answer elsewhere.
    pub(crate) fn start(&self, ask: Ask) -> JoinHandle<Response> {
        let (listener, ledger) = (self.fence.listener.clone(), self.ledger.clone());
        tokio::spawn(async move { send(&listener, &ledger, ask).await })
    }

    /// Sends a request and returns once the worker has its head. It must be the only one for its
    /// path.
    pub(crate) async fn start_at_worker(&self, ask: Ask) -> JoinHandle<Response> {
        let path = ask.path.clone();
        let started = self.start(ask);
        self.worker
            .wait_until(&format!("{path} at the worker"), |seen| {
                seen.iter().any(|one| one.path == path)
            })
            .await;
        started
    }

    /// Sends a request that stays at the worker, and returns when it is there.
    pub(crate) async fn held(&self, ask: Ask) -> Held {
        let latch = self.worker.holds(&ask.path);
        Held { latch, answer: self.start_at_worker(ask).await }
    }

    /// Waits until fencepost knows that this owner holds the lock.
    pub(crate) async fn until_known(&self, lock: &str, owner: Option<&str>) {
        eventually(&format!("{owner:?} is known to hold {lock}"), async || {
            let described = self.fence.admin_json(&format!("/locks/{lock}")).await;
            (described["owner"].as_str() == owner).then_some(())
        })
        .await;
    }

    /// Waits until a metric has this value; the series as in [`Fencepost::metric`].
    pub(crate) async fn until_metric(&self, series: &str, value: f64) {
        self.fence.until_metric(series, value).await;
    }

    pub(crate) async fn decision(&self, refusal: &Response) -> Value {
        let id = refusal.header("fence-decision").expect("a decision has an id");
        self.fence.admin_json(&format!("/decisions?id={id}")).await["decisions"][0].take()
    }

    /// How many requests have been counted by their verdicts.
    pub(crate) async fn counted(&self) -> u64 {
        let text = self.fence.admin("GET", "/metrics").await.text();
        let series = text.lines().filter(|line| line.starts_with("fencepost_requests_total{"));
        series.map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
    }

    /// What the gate of a lock says is at the worker: requests that run, and orphans, of all
    /// tenures.
    pub(crate) async fn at_worker(&self, lock: &str) -> (u64, u64) {
        let described = self.fence.admin_json(&format!("/locks/{lock}")).await;
        let tenures = described["gate"]["at_worker"].as_array().expect("a list").clone();
        let sum =
            |what: &str| tenures.iter().map(|tenure| tenure[what].as_u64().expect("a count")).sum();
        (sum("running"), sum("orphans"))
    }

    /// Waits until the gate of a lock says that so many requests run and so many are orphans.
    pub(crate) async fn until_at_worker(&self, lock: &str, running: u64, orphans: u64) {
        until(&format!("{running} running and {orphans} orphans of {lock}"), async || {
            self.at_worker(lock).await == (running, orphans)
        })
        .await;
    }

    pub(crate) async fn line(&self) -> Line {
        Line::open(&self.fence.listener, &self.ledger).await
    }

    pub(crate) async fn caller(&self, path: &str, tenure: &Tenure) -> Caller {
        Caller::start(self.line().await, Ask::post(path).under(tenure))
    }

    /// A request under this tenure is forwarded and answered by the worker.
    #[track_caller]
    pub(crate) fn admits(&self, path: &str, tenure: &Tenure) -> impl Future<Output = ()> {
        let caller = std::panic::Location::caller();
        let sent = self.send(Ask::post(path).under(tenure));
        let tenure = tenure.clone();
        async move {
            let answer = sent.await;
            assert_eq!(answer.status, 200, "{tenure:?} at {caller}: {}", answer.text());
            assert_eq!(answer.text(), "ok");
        }
    }

    /// A request under this tenure is refused for that reason, as [`assert_refused`] has it.
    #[track_caller]
    pub(crate) fn refuses<'a>(
        &'a self,
        path: &str,
        tenure: &Tenure,
        expected: &'a str,
        lock: impl Into<Option<&'a str>>,
        present: impl Into<Option<&'a Tenure>>,
    ) -> impl Future<Output = ()> {
        let caller = std::panic::Location::caller();
        let sent = self.send(Ask::post(path).under(tenure));
        let (lock, present) = (lock.into(), present.into());
        async move {
            let answer = sent.await;
            assert_eq!(reason(&answer), Some(expected), "at {caller}: {}", answer.text());
            assert_refused(&answer, expected, lock, present);
        }
    }

    /// Whatever was refused is not in the worker's log, and whatever was forwarded is, once.
    pub(crate) async fn finish(self) {
        self.ledger.check(&self.worker);
        let log = self.fence.log();
        assert!(!log.contains("panicked"), "{log}");
    }
}

impl Held {
    pub(crate) async fn ends(self) {
        self.latch.open();
        assert_eq!(self.answer.await.unwrap().text(), "held");
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.answer.is_finished()
    }
}

impl Line {
    pub(crate) async fn open(listener: &Endpoint, ledger: &Ledger) -> Line {
        Line {
            connection: Connection::open(listener.clone()).await.unwrap(),
            ledger: ledger.clone(),
        }
    }

    /// Sends a request and reads its answer.
    pub(crate) async fn send(&mut self, ask: Ask) -> io::Result<Response> {
        let number = self.begin(ask).await?;
        let answer = self.connection.final_response().await?;
        self.ledger.note(number, &answer);
        Ok(answer)
    }

    /// Sends a request whose answer may never be read; returns its number.
    pub(crate) async fn begin(&mut self, ask: Ask) -> io::Result<usize> {
        let number = self.ledger.next();
        let Ask { method, path, headers, body } = ask;
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: test\r\n{NUMBER}: {number}\r\n");
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str(&format!("Content-Length: {}\r\n\r\n", body.len()));
        self.connection.send([head.into_bytes(), body].concat()).await?;
        Ok(number)
    }

    /// The connection, for an answer that is read bit by bit.
    pub(crate) fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }
}

impl Ledger {
    fn next(&self) -> usize {
        let mut outcomes = self.0.lock().unwrap();
        outcomes.push(None);
        outcomes.len() - 1
    }

    fn note(&self, number: usize, answer: &Response) {
        // With a verdict there is a reason also where the route only watches.
        let refused = reason(answer).is_some() && answer.header("fence-verdict").is_none();
        let outcome = if refused { Outcome::Refused } else { Outcome::Forwarded };
        self.0.lock().unwrap()[number] = Some(outcome);
    }

    /// Holds the ledger against a worker's log.
    pub(crate) fn check(&self, worker: &Worker) {
        let mut arrived: BTreeMap<usize, usize> = BTreeMap::new();
        for seen in worker.seen() {
            if let Some(number) = seen.header(NUMBER) {
                *arrived.entry(number.parse().unwrap()).or_default() += 1;
            }
        }
        for (number, outcome) in self.0.lock().unwrap().iter().enumerate() {
            let times = arrived.get(&number).copied().unwrap_or(0);
            match outcome {
                Some(Outcome::Refused) => {
                    assert_eq!(times, 0, "request {number} was refused and reached the worker")
                }
                Some(Outcome::Forwarded) => assert_eq!(times, 1, "request {number} was answered"),
                None => assert!(times <= 1, "request {number} reached the worker {times} times"),
            }
        }
    }
}

/// Numbers from a seed.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    /// One of `0..sides`.
    pub(crate) fn roll(&mut self, sides: u64) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % sides
    }
}

/// One connection's requests, one after the other, until it is told to stop: how many got which
/// status.
pub(crate) struct Caller {
    stop: watch::Sender<bool>,
    sent: watch::Receiver<u32>,
    running: JoinHandle<Vec<u16>>,
}

impl Caller {
    pub(crate) fn start(mut line: Line, ask: Ask) -> Caller {
        let (stop, stopped) = watch::channel(false);
        let (count, sent) = watch::channel(0);
        let running = tokio::spawn(async move {
            let mut answers = Vec::new();
            while !*stopped.borrow() {
                // On one connection: if it were closed, this would fail.
                let answer = line.send(ask.clone()).await.expect("the connection goes on");
                assert_eq!(reason(&answer).is_some(), answer.status == 412, "{}", answer.text());
                answers.push(answer.status);
                count.send_modify(|count| *count += 1);
            }
            answers
        });
        Caller { stop, sent, running }
    }

    pub(crate) async fn until_sent(&self, more: u32) {
        let goal = *self.sent.borrow() + more;
        let mut sent = self.sent.clone();
        let goes_on = timeout(PATIENCE, sent.wait_for(|sent| *sent >= goal)).await;
        assert!(goes_on.is_ok_and(|sent| sent.is_ok()), "requests do not go on");
    }

    pub(crate) async fn stop(self) -> Vec<u16> {
        self.stop.send_replace(true);
        self.running.await.unwrap()
    }
}

/// The object has these fields with these values, and maybe others.
#[track_caller]
pub(crate) fn assert_has(object: &Value, fields: Value) {
    for (name, value) in fields.as_object().expect("fields") {
        assert_eq!(&object[name], value, "{name} of {object}");
    }
}

/// Sends a request to a proxy on a connection of its own.
pub(crate) async fn send(listener: &Endpoint, ledger: &Ledger, ask: Ask) -> Response {
    let number = ledger.next();
    let number_text = number.to_string();
    let mut headers: Vec<(&str, &str)> = vec![(NUMBER, &number_text)];
    headers.extend(ask.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    let answer = request(listener.clone(), &ask.method, &ask.path, &headers, &ask.body).await;
    let answer = answer.unwrap_or_else(|error| panic!("{ask:?}: {error}"));
    ledger.note(number, &answer);
    answer
}
