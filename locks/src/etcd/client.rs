//! A client for those who take locks: `hold`, the load test, the demo. Each call goes to one
//! endpoint after another, once it is known which cluster is meant, and is believed only as an
//! answer of that cluster. It does not decide what a lock is.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{
    Client, DeleteOptions, DeleteResponse, Error, GetOptions, GetResponse, LeaseGrantOptions,
    ResponseHeader, Txn, TxnResponse,
};
use fencepost_policy::Revision;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::access::{EtcdAccess, EtcdOptions};
use super::cluster_check::cluster_of;
use super::endpoints::{Endpoints, reason};
use super::failure::Failure;
use super::query::end;
use super::watch::{EtcdWatch, WATCH_TIMEOUT};
use crate::store::{KeyRange, RangeWatch, StoreError, belongings};

/// Longer than any attempt.
const FOR_EVER: Duration = Duration::from_secs(3600);

/// How long one endpoint may take to answer, unless the caller says otherwise.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(1);

/// A client of an etcd cluster. It uses one endpoint, and leaves that for the next when it fails or
/// does not answer in time.
///
/// It must be used within a tokio runtime. Clones share their connections.
#[derive(Debug, Clone)]
pub struct EtcdClient {
    endpoints: Arc<Endpoints>,
    /// Since when no call has been answered, and what was wrong with the last of them.
    silence: Arc<watch::Sender<Option<(Instant, EtcdError)>>>,
}

/// Why etcd did not do what it was asked to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EtcdError {
    /// No endpoint has answered in time: later one may.
    #[error("etcd does not answer: {0}")]
    Unavailable(String),
    /// etcd refuses: it does not let us in, or the request makes no sense to it.
    #[error("etcd refuses: {0}")]
    Refused(String),
    /// etcd wants a user to log in, and none was named.
    #[error("etcd wants a user to log in")]
    NoLogin,
    /// etcd lets us in, but not to these keys.
    #[error(
        "{} may not read and write {keys} in etcd: etcdctl role grant-permission ROLE readwrite {keys}",
        user.as_ref().map_or_else(|| "who we are".to_owned(), |user| format!("user {user:?}"))
    )]
    Denied {
        /// The user that is logged in; `None`: the one that etcd takes us for.
        user: Option<String>,
        /// The keys, as arguments of etcdctl.
        keys: String,
    },
    /// etcd has no such lease: it has run out, or was revoked.
    #[error("etcd has no such lease")]
    NoLease,
    /// The endpoints are not of one cluster: a lock would have a holder in each.
    #[error("the endpoints belong to different clusters ({0}): name the endpoints of one cluster")]
    ManyClusters(String),
}

/// How long a call may take.
#[derive(Debug, Clone, Copy)]
pub struct Within {
    /// The answer, and before it the connection, or a login.
    each: Duration,
    /// All attempts together; `None`: there is one.
    altogether: Option<Duration>,
}

impl Within {
    /// As many attempts as there is time for. The call may reach etcd more than once, and has to be
    /// one for which that makes no difference.
    pub const fn altogether(altogether: Duration) -> Within {
        Within { each: ATTEMPT_TIMEOUT, altogether: Some(altogether) }
    }

    /// Each attempt may take so long, and so may its connection or login.
    pub const fn each(self, each: Duration) -> Within {
        Within { each, ..self }
    }

    /// One attempt, at one endpoint.
    pub const fn one_attempt(each: Duration) -> Within {
        Within { each, altogether: None }
    }
}

impl EtcdClient {
    /// A client of the cluster at these addresses, such as `http://127.0.0.1:2379`. Connects with
    /// the first call.
    pub fn new(addresses: &[String], access: &Arc<EtcdAccess>) -> EtcdClient {
        let endpoints = Endpoints::new(&EtcdOptions {
            endpoints: addresses.to_vec(),
            cluster_id: None,
            access: Arc::clone(access),
        });
        EtcdClient { endpoints: Arc::new(endpoints), silence: Arc::default() }
    }

