//! Finds out which cluster is meant, where none is configured. It asks the endpoints before it
//! believes any of them.
//!
//! The cluster is that of all endpoints that answer, if at least half of them do. So the quickest
//! endpoint does not decide alone, and slow endpoints do not make a wrong one believed. Once the
//! cluster is known it stays.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::Client;
use futures_util::future::{BoxFuture, FutureExt, Shared, join_all};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use super::endpoints::{ATTEMPT_TIMEOUT, Endpoints, Failures};
use super::failure::Failure;
use super::query::Query;
use crate::member::MemberProblem;
use crate::store::StoreError;

/// How long it takes at most: to log in and to answer, each as long as an endpoint may take for a
/// read.
const TIMEOUT: Duration = ATTEMPT_TIMEOUT.saturating_mul(2);

/// How long it is until the endpoints are asked again where too few have answered.
const AGAIN_AFTER: Duration = Duration::from_millis(100);

/// One that is under way or has ended, and the cluster that it found.
pub(super) type ClusterCheck = Shared<BoxFuture<'static, Result<u64, StoreError>>>;

/// An endpoint and the cluster that it is of.
pub(super) type Belonging = (Arc<str>, u64);

/// How a member says it is.
pub(super) struct Status {
    pub(super) cluster: u64,
    pub(super) version: Arc<str>,
    /// The alarms of all members that it knows of.
    pub(super) problems: Vec<MemberProblem>,
}

impl Status {
    pub(super) async fn of(client: Client) -> Result<Status, Failure> {
        let status = client.maintenance_client().status().await?;
        let header =
            status.header().ok_or_else(|| Failure::endpoint("a status without a header"))?;
        let problems = status.errors().iter().filter_map(|error| alarm(error)).collect();
        Ok(Status { cluster: header.cluster_id(), version: status.version().into(), problems })
    }
}

/// An alarm as a status tells it: `memberID:10276657743932975437 alarm:NOSPACE `.
fn alarm(told: &str) -> Option<MemberProblem> {
    let mut words = told.split_whitespace();
    let id = words.clone().find_map(|word| word.strip_prefix("memberID:")?.parse::<u64>().ok());
    // As etcdctl has it.
    let id = id.map_or_else(|| "(unknown)".into(), |id| format!("{id:x}").into());
    match words.find_map(|word| word.strip_prefix("alarm:"))? {
        "NOSPACE" => Some(MemberProblem::NoSpace(id)),
        "CORRUPT" => Some(MemberProblem::Corrupt(id)),
        _ => None,
    }
}

impl Endpoints {
    /// Makes sure that it is known which cluster is meant.
    ///
    /// # Errors
    /// At once if the endpoints are of more than one. Otherwise they are asked again until the
    /// deadline, since who is silent now may answer soon.
    pub(super) async fn know_cluster(
        self: &Arc<Self>,
        deadline: Instant,
    ) -> Result<(), StoreError> {
        if self.cluster_id().is_some() {
            return Ok(());
        }
        let mut silent = Failures::default().into_error();
        while let Ok(outcome) = timeout_at(deadline, self.cluster_check()).await {
            match outcome {
                Ok(_) => return Ok(()),
                Err(error @ StoreError::Unavailable(_)) => silent = error,
                Err(error) => return Err(error),
            }
            sleep_until(deadline.min(Instant::now() + AGAIN_AFTER)).await;
        }
        Err(silent)
    }

    /// Asks all endpoints which cluster they belong to, or joins a check that runs already.
    fn cluster_check(self: &Arc<Self>) -> ClusterCheck {
        self.latest_roll_call(|| {
            let endpoints = Arc::clone(self);
            // In a task that no caller can interrupt: the next one would have to begin anew.
            let asking = tokio::spawn(async move {
                let told =
                    join_all((0..endpoints.len()).map(|index| endpoints.belonging(index))).await;
                agreed(told).map(|cluster| endpoints.pin(cluster))
            });
            let broke_off = |error| {
                Err(StoreError::Unavailable(
                    format!("asking the endpoints broke off: {error}").into(),
                ))
            };
            asking.map(move |outcome| outcome.unwrap_or_else(broke_off)).boxed().shared()
        })
    }

