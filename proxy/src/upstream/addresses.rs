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

use crate::panics::contained;

/// How long it is kept what a name means: a lookup takes a thread and asks a server, and connections are opened by hundreds.
const KEPT_FOR: Duration = Duration::from_secs(1);

/// How many lookups of a name may go on at a time: where its server does not answer, each keeps its thread for many seconds.
const PENDING_MAX: usize = 4;

/// What is found for all who wait for it.
type Found = Result<Rc<[SocketAddr]>, Arc<io::Error>>;

type Lookup = Shared<Pin<Box<dyn Future<Output = Found>>>>;

/// The addresses of a worker's name, looked up once for all who connect within a moment.
#[derive(Default)]
pub(super) struct Addresses {
    /// The last lookup and those before it that go on, the last at the end, each with when it began.
    lookups: RefCell<Vec<(Instant, Lookup)>>,
}

impl Addresses {
    /// What `connect` makes of what the last lookup has found or will find, or of what `look_up` finds, if that was too long ago. If
    /// nothing comes of it, the next who connects looks the name up.
    pub(super) async fn connect<F, T>(
        &self,
        look_up: impl FnOnce() -> F,
        connect: impl AsyncFnOnce(Rc<[SocketAddr]>) -> io::Result<T>,
    ) -> io::Result<T>
    where
        F: Future<Output = io::Result<Vec<SocketAddr>>> + 'static,
    {
        let lookup = self.last().unwrap_or_else(|| self.begin(look_up()));
        let connected = match lookup.clone().await {
            Ok(found) => connect(found).await,
            Err(error) => Err(io::Error::new(error.kind(), error)),
        };
        // The worker may have moved. What others have found since may be where it is.
        connected.inspect_err(|_| self.lookups.borrow_mut().retain(|(_, other)| !other.ptr_eq(&lookup)))
    }

    /// The lookup that is shared: what is lost of one on its way holds up only those who came within a moment of it.
    fn last(&self) -> Option<Lookup> {
        let mut lookups = self.lookups.borrow_mut();
        let (began, last) = lookups.last()?;
        if began.elapsed() < KEPT_FOR {
            return Some(last.clone());
        }
        // Those whose waiters have all given up go on as well, and nobody else polls them.
        lookups.retain(|(_, lookup)| lookup.clone().now_or_never().is_none());
        let (_, last) = lookups.last()?;
        (lookups.len() >= PENDING_MAX).then(|| last.clone())
    }

    fn begin(&self, lookup: impl Future<Output = io::Result<Vec<SocketAddr>>> + 'static) -> Lookup {
        // tokio panics where there is no thread for it. What is shared would panic from then on, whoever polls it.
        let found = async {
            let found = contained(lookup).await.unwrap_or_else(|panicked| Err(io::Error::other(panicked)));
            found.map(Rc::from).map_err(Arc::new)
        };
        let lookup = (Box::pin(found) as Pin<Box<dyn Future<Output = Found>>>).shared();
        self.lookups.borrow_mut().push((Instant::now(), lookup.clone()));
        lookup
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::pending;

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
        panics: Cell<bool>,
        /// It says nothing to those who ask now.
        is_silent: Cell<bool>,
    }

    impl Resolver {
        /// The port that was found is the number of the lookup.
        async fn get(&self) -> Result<u16, io::ErrorKind> {
            self.connect(async |port| Ok(port)).await
        }

        async fn connect(&self, connect: impl AsyncFnOnce(u16) -> io::Result<u16>) -> Result<u16, io::ErrorKind> {
            let look_up = || {
                self.asked.set(self.asked.get() + 1);
                let found = SocketAddr::from(([127, 0, 0, 1], self.asked.get()));
                let (fails, is_silent, panics) = (self.fails.get(), self.is_silent.get(), self.panics.get());
                async move {
                    if is_silent {
                        pending::<()>().await;
                    }
                    sleep(LONG).await;
                    assert!(!panics, "OS can't spawn worker thread");
                    if fails { Err(io::ErrorKind::HostUnreachable.into()) } else { Ok(vec![found]) }
                }
            };
            let connected = self.addresses.connect(look_up, async |found| connect(found[0].port()).await);
            connected.await.map_err(|error| error.kind())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn all_who_connect_within_a_moment_share_one_lookup() {
        let resolver = Resolver::default();
        let mut early = Box::pin(resolver.get());
        assert!(timeout(KEPT_FOR / 2, &mut early).await.is_err());
        assert_eq!(join_all((0..99).map(|_| resolver.get())).await, [Ok(1); 99]);
        assert_eq!(early.await, Ok(1));
        assert_eq!(resolver.get().await, Ok(2), "it was begun too long ago");
    }

    /// One packet that was lost held up all who came, for as long as it took until it was sent again.
    #[tokio::test(start_paused = true)]
    async fn a_lookup_that_takes_its_time_holds_up_only_those_who_came_within_a_moment_of_it() {
        let resolver = Resolver::default();
        resolver.is_silent.set(true);
        let get = async |after| {
            sleep(after).await;
            timeout(2 * LONG, resolver.get()).await
        };
        let all = join_all((0..50).map(|number| get(number * KEPT_FOR / 10)));
        let speaks = async {
            sleep(KEPT_FOR / 2).await;
            resolver.is_silent.set(false);
        };
        let (found, ()) = tokio::join!(all, speaks);
        let late: Vec<_> = found.into_iter().skip(11).collect();
        assert!(late.iter().all(|found| matches!(found, Ok(Ok(_)))), "{late:?}");
        assert_eq!(resolver.asked.get(), 5, "one in a second");
    }

    #[tokio::test(start_paused = true)]
    async fn a_resolver_that_says_nothing_is_asked_a_few_times_and_again_as_soon_as_it_has_answered_one() {
        let (resolver, mut asked) = (Resolver::default(), Vec::new());
        for number in 0..100 {
            resolver.is_silent.set(number != 1);
            assert!(timeout(KEPT_FOR / 100, resolver.get()).await.is_err());
            asked.push(resolver.asked.get());
            advance(KEPT_FOR).await;
        }
        assert_eq!((&asked[..6], asked[99]), (&[1, 2, 3, 4, 5, 5][..], 5));
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

    /// One thread that could not be spawned for a lookup broke the route on that thread: each later request was answered by 502.
    #[tokio::test(start_paused = true)]
    async fn a_lookup_that_panics_has_failed_and_the_next_one_is_another() {
        let resolver = Resolver::default();
        resolver.panics.set(true);
        assert_eq!(join_all((0..9).map(|_| resolver.get())).await, [Err(io::ErrorKind::Other); 9]);
        assert!(timeout(KEPT_FOR, resolver.get()).await.is_err(), "nobody waits for it");
        advance(LONG).await;
        resolver.panics.set(false);
        assert_eq!((resolver.get().await, resolver.get().await), (Ok(3), Ok(4)));
    }

    /// Each that failed late had the next look again, however fresh what others had found since.
    #[tokio::test(start_paused = true)]
    async fn who_fails_late_forgets_only_the_lookup_that_it_had_its_address_from() {
        let resolver = Resolver::default();
        let fails_late = resolver.connect(async |_| {
            sleep(KEPT_FOR / 2).await;
            Err(io::ErrorKind::TimedOut.into())
        });
        let get = async |after| {
            sleep(after).await;
            resolver.get().await
        };
        let (before, behind) = (LONG + KEPT_FOR / 4, LONG + KEPT_FOR);
        assert_eq!(tokio::join!(fails_late, get(before), get(behind)), (Err(io::ErrorKind::TimedOut), Ok(2), Ok(2)));
    }
}
