//! What the other members have written, and what becomes of those that are gone.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use fencepost_policy::Revision;
use fencepost_policy::group::{MemberId, MemberRecord, MemberState};
use tokio::sync::oneshot;

use super::super::wire::{self, About};
use super::following::News;
use super::{Done, End, Member, own_key};
use crate::store::{Event, KeyRange, KeyValue, LockStore, ReadAnswer, Swap};

impl<S: LockStore> Member<S> {
    /// Takes in all keys of the group.
    pub(super) fn see_all(&mut self, answer: &ReadAnswer) -> Option<End> {
        let keys = &answer.ranges.first()?.keys;
        let known: Vec<MemberId> = self.group.others().map(|other| other.id).collect();
        for id in known {
            if !keys.iter().any(|found| self.named(&found.key) == Some(id)) {
                self.group.see_none(id, answer.revision, self.membership.time());
                self.abouts.remove(&id);
            }
        }
        let end = keys.iter().find_map(|found| self.see(found));
        let is_missing = self.written.is_some_and(|written| written <= answer.revision)
            && own_key(answer, &self.key).is_none();
        end.or_else(|| is_missing.then_some(End::Lost("its key is gone")))
    }

    pub(super) fn heard(&mut self, news: News) -> Option<End> {
        match news {
            News::All(answer) => self.see_all(&answer),
            News::Event(Event::Put(found)) => self.see(&found),
            News::Event(Event::Delete { key, revision }) if *key == *self.key => {
                let is_ours = self.written.is_some_and(|written| written < revision);
                is_ours.then_some(End::Lost("its key was deleted"))
            }
            News::Event(Event::Delete { key, revision }) => {
                if let Some(id) = self.named(&key) {
                    self.group.see_none(id, revision, self.membership.time());
                    self.abouts.remove(&id);
                }
                None
            }
        }
    }

    /// Takes in a key.
    pub(super) fn see(&mut self, found: &KeyValue) -> Option<End> {
        if *found.key == *self.key {
            let is_ours = self.written.is_none_or(|written| found.modified <= written)
                || self.pending.as_ref().is_some_and(|pending| pending.value == found.value);
            return (!is_ours).then_some(End::Lost("another member has given it up"));
        }
        let id = self.named(&found.key)?;
        let (mut record, about) = wire::read(&found.value).unwrap_or_else(|| self.unread(id));
        // What a later read can never show would keep its lock shut for ever.
        record.asks.retain(|ask| ask.tenure.revision < found.modified);
        self.abouts.insert(id, about);
        let facts = self.group.see(id, found.modified, record, self.membership.time());
        if self.group.has_let_in() {
            facts.iter().for_each(|fact| self.open(fact));
        }
        None
    }

    /// What is taken for the record of a member that has written something else.
    pub(super) fn unread(&self, id: MemberId) -> (MemberRecord, About) {
        if self.abouts.get(&id).is_none_or(|about| about.n != 0) {
            tracing::error!(
                group = self.membership.options().name, member = %id,
                "this version cannot read what that member of the group writes: tenures that begin wait for it; run the same version everywhere"
            );
        }
        let timing = self.membership.options().timing;
        let record = MemberRecord {
            member_ttl: timing.member_ttl,
            orphan_timeout: timing.orphan_timeout,
            state: MemberState::Live,
            has_let_in: true,
            asks: Vec::new(),
            answers: BTreeMap::new(),
            clear: Vec::new(),
        };
        (record, About::default())
    }

    pub(super) fn mark(&mut self, id: MemberId, revision: Revision, value: Option<Bytes>) {
        if !self.marking.insert(id) {
            return;
        }
        let (gives_up, swap) = (value.is_some(), self.swap_of(id, revision, value));
        let work = Rc::clone(&self.work);
        self.tasks.push(Box::pin(async move {
            Done::Marked(id, gives_up, work.store.swap(&swap).await)
        }));
    }

    pub(super) fn forget(&mut self, id: MemberId, done: oneshot::Sender<bool>) {
        let other = self.group.others().find(|other| other.id == id);
        let Some(other) = other else {
            let _ = done.send(false); // Who asked may be gone.
            return;
        };
        let left =
            MemberRecord { state: MemberState::Left(BTreeSet::new()), ..other.record.clone() };
        let about = self.abouts.get(&id).cloned().unwrap_or_default();
        let swap = self.swap_of(id, other.revision, Some(wire::write(&left, &about)));
        let work = Rc::clone(&self.work);
        self.tasks
            .push(Box::pin(async move { Done::Forgotten(id, done, work.store.swap(&swap).await) }));
    }

    pub(super) fn swap_of(&self, id: MemberId, revision: Revision, value: Option<Bytes>) -> Swap {
        let key: Arc<[u8]> =
            format!("{}{id}", self.membership.options().prefix).into_bytes().into();
        Swap { read: KeyRange::Key(Arc::clone(&key)), key, expected: Some(revision), value }
    }
}