    async fn belonging(&self, index: usize) -> (Arc<str>, Result<u64, Failure>) {
        let told = timeout(TIMEOUT, self.call(index, ATTEMPT_TIMEOUT, cluster_of)).await;
        let told = told
            .unwrap_or_else(|_| Err(Failure::endpoint(format!("no answer within {TIMEOUT:?}"))));
        let address = Arc::clone(&self.get(index).address);
        let told = told.map_err(|failure| failure.at_first(&address));
        (address, told)
    }
}

/// The cluster that an endpoint reports. An endpoint may refuse even an empty transaction, as 3.5.1
/// does while its space is exceeded. Then its status reports the cluster.
pub(super) async fn cluster_of(client: Client) -> Result<u64, Failure> {
    match Query::of_nothing().send(client.clone()).await {
        Ok(answer) => Ok(answer.by.cluster),
        Err(refused @ Failure::Store(StoreError::Refused(_))) => {
            Status::of(client).await.map(|status| status.cluster).map_err(|_| refused)
        }
        Err(failure) => Err(failure),
    }
}

/// The cluster that the endpoints agree on, by what they have told.
fn agreed(told: Vec<(Arc<str>, Result<u64, Failure>)>) -> Result<u64, StoreError> {
    let (mut asked, mut belongings, mut failures) = (told.len(), Vec::new(), Failures::default());
    let mut refused = None;
    for (endpoint, outcome) in told {
        match outcome {
            Ok(cluster) => belongings.push((endpoint, cluster)),
            Err(Failure::Store(error)) => refused = Some(error),
            Err(failure @ Failure::NoMember) => {
                // It is of no cluster, so the others do not need its consent.
                asked -= 1;
                failures.note(failure.at(&endpoint));
            }
            Err(failure) => failures.note(failure.at(&endpoint)),
        }
    }
    if let Some(error) = disagreement(&belongings) {
        return Err(error);
    }
    match belongings.first() {
        Some(&(_, cluster)) if 2 * belongings.len() >= asked => Ok(cluster),
        // What the store itself says, such as that a password is wrong, helps more than how many
        // did not answer.
        _ if let Some(error) = refused => Err(error),
        Some(_) => Err(failures.too_few(belongings.len(), asked)),
        None => Err(failures.into_error()),
    }
}

/// Why none of them is believed, if they are of more than one cluster.
pub(super) fn disagreement(belongings: &[Belonging]) -> Option<StoreError> {
    let is_one = belongings.iter().all(|(_, cluster)| *cluster == belongings[0].1);
    (!is_one).then(|| StoreError::ManyClusters { endpoints: belongings.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Option<u64> = Some(0xa);
    const B: Option<u64> = Some(0xb);

    /// What comes of it when each endpoint tells that cluster, or nothing.
    fn check(told: &[Option<u64>], expected: Result<u64, &str>) {
        let tell = |(index, cluster): (usize, &Option<u64>)| {
            (format!("e{index}").into(), cluster.ok_or_else(|| Failure::endpoint("it is away")))
        };
        let outcome =
            agreed(told.iter().enumerate().map(tell).collect()).map_err(|error| error.to_string());
        assert_eq!(outcome, expected.map_err(str::to_owned), "{told:?}");
    }

    #[test]
    fn cluster_is_meant_if_half_of_the_endpoints_agree() {
        for told in
            [&[A][..], &[A, A, A], &[A, None], &[None, A], &[None, A, A], &[A, None, None, A]]
        {
            check(told, Ok(0xa));
        }
        let words =
            "set cluster_id to the one that is meant, or take the endpoints of the others out";
        check(
            &[A, B],
            Err(&format!("the endpoints belong to different clusters (e0 to a, e1 to b): {words}")),
        );
        let of_most = format!(
            "the endpoints belong to different clusters (e0 to a, e1 to a, e3 to b): {words}"
        );
        check(&[A, A, None, B], Err(&of_most));
    }

    #[test]
    fn fewer_than_half_of_the_endpoints_are_not_believed() {
        check(&[None], Err("the lock store does not answer: e0: it is away"));
        check(
            &[None, B, None],
            Err("the lock store does not answer: e0: it is away; e2: it is away; \
                only 1 of 3 endpoints says which cluster it belongs to, and no cluster_id is set"),
        );
    }
}
