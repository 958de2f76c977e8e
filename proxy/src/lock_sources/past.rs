//! What is known of the store of a source that nobody uses any more.

use fencepost_config::{Source, SourceKind};
use fencepost_locks::StorePast;

/// What the sources that have ended had learnt of their stores, the last that ended at the end. A
/// lock's gate is forgotten with its source; a source that is put back begins where the one before
/// it was, and believes nothing less.
///
/// There is one for each name that a configuration has had, and cluster that it has been given by
/// its id.
#[derive(Default)]
pub(super) struct Pasts(Vec<Past>);

/// What one of them had learnt.
pub(super) struct Past {
    pub(super) name: String,
    pub(super) store: StoreId,
    pub(super) learnt: StorePast,
}

/// Which store it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StoreId {
    /// The one in this process.
    Memory,
    /// The etcd cluster of that id; `None` if none had answered.
    Etcd(Option<u64>),
}

impl Pasts {
    /// Keeps what a source had learnt that has ended, in place of what it had begun with.
    pub(super) fn keep(&mut self, past: Past) {
        let began_with =
            |other: &Past| other.name == past.name && past.store.may_have_been(other.store);
        self.0.retain(|other| !began_with(other));
        self.0.push(past);
    }

    /// What a source of that kind begins with: a cluster is what it was before, unless the
    /// configuration names another.
    pub(super) fn of(&self, wanted: &Source) -> Option<&Past> {
        self.0.iter().rfind(|past| past.name == wanted.name && past.store.may_be(&wanted.kind))
    }

    /// What the last source of that name had learnt, if it was over another store.
    pub(super) fn of_another(&self, wanted: &Source) -> Option<&Past> {
        self.last(&wanted.name).filter(|past| !past.store.may_be(&wanted.kind))
    }

    /// What the last source of that name had learnt.
    pub(super) fn last(&self, name: &str) -> Option<&Past> {
        self.0.iter().rfind(|past| past.name == name)
    }
}

impl StoreId {
    /// The cluster, if it is one and known.
    pub(super) fn cluster_id(self) -> Option<u64> {
        match self {
            StoreId::Etcd(cluster_id) => cluster_id,
            StoreId::Memory => None,
        }
    }

    /// Whether that was known of it before.
    fn may_have_been(self, before: StoreId) -> bool {
        self == before || (before == StoreId::Etcd(None) && self != StoreId::Memory)
    }

    fn may_be(self, kind: &SourceKind) -> bool {
        match (self, kind) {
            (StoreId::Memory, SourceKind::Memory) => true,
            (StoreId::Etcd(known), SourceKind::Etcd { cluster_id: wanted, .. }) => {
                known.zip(*wanted).is_none_or(|(known, wanted)| known == wanted)
            }
            (StoreId::Memory, SourceKind::Etcd { .. }) | (StoreId::Etcd(_), SourceKind::Memory) => {
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use fencepost_locks::{LockSource, MemoryStore, SourceOptions};

    use super::*;

    const ONE: StoreId = StoreId::Etcd(Some(1));
    const TWO: StoreId = StoreId::Etcd(Some(2));
    const UNKNOWN: StoreId = StoreId::Etcd(None);

    fn past(name: &str, store: StoreId) -> Past {
        let (source, _driver) =
            LockSource::build(name, SourceOptions::default(), MemoryStore::new());
        Past { name: name.to_owned(), store, learnt: source.past() }
    }

    fn etcd(cluster_id: Option<u64>) -> SourceKind {
        SourceKind::Etcd { endpoints: Vec::new(), cluster_id, tls: None, user: None }
    }

    /// After sources of these stores have ended one after another, one of that kind begins where
    /// this one was.
    #[track_caller]
    fn check(ended: &[StoreId], wanted: SourceKind, begins: Option<StoreId>) {
        let mut pasts = Pasts::default();
        ended.iter().for_each(|store| pasts.keep(past("main", *store)));
        let wanted = |name: &str| Source { name: name.to_owned(), kind: wanted.clone() };
        assert_eq!(pasts.of(&wanted("main")).map(|past| past.store), begins, "{ended:?}");
        assert!(pasts.of(&wanted("other")).is_none() && pasts.last("other").is_none());
    }

    #[test]
    fn a_source_begins_where_the_last_one_of_its_name_was_unless_it_names_another_store() {
        check(&[], etcd(None), None);
        check(&[UNKNOWN], etcd(None), Some(UNKNOWN));
        check(&[UNKNOWN], etcd(Some(1)), Some(UNKNOWN));
        check(&[ONE], etcd(None), Some(ONE));
        check(&[ONE], etcd(Some(1)), Some(ONE));
        check(&[ONE], etcd(Some(2)), None);
        check(&[ONE, TWO], etcd(None), Some(TWO));
        check(&[ONE, TWO], etcd(Some(1)), Some(ONE));
        check(&[ONE, StoreId::Memory], etcd(None), Some(ONE));
        check(&[ONE, StoreId::Memory], SourceKind::Memory, Some(StoreId::Memory));
        check(&[ONE], SourceKind::Memory, None);
    }

    #[test]
    fn a_source_comes_after_another_store_if_the_last_one_of_its_name_was_over_that() {
        let mut pasts = Pasts::default();
        let wanted = |cluster_id| Source { name: "main".to_owned(), kind: etcd(cluster_id) };
        assert!(pasts.of_another(&wanted(Some(1))).is_none());
        for store in [ONE, TWO] {
            pasts.keep(past("main", store));
        }
        assert_eq!(pasts.of_another(&wanted(Some(1))).map(|past| past.store), Some(TWO));
        assert!(
            pasts.of_another(&wanted(Some(2))).is_none()
                && pasts.of_another(&wanted(None)).is_none()
        );
    }

    #[test]
    fn there_is_one_for_each_store_however_often_its_source_has_ended() {
        let mut pasts = Pasts::default();
        for store in [UNKNOWN, ONE, TWO, ONE, StoreId::Memory, ONE] {
            pasts.keep(past("main", store));
        }
        pasts.keep(past("other", UNKNOWN));
        let kept: Vec<(&str, StoreId)> =
            pasts.0.iter().map(|past| (past.name.as_str(), past.store)).collect();
        assert_eq!(
            kept,
            [("main", TWO), ("main", StoreId::Memory), ("main", ONE), ("other", UNKNOWN)]
        );
        assert_eq!(pasts.last("main").map(|past| past.store), Some(ONE));
    }
}
