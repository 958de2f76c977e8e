//! How the members of a store are, for the eyes of an operator. Decides nothing about requests.

use std::sync::Arc;

use crate::store::StoreError;

/// A member of the store's cluster.
#[derive(Debug, Clone)]
pub struct Member {
    /// Where it is.
    pub endpoint: Arc<str>,
    /// Its version, or why it did not tell.
    pub version: Result<Arc<str>, StoreError>,
    /// What an operator has to see to.
    pub problems: Vec<MemberProblem>,
}

/// What an operator has to see to in a member.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MemberProblem {
    /// It does not answer.
    #[error("{0}")]
    NoAnswer(Arc<str>),
    /// It is no member of the cluster that is meant, and is not used.
    #[error("{0}")]
    NotUsed(Arc<str>),
    /// It reports the alarm NOSPACE of the member with this id.
    #[error(
        "member {0} has raised the alarm NOSPACE: its database is full, so etcd refuses writes, and nobody can take a lock: compact, \
         defragment, then etcdctl alarm disarm"
    )]
    NoSpace(Arc<str>),
    /// It reports the alarm CORRUPT of the member with this id.
    #[error(
        "member {0} has raised the alarm CORRUPT: its data differ from those of other members, so etcd refuses writes, and nobody can \
         take a lock: replace that member, then etcdctl alarm disarm"
    )]
    Corrupt(Arc<str>),
    /// It has a version that can answer with old data.
    #[error(
        "it runs etcd {0}, which can answer a linearizable read with old data after pauses (etcd-io/etcd#20418, fixed in 3.4.42, \
         3.5.28 and 3.6.9): max_age may be exceeded once in such a case"
    )]
    StaleReads(Arc<str>),
}

impl MemberProblem {
    /// The names of all, as labels of a metric.
    pub const NAMES: [&str; 5] = ["no-answer", "not-used", "nospace", "corrupt", "old-version"];

    /// Its name.
    pub fn name(&self) -> &'static str {
        let nth = match self {
            MemberProblem::NoAnswer(_) => 0,
            MemberProblem::NotUsed(_) => 1,
            MemberProblem::NoSpace(_) => 2,
            MemberProblem::Corrupt(_) => 3,
            MemberProblem::StaleReads(_) => 4,
        };
        MemberProblem::NAMES[nth]
    }

    /// The problem of a member that did not tell how it is, if it is one of the member.
    pub(crate) fn of_silence(error: &StoreError) -> Option<MemberProblem> {
        match error {
            StoreError::Unavailable(_) => Some(MemberProblem::NoAnswer(error.to_string().into())),
            StoreError::AnotherCluster { .. }
            | StoreError::ManyClusters { .. }
            | StoreError::NoMember { .. } => Some(MemberProblem::NotUsed(error.to_string().into())),
            // It answers. Some versions let only root ask how it is.
            StoreError::Refused(_)
            | StoreError::NoLogin(_)
            | StoreError::Denied { .. }
            | StoreError::TooLarge { .. }
            | StoreError::Compacted => None,
        }
    }
}
