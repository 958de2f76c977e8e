//! One look at a group, for a process that is no member of it. Writes nothing.

use std::sync::Arc;

use bytes::Bytes;
use fencepost_policy::Revision;
use fencepost_policy::group::{MemberId, MemberState, NamedTenure};

use super::view::MemberStateView;
use super::wire;
use crate::store::{KeyRange, LockStore, RangeRead, StoreError, Swap, Wanted};

/// A member, as its key shows it. A key does not show whether its process is alive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupMember {
    /// Its name.
    pub id: MemberId,
    /// What it says of itself; `None` if this version cannot read its key.
    pub said: Option<SaidByMember>,
}

/// What a member says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SaidByMember {
    /// Its machine.
    pub host: String,
    /// Its version of fencepost.
    pub version: String,
    /// Whether it still lets requests in.
    pub state: MemberStateView,
    /// The newest tenures that it has found clear.
    pub clear: Vec<NamedTenure>,
}

/// Finds out whether this process may write keys of members below that prefix. It tries a write on
/// a condition that never holds: a store asks for the permission all the same.
///
/// # Errors
/// If the store does not let it, or does not answer.
pub async fn may_join<S: LockStore>(store: &S, prefix: &str) -> Result<(), StoreError> {
    let key: Arc<[u8]> = format!("{prefix}{}", MemberId(0)).into_bytes().into();
    let range = KeyRange::Prefix(prefix.as_bytes().into());
    let swap = Swap { key, expected: Some(Revision::MAX), value: Some(Bytes::new()), read: range };
    store.swap(&swap).await.map(drop)
}

/// Reads the keys of all members below that prefix.
///
/// # Errors
/// If the store does not let it, or does not answer.
pub async fn group_members<S: LockStore>(
    store: &S,
    prefix: &str,
) -> Result<Vec<GroupMember>, StoreError> {
    let range = KeyRange::Prefix(prefix.as_bytes().into());
    let answer = store.read(&[RangeRead { range, wanted: Wanted::All }]).await?;
    let keys = answer.ranges.into_iter().flat_map(|range| range.keys);
    let member = |key: &[u8], value: &[u8]| {
        let id = std::str::from_utf8(key.strip_prefix(prefix.as_bytes())?).ok()?;
        let said = wire::read(value).map(|(record, about)| SaidByMember {
            host: about.host,
            version: about.version,
            state: match record.state {
                MemberState::Live => MemberStateView::Live,
                MemberState::Left(_) => MemberStateView::Left,
                MemberState::GivenUp(_) => MemberStateView::GivenUp,
            },
            clear: record.clear,
        });
        Some(GroupMember { id: wire::member(id)?, said })
    };
    Ok(keys.filter_map(|found| member(&found.key, &found.value)).collect())
}
