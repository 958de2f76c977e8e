//! The rules of a layer: which lock it needs, how old its news may be, how long anything may take.

use std::sync::Arc;
use std::time::Duration;

use fencepost_locks::{RecordFormat, Timing};
use fencepost_policy::{InvalidLockKey, Layout, LockKey};
use http::HeaderName;
use http::request::Parts;
use tokio::time::Instant;

use crate::token::TokenHeaders;

/// Finds a request's lock in its head.
pub(crate) type LockOf = Arc<dyn Fn(&Parts) -> Option<LockKey> + Send + Sync>;

/// The lock or locks of a layer, as they were asked for.
#[derive(Clone)]
pub(crate) enum Which {
    One(String),
    Below { prefix: String, lock: LockOf },
}

/// By which rules a layer judges.
#[derive(Debug, Clone)]
pub(crate) struct Rules {
    pub(crate) max_age: Duration,
    pub(crate) linearizable: bool,
    pub(crate) confirm_timeout: Duration,
    pub(crate) handoff_timeout: Duration,
    pub(crate) orphan_timeout: Duration,
    pub(crate) headers: TokenHeaders,
    pub(crate) streaming: bool,
    pub(crate) detached: bool,
    pub(crate) answers_fence_call: bool,
}

impl Default for Rules {
    fn default() -> Rules {
        Rules {
            max_age: Duration::from_secs(5),
            linearizable: false,
            confirm_timeout: Duration::from_secs(2),
            handoff_timeout: Duration::from_secs(10),
            orphan_timeout: Duration::from_secs(30),
            headers: TokenHeaders::default(),
            streaming: false,
            detached: false,
            answers_fence_call: true,
        }
    }
}

impl Rules {
    /// The facts of time that a verdict depends on, now.
    pub(crate) fn timing(&self, arrived: Instant) -> Timing {
        Timing {
            arrived,
            not_before: None,
            now: Instant::now(),
            max_age: self.max_age,
            linearizable: self.linearizable,
        }
    }

    /// The bounds are the proxy's, but for `max_age`, which may be as short as news of a store
    /// nearby can be. No clock reaches
    /// [`Duration::MAX`]: what adds it to the present panics.
    pub(crate) fn check_times(&self) -> Result<(), InvalidLock> {
        let millis = Duration::from_millis;
        for (setting, given, min, max) in [
            ("max_age", self.max_age, millis(10), TIME_MAX),
            ("confirm_timeout", self.confirm_timeout, millis(10), Duration::from_secs(60)),
            ("handoff_timeout", self.handoff_timeout, millis(100), TIME_MAX),
            ("orphan_timeout", self.orphan_timeout, millis(100), TIME_MAX),
        ] {
            if given < min || max < given {
                return Err(InvalidLock::Time { setting, given, min, max });
            }
        }
        Ok(())
    }
}

/// Why there is no such layer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidLock {
    /// The key names no lock.
    #[error(transparent)]
    Key(#[from] InvalidLockKey),
    /// Another layer of the fence has the lock read in another way, or may have: the second is that
    /// layer's, and of either it is the key, or the prefix with an ellipsis.
    #[error("the record of {0} is read in another way by the layer of {1}")]
    Conflict(String, String),
    /// The upper one of the two is laid out as an election or a mutex, and would take the other for
    /// one of its contenders.
    #[error("the locks {0} and {1} block each other, since one key is below the other")]
    Nested(String, String),
    /// One header can't say two things.
    #[error("the header {0} was given twice, and owner, revision and lock need one each")]
    Headers(HeaderName),
    /// Only records of [`Layout::Key`] have a field of the owner, or values that mean that nobody
    /// holds the lock.
    #[error(
        "{setting} is not for Layout::{layout:?}: there the owner is the value of the leader's key, or its name"
    )]
    NotOfLayout {
        /// What was set.
        setting: &'static str,
        /// How the record is laid out.
        layout: Layout,
    },
    /// Others of the group wait for a lost request for a shorter time.
    #[error("orphan_timeout is longer than {0:?}, that of the fence's group")]
    LongerOrphans(Duration),
    /// The owner is in a field without a name.
    #[error("owner_field is the name of a field of the JSON object, and not empty")]
    OwnerField,
    /// A time is out of its bounds.
    #[error("{setting} is {given:?}, and has to be from {min:?} to {max:?}")]
    Time {
        /// Of which setting.
        setting: &'static str,
        /// The time that was given.
        given: Duration,
        /// The shortest.
        min: Duration,
        /// The longest.
        max: Duration,
    },
}

/// The longest time that a layer may have anything wait or count: an hour, as for the proxy's
/// routes.
pub(crate) const TIME_MAX: Duration = Duration::from_secs(3600);

/// What means nothing for a record was meant for something else.
pub(crate) fn check_record(format: &RecordFormat) -> Result<(), InvalidLock> {
    let RecordFormat { layout, free_values, owner_field, owner_in: _ } = format;
    let is_key = match layout {
        Layout::Key => true,
        Layout::Election | Layout::Mutex => false,
    };
    for (setting, is_set) in
        [("owner_field", owner_field.is_some()), ("free_value", !free_values.is_empty())]
    {
        if is_set && !is_key {
            return Err(InvalidLock::NotOfLayout { setting, layout: *layout });
        }
    }
    if owner_field.as_ref().is_some_and(String::is_empty) {
        Err(InvalidLock::OwnerField)
    } else {
        Ok(())
    }
}
