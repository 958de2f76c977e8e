//! One endpoint and our connections to it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use etcd_client::{Client, ConnectOptions};
use tokio::sync::{OnceCell, watch};

use super::failure::Failure;

/// How long a connection may take to come up.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);

/// How often a connection that carries a watch is probed. etcd closes the connections of clients that probe it more often
/// than every 5 s.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(6);

/// How long the answer to such a probe may take.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(2);

/// An endpoint of the cluster, with a client of its own: the library's balancer keeps dead members in its rotation and
/// does not say which one it asked.
#[derive(Debug)]
pub(super) struct Endpoint {
    /// Where it is, as configured.
    pub(super) address: Arc<str>,
    /// For calls that have a deadline.
    pub(super) calls: Connections,
    /// For watches: a connection of its own, so that heavy reads do not hold up events.
    pub(super) watches: Connections,
    /// How often it has become suspect: watches that hang on it end then.
    suspicions: watch::Sender<u64>,
}

impl Endpoint {
    pub(super) fn new(address: &str) -> Endpoint {
        // Calls are not probed: etcd holds probes of connections without streams against a client, and each call has
        // its own deadline.
        let calls = ConnectOptions::new().with_connect_timeout(CONNECT_TIMEOUT);
        // A member without a leader ends such a stream: it could only go on being silent.
        let watches = calls
            .clone()
            .with_require_leader(true)
            .with_keep_alive(KEEPALIVE_INTERVAL, KEEPALIVE_TIMEOUT)
            .with_keep_alive_while_idle(false);
        Endpoint {
            address: address.into(),
            calls: Connections::new(address, calls),
            watches: Connections::new(address, watches),
            suspicions: watch::Sender::new(0),
        }
    }

    /// Gives up all connections to it, and tells the watches that hang on them.
    pub(super) fn suspect(&self) {
        self.calls.renew();
        self.watches.renew();
        self.suspicions.send_modify(|count| *count += 1);
    }

    /// Changes when it becomes suspect.
    pub(super) fn suspicions(&self) -> watch::Receiver<u64> {
        self.suspicions.subscribe()
    }
}

/// One connection at a time, made when it is needed and never used again once it has failed: whether it is the member, the
/// connection or something between that is stuck, a fresh connection finds out soonest.
#[derive(Debug)]
pub(super) struct Connections {
    address: String,
    options: ConnectOptions,
    present: Mutex<Arc<Connection>>,
}

impl Connections {
    fn new(address: &str, options: ConnectOptions) -> Connections {
        Connections { address: address.to_owned(), options, present: Mutex::default() }
    }

    /// The one to use now.
    pub(super) fn present(&self) -> Arc<Connection> {
        Arc::clone(&self.present.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Its client. Nothing is sent yet.
    pub(super) async fn client(&self, connection: &Connection) -> Result<Client, Failure> {
        let connect = || Client::connect([&self.address], Some(self.options.clone()));
        Ok(connection.client.get_or_try_init(connect).await?.clone())
    }

    /// Makes sure that the one in use is not used again, except by those who are using it.
    fn renew(&self) {
        *self.present.lock().unwrap_or_else(PoisonError::into_inner) = Arc::default();
    }
}

/// A connection, up or not.
#[derive(Default)]
pub(super) struct Connection {
    client: OnceCell<Client>,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("used", &self.client.initialized()).finish()
    }
}
