//! Several proxies before one worker: this one's part in their group, over the store that holds the
//! locks.
//!
//! `fencepost_policy::group` decides; here are its clock, its key and its news.
//!
//! - `membership`: what all threads see of it: whether this member stands.
//! - `wire`: what stands in a member's key.
//! - `driver`: writes the own key, and applies what others have written. `member` is one
//!   membership, from its join to its end; `settling` opens gates, and answers for them.
//! - `view`: what operators see. `look` is for a process that is no member.

mod driver;
mod look;
mod member;
mod membership;
mod settling;
mod view;
mod wire;

pub(crate) use self::driver::take_part;
pub use self::look::{GroupMember, SaidByMember, group_members, may_join};
pub use self::membership::{GroupOptions, MemberSystem, Membership};
pub(crate) use self::membership::{OwnSystem, Request};
pub use self::view::{AskView, CLEAR_SECONDS, GroupCounts, GroupView, MemberStateView, MemberView};
