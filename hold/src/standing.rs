//! Whether a tenure still holds, and until when that is sure.

use std::time::Duration;

use tokio::sync::watch;

use crate::clock::BootInstant;

/// How a tenure stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It is held, for sure, until this moment; a renewal moves it on.
    Held {
        /// Three quarters of the time to live after the last confirmed renewal was sent.
        until: BootInstant,
    },
    /// It is over, for good.
    Over(Over),
}

/// Why a tenure is over. The holder stops its work, and acquires the lock again if need be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Over {
    /// No renewal was confirmed in time. The lock may still be ours in etcd, and may be another's
    /// at any moment.
    #[error("no renewal was confirmed in time")]
    NotRenewed,
    /// etcd has no such lease any more: it ran out, or was revoked.
    #[error("the lease is gone")]
    LeaseGone,
    /// The key was deleted: by somebody, or with its lease.
    #[error("the key was deleted")]
    KeyDeleted,
    /// Somebody else wrote the key.
    #[error("the key was changed by somebody else")]
    KeyChanged,
    /// It was given back.
    #[error("it was given back")]
    Released,
}

impl Standing {
    /// Whether the tenure is surely held at this moment.
    pub fn is_held_at(self, now: BootInstant) -> bool {
        match self {
            Standing::Held { until } => now < until,
            Standing::Over(_) => false,
        }
    }
}

/// The share of the time to live for which a renewal makes sure that the lock is held.
pub(crate) fn sure_for(ttl: Duration) -> Duration {
    ttl / 4 * 3
}

/// The one place where a tenure's standing changes.
#[derive(Debug)]
pub(crate) struct Ledger(watch::Sender<Standing>);

impl Ledger {
    pub(crate) fn held_until(until: BootInstant) -> Ledger {
        Ledger(watch::Sender::new(Standing::Held { until }))
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Standing> {
        self.0.subscribe()
    }

    pub(crate) fn standing(&self) -> Standing {
        *self.0.borrow()
    }

    /// A renewal makes sure of the lock until that moment. What was over by the clock is over:
    /// nobody is told once that they hold the lock no longer, and then that they do.
    pub(crate) fn renewed(&self, renewed_until: BootInstant) {
        let now = BootInstant::now();
        self.0.send_if_modified(|standing| match standing {
            Standing::Held { until } if now < *until => {
                *until = renewed_until.max(*until);
                true
            }
            Standing::Held { .. } => {
                *standing = Standing::Over(Over::NotRenewed);
                true
            }
            Standing::Over(_) => false,
        });
    }

    /// It is over, unless it was so already: the first reason stays.
    pub(crate) fn end(&self, over: Over) {
        self.0.send_if_modified(|standing| match standing {
            Standing::Held { .. } => {
                *standing = Standing::Over(over);
                true
            }
            Standing::Over(_) => false,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn in_an_hour() -> BootInstant {
        BootInstant::now() + HOUR
    }

    #[test]
    fn a_renewal_moves_the_moment_on_and_never_back() {
        let ledger = Ledger::held_until(in_an_hour());
        let later = in_an_hour() + HOUR;
        for renewal in [later, in_an_hour()] {
            ledger.renewed(renewal);
            assert_eq!(ledger.standing(), Standing::Held { until: later });
        }
    }

    #[test]
    fn a_tenure_that_was_over_by_the_clock_is_not_renewed() {
        let ledger = Ledger::held_until(BootInstant::now());
        assert!(!ledger.standing().is_held_at(BootInstant::now()));
        ledger.renewed(in_an_hour());
        assert_eq!(ledger.standing(), Standing::Over(Over::NotRenewed));
    }

    #[test]
    fn the_first_reason_stays_and_nothing_revives_a_tenure() {
        let ledger = Ledger::held_until(in_an_hour());
        ledger.end(Over::KeyDeleted);
        ledger.end(Over::Released);
        ledger.renewed(in_an_hour());
        assert_eq!(ledger.standing(), Standing::Over(Over::KeyDeleted));
        assert!(!ledger.standing().is_held_at(BootInstant::from_boot(Duration::ZERO)));
    }
}
