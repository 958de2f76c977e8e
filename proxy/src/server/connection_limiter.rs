//! Limits how many connections a server has, in all and from each client, and counts those that a
//! limit closed. Which connection makes room is up to [`IdleConnections`].

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
    per_client_max: usize,
    /// Holds each client that has a connection.
    per_client: Mutex<HashMap<Network, usize>>,
    pub(super) idle: Arc<IdleConnections>,
    closed: [AtomicU64; Closing::ALL.len()],
    refused: AtomicU64,
}

/// Whose connections are counted together: an IPv6 client has a whole /64 to choose addresses from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Network {
    V4([u8; 4]),
    V6([u8; 8]),
}

impl Network {
    /// `None` for unix sockets, whose clients have no address.
    fn of(client: ClientAddress) -> Option<Network> {
        let ClientAddress::Tcp(address) = client else { return None };
        Some(match address.ip().to_canonical() {
            IpAddr::V4(address) => Network::V4(address.octets()),
            IpAddr::V6(address) => {
                let mut prefix = [0; 8];
                prefix.copy_from_slice(&address.octets()[..8]);
                Network::V6(prefix)
            }
        })
    }
}

impl ConnectionLimiter {
    pub(super) fn new(limits: &Limits) -> Arc<ConnectionLimiter> {
        Arc::new(ConnectionLimiter {
            slots: Arc::new(Semaphore::new(limits.connections_max.min(Semaphore::MAX_PERMITS))),
            per_client_max: limits.connections_per_client_max,
            per_client: Mutex::default(),
            idle: Arc::new(IdleConnections::new()),
            closed: Default::default(),
            refused: AtomicU64::new(0),
        })
    }

    /// Waits for a slot for a client's connection. While no slot is free, closes the connections
    /// that have been idle the longest. Returns `None`, and counts a refusal, if the client has too
    /// many connections.
    pub(super) async fn slot(self: &Arc<Self>, client: ClientAddress) -> Option<Slot> {
        let mut slot = self.admit(client)?;
        let free = match Arc::clone(&self.slots).try_acquire_owned() {
            Ok(free) => free,
            Err(_) => self
                .idle
                .evict_until(Arc::clone(&self.slots).acquire_owned())
                .await
                .expect("nobody closes the semaphore"),
        };
        slot.free = Some(free);
        Some(slot)
    }

    /// Counts a connection as one of its client's. `None` if the client has too many.
    fn admit(self: &Arc<Self>, client: ClientAddress) -> Option<Slot> {
        let network = Network::of(client);
        if let Some(network) = network {
            let mut per_client = self.per_client();
            let count = per_client.entry(network).or_default();
            if *count >= self.per_client_max {
                self.refused.fetch_add(1, Ordering::Relaxed);
                return None;
            }
            *count += 1;
        }
        Some(Slot { limiter: Arc::clone(self), network, free: None })
    }

    /// How many connections this limit has closed.
    pub(super) fn closed(&self, closing: Closing) -> u64 {
        self.closed[closing as usize].load(Ordering::Relaxed)
    }

    /// How many connections were refused because their client had too many.
    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    fn per_client(&self) -> MutexGuard<'_, HashMap<Network, usize>> {
        self.per_client.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One connection's slot, and its place among those of its client. Free again when this is dropped.
pub(super) struct Slot {
    limiter: Arc<ConnectionLimiter>,
    network: Option<Network>,
    /// `None` while it waits.
    free: Option<OwnedSemaphorePermit>,
}

impl Slot {
    pub(super) fn idle(&self) -> &Arc<IdleConnections> {
        &self.limiter.idle
    }

    /// Counts the connection as closed by this limit.
    pub(super) fn count(&self, closing: Closing) {
        self.limiter.closed[closing as usize].fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let Some(network) = self.network else { return };
        let mut per_client = self.limiter.per_client();
        if let Some(count) = per_client.get_mut(&network) {
            *count -= 1;
            if *count == 0 {
                per_client.remove(&network);
            }
        }
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
        let held = held.map(|client| limiter.admit(client).expect("the first of its client"));
        for client in
            ["192.0.2.1:2", "[::ffff:192.0.2.2]:3", "[2001:db8::ffff]:4", "[2001:db8:0:1:8000::]:5"]
        {
            assert!(limiter.admit(tcp(client)).is_none(), "{client}");
        }
        assert_eq!(limiter.refused(), 4);
        drop(held);
        assert!(limiter.per_client().is_empty());
        assert!(limiter.admit(tcp("192.0.2.1:2")).is_some());
    }
}
