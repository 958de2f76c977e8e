//! The whole proxy before a worker that is played by hand, and a store in memory.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread::JoinHandle;
use std::time::Instant;

use fencepost::server::ListenAddress;
use fencepost::{Surroundings, bind, run};
use fencepost_config::Config;
use fencepost_locks::MemoryStore;
use tokio::sync::oneshot;

use super::{Client, PATIENCE, Peer, Worker};

const UPGRADE: &str = "Connection: Upgrade\r\nUpgrade: websocket\r\n";
const SWITCH: &str =
    "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";

/// A running proxy before a worker that is played by hand, and the store that it asks.
pub(crate) struct Scene {
    pub(crate) store: MemoryStore,
    pub(crate) worker: Worker,
    listener: SocketAddr,
    admin: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    running: Option<JoinHandle<()>>,
}

impl Scene {
    /// With these settings of its only route.
    pub(crate) fn with(settings: &str) -> Scene {
        Scene::limited("", settings)
    }

    /// With these limits, too.
    pub(crate) fn limited(limits: &str, settings: &str) -> Scene {
        Scene::speaking("http", limits, settings)
    }

    /// With these limits and settings, before a worker of that scheme.
    pub(crate) fn speaking(scheme: &str, limits: &str, settings: &str) -> Scene {
        let (store, worker) = (MemoryStore::new(), Worker::by_hand());
        let text = format!(
            r#"
threads = 1
[admin]
listen = "127.0.0.1:0"
[[listener]]
address = "127.0.0.1:0"
[limits]
drain_delay = "0s"
drain_timeout = "1s"
{limits}
[source.main]
kind = "memory"
[[route]]
name = "one"
path = "/"
upstream = "{scheme}://{}"
lock = {{ source = "main", key = "/lock" }}
{settings}
"#,
            worker.address()
        );
        let config =
            Config::from_toml("test", &text).unwrap_or_else(|problems| panic!("{problems}"));
        let (tell, started) = oneshot::channel();
        let (stop, stopped) = oneshot::channel();
        let surroundings =
            Surroundings { memory: store.clone(), started: Some(tell), ..Surroundings::default() };
        let running = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let bound = bind(&config).unwrap();
            let running = run(config, bound, surroundings, || async move { drop(stopped.await) });
            runtime.block_on(tokio::task::LocalSet::new().run_until(running)).unwrap();
        });
        let started = started.blocking_recv().expect("the proxy starts");
        let (ListenAddress::Tcp(listener), Some(ListenAddress::Tcp(admin))) =
            (&started.listeners[0], started.admin)
        else {
            panic!("it does not listen on TCP")
        };
        let (listener, running) = (*listener, Some(running));
        Scene { store, worker, listener, admin, stop: Some(stop), running }
    }

    /// Lets somebody take the lock, and returns the headers of their token.
    pub(crate) fn hold(&self, owner: &str) -> String {
        let revision = self.store.put("/lock", owner.to_owned());
        format!("Host: test\r\nFence-Owner: {owner}\r\nFence-Revision: {}\r\n", revision.get())
    }

    pub(crate) fn get(&self, token: &str) -> Client {
        let mut client = Client::connect(self.listener);
        client.send(&format!("GET / HTTP/1.1\r\n{token}\r\n"));
        client
    }

    /// A request whose body of that many bytes has been sent whole.
    pub(crate) fn post(&self, token: &str, length: usize) -> Client {
        let mut client = Client::connect(self.listener);
        client.send(&format!("POST / HTTP/1.1\r\n{token}Content-Length: {length}\r\n\r\n"));
        client.send_bytes(&vec![b'x'; length]);
        client
    }

    /// A request waits at the barrier.
    pub(crate) fn somebody_waits(&self) {
        let deadline = Instant::now() + PATIENCE;
        while !self.look("/routes").contains("\"waiting\": 1") {
            assert!(Instant::now() < deadline, "{}", self.look("/routes"));
        }
    }

    /// Half an upload, at the worker.
    pub(crate) fn upload(&self, token: &str) -> (Client, Peer) {
        let mut client = Client::connect(self.listener);
        client.send(&format!(
            "POST / HTTP/1.1\r\n{token}Transfer-Encoding: chunked\r\n\r\n5\r\nbegin\r\n"
        ));
        let mut peer = self.worker.next();
        peer.head();
        assert_eq!((peer.line(), peer.line()), ("5".to_owned(), "begin".to_owned()));
        (client, peer)
    }

    pub(crate) fn tunnel(&self, token: &str) -> (Client, Peer) {
        let mut client = Client::connect(self.listener);
        client.send(&format!("GET / HTTP/1.1\r\n{token}{UPGRADE}\r\n"));
        let mut peer = self.worker.next();
        peer.head();
        peer.send(SWITCH);
        client.head();
        (client, peer)
    }

    /// The next request reaches the worker, and is answered. While it waits it may have had a
    /// connection, which is closed when it has been idle for too long.
    pub(crate) fn somebody_comes(&self, client: &mut Client) {
        loop {
            let mut peer = self.worker.next();
            if peer.next_request().is_some() {
                peer.respond("next");
                break;
            }
        }
        assert_eq!(client.answer().1, b"next");
    }

    /// What has an effect is counted a little later.
    pub(crate) fn metric_becomes(&self, name: &str, value: &str) {
        let deadline = Instant::now() + PATIENCE;
        while self.metric(name) != value {
            assert!(Instant::now() < deadline, "{name} is {}", self.metric(name));
        }
    }

    /// A metric of the route.
    pub(crate) fn metric(&self, name: &str) -> String {
        let series = format!("{name}{{route=\"one\"}} ");
        let text = self.look("/metrics");
        text.lines().find_map(|line| line.strip_prefix(&series)).expect("it is there").to_owned()
    }

    /// Whether so many of the route's requests count that were let past.
    pub(crate) fn has_passed(&self, count: usize) -> bool {
        self.look("/routes").contains(&format!("\"passed\": {count}"))
    }

    /// What the admin listener says there.
    pub(crate) fn look(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(self.admin).unwrap();
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        drop(self.stop.take());
        let ended = self.running.take().map(JoinHandle::join);
        assert!(std::thread::panicking() || matches!(ended, Some(Ok(()))));
    }
}
