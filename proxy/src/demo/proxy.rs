//! The proxy of the story: the real one, with a configuration as an operator would write it.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use fencepost_config::Config;
use fencepost_locks::MemoryStore;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::client::{PATIENCE, get};
use super::lock::Lock;
use crate::cli::DemoSettings;
use crate::run::{RunError, Surroundings, bind, run};
use crate::server::ListenAddress;

/// A running proxy.
pub(super) struct Proxy {
    /// Where it takes requests.
    pub(super) address: SocketAddr,
    /// Where it can be looked at.
    pub(super) admin: SocketAddr,
    stop: oneshot::Sender<()>,
    running: JoinHandle<Result<(), RunError>>,
}

/// The proxy's configuration: one worker behind one lock. Reads need no token.
pub(super) fn config(
    settings: &DemoSettings,
    lock: &Lock,
    worker: SocketAddr,
) -> anyhow::Result<Config> {
    let source = match &settings.etcd {
        // JSON's strings are TOML's.
        Some(url) => {
            format!("kind = \"etcd\"\nendpoints = [{}]", serde_json::Value::from(url.as_str()))
        }
        None => "kind = \"memory\"".to_owned(),
    };
    let (listen, key) = (settings.listen, lock.key());
    let text = format!(
        r#"
threads = 1
[admin]
listen = "127.0.0.1:0"
[[listener]]
address = "{listen}"
[limits]
drain_delay = "0s"
drain_timeout = "1s"
[source.demo]
{source}
[[route]]
name = "demo"
path = "/"
upstream = "http://{worker}"
exempt_methods = ["GET", "HEAD"]
lock = {{ source = "demo", key = "{key}", layout = "key" }}
"#
    );
    // All but the address of etcd is ours.
    Config::from_toml("demo", &text).map_err(|problems| match &settings.etcd {
        Some(url) => anyhow!("--etcd {url} cannot be used: {problems}"),
        None => anyhow!("{problems}"),
    })
}

impl Proxy {
    /// Starts it and waits until it is ready: until it has read its lock.
    pub(super) async fn start(config: Config, memory: MemoryStore) -> anyhow::Result<Proxy> {
        let bound = bind(&config)?;
        let (tell, started) = oneshot::channel();
        let (stop, stopped) = oneshot::channel();
        let surroundings = Surroundings { memory, started: Some(tell), ..Surroundings::default() };
        let shutdown = || async move { drop(stopped.await) };
        let running = tokio::task::spawn_local(run(config, bound, surroundings, shutdown));
        let Ok(started) = started.await else {
            running.await?.context("the proxy could not start")?;
            bail!("the proxy ended before it had begun");
        };
        let address = started.listeners.into_iter().next();
        let (Some(ListenAddress::Tcp(address)), Some(ListenAddress::Tcp(admin))) =
            (address, started.admin)
        else {
            bail!("the proxy does not listen on TCP");
        };
        wait_until_ready(admin).await?;
        Ok(Proxy { address, admin, stop, running })
    }

    /// Stops it as SIGTERM would.
    pub(super) async fn stop(self) -> anyhow::Result<()> {
        let _ = self.stop.send(()); // If it has ended by itself, its end says why.
        Ok(self.running.await??)
    }
}

async fn wait_until_ready(admin: SocketAddr) -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let (status, says) =
            get(admin, "/readyz").await.context("the admin listener does not answer")?;
        if status == 200 {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("the proxy does not become ready: {says}");
        }
        sleep(Duration::from_millis(10)).await;
    }
}
