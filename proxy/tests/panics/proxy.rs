//! A whole proxy in this process, over a store in memory.

use std::net::SocketAddr;

use fencepost::Surroundings;
use fencepost::server::ListenAddress;
use fencepost_config::Config;
use fencepost_locks::MemoryStore;
use fencepost_tests::{PATIENCE, Worker, eventually, request};
use tokio::sync::oneshot;

pub(crate) const LOCK: &str = "/lock";

pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) store: MemoryStore,
    pub(crate) worker: Worker,
    ended: oneshot::Receiver<String>,
}

impl Proxy {
    pub(crate) async fn start(worker: Worker) -> Proxy {
        let file = format!(
            r#"
            threads = 1
            listener = [{{ address = "127.0.0.1:0" }}]
            admin.listen = "127.0.0.1:0"
            source.main.kind = "memory"
            [[route]]
            name = "all"
            path = "/"
            upstream = "{}"
            lock = {{ source = "main", key = "{LOCK}" }}
            orphan_timeout = "1s"
            "#,
            worker.endpoint()
        );
        let config =
            Config::from_toml("test.toml", &file).unwrap_or_else(|problems| panic!("{problems}"));
        let bound = fencepost::bind(&config).unwrap();
        let (store, (started, starts), (ends, ended)) =
            (MemoryStore::new(), oneshot::channel(), oneshot::channel());
        let surroundings = Surroundings {
            memory: store.clone(),
            started: Some(started),
            ..Surroundings::default()
        };
        std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let serving = fencepost::run(config, bound, surroundings, std::future::pending);
            let outcome = runtime.block_on(tokio::task::LocalSet::new().run_until(serving));
            let _ = ends.send(format!("{outcome:?}")); // Most tests do not wait for the end.
        });
        let started = starts.await.unwrap();
        let tcp = |address: &ListenAddress| match address {
            ListenAddress::Tcp(address) => *address,
            ListenAddress::Unix(path) => panic!("listens on {}", path.display()),
        };
        let (address, admin) = (tcp(&started.listeners[0]), tcp(started.admin.as_ref().unwrap()));
        let proxy = Proxy { address, admin, store, worker, ended };
        let ready = async || {
            let answer = request(proxy.admin, "GET", "/readyz", &[], b"").await.unwrap();
            (answer.status == 200).then_some(())
        };
        eventually("readiness", ready).await;
        proxy
    }

    /// Hands the lock to that owner; returns the revision of its tenure.
    pub(crate) fn held_by(&self, owner: &'static str) -> u64 {
        self.store.put(LOCK, owner).get()
    }

    pub(crate) async fn metrics(&self) -> String {
        request(self.admin, "GET", "/metrics", &[], b"").await.unwrap().text()
    }

    /// The first line of the metrics that begins so.
    pub(crate) async fn metric(&self, name: &str) -> String {
        let metrics = self.metrics().await;
        metrics.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_owned()
    }

    /// How many requests wait at the gate.
    pub(crate) async fn waiting(&self) -> u64 {
        let routes = request(self.admin, "GET", "/routes", &[], b"").await.unwrap();
        let routes: serde_json::Value = serde_json::from_slice(&routes.body).unwrap();
        routes["routes"][0]["waiting"].as_u64().unwrap()
    }

    pub(crate) async fn ended(&mut self) -> String {
        tokio::time::timeout(PATIENCE, &mut self.ended).await.expect("it ends").unwrap()
    }
}

/// The headers of a token. The strings live as long as the test.
pub(crate) fn token(owner: &'static str, revision: u64) -> [(&'static str, &'static str); 2] {
    [("fence-owner", owner), ("fence-revision", revision.to_string().leak())]
}
