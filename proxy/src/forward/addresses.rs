//! What the name of a worker means.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::Shared;
use tokio::time::Instant;

/// How long it is kept what a name means: a lookup takes a thread and asks a server, and connections are opened by hundreds.
const KEPT_FOR: Duration = Duration::from_secs(1);

/// What is found for all who wait for it.
type Found = Result<Rc<[SocketAddr]>, Arc<io::Error>>;

/// The addresses of a worker's name, looked up once for all who connect within a moment.
#[derive(Default)]
pub(super) struct Addresses {
    /// The last lookup, and when it began.
    last: RefCell<Option<(Instant, Lookup)>>,
}

type Lookup = Shared<Pin<Box<dyn Future<Output = Found>>>>;

impl Addresses {
    /// What the last lookup has found or will find; what `look_up` finds, if that was too long ago.
    pub(super) async fn get<F>(&self, look_up: impl FnOnce() -> F) -> io::Result<Rc<[SocketAddr]>>
    where
        F: Future<Output = io::Result<Vec<SocketAddr>>> + 'static,
    {
        let lookup = self.last().unwrap_or_else(|| self.begin(look_up()));
        lookup.await.map_err(|error| {
            self.forget();
            io::Error::new(error.kind(), error)
        })
    }

    /// The next who connects looks the name up.
    pub(super) fn forget(&self) {
        *self.last.borrow_mut() = None;
    }

    fn last(&self) -> Option<Lookup> {
        let last = self.last.borrow();
        let (began, lookup) = last.as_ref()?;
        // One that takes its time is shared for as long as somebody waits for it. One that nobody waits for may have ended long ago.
        let is_waited_for = lookup.strong_count().is_some_and(|holders| holders > 1);
        (began.elapsed() < KEPT_FOR || is_waited_for).then(|| lookup.clone())
    }

    fn begin(&self, lookup: impl Future<Output = io::Result<Vec<SocketAddr>>> + 'static) -> Lookup {
        let found = async { lookup.await.map(Rc::from).map_err(Arc::new) };
        let lookup = (Box::pin(found) as Pin<Box<dyn Future<Output = Found>>>).shared();
        *self.last.borrow_mut() = Some((Instant::now(), lookup.clone()));
        lookup
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use futures_util::future::join_all;
    use tokio::time::{advance, sleep, timeout};

    use super::*;

    const LONG: Duration = Duration::from_secs(3);

    /// A resolver that takes its time, and counts how often it was asked.
    #[derive(Default)]
    struct Resolver {
        addresses: Addresses,
        asked: Cell<u16>,
        fails: Cell<bool>,
    }

    impl Resolver {
        /// The port that was found is the number of the lookup.
        async fn get(&self) -> Result<u16, io::ErrorKind> {
            let look_up = || {
                self.asked.set(self.asked.get() + 1);
                let (found, fails) = (SocketAddr::from(([127, 0, 0, 1], self.asked.get())), self.fails.get());
                async move {
                    sleep(LONG).await;
                    if fails { Err(io::ErrorKind::HostUnreachable.into()) } else { Ok(vec![found]) }
                }
            };
            let found = self.addresses.get(look_up).await.map_err(|error| error.kind())?;
            Ok(found[0].port())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn all_who_connect_while_a_name_is_looked_up_or_within_a_moment_share_one_lookup() {
        let resolver = Resolver::default();
        let mut early = Box::pin(resolver.get());
        assert!(timeout(2 * KEPT_FOR, &mut early).await.is_err());
        assert_eq!(join_all((0..99).map(|_| resolver.get())).await, [Ok(1); 99]);
        assert_eq!(early.await, Ok(1));
        assert_eq!(resolver.get().await, Ok(2), "it was begun too long ago");
    }

    #[tokio::test(start_paused = true)]
    async fn a_lookup_that_nobody_waits_for_is_as_old_as_its_beginning() {
        let resolver = Resolver::default();
        assert!(timeout(KEPT_FOR / 2, resolver.get()).await.is_err());
        advance(KEPT_FOR).await;
        assert_eq!(resolver.get().await, Ok(2));
    }

    #[tokio::test(start_paused = true)]
    async fn what_could_not_be_found_is_told_to_all_who_wait_and_to_nobody_later() {
        let resolver = Resolver::default();
        resolver.fails.set(true);
        assert_eq!(join_all((0..100).map(|_| resolver.get())).await, [Err(io::ErrorKind::HostUnreachable); 100]);
        resolver.fails.set(false);
        assert_eq!(resolver.get().await, Ok(2));
    }
}
