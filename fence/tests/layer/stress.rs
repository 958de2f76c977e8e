//! Many threads, and a lock that keeps moving.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use fencepost_fence::{FenceLayer, RequestBody};
use http::{Request, Response};
use http_body_util::Full;
use tokio::time::{Instant, timeout};
use tower::service_fn;

use crate::cluster::Cluster;
use crate::scene::{LOCK, LONG, outcome, request, running, send};

/// What runs, by its revision; and what went wrong.
#[derive(Default)]
struct Inside {
    running: Mutex<Vec<u64>>,
    highest: AtomicU64,
    handled: AtomicU64,
    wrong: Mutex<Vec<String>>,
}

/// One that is in, until this is dropped.
struct Stay(Arc<Inside>, u64);

impl Stay {
    fn begin(inside: &Arc<Inside>, revision: u64) -> Stay {
        let mut running = inside.running.lock().unwrap();
        if running.iter().any(|other| *other != revision) {
            inside.wrong.lock().unwrap().push(format!("{revision} beside {running:?}"));
        }
        let highest = inside.highest.fetch_max(revision, Ordering::SeqCst);
        if highest > revision {
            inside.wrong.lock().unwrap().push(format!("{revision} after {highest}"));
        }
        running.push(revision);
        inside.handled.fetch_add(1, Ordering::SeqCst);
        Stay(Arc::clone(inside), revision)
    }
}

impl Drop for Stay {
    fn drop(&mut self) {
        let mut running = self.0.running.lock().unwrap();
        let own = running.iter().position(|other| *other == self.1).expect("it is in");
        running.swap_remove(own);
    }
}

/// Sends under a token until it is refused, through handlers that answer at once, go on in the
/// background, or are left by their clients.
async fn keep_sending(
    layer: FenceLayer,
    inside: Arc<Inside>,
    owner: String,
    revision: u64,
    over: Arc<AtomicBool>,
) {
    let mut number = 0;
    while !over.load(Ordering::Relaxed) {
        number += 1;
        let inside = Arc::clone(&inside);
        let handler = service_fn(move |request: Request<RequestBody<Full<Bytes>>>| {
            let stay = Stay::begin(&inside, revision);
            async move {
                let running = running(&request);
                match number % 4 {
                    0 => {
                        tokio::spawn(async move {
                            tokio::time::sleep(Duration::from_millis(2)).await;
                            drop((stay, running));
                        });
                    }
                    1 => {
                        tokio::task::spawn_blocking(move || {
                            std::thread::sleep(Duration::from_millis(1));
                            drop((stay, running));
                        });
                    }
                    2 => {
                        tokio::time::sleep(Duration::from_millis(2)).await;
                        drop(stay);
                    }
                    _ => tokio::task::yield_now().await,
                }
                Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("done")))
            }
        });
        let sent = send(&layer, handler, request(&owner, revision));
        if number % 5 == 0 {
            let _ = timeout(Duration::from_millis(1), sent).await; // Its client leaves.
            continue;
        }
        let refused = outcome(&sent.await);
        if refused != "200" {
            assert!(refused.starts_with("412"), "{refused}");
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_tenures_never_run_beside_each_other_whatever_the_threads() {
    let cluster = Cluster::start().await;
    let fence = cluster.fence();
    let layer = fence.lock(LOCK).handoff_timeout(LONG).layer().unwrap();
    let (inside, over) = (Arc::new(Inside::default()), Arc::new(AtomicBool::new(false)));
    let mut senders = tokio::task::JoinSet::new();
    let until = Instant::now() + Duration::from_secs(5);
    let mut tenures = 0;
    let handled = || inside.handled.load(Ordering::SeqCst);
    while Instant::now() < until || tenures < 20 || handled() <= tenures {
        let owner = format!("shard-{}", tenures % 3);
        let revision = cluster.put(LOCK, &owner).await;
        tenures += 1;
        for _ in 0..4 {
            let (layer, inside, over) = (layer.clone(), Arc::clone(&inside), Arc::clone(&over));
            senders.spawn(keep_sending(layer, inside, owner.clone(), revision, over));
        }
        // Until the holder is in: whoever holds the lock gets in.
        let gets_in = async {
            while inside.highest.load(Ordering::SeqCst) < revision {
                tokio::task::yield_now().await;
            }
        };
        timeout(fencepost_tests::PATIENCE, gets_in).await.expect("the holder of the lock gets in");
    }
    over.store(true, Ordering::Relaxed);
    while let Some(ended) = senders.join_next().await {
        ended.unwrap();
    }
    assert_eq!(*inside.wrong.lock().unwrap(), [""; 0]);
    println!("{tenures} tenures, {} requests handled", handled());
}