    /// Reads keys, by quorum.
    pub async fn get(
        &self,
        range: &KeyRange,
        options: GetOptions,
        within: Within,
    ) -> Result<GetResponse, EtcdError> {
        let options = end(range).into_iter().fold(options, GetOptions::with_range);
        self.call(Some(range), within, |mut client| {
            let (key, options) = (range.first_key().to_vec(), options.clone());
            async move { client.get(key, Some(options)).await.map(|got| (cluster(got.header()), got)) }
        })
        .await
    }

    /// Deletes keys.
    pub async fn delete(
        &self,
        range: &KeyRange,
        within: Within,
    ) -> Result<DeleteResponse, EtcdError> {
        let options = end(range).into_iter().fold(DeleteOptions::new(), DeleteOptions::with_range);
        self.call(Some(range), within, |mut client| {
            let (key, options) = (range.first_key().to_vec(), options.clone());
            async move {
                let deleted = client.delete(key, Some(options)).await?;
                Ok((cluster(deleted.header()), deleted))
            }
        })
        .await
    }

    /// Carries out a transaction on these keys.
    pub async fn transact(
        &self,
        range: &KeyRange,
        txn: &Txn,
        within: Within,
    ) -> Result<TxnResponse, EtcdError> {
        self.call(Some(range), within, |mut client| {
            let txn = txn.clone();
            async move { client.txn(txn).await.map(|done| (cluster(done.header()), done)) }
        })
        .await
    }

