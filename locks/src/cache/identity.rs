//! Whether the store is still the one we know, by what it tells beside its revisions.
//!
//! A restore can give etcd another cluster id (`--initial-cluster-token`). If not, it begins a new
//! log: the raft term of its entries, which rises with each election, begins at 1 again. With each
//! answer a member tells the term of the newest entry that it has applied. It answers a quorum read
//! only once it has applied all that was committed before, so what one member tells never falls as
//! long as its log goes on. It may be below what others tell: a member that was brought up by a
//! snapshot of its leader's knows no term before its next entry (0), or the one from before (etcd
//! 3.4 to 3.6).

use std::collections::BTreeMap;

use tokio::time::Instant;

use crate::store::Answerer;

/// Of how many members it is known what they have told. A cluster has seven at most, but they may
/// be replaced.
const MEMBERS_MAX: usize = 64;

/// The identity that a store has reported, beside its revisions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreIdentity {
    /// The id of its cluster. `None` where it tells none.
    pub cluster: Option<u64>,
    /// The highest raft term that each member has told, by the member's id.
    pub terms: BTreeMap<u64, u64>,
}

/// A [`StoreIdentity`] that dates each term, to compare new reports with.
#[derive(Debug, Clone, Default)]
pub(crate) struct Identity {
    cluster: Option<u64>,
    terms: BTreeMap<u64, Term>,
}

#[derive(Debug, Clone, Copy)]
struct Term {
    term: u64,
    /// When that was told; `None` if it was before this process began.
    since: Option<Instant>,
}

impl Identity {
    pub(crate) fn new(seen: StoreIdentity) -> Identity {
        let terms =
            seen.terms.into_iter().map(|(member, term)| (member, Term { term, since: None }));
        Identity { cluster: seen.cluster, terms: terms.collect() }
    }

    /// The cluster that is known, if another one answers.
    pub(crate) fn other_than(&self, by: &Answerer) -> Option<u64> {
        self.cluster.filter(|known| *known != by.cluster)
    }

    /// Whether the log of the member that answers is not the one that it had when it answered
    /// before that was asked.
    pub(crate) fn has_another_log(&self, by: &Answerer, sent: Instant) -> bool {
        let known =
            self.terms.get(&by.member).filter(|known| known.since.is_none_or(|since| since < sent));
        by.term > 0 && known.is_some_and(|known| by.term < known.term)
    }

    /// Takes note of an answer that is believed.
    pub(crate) fn note(&mut self, by: &Answerer) {
        self.cluster = Some(by.cluster);
        let known = self.terms.get(&by.member).map_or(0, |known| known.term);
        if by.term <= known {
            return;
        }
        if known == 0 && self.terms.len() >= MEMBERS_MAX {
            self.terms.pop_first();
        }
        self.terms.insert(by.member, Term { term: by.term, since: Some(Instant::now()) });
    }

    /// Another log is the store's from here on.
    pub(crate) fn forget_terms(&mut self) {
        self.terms.clear();
    }

    pub(crate) fn seen(&self) -> StoreIdentity {
        let terms = self.terms.iter().map(|(member, known)| (*member, known.term)).collect();
        StoreIdentity { cluster: self.cluster, terms }
    }
}
