//! Finds out whether an endpoint is a member of a cluster, before anything else is asked of it.
//! Does not look at which cluster that is.
//!
//! etcd's gRPC proxy answers reads from a cache, and claims that they are linearizable. It counts
//! the watches of a stream from 0, whatever ids they are to have, so a watch tells it from a
//! member.

use std::future::pending;
use std::time::Duration;

use etcd_client::{Client, WatchOptions};
use tokio::time::timeout;

use super::failure::Failure;
use super::query::Query;

/// How long the watch may take to begin, once the connection is up.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The id that the watch is to have.
const WATCH_ID: i64 = 1;

/// A key that nobody uses.
const KEY: [u8; 1] = [0];

/// Makes sure that the endpoint of a client is a member.
///
/// # Errors
/// [`Failure::NoMember`] if it is something else.
pub(super) async fn check_member(client: &Client) -> Result<(), Failure> {
    // What is no etcd may wait for the end of a watch's request, and answers a call at once.
    let is_etcd = async {
        match Query::of_nothing().send(client.clone()).await {
            Err(failure @ Failure::Endpoint(_)) => failure,
            Ok(_) | Err(_) => pending().await,
        }
    };
    let asked = async {
        tokio::select! {
            biased;
            asked = is_member(client) => asked,
            failure = is_etcd => Err(failure),
        }
    };
    let asked = timeout(TIMEOUT, asked).await;
    match asked.unwrap_or_else(|_| Err(Failure::endpoint(format!("no watch within {TIMEOUT:?}")))) {
        Ok(true) => Ok(()),
        Ok(false) => Err(Failure::NoMember),
        Err(failure) => Err(failure),
    }
}

async fn is_member(client: &Client) -> Result<bool, Failure> {
    let options = WatchOptions::new().with_watch_id(WATCH_ID);
    let mut watch = client.watch_client().watch(KEY, Some(options)).await?;
    let begun = watch.message().await?.ok_or_else(|| Failure::endpoint("a watch without news"))?;
    // A member that does not permit the watch names its cluster all the same. The proxy does not.
    let is_named = begun.header().is_some_and(|header| header.cluster_id() != 0);
    Ok(begun.watch_id() == WATCH_ID || (begun.canceled() && is_named))
}
