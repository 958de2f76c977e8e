//! The proxy under test, in this process.

use std::net::SocketAddr;

use fencepost::Surroundings;
use fencepost::server::ListenAddress;
use fencepost_config::Config;
use fencepost_locks::MemoryStore;

use super::worker::Worker;
use super::{OWNER, REVISION};

const LOCK: &str = "/shards/1/lock";

/// A proxy with one route, which is fenced, in front of one worker.
pub(super) struct Proxy {
    pub(super) address: SocketAddr,
    pub(super) worker: Worker,
}

impl Proxy {
    pub(super) fn start() -> Proxy {
        let worker = Worker::start();
        let file = format!(
            r#"
            threads = 1
            listener = [{{ address = "127.0.0.1:0" }}]
            admin.listen = "127.0.0.1:0"
            source.main.kind = "memory"
            [limits]
            header_timeout = "100ms"
            body_timeout = "100ms"
            idle_timeout = "100ms"
            header_bytes_max = "8KiB"
            [[route]]
            name = "all"
            path = "/"
            upstream = "http://{}"
            lock = {{ source = "main", key = "{LOCK}" }}
            upstream_timeout = "500ms"
            orphan_timeout = "1s"
            "#,
            worker.address
        );
        let config =
            Config::from_toml("fuzz.toml", &file).unwrap_or_else(|problems| panic!("{problems}"));
        let bound = fencepost::bind(&config).expect("the system chooses a port");
        let store = MemoryStore::new();
        assert_eq!(store.put(LOCK, OWNER).to_string(), REVISION);
        let (started, addresses) = tokio::sync::oneshot::channel();
        let surroundings =
            Surroundings { memory: store, started: Some(started), ..Surroundings::default() };
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("an event queue");
            let serving = fencepost::run(config, bound, surroundings, std::future::pending);
            runtime
                .block_on(tokio::task::LocalSet::new().run_until(serving))
                .expect("it serves for as long as we do");
        });
        let started = addresses.blocking_recv().expect("it starts");
        let ListenAddress::Tcp(address) = started.listeners[0] else {
            unreachable!("it listens on an IP address")
        };
        Proxy { address, worker }
    }
}
