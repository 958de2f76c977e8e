//! How many connections a process has, in all and from each client, and how one gets a place when there is none.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::connection::ClientAddress;
use super::limits::Limits;
use super::tally::Tally;

/// The places of a server's connections. All of its threads share them.
pub(super) struct Places {
    free: Arc<Semaphore>,
    per_client_max: usize,
    /// Has an entry for each client that has a place.
    per_client: Mutex<HashMap<Network, usize>>,
    /// One acceptor at a time asks for room.
    asking: tokio::sync::Mutex<()>,
    /// Whether room is asked for, and no thread has promised it yet.
    wanted: AtomicBool,
    /// Told when a thread that was asked has no connection to close.
    declined: Notify,
    pub(super) tally: Tally,
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

/// One connection's place among those of its client.
pub(super) struct ClientPlace {
    places: Arc<Places>,
    network: Option<Network>,
}

/// One connection's place. It is free again when this is dropped.
pub(super) struct Place {
    client: ClientPlace,
    _free: OwnedSemaphorePermit,
}

impl Places {
    pub(super) fn new(limits: &Limits) -> Arc<Places> {
        Arc::new(Places {
            free: Arc::new(Semaphore::new(limits.connections_max.min(Semaphore::MAX_PERMITS))),
            per_client_max: limits.connections_per_client_max,
            per_client: Mutex::default(),
            asking: tokio::sync::Mutex::default(),
            wanted: AtomicBool::new(false),
            declined: Notify::new(),
            tally: Tally::default(),
        })
    }

    /// A place among those of its client. `None` if that has too many.
    pub(super) fn of_client(self: &Arc<Places>, client: ClientAddress) -> Option<ClientPlace> {
        let network = Network::of(client);
        if let Some(network) = network {
            let mut counts = self.per_client.lock().unwrap_or_else(PoisonError::into_inner);
            let count = counts.entry(network).or_default();
            if *count >= self.per_client_max {
                self.tally.refuse(); // The entry stays: others of that client are counted in it.
                return None;
            }
            *count += 1;
        }
        Some(ClientPlace { places: Arc::clone(self), network })
    }

    /// Waits for a place. Where there is none, `ask` has a thread close a connection that waits for its client. If no
    /// connection does, the first whose request ends gives its place.
    ///
    /// # Errors
    /// Nothing more is to be served.
    pub(super) async fn take(&self, client: ClientPlace, ask: impl Fn()) -> Result<Place, Closed> {
        if let Ok(free) = Arc::clone(&self.free).try_acquire_owned() {
            return Ok(Place { client, _free: free });
        }
        let _asking = self.asking.lock().await;
        let mut free = std::pin::pin!(Arc::clone(&self.free).acquire_owned());
        loop {
            let declined = self.declined.notified();
            self.wanted.store(true, Ordering::SeqCst);
            ask();
            tokio::select! {
                biased;
                free = &mut free => {
                    self.wanted.store(false, Ordering::SeqCst);
                    return free.map(|free| Place { client, _free: free }).map_err(|_| Closed);
                }
                () = declined => {}
            }
        }
    }

    /// Whether somebody needs room. Whoever then makes some promises it by [`Places::promise`].
    pub(super) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::SeqCst)
    }

    /// Whether the caller is the one to make room.
    pub(super) fn promise(&self) -> bool {
        self.wanted.swap(false, Ordering::SeqCst)
    }

    /// The caller cannot make the room that it was asked for, or promised: others are asked.
    pub(super) fn decline(&self) {
        self.declined.notify_one();
    }
}

/// The server is gone.
#[derive(Debug)]
pub(super) struct Closed;

impl Place {
    pub(super) fn places(&self) -> &Arc<Places> {
        &self.client.places
    }
}

impl Drop for ClientPlace {
    fn drop(&mut self) {
        let Some(network) = self.network else { return };
        let mut counts = self.places.per_client.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&network) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&network);
            }
        }
    }
}

/// Shows how long a thread's longest-waiting connection has waited, to whoever looks for one to close.
#[derive(Clone, Debug)]
pub(super) struct Oldest(Arc<AtomicUsize>);

impl Oldest {
    pub(super) fn none() -> Oldest {
        Oldest(Arc::new(AtomicUsize::new(usize::MAX)))
    }

    pub(super) fn show(&self, since: Option<usize>) {
        self.0.store(since.unwrap_or(usize::MAX), Ordering::SeqCst);
    }

    /// `None` if no connection waits.
    pub(super) fn since(&self) -> Option<usize> {
        Some(self.0.load(Ordering::SeqCst)).filter(|since| *since != usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(connections_max: usize, connections_per_client_max: usize) -> Arc<Places> {
        Places::new(&Limits { connections_max, connections_per_client_max, ..Limits::default() })
    }

    fn tcp(address: &str) -> ClientAddress {
        ClientAddress::Tcp(address.parse().unwrap())
    }

    #[test]
    fn connections_are_counted_by_ipv4_address_or_ipv6_network_and_no_longer_than_they_last() {
        let places = places(100, 1);
        let held = [
            tcp("192.0.2.1:1"),
            tcp("192.0.2.2:1"),
            tcp("[2001:db8::1]:1"),
            tcp("[2001:db8:0:1::1]:1"),
            ClientAddress::Unix,
            ClientAddress::Unix,
        ];
        let held = held.map(|client| places.of_client(client).expect("the first of its client"));
        for client in ["192.0.2.1:2", "[::ffff:192.0.2.2]:3", "[2001:db8::ffff]:4", "[2001:db8:0:1:8000::]:5"] {
            assert!(places.of_client(tcp(client)).is_none(), "{client}");
        }
        assert_eq!(places.tally.refused(), 4);
        drop(held);
        assert!(places.per_client.lock().unwrap().is_empty());
        assert!(places.of_client(tcp("192.0.2.1:2")).is_some());
    }

    #[tokio::test]
    async fn a_thread_that_has_nothing_to_close_has_others_asked_until_there_is_room() {
        let places = places(1, 10);
        let client = |port| places.of_client(tcp(&format!("192.0.2.1:{port}"))).unwrap();
        let only = places.take(client(1), || unreachable!("there is room")).await.unwrap();
        let only = std::cell::RefCell::new(Some(only));
        let times = std::cell::Cell::new(0);
        let ask = || {
            times.set(times.get() + 1);
            match times.get() {
                3 => drop(only.borrow_mut().take()),
                _ => places.decline(),
            }
        };
        assert!(places.take(client(2), ask).await.is_ok());
        assert_eq!((times.get(), places.is_wanted()), (3, false));
    }
}
