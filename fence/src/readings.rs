//! How the records of a fence's locks are read: each in one way, and no lock lies among another's
//! contenders.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use fencepost_locks::{LockSpec, RecordFormat, TemplateSpec};
use fencepost_policy::Layout;

use crate::rules::InvalidLock;

/// The lock or locks of a layer, and how their records are read.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Reading {
    One(LockSpec),
    Below(TemplateSpec),
}

/// Those of all layers that a fence ever had: their locks may be tracked still.
#[derive(Default)]
pub(crate) struct Readings(Mutex<Vec<Reading>>);

impl Readings {
    /// Adds those of another layer.
    ///
    /// # Errors
    /// How they are at odds with an earlier layer's.
    pub(crate) fn add(&self, new: &Reading) -> Result<(), InvalidLock> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for other in all.iter() {
            if new.format() != other.format() && new.may_share_a_key_with(other) {
                return Err(InvalidLock::Conflict(new.to_string(), other.to_string()));
            }
            if new.is_queue_above(other) || other.is_queue_above(new) {
                return Err(InvalidLock::Nested(new.to_string(), other.to_string()));
            }
        }
        if !all.contains(new) {
            all.push(new.clone());
        }
        Ok(())
    }
}

impl Reading {
    fn format(&self) -> &RecordFormat {
        match self {
            Reading::One(LockSpec { format, .. }) | Reading::Below(TemplateSpec { format, .. }) => {
                format
            }
        }
    }

    /// What its key is, or what all its keys begin with.
    fn beginning(&self) -> &str {
        match self {
            Reading::One(LockSpec { key, .. }) => key.as_str(),
            Reading::Below(TemplateSpec { prefix, .. }) => prefix,
        }
    }

    /// Which keys below a prefix requests will name is not known: any of them.
    fn may_share_a_key_with(&self, other: &Reading) -> bool {
        let (own, others) = (self.beginning(), other.beginning());
        match (self, other) {
            (Reading::One(_), Reading::One(_)) => own == others,
            (Reading::One(_), Reading::Below(_)) => own.starts_with(others),
            (Reading::Below(_), Reading::One(_)) => others.starts_with(own),
            (Reading::Below(_), Reading::Below(_)) => {
                own.starts_with(others) || others.starts_with(own)
            }
        }
    }

    /// Whether all keys of the other are below its own, where its contenders are. Of a prefix, that
    /// is not known.
    fn is_queue_above(&self, other: &Reading) -> bool {
        let queues = match self.format().layout {
            Layout::Election | Layout::Mutex => true,
            Layout::Key => false,
        };
        let is_above = match self {
            Reading::One(LockSpec { key, .. }) => other
                .beginning()
                .strip_prefix(key.as_str())
                .is_some_and(|rest| rest.starts_with('/')),
            Reading::Below(_) => false,
        };
        queues && is_above
    }
}

/// A key as it is, and a prefix with an ellipsis.
impl fmt::Display for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ellipsis = match self {
            Reading::One(_) => "",
            Reading::Below(_) => "…",
        };
        write!(f, "{}{ellipsis}", self.beginning())
    }
}
