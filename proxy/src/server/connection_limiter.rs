//! Limits how many connections a server has, in all and from each client, and how many requests each
//! client has by trusted proxies. Counts the connections that a limit closed. Which connection makes room is up to [`IdleConnections`].

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::client::ClientAddress;
use super::idle_connections::IdleConnections;
use super::limits::{Closing, Limits};

/// The connections of a server. All of its threads share it.
pub(super) struct ConnectionLimiter {
    slots: Arc<Semaphore>,
    connections: Arc<PerClient>,
    /// Requests that come by trusted proxies.
    requests: Arc<PerClient>,
    pub(super) idle: Arc<IdleConnections>,
    closed: [AtomicU64; Closing::ALL.len()],
    refused: AtomicU64,
}

/// Counts what each client has of one kind.
struct PerClient {
    max: usize,
    /// Holds each client that has something.
    counts: Mutex<HashMap<Network, usize>>,
}

/// One of a client's connections or requests; counted until this is dropped. The default is not
/// counted.
#[derive(Default)]
pub struct ClientPlace(Option<(Arc<PerClient>, Network)>);

/// Whose connections are counted together: an IPv6 client has a whole /64 to choose addresses from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Network {
    V4([u8; 4]),
    V6([u8; 8]),
}

impl Network {
    /// `None` for unix sockets, whose clients have no address.
    fn of(client: ClientAddress) -> Option<Network> {
        Some(match client.ip()?.to_canonical() {
            IpAddr::V4(address) => Network::V4(address.octets()),
            IpAddr::V6(address) => {
                let mut prefix = [0; 8];
                prefix.copy_from_slice(&address.octets()[..8]);
                Network::V6(prefix)
            }
        })
    }
}

impl PerClient {
    fn new(max: usize) -> Arc<PerClient> {
        Arc::new(PerClient { max, counts: Mutex::default() })
    }

    /// Counts one more. `None` if the client has too many.
    fn admit(self: &Arc<Self>, client: ClientAddress) -> Option<ClientPlace> {
        let Some(network) = Network::of(client) else { return Some(ClientPlace::default()) };
        let mut counts = self.counts();
        let count = counts.entry(network).or_default();
        if *count >= self.max {
            return None;
        }
        *count += 1;
        Some(ClientPlace(Some((Arc::clone(self), network))))
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<Network, usize>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ClientPlace {
    fn drop(&mut self) {
        let Some((per_client, network)) = &self.0 else { return };
        let mut counts = per_client.counts();
        if let Some(count) = counts.get_mut(network) {
            *count -= 1;
            if *count == 0 {
                counts.remove(network);
            }
        }
    }
}

impl ConnectionLimiter {
    pub(super) fn new(limits: &Limits) -> Arc<ConnectionLimiter> {
        Arc::new(ConnectionLimiter {
            slots: Arc::new(Semaphore::new(limits.connections_max.min(Semaphore::MAX_PERMITS))),
            connections: PerClient::new(limits.connections_per_client_max),
            requests: PerClient::new(limits.requests_per_client_max),
            idle: Arc::new(IdleConnections::new()),
            closed: Default::default(),
            refused: AtomicU64::new(0),
        })
    }

    /// Waits for a slot for a client's connection. While no slot is free, closes the connections
    /// that have been idle the longest. Returns `None`, and counts a refusal, if the client has too
    /// many connections; a trusted proxy never has.
    pub(super) async fn slot(
        self: &Arc<Self>,
        client: ClientAddress,
        is_trusted: bool,
    ) -> Option<Slot> {
        let place = self.place(client, is_trusted)?;
        let free = match Arc::clone(&self.slots).try_acquire_owned() {
            Ok(free) => free,
            Err(_) => self
                .idle
                .evict_until(Arc::clone(&self.slots).acquire_owned())
                .await
                .expect("nobody closes the semaphore"),
        };
        Some(Slot { limiter: Arc::clone(self), place, _free: free })
    }

    /// Counts a connection as one of its client's. `None` if the client has too many.
    fn place(&self, client: ClientAddress, is_trusted: bool) -> Option<ClientPlace> {
        if is_trusted {
            return Some(ClientPlace::default());
        }
        let place = self.connections.admit(client);
        self.refused.fetch_add(u64::from(place.is_none()), Ordering::Relaxed);
        place
    }

    /// How many connections this limit has closed.
    pub(super) fn closed(&self, closing: Closing) -> u64 {
        self.closed[closing as usize].load(Ordering::Relaxed)
    }

    /// How many connections were refused because their client had too many.
    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

/// One connection's slot, and its place among those of its client. Free again when this is dropped.
pub(super) struct Slot {
    limiter: Arc<ConnectionLimiter>,
    place: ClientPlace,
    _free: OwnedSemaphorePermit,
}

impl Slot {
    /// Counts the connection as that client's, which the PROXY protocol names. Returns `false`, and
    /// counts a refusal, if the client has too many.
    pub(super) fn rename(&mut self, client: ClientAddress, is_trusted: bool) -> bool {
        let place = self.limiter.place(client, is_trusted);
        place.map(|place| self.place = place).is_some()
    }

    /// Counts a request as one of that client's. `None` if the client has too many.
    pub(super) fn place_of_request(&self, client: ClientAddress) -> Option<ClientPlace> {
        self.limiter.requests.admit(client)
    }

    pub(super) fn idle(&self) -> &Arc<IdleConnections> {
        &self.limiter.idle
    }

    /// Counts the connection as closed by this limit.
    pub(super) fn count(&self, closing: Closing) {
        self.limiter.closed[closing as usize].fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(address: &str) -> ClientAddress {
        ClientAddress::Tcp(address.parse().unwrap())
    }

    #[tokio::test]
    async fn clients_are_counted_by_ipv4_address_or_ipv6_network() {
        let limits =
            Limits { connections_max: 100, connections_per_client_max: 1, ..Limits::default() };
        let limiter = ConnectionLimiter::new(&limits);
        let held = [
            tcp("192.0.2.1:1"),
            tcp("192.0.2.2:1"),
            tcp("[2001:db8::1]:1"),
            tcp("[2001:db8:0:1::1]:1"),
            ClientAddress::Unix,
            ClientAddress::Unix,
        ];
        let held =
            held.map(|client| limiter.place(client, false).expect("the first of its client"));
        for client in
            ["192.0.2.1:2", "[::ffff:192.0.2.2]:3", "[2001:db8::ffff]:4", "[2001:db8:0:1:8000::]:5"]
        {
            assert!(limiter.place(tcp(client), false).is_none(), "{client}");
            assert!(limiter.place(tcp(client), true).is_some(), "a trusted proxy");
        }
        assert_eq!(limiter.refused(), 4);
        drop(held);
        assert!(limiter.connections.counts().is_empty());
        assert!(limiter.place(tcp("192.0.2.1:2"), false).is_some());
    }
}
