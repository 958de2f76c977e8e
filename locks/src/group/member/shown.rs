//! What operators are shown.

use std::time::Duration;

use fencepost_policy::Moment;
use fencepost_policy::group::MemberState;

use super::super::view::{AskView, GroupView, MemberStateView, MemberView};
use super::{ASKS_SHOWN, Member};
use crate::store::LockStore;

impl<S: LockStore> Member<S> {
    pub(super) fn show(&self, now: Moment) {
        let ago = |then: Moment| Duration::from_nanos(now.0.saturating_sub(then.0));
        let others = self.group.others().map(|other| {
            let about = self.abouts.get(&other.id).cloned().unwrap_or_default();
            let unanswered = self.group.unanswered().filter(|(id, _)| *id == other.id).count();
            MemberView {
                id: other.id,
                host: about.host,
                version: about.version,
                state: match other.record.state {
                    MemberState::Live => MemberStateView::Live,
                    MemberState::Left(_) => MemberStateView::Left,
                    MemberState::GivenUp(_) => MemberStateView::GivenUp,
                },
                seen_ago: ago(other.seen),
                over_in: other
                    .over_at
                    .map(|over| Duration::from_nanos(over.0.saturating_sub(now.0))),
                unanswered,
            }
        });
        let asks = self.group.open(now).take(ASKS_SHOWN);
        let asks = asks.map(|(tenure, waits_for)| AskView {
            tenure: tenure.clone(),
            waits_for,
            age: self.waiting.get(&tenure.lock).map_or(Duration::ZERO, |one| one.since.elapsed()),
        });
        self.membership.show(GroupView {
            me: self.joined.map(|_| self.id),
            write_age: self.group.sent().map(ago),
            problem: self.problem.clone(),
            others: others.collect(),
            asks: asks.collect(),
        });
    }
}
