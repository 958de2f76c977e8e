//! What systemd is told, and what it gives, without a systemd: a socket of the test's stands for it.

use std::os::unix::net::UnixDatagram;
use std::sync::{Arc, Mutex};

use fencepost_testsupport::{Etcd, EtcdVersion, Scratch, Worker, eventually};

use crate::fencepost::{Config, Fencepost, Route};

/// Stands for systemd's end of `NOTIFY_SOCKET`.
struct Manager {
    told: Arc<Mutex<Vec<String>>>,
    path: String,
    _scratch: Scratch,
}

impl Manager {
    fn listen() -> Manager {
        let scratch = Scratch::new();
        let path = scratch.path().join("notify").to_str().unwrap().to_owned();
        let socket = UnixDatagram::bind(&path).unwrap();
        let told = Arc::new(Mutex::new(Vec::new()));
        let hears = Arc::downgrade(&told);
        std::thread::spawn(move || {
            let mut message = [0; 4096];
            while let (Ok(length), Some(told)) = (socket.recv(&mut message), hears.upgrade()) {
                told.lock().unwrap().push(String::from_utf8_lossy(&message[..length]).into_owned());
            }
        });
        Manager { told, path, _scratch: scratch }
    }

    /// Waits until it is told something that begins so, after the first `after` messages; returns how many there are by then.
    async fn until_told(&self, begins: &str, after: usize) -> usize {
        eventually(&format!("systemd is told {begins}"), async || {
            let told = self.told.lock().unwrap();
            let found = told.iter().skip(after).position(|message| message.starts_with(begins))?;
            Some(after + found + 1)
        })
        .await
    }

    fn told(&self) -> Vec<String> {
        self.told.lock().unwrap().clone()
    }
}

fn route(mode: &str) -> Route {
    Route::new("k", "/", r#"key = "/k""#).with(&format!("mode = {mode:?}"))
}

#[tokio::test]
async fn systemd_is_told_of_each_step_and_that_every_thread_makes_progress() {
    let (etcd, worker, manager) = (Etcd::start(EtcdVersion::V3_5).await, Worker::start().await, Manager::listen());
    let config = Config::new(&[etcd.endpoint()], &worker.endpoint().to_string(), &[route("shadow")]);
    let config = config.limit("drain_delay = \"1s\"");
    let environment = [("NOTIFY_SOCKET", manager.path.as_str()), ("WATCHDOG_USEC", "300000")];
    let mut fence = Fencepost::launch_among(&config, &environment).await;
    let ready = manager.until_told("READY=1", 0).await;
    manager.until_told("STATUS=serving, 1 locks; main up", ready - 1).await;
    let fed = manager.until_told("WATCHDOG=1", 0).await;
    manager.until_told("WATCHDOG=1", fed).await;

    let before = manager.told().len();
    std::fs::write(fence.file(), config.clone().routes(&[route("enforce")]).toml()).unwrap();
    fence.process().hang_up();
    let reloading = manager.until_told("RELOADING=1\nMONOTONIC_USEC=", before).await;
    manager.until_told("READY=1", reloading).await;
    fence.until_generation(2).await;

    let before = manager.told().len();
    assert!(fence.terminate().await.success());
    let told = manager.told().split_off(before);
    let at = |begins: &str| {
        let found = told.iter().position(|message| message.starts_with(begins));
        found.unwrap_or_else(|| panic!("{begins} is not in {told:?}"))
    };
    assert!(at("STOPPING=1") < at("STATUS=draining: 0 connections, 0 requests"), "{told:?}");
    let fed_on = told[at("STOPPING=1")..].iter().any(|message| message.starts_with("WATCHDOG=1"));
    assert!(fed_on, "a process that drains makes progress: {told:?}");
}

#[tokio::test]
async fn a_process_whose_store_does_not_answer_is_ready_for_systemd_and_says_so() {
    let (worker, manager) = (Worker::start().await, Manager::listen());
    let port = fencepost_testsupport::FreePort::reserve();
    let nowhere = format!("http://127.0.0.1:{}", port.number());
    let config = Config::new(&[nowhere], &worker.endpoint().to_string(), &[route("enforce")]);
    let fence = Fencepost::launch_among(&config, &[("NOTIFY_SOCKET", &manager.path)]).await;
    manager.until_told("READY=1", 0).await;
    manager.until_told("STATUS=serving, 1 locks; main does not answer", 0).await;
    assert_eq!(fence.admin("GET", "/readyz").await.status, 503);
    let told = manager.told();
    assert!(!told.iter().any(|message| message.starts_with("WATCHDOG")), "nobody asked for it: {told:?}");
}