    /// Makes sure that there is a lease with this number, and returns its time to live, which may
    /// be more than was asked for.
    pub async fn grant(
        &self,
        lease: i64,
        ttl: Duration,
        within: Within,
    ) -> Result<Duration, EtcdError> {
        let seconds = i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX);
        let granted = self.call(None, within, |mut client| async move {
            match client.lease_grant(seconds, Some(LeaseGrantOptions::new().with_id(lease))).await {
                Ok(granted) => Ok((cluster(granted.header()), granted.ttl())),
                // By an attempt whose answer was lost.
                Err(Error::GRpcStatus(status))
                    if status.message().contains("lease already exists") =>
                {
                    let found = client.lease_time_to_live(lease, None).await?;
                    Ok((cluster(found.header()), found.granted_ttl()))
                }
                Err(error) => Err(error),
            }
        });
        Ok(Duration::from_secs(granted.await?.unsigned_abs()))
    }

    /// Renews a lease once. Fails with [`EtcdError::NoLease`] if the lease does not exist. The
    /// answer does not name its cluster, and no other cluster has a lease with that number.
    pub async fn keep_alive(&self, lease: i64, within: Within) -> Result<(), EtcdError> {
        self.call(None, within, |mut client| async move {
            // One message each way. The stream ends here, so no renewal waits behind a lost one.
            client.lease_keep_alive(lease).await.map(|_| (None, ()))
        })
        .await
    }

    /// Makes sure that a lease is gone, with all that hangs on it.
    pub async fn revoke(&self, lease: i64, within: Within) -> Result<(), EtcdError> {
        let revoked = self.call(None, within, |mut client| async move {
            client.lease_revoke(lease).await.map(|revoked| (cluster(revoked.header()), ()))
        });
        match revoked.await {
            Err(EtcdError::NoLease) => Ok(()),
            outcome => outcome,
        }
    }

    /// Watches keys from a revision on, at an endpoint that begins that in time. The watch ends
    /// when its endpoint fails, also if a call finds that out.
    pub async fn watch(
        &self,
        range: &KeyRange,
        from: Revision,
        each: Duration,
    ) -> Result<EtcdWatch, EtcdError> {
        self.know_cluster(Within::altogether(WATCH_TIMEOUT)).await?;
        let ranges = [RangeWatch { range: range.clone(), from }];
        let begun =
            EtcdWatch::begin(&self.endpoints, &ranges, each, Instant::now() + WATCH_TIMEOUT).await;
        begun.map_err(|failure| self.error(failure, 0, Some(range)))
    }

    /// Makes a call, at one endpoint after another, until one answers or the time is over. `range`
    /// is what etcd may deny. The call returns its answer with the cluster that the answer names.
    ///
    /// # Errors
    /// [`EtcdError::Unavailable`] if none has answered in time, else what etcd has answered.
    pub async fn call<T, C>(
        &self,
        range: Option<&KeyRange>,
        within: Within,
        call: impl Fn(Client) -> C,
    ) -> Result<T, EtcdError>
    where
        C: Future<Output = Result<(Option<u64>, T), Error>>,
    {
        self.know_cluster(within).await?;
        // One attempt ends by itself, and there is no time for another.
        let deadline = Instant::now() + within.altogether.unwrap_or(Duration::ZERO);
        let latest = within.altogether.map_or_else(|| Instant::now() + FOR_EVER, |_| deadline);
        let call = &call;
        let outcome = self.endpoints.rotate(true, deadline, |index| async move {
            let began = Instant::now();
            let exchange = |client: Client| async move {
                match call(client.clone()).await {
                    Ok((None, answer)) => Ok(answer),
                    Ok((Some(found), answer)) => {
                        self.endpoints.check_cluster(found).map(|()| answer)
                    }
                    Err(error) => Err(self.of_our_cluster(client, error.into()).await),
                }
            };
            let attempt = self.endpoints.call(index, within.each, exchange);
            let outcome = timeout_at(latest, attempt)
                .await
                // How much was left of its time is nobody's business.
                .unwrap_or_else(|_| Err(Failure::endpoint("no answer in the time that was left")));
            match &outcome {
                Err(failure) if !failure.is_final() => {
                    self.note_silence(began, self.error(failure.clone(), index, range));
                }
                Ok(_) | Err(_) => self.note_answer(),
            }
            outcome
        });
        outcome.await.map_err(|failure| self.error(failure, 0, range))
    }

    /// Makes sure that it is known which cluster is meant. Meanwhile etcd is as silent as in a
    /// call.
    async fn know_cluster(&self, within: Within) -> Result<(), EtcdError> {
        let deadline = Instant::now() + within.altogether.unwrap_or(within.each);
        loop {
            let began = Instant::now();
            let known = self.endpoints.know_cluster(deadline.min(began + within.each)).await;
            let Err(error) = known.map_err(|error| self.told(error)) else { return Ok(()) };
            if !matches!(error, EtcdError::Unavailable(_)) {
                return Err(error);
            }
            self.note_silence(began, error.clone());
            if Instant::now() >= deadline {
                return Err(error);
            }
        }
    }

    /// A failure of a call. A member of another cluster knows neither our leases nor our user, so
    /// that what it refuses is no answer.
    async fn of_our_cluster(&self, client: Client, failure: Failure) -> Failure {
        if !failure.is_final() || matches!(failure, Failure::LoggedOut) {
            return failure;
        }
        let found = cluster_of(client).await;
        found.ok().and_then(|found| self.endpoints.check_cluster(found).err()).unwrap_or(failure)
    }

    fn error(&self, failure: Failure, index: usize, range: Option<&KeyRange>) -> EtcdError {
        match (failure, range) {
            (Failure::NoLease, _) => EtcdError::NoLease,
            (Failure::Denied, Some(range)) => {
                let user = self.endpoints.user_name().map(str::to_owned);
                EtcdError::Denied { user, keys: range.to_string() }
            }
            (failure, _) => self.told(failure.at(&self.endpoints.get(index).address)),
        }
    }

    fn told(&self, error: StoreError) -> EtcdError {
        match error {
            StoreError::NoLogin(_) if self.endpoints.user_name().is_none() => EtcdError::NoLogin,
            StoreError::NoLogin(why) | StoreError::Refused(why) => {
                EtcdError::Refused(why.to_string())
            }
            StoreError::ManyClusters { endpoints } => {
                EtcdError::ManyClusters(belongings(&endpoints))
            }
            error @ StoreError::NoMember { .. } => EtcdError::Refused(error.to_string()),
            error @ (StoreError::Unavailable(_)
            | StoreError::Denied { .. }
            | StoreError::TooLarge { .. }
            | StoreError::Compacted
            | StoreError::AnotherCluster { .. }) => EtcdError::Unavailable(reason(&error)),
        }
    }

    /// Returns once no call has been answered for so long, with what was wrong with the last one.
    /// Without calls there is no silence.
    ///
    /// # Cancel safety
    /// May be given up and called again.
    pub async fn silent_for(&self, how_long: Duration) -> EtcdError {
        let mut silences = self.silence.subscribe();
        loop {
            let silence = silences.borrow_and_update().clone();
            let lasts = async {
                match silence {
                    Some((since, why)) => {
                        sleep_until(since + how_long).await;
                        why
                    }
                    None => pending().await,
                }
            };
            tokio::select! {
                why = lasts => return why,
                // The channel's other end is our own.
                _ = silences.changed() => {}
            }
        }
    }

    /// Returns once etcd answers a call again. Returns at once unless etcd has left a call
    /// unanswered since its last answer.
    ///
    /// # Cancel safety
    /// May be given up and called again.
    pub async fn answers(&self) {
        // The channel's other end is our own.
        let _ = self.silence.subscribe().wait_for(Option::is_none).await;
    }

    /// Notes that etcd has answered, whatever it said.
    fn note_answer(&self) {
        self.silence.send_if_modified(|silence| silence.take().is_some());
    }

    /// Notes that etcd has not answered an attempt that began then.
    fn note_silence(&self, began: Instant, why: EtcdError) {
        self.silence.send_modify(|silence| {
            let since = silence.as_ref().map_or(began, |(since, _)| *since);
            *silence = Some((since, why));
        });
    }
}

