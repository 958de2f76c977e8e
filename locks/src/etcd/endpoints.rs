//! All endpoints, asked until one answers.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use etcd_client::Client;
use tokio::time::{Instant, sleep_until, timeout_at};
use tracing::{debug, warn};

use super::access::{EtcdAccess, EtcdOptions};
use super::cluster_check::ClusterCheck;
use super::endpoint::{Connection, Connections, Endpoint};
use super::failure::Failure;
use super::health::{Candidate, Health};
use super::query::{self, Answer, Query};
use crate::store::{KeyRange, StoreError, Swap, Swapped};

/// How long one endpoint may take to answer a query.
pub(super) const ATTEMPT_TIMEOUT: Duration = Duration::from_millis(500);

/// The endpoints of the store and what is known of them.
#[derive(Debug)]
pub(super) struct Endpoints {
    list: Vec<Arc<Endpoint>>,
    access: Arc<EtcdAccess>,
    health: Mutex<Health>,
    /// Which cluster is meant, once that is known.
    cluster: Arc<OnceLock<u64>>,
    cluster_check: Mutex<Option<ClusterCheck>>,
}

impl Endpoints {
    /// Those of a cluster. With its id, only its members are believed; without, they are asked
    /// before any is.
    pub(super) fn new(options: &EtcdOptions) -> Endpoints {
        let EtcdOptions { endpoints: addresses, cluster_id, access } = options;
        Endpoints {
            list: addresses
                .iter()
                .map(|address| Arc::new(Endpoint::new(address, access)))
                .collect(),
            access: Arc::clone(access),
            health: Mutex::new(Health::new(addresses.len())),
            cluster: Arc::new(cluster_id.map_or_else(OnceLock::new, OnceLock::from)),
            cluster_check: Mutex::default(),
        }
    }

    /// Makes endpoints of the same cluster at other addresses or with another access. They keep the
    /// cluster's id, and the endpoints that stay.
    pub(super) fn moved_to(&self, addresses: &[String], access: &Arc<EtcdAccess>) -> Endpoints {
        let kept = |address: &String| {
            self.list.iter().find(|endpoint| endpoint.is(address, access)).map(Arc::clone)
        };
        let made = |address: &String| Arc::new(Endpoint::new(address, access));
        Endpoints {
            list: addresses
                .iter()
                .map(|address| kept(address).unwrap_or_else(|| made(address)))
                .collect(),
            access: Arc::clone(access),
            health: Mutex::new(Health::new(addresses.len())),
            cluster: Arc::clone(&self.cluster),
            cluster_check: Mutex::default(),
        }
    }

    /// The id of the cluster, once it is known.
    pub(super) fn cluster_id(&self) -> Option<u64> {
        self.cluster.get().copied()
    }

    /// Holds to that cluster from now on, unless it is held to one already. Returns which.
    pub(super) fn pin(&self, cluster: u64) -> u64 {
        *self.cluster.get_or_init(|| cluster)
    }

    /// The roll call that is under way, or the one that is made now.
    pub(super) fn latest_roll_call(&self, make: impl FnOnce() -> ClusterCheck) -> ClusterCheck {
        let mut latest = self.cluster_check.lock().unwrap_or_else(PoisonError::into_inner);
        let running = latest.take().filter(|cluster_check| cluster_check.peek().is_none());
        latest.insert(running.unwrap_or_else(make)).clone()
    }

    /// Whether these are the addresses, in this order, and this is how they let us in.
    pub(super) fn are_at(&self, addresses: &[String], access: &Arc<EtcdAccess>) -> bool {
        Arc::ptr_eq(&self.access, access)
            && self
                .list
                .iter()
                .map(|endpoint| &*endpoint.address)
                .eq(addresses.iter().map(String::as_str))
    }

