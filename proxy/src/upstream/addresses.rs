//! Looks up the names of workers. Shares each lookup between all threads for a second.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use moka::future::Cache;
use moka::policy::EvictionPolicy;
use tokio::time::Instant;

use crate::panics::contained;

/// For how long a name keeps its addresses: a lookup takes a thread and asks a server, and
/// connections are opened by hundreds.
const KEPT_FOR: Duration = Duration::from_secs(1);

/// How many names are kept.
const NAMES_MAX: u64 = 1_024;

/// The names of all workers of this process.
pub(super) static ADDRESSES: LazyLock<Addresses> = LazyLock::new(Addresses::new);

/// A name and a port.
pub(super) type Host = (String, u16);

/// The addresses of names. Requests that need a name at the same time share one lookup.
pub(super) struct Addresses(Cache<Host, Found>);

#[derive(Clone)]
struct Found {
    addresses: Arc<[SocketAddr]>,
    /// Not moka's own expiry, because the clock of that cannot be paused in tests.
    until: Instant,
}

impl Addresses {
    fn new() -> Addresses {
        Addresses(
            Cache::builder().max_capacity(NAMES_MAX).eviction_policy(EvictionPolicy::lru()).build(),
        )
    }

    /// Connects to the addresses of `host`: those that are kept, or else those that `look_up`
    /// finds. If the connection fails, the next one looks the name up again, because the worker may
    /// have moved.
    ///
    /// # Errors
    /// If the name has no addresses, or `connect` fails.
    pub(super) async fn connect<F, T>(
        &self,
        host: &Host,
        look_up: impl FnOnce() -> F,
        connect: impl AsyncFnOnce(&[SocketAddr]) -> io::Result<T>,
    ) -> io::Result<T>
    where
        F: Future<Output = io::Result<Vec<SocketAddr>>>,
    {
        if self.0.get(host).await.is_some_and(|found| found.until <= Instant::now()) {
            self.0.invalidate(host).await;
        }
        let lookup = async {
            // tokio panics where the system has no thread for a lookup.
            let addresses = contained(look_up())
                .await
                .unwrap_or_else(|panicked| Err(io::Error::other(panicked)))?;
            Ok(Found { addresses: addresses.into(), until: Instant::now() + KEPT_FOR })
        };
        let found = self.0.try_get_with_by_ref(host, lookup).await;
        let found = found.map_err(|error: Arc<io::Error>| io::Error::new(error.kind(), error))?;
        let connected = connect(&found.addresses).await;
        if connected.is_err()
            && self
                .0
                .get(host)
                .await
                .is_some_and(|now| Arc::ptr_eq(&now.addresses, &found.addresses))
        {
            self.0.invalidate(host).await;
        }
        connected
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use futures_util::future::join_all;
    use tokio::time::{advance, sleep, timeout};

    use super::*;

    const LONG: Duration = Duration::from_secs(3);

    /// A resolver that takes its time, and whose addresses have the number of the lookup for a
    /// port.
    struct Resolver {
        addresses: Addresses,
        lookups: Cell<u16>,
    }

    impl Resolver {
        fn new() -> Resolver {
            Resolver { addresses: Addresses::new(), lookups: Cell::new(0) }
        }

        async fn connect(
            &self,
            connect: impl AsyncFnOnce(u16) -> io::Result<u16>,
        ) -> Result<u16, io::ErrorKind> {
            let look_up = || {
                self.lookups.set(self.lookups.get() + 1);
                let number = self.lookups.get();
                async move {
                    sleep(LONG).await;
                    Ok(vec![SocketAddr::from(([127, 0, 0, 1], number))])
                }
            };
            let host = ("worker".to_owned(), 80);
            let connected = self
                .addresses
                .connect(&host, look_up, async |found| connect(found[0].port()).await);
            connected.await.map_err(|error| error.kind())
        }

        async fn get(&self) -> Result<u16, io::ErrorKind> {
            self.connect(async |port| Ok(port)).await
        }
    }

    #[tokio::test(start_paused = true)]
    async fn connections_share_a_lookup_for_a_second() {
        let resolver = Resolver::new();
        assert_eq!(join_all((0..99).map(|_| resolver.get())).await, [Ok(1); 99]);
        advance(KEPT_FOR - Duration::from_millis(1)).await;
        assert_eq!(resolver.get().await, Ok(1));
        advance(Duration::from_millis(1)).await;
        assert_eq!(resolver.get().await, Ok(2));
    }

    #[tokio::test(start_paused = true)]
    async fn lookup_that_is_given_up_holds_up_nobody() {
        let resolver = Resolver::new();
        assert!(timeout(LONG / 2, resolver.get()).await.is_err());
        assert_eq!(resolver.get().await, Ok(2));
    }

    #[tokio::test(start_paused = true)]
    async fn failed_connection_forgets_only_its_own_lookup() {
        let resolver = Resolver::new();
        assert_eq!(resolver.get().await, Ok(1));
        let refused = async |_| Err(io::ErrorKind::ConnectionRefused.into());
        assert_eq!(resolver.connect(refused).await, Err(io::ErrorKind::ConnectionRefused));
        assert_eq!(resolver.get().await, Ok(2));
        let fails_late = resolver.connect(async |_| {
            sleep(KEPT_FOR + LONG).await;
            Err(io::ErrorKind::TimedOut.into())
        });
        let later = async {
            sleep(KEPT_FOR).await;
            (resolver.get().await, sleep(KEPT_FOR / 2).await, resolver.get().await)
        };
        assert_eq!(
            tokio::join!(fails_late, later),
            (Err(io::ErrorKind::TimedOut), (Ok(3), (), Ok(3)))
        );
    }

    #[tokio::test(start_paused = true)]
    async fn failed_or_panicking_lookup_is_done_again() {
        let addresses = Addresses::new();
        let host = ("worker".to_owned(), 80);
        let fails = addresses.connect(
            &host,
            async || Err(io::ErrorKind::HostUnreachable.into()),
            async |_| Ok(()),
        );
        assert_eq!(fails.await.unwrap_err().kind(), io::ErrorKind::HostUnreachable);
        let panics = addresses.connect(&host, async || panic!("no thread"), async |_| Ok(()));
        assert_eq!(panics.await.unwrap_err().kind(), io::ErrorKind::Other);
        let found = || async { Ok(vec![SocketAddr::from(([127, 0, 0, 1], 1))]) };
        assert_eq!(
            addresses.connect(&host, found, async |found| Ok(found.len())).await.unwrap(),
            1
        );
    }
}