/// The cluster that an answer names.
pub fn cluster(header: Option<&ResponseHeader>) -> Option<u64> {
    header.map(ResponseHeader::cluster_id)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tokio::net::TcpListener;
    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn a_call_asks_each_endpoint_before_it_asks_one_again() {
        let asked: Arc<Mutex<Vec<usize>>> = Arc::default();
        let mut addresses = Vec::new();
        for index in 0..3 {
            let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
            addresses.push(format!("http://{}", listener.local_addr().unwrap()));
            let asked = Arc::clone(&asked);
            tokio::spawn(async move {
                // Closes each connection at once.
                while listener.accept().await.is_ok() {
                    asked.lock().unwrap().push(index);
                }
            });
        }
        let client = EtcdClient::new(&addresses, &Arc::default());
        client.endpoints.pin(1);
        let (key, within) =
            (KeyRange::Key((*b"/lock").into()), Within::altogether(Duration::from_millis(500)));
        let error = client.get(&key, GetOptions::new(), within).await.unwrap_err();
        assert!(matches!(error, EtcdError::Unavailable(_)), "{error}");
        let mut asked = asked.lock().unwrap().clone();
        // A channel of the library connects once more by itself.
        asked.dedup();
        assert!(asked.len() > 3 && asked[..3] == [0, 1, 2], "{asked:?}");
    }

    #[tokio::test]
    async fn silence_lasts_from_an_unanswered_call_to_an_answer() {
        let client = EtcdClient::new(&["http://127.0.0.1:1".to_owned()], &Arc::default());
        let (hour, soon) = (Duration::from_secs(3600), Duration::from_millis(20));
        let silent = async |how_long| timeout(soon, client.silent_for(how_long)).await;
        assert!(silent(Duration::ZERO).await.is_err(), "nothing was asked");
        let why = |what: &str| EtcdError::Unavailable(what.to_owned());
        client.note_silence(Instant::now() - hour, why("first"));
        client.note_silence(Instant::now(), why("last"));
        assert_eq!(client.silent_for(hour).await, why("last"));
        assert!(silent(2 * hour).await.is_err());
        assert!(timeout(soon, client.answers()).await.is_err());
        client.note_answer();
        assert!(silent(Duration::ZERO).await.is_err());
        assert!(timeout(soon, client.answers()).await.is_ok());
    }
}