    /// Gives up the connections of the endpoints that are not in `stay`.
    pub(super) fn leave_all_but(&self, stay: &Endpoints) {
        let stays =
            |endpoint: &Arc<Endpoint>| stay.list.iter().any(|other| Arc::ptr_eq(endpoint, other));
        self.list
            .iter()
            .filter(|endpoint| !stays(endpoint))
            .for_each(|endpoint| endpoint.suspect());
    }

    /// The error for keys that may not be read.
    pub(super) fn denied(&self, range: KeyRange) -> StoreError {
        StoreError::Denied { user: self.user_name().map(Into::into), range }
    }

    /// The error for keys that may not be written.
    fn may_not_write(&self, range: &KeyRange) -> StoreError {
        let user = self.user_name().map(|user| format!("user {user:?}"));
        let user = user.as_deref().unwrap_or("who we are");
        StoreError::Refused(
            format!(
                "{user} may not write {range} in the lock store: etcdctl role grant-permission ROLE readwrite {range}"
            )
            .into(),
        )
    }

    /// The name of the user that logs in.
    pub(super) fn user_name(&self) -> Option<&str> {
        self.access.user_name()
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    /// The endpoint of a candidate.
    pub(super) fn get(&self, index: usize) -> &Arc<Endpoint> {
        &self.list[index]
    }

    /// Makes a call at one endpoint after another, in the order of their health, until one answers
    /// or it is too late. Each call ends by the deadline. `at_once`: the first one does not wait
    /// until its endpoint may be asked again.
    pub(super) async fn rotate<T, C: Future<Output = Result<T, Failure>>>(
        &self,
        at_once: bool,
        deadline: Instant,
        call: impl Fn(usize) -> C,
    ) -> Result<T, Failure> {
        let mut failures = Failures::default();
        let mut asked = Vec::new();
        for nth in 0.. {
            let candidates = self.health().candidates(Instant::now());
            if asked.len() == candidates.len() {
                asked.clear();
            }
            let Some(Candidate { index, at }) =
                candidates.into_iter().find(|one| !asked.contains(&one.index))
            else {
                break;
            };
            if nth > 0 || !at_once {
                if at.max(Instant::now()) >= deadline {
                    break;
                }
                until(at).await;
            }
            match call(index).await {
                Err(failure) if !failure.is_final() => {
                    failures.note(failure.at(&self.get(index).address))
                }
                outcome => return outcome,
            }
            asked.push(index);
        }
        Err(Failure::Store(failures.into_error()))
    }

    /// Asks one endpoint after another until one answers or it is too late.
    pub(super) async fn ask(
        self: &Arc<Self>,
        query: &Query,
        deadline: Instant,
    ) -> Result<Answer, StoreError> {
        let answer = self.answered(deadline, async |client| {
            let answer = query.send(client).await?;
            Ok((answer.by.cluster, answer))
        });
        answer.await.map_err(|failure| {
            if matches!(failure, Failure::Denied) {
                self.denied(query.first_range())
            } else if matches!(failure, Failure::TooLarge) {
                StoreError::TooLarge { range: query.first_range() }
            } else {
                failure.at(&self.list[0].address)
            }
        })
    }

    /// Writes at one endpoint after another until one answers or it is too late. What an earlier
    /// one has done without an answer, a later one tells as unexpected.
    pub(super) async fn swap(
        self: &Arc<Self>,
        swap: &Swap,
        deadline: Instant,
    ) -> Result<Swapped, StoreError> {
        let swapped = self.answered(deadline, async |client| query::swap(client, swap).await);
        swapped.await.map_err(|failure| {
            if matches!(failure, Failure::Denied) {
                self.may_not_write(&swap.read)
            } else {
                failure.at(&self.list[0].address)
            }
        })
    }

    /// Makes a call, whose answer names its cluster, at one endpoint after another.
    async fn answered<T>(
        self: &Arc<Self>,
        deadline: Instant,
        call: impl AsyncFn(Client) -> Result<(u64, T), Failure>,
    ) -> Result<T, Failure> {
        self.know_cluster(deadline).await.map_err(Failure::Store)?;
        let call = &call;
        let answer = self.rotate(false, deadline, |index| async move {
            let attempt = self.call(index, ATTEMPT_TIMEOUT, |client| async move {
                let (cluster, answer) = call(client).await?;
                self.check_cluster(cluster).map(|()| answer)
            });
            // An attempt that is cut short says nothing of its endpoint.
            timeout_at(deadline, attempt).await.unwrap_or(Err(Failure::TooLate(ATTEMPT_TIMEOUT)))
        });
        answer.await
    }

    /// Takes note that something failed on a connection to an endpoint, which makes the endpoint
    /// suspect, or that the connection has not come up in time, for which others are asked before
    /// it. Of many things that fail on one connection, only the first counts. The store's own
    /// answers are no failures of an endpoint, nor is that it takes its time for a password.
    pub(super) fn failed(
        &self,
        index: usize,
        connections: &Connections,
        connection: &Arc<Connection>,
        failure: &Failure,
    ) {
        if !failure.is_of_endpoint() {
            return;
        }
        let endpoint = &self.list[index];
        let mut health = self.health();
        if !connections.has(connection) {
            return;
        }
        let comes_up = matches!(failure, Failure::Connecting(_));
        if comes_up && !connection.note_slow() {
            return;
        }
        health.failed(index, Instant::now(), jitter());
        if !comes_up {
            endpoint.suspect();
        }
        let error = failure.clone().at(&endpoint.address);
        let is_strange = matches!(failure, Failure::AnotherCluster { .. } | Failure::NoMember);
        // The others do well without it, so nobody else would ever say so.
        if !is_strange || !health.is_news(index, &error.to_string()) {
            debug!(%error, "endpoint is suspect");
        } else if matches!(failure, Failure::NoMember) {
            warn!(%error, "endpoint is not used");
        } else {
            warn!(
                %error,
                "endpoint is not used; if its cluster is the one that is meant (etcd was restored): restart, write that id where a \
                 cluster_id is set, and accept the regression where there is a state_dir"
            );
        }
    }

    /// Makes a call at an endpoint, and takes note of how it ends.
    pub(super) async fn call<T, C: Future<Output = Result<T, Failure>>>(
        &self,
        index: usize,
        limit: Duration,
        call: impl Fn(Client) -> C,
    ) -> Result<T, Failure> {
        let calls = &self.list[index].calls;
        let (connection, outcome) = calls.call(limit, call).await;
        match &outcome {
            Ok(_)
            | Err(Failure::Store(_) | Failure::Denied | Failure::TooLarge | Failure::NoLease) => {
                self.health().answered(index)
            }
            Err(failure) => self.failed(index, calls, &connection, failure),
        }
        outcome
    }

    /// Takes note that a watch runs on an endpoint.
    pub(super) fn watched(&self, index: usize) {
        self.health().watched(index);
    }

    /// Whether an answer is from the cluster that is meant. Nobody is believed before that is
    /// known.
    pub(super) fn check_cluster(&self, found: u64) -> Result<(), Failure> {
        match self.cluster_id() {
            Some(pinned) if found == pinned => Ok(()),
            Some(pinned) => Err(Failure::AnotherCluster { found, pinned }),
            None => Err(Failure::endpoint("it is not known yet which cluster is meant")),
        }
    }

    fn health(&self) -> std::sync::MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits for that moment, not at all if it has come: tokio's own timer would wait for its next
/// tick, which costs each read up to 2 ms.
pub(super) async fn until(moment: Instant) {
    if moment > Instant::now() {
        sleep_until(moment).await;
    }
}

/// Why a call did not succeed: what the endpoints said last, each once.
#[derive(Debug, Default)]
pub(super) struct Failures(Vec<StoreError>);

impl Failures {
    /// Notes one more.
    pub(super) fn note(&mut self, error: StoreError) {
        let text = error.to_string();
        self.0.retain(|known| known.to_string() != text);
        self.0.push(error);
    }

    /// What the caller is told.
    pub(super) fn into_error(self) -> StoreError {
        let strange = self.0.iter().find(|error| {
            matches!(error, StoreError::AnotherCluster { .. } | StoreError::NoMember { .. })
        });
        if let Some(strange) = strange {
            // The others may come back; this one is for the operator.
            return strange.clone();
        }
        let texts: Vec<String> = self.0.iter().map(reason).collect();
        if texts.is_empty() {
            return StoreError::Unavailable("no endpoint has answered in time".into());
        }
        StoreError::Unavailable(texts.join("; ").into())
    }

    /// What the caller is told if so few have answered, of those asked, that they are not believed.
    pub(super) fn too_few(mut self, answered: usize, asked: usize) -> StoreError {
        let (say, they) =
            if answered == 1 { ("says", "it belongs") } else { ("say", "they belong") };
        let what = format!(
            "only {answered} of {asked} endpoints {say} which cluster {they} to, and no cluster_id is set"
        );
        self.note(StoreError::Unavailable(what.into()));
        self.into_error()
    }
}

/// The error's own words, without the preface that the joined error will have again.
pub(super) fn reason(error: &StoreError) -> String {
    match error {
        StoreError::Unavailable(what) | StoreError::Refused(what) => what.to_string(),
        StoreError::NoLogin(_)
        | StoreError::Compacted
        | StoreError::Denied { .. }
        | StoreError::TooLarge { .. }
        | StoreError::AnotherCluster { .. }
        | StoreError::NoMember { .. }
        | StoreError::ManyClusters { .. } => error.to_string(),
    }
}

/// A number from 0 to 1 that differs from call to call and from process to process.
fn jitter() -> f64 {
    f64::from(RandomState::new().hash_one(()) as u32) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use fencepost_policy::Revision;
    use fencepost_tls::ClientTls;
    use tokio::net::TcpListener;

    use super::*;
    use crate::etcd::EtcdTls;

    /// Otherwise a line slower than a caller's patience would never have a connection.
    #[tokio::test]
    async fn connection_coming_up_outlasts_suspicion() {
        // Takes connections, and says nothing of TLS.
        let silent = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = format!("https://{}", silent.local_addr().unwrap());
        let ca = fencepost_tests::Authority::new("etcd").certificate();
        let tls = EtcdTls {
            client: ClientTls::of_pem(ca.as_bytes(), None, &[b"h2"]).unwrap(),
            server_name: None,
        };
        let access = Arc::new(EtcdAccess::new(Some(tls), None));
        let options = EtcdOptions { endpoints: vec![address], cluster_id: Some(1), access };
        let endpoints = Endpoints::new(&options);
        let calls = &endpoints.get(0).calls;
        let first = calls.get();
        let ask = async |limit| calls.call(limit, async |_| Ok(())).await.1;
        assert!(matches!(ask(Duration::from_millis(10)).await, Err(Failure::Connecting(_))));
        endpoints.get(0).suspect();
        assert!(calls.has(&first), "it is coming up");
        assert!(
            matches!(ask(Duration::from_secs(60)).await, Err(Failure::Endpoint(_))),
            "it takes too long"
        );
        endpoints.get(0).suspect();
        assert!(!calls.has(&first), "it has failed");
    }

    #[tokio::test(start_paused = true)]
    async fn healthy_endpoint_is_asked_without_a_timer() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let endpoints = Arc::new(Endpoints::new(&EtcdOptions {
            endpoints: vec![address],
            cluster_id: Some(1),
            ..EtcdOptions::default()
        }));
        // Between two ticks of the timer.
        tokio::time::advance(Duration::from_micros(500)).await;
        let began = Instant::now();
        let query = Query::key_at(b"lock", Revision::MIN);
        tokio::select! {
            answer = endpoints.ask(&query, began + Duration::from_secs(1)) => panic!("nobody can answer: {answer:?}"),
            accepted = listener.accept() => drop(accepted.unwrap()),
        }
        // The clock stands still until everything waits for it.
        assert_eq!(Instant::now(), began);
    }
}
