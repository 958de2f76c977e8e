//! Kubernetes: the Leases of client-go's leader election, and of controller-runtime.
//!
//! The number of a tenure is the `resourceVersion` of any write within it. What tells one tenure
//! from another is that the Lease is the same object, has changed hands as often, and names the same
//! holder. A Lease that has lapsed still names its holder: a holder that was stopped for longer than
//! its lease goes on without taking it again, so only another's write ends its tenure.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fencepost_policy::{Owner, Revision, Seen, Sighting, Stamp};
use hyper::header::AUTHORIZATION;
use hyper::{Method, StatusCode};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::cache::LockSpec;
use crate::http_store::{HttpServer, HttpStoreOptions, TokenField, unavailable};
use crate::record_store::{RecordAnswer, RecordStore};
use crate::store::StoreError;

/// How long a read may take, with the connection that it may need.
const READ_TIMEOUT: Duration = Duration::from_secs(3);

/// How many Leases of a namespace are read one by one. More are read by a list of them all.
const ONE_BY_ONE_MAX: usize = 4;

/// The Leases of a cluster.
#[derive(Debug)]
pub struct KubernetesStore(HttpServer);

#[derive(Debug, Clone, Deserialize)]
struct Lease {
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    #[serde(default)]
    name: String,
    #[serde(default)]
    uid: String,
    #[serde(default)]
    resource_version: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    holder_identity: Option<String>,
    #[serde(default)]
    lease_transitions: i64,
}

#[derive(Debug, Deserialize)]
struct List {
    metadata: Metadata,
    items: Vec<Lease>,
}

/// What is known of the Lease of a lock, and up to which `resourceVersion`.
struct Found {
    lease: Option<Lease>,
    reach: Option<Revision>,
}

impl KubernetesStore {
    /// The API server there. Connects with the first read.
    pub fn new(options: HttpStoreOptions) -> KubernetesStore {
        let token_field = TokenField { name: AUTHORIZATION, prefix: "Bearer " };
        KubernetesStore(HttpServer::new(options, token_field))
    }

    /// Reads by quorum: without a `resourceVersion` the API server asks its etcd. `None` if there is
    /// no such thing.
    ///
    /// # Errors
    /// [`Unread::Lock`] if only this may not be read.
    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<Option<T>, Unread> {
        let (status, answer) = self.0.ask(Method::GET, path, String::new()).await?;
        let text = || String::from_utf8_lossy(&answer).trim().to_owned();
        match status {
            StatusCode::OK => Ok(Some(serde_json::from_slice(&answer).map_err(unavailable)?)),
            StatusCode::NOT_FOUND => Ok(None),
            StatusCode::FORBIDDEN => Err(Unread::Lock(reason(&answer))),
            StatusCode::UNAUTHORIZED => {
                let token = self.0.token_in_words();
                let text = format!("the API server does not take {token}: {}", reason(&answer));
                Err(StoreError::Refused(text.into()).into())
            }
            other => Err(unavailable(format!("the API server says {other}: {}", text())).into()),
        }
    }

    /// The Leases of a namespace that have these names.
    async fn namespace(
        &self,
        namespace: &str,
        names: &[&str],
    ) -> Result<BTreeMap<String, Result<Found, String>>, StoreError> {
        let leases = format!(
            "/apis/coordination.k8s.io/v1/namespaces/{}/leases",
            utf8_percent_encode(namespace, NON_ALPHANUMERIC)
        );
        let mut found = BTreeMap::new();
        if names.len() <= ONE_BY_ONE_MAX {
            for name in names {
                let path = format!("{leases}/{}", utf8_percent_encode(name, NON_ALPHANUMERIC));
                let read = match self.get::<Lease>(&path).await {
                    // It says nothing of the store's newest number, as a list does.
                    Ok(lease) => Ok(Found { lease, reach: None }),
                    Err(Unread::Lock(why)) => Err(why),
                    Err(Unread::Store(error)) => return Err(error),
                };
                found.insert((*name).to_owned(), read);
            }
            return Ok(found);
        }
        let list = match self.get::<List>(&leases).await {
            Ok(list) => list,
            Err(Unread::Store(error)) => return Err(error),
            Err(Unread::Lock(why)) => {
                return Ok(names
                    .iter()
                    .map(|name| ((*name).to_owned(), Err(why.clone())))
                    .collect());
            }
        };
        let (reach, items) = list
            .map_or((None, Vec::new()), |List { metadata, items }| (metadata.revision(), items));
        let mut items: BTreeMap<String, Lease> =
            items.into_iter().map(|lease| (lease.metadata.name.clone(), lease)).collect();
        for name in names {
            found.insert((*name).to_owned(), Ok(Found { lease: items.remove(*name), reach }));
        }
        Ok(found)
    }
}

/// Why something was not read.
enum Unread {
    Store(StoreError),
    /// It may not be read, in the words of the API server. Others may.
    Lock(String),
}

impl From<StoreError> for Unread {
    fn from(error: StoreError) -> Unread {
        Unread::Store(error)
    }
}

/// What an API server says of a request that it refuses.
fn reason(answer: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Status {
        message: String,
    }
    let status = serde_json::from_slice::<Status>(answer);
    status.map_or_else(|_| "it says no more".to_owned(), |status| status.message)
}

impl Metadata {
    fn revision(&self) -> Option<Revision> {
        self.resource_version.parse().ok()
    }
}

impl RecordStore for KubernetesStore {
    async fn read(&self, locks: &[&LockSpec]) -> Result<Vec<RecordAnswer>, StoreError> {
        let reading = async {
            let mut namespaces: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
            for (namespace, name) in locks.iter().filter_map(|lock| parts(lock)) {
                namespaces.entry(namespace).or_default().push(name);
            }
            let mut found = BTreeMap::new();
            for (namespace, names) in namespaces {
                found.insert(namespace, self.namespace(namespace, &names).await?);
            }
            if locks.is_empty() {
                // Everybody may read that. What it says does not matter.
                let version: Result<Option<serde_json::Value>, Unread> = self.get("/version").await;
                if let Err(Unread::Store(error)) = version {
                    return Err(error);
                }
            }
            Ok(locks
                .iter()
                .map(|lock| {
                    let read = parts(lock).and_then(|(namespace, name)| {
                        found.get(namespace).and_then(|found| found.get(name))
                    });
                    answer(lock, read)
                })
                .collect())
        };
        timeout(READ_TIMEOUT, reading).await.unwrap_or_else(|_| {
            Err(unavailable(format!("not within {} s", READ_TIMEOUT.as_secs())))
        })
    }
}

/// Namespace and name of a lock's Lease.
fn parts<'k>(lock: &&'k LockSpec) -> Option<(&'k str, &'k str)> {
    let (namespace, name) = lock.key.as_str().split_once('/')?;
    (!namespace.is_empty() && !name.is_empty() && !name.contains('/')).then_some((namespace, name))
}

/// What a Lease says of its lock.
fn answer(lock: &LockSpec, read: Option<&Result<Found, String>>) -> RecordAnswer {
    let unreadable = |wrong: String| (Seen::Unreadable, None, Some(Arc::from(wrong)));
    let (seen, reach, problem) = match read {
        None => unreadable(format!("{} is no Lease: write NAMESPACE/NAME", lock.key)),
        Some(Err(why)) => unreadable(format!(
            "the Lease {} may not be read: {why}; its role needs the verbs get and list for leases of coordination.k8s.io",
            lock.key
        )),
        Some(Ok(Found { lease: None, reach })) => (Seen::Free, *reach, None),
        Some(Ok(Found { lease: Some(lease), reach })) => match seen(lease) {
            Some(seen) => (seen, *reach, None),
            None => unreadable(format!(
                "the Lease {} has a resourceVersion that is no number: {:?}",
                lock.key, lease.metadata.resource_version
            )),
        },
    };
    let sighting = Sighting { lineage: 0, reach, seen, waiters: Arc::from([]) };
    RecordAnswer { sighting, problem }
}

fn seen(Lease { metadata, spec }: &Lease) -> Option<Seen> {
    let Some(holder) = spec.holder_identity.as_deref().filter(|holder| !holder.is_empty()) else {
        return Some(Seen::Free);
    };
    let revision = metadata.revision()?;
    let stamp = format!("{} {} {holder}", metadata.uid, spec.lease_transitions);
    let stamp = Stamp::from(stamp.into_bytes());
    Some(Seen::Held { owner: Owner::new(holder.as_bytes()), revision, stamp })
}
