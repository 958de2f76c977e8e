//! Holds a token against what we last learnt of its lock.

use std::fmt;

use crate::{FenceToken, Holding, Layout, Snapshot, Tenure};

/// How far a snapshot can be trusted to be the present.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum News {
    /// Too old to admit on, or the route wants a read of its own. Old news can still refuse.
    Old,
    /// Dated by a quorum read that was sent no longer ago than the route allows.
    Fresh,
    /// The answer of a quorum read that was sent after the request arrived: what it can't show is
    /// not so.
    Confirmed,
    /// The store went back behind what it had already shown. Nothing is admitted on it.
    Regressed,
}

/// What is known of a lock at the moment of judging.
#[derive(Debug, Clone, Copy)]
pub struct Known<'a> {
    snapshot: Option<&'a Snapshot>,
    news: News,
}

impl<'a> Known<'a> {
    /// Wraps a snapshot and its age; `None` before the first snapshot.
    pub fn new(snapshot: Option<&'a Snapshot>, news: News) -> Known<'a> {
        Known { snapshot, news }
    }

    /// The snapshot.
    pub fn snapshot(&self) -> Option<&'a Snapshot> {
        self.snapshot
    }
}

/// What becomes of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Its sender holds the lock.
    Admit,
    /// It is refused, whatever later news may bring.
    Reject(Rejection),
    /// Our news can't say: ask the store, then judge again.
    Confirm,
}

macro_rules! rejections {
    ($($(#[$doc:meta])* $variant:ident => $code:literal, $action:ident;)*) => {
        /// Why a request is refused.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Rejection {
            $($(#[$doc])* $variant,)*
        }

        impl Rejection {
            /// Every reason there is.
            pub const ALL: &[Rejection] = &[$(Rejection::$variant,)*];

            /// The one name of the reason, in metrics, logs and bodies alike.
            pub const fn code(self) -> &'static str {
                match self {
                    $(Rejection::$variant => $code,)*
                }
            }

            /// What the sender had better do.
            pub const fn action(self) -> Action {
                match self {
                    $(Rejection::$variant => Action::$action,)*
                }
            }
        }
    };
}

rejections! {
    /// It carries no token.
    TokenMissing => "token-missing", RefreshToken;
    /// Its token can't be read, or not in only one way.
    TokenMalformed => "token-malformed", Fix;
    /// It names a lock that this route does not guard.
    LockNotAllowed => "lock-not-allowed", Fix;
    /// It claims to come from another owner than its sender has proved to be, or its sender has
    /// proved to be none.
    IdentityMismatch => "identity-mismatch", Stop;
    /// Somebody else holds the lock under the presented revision.
    NotOwner => "not-owner", Stop;
    /// The presented tenure has ended, and another owner holds the lock.
    StaleTenure => "stale-tenure", Stop;
    /// The presented tenure has ended, and the same owner holds the lock again: the delayed
    /// request.
    ReplayedTenure => "replayed-tenure", RefreshToken;
    /// Nothing of the presented revision names a holder of this lock.
    UnknownRevision => "unknown-revision", RefreshToken;
    /// The store has not reached the presented revision.
    AheadOfStore => "ahead-of-store", RefreshToken;
    /// Nobody holds the lock.
    NoOwner => "no-owner", Acquire;
    /// The sender still queues for the lock.
    NotYetOwner => "not-yet-owner", Acquire;
    /// We can't tell who holds the lock.
    Unverifiable => "unverifiable", Retry;
    /// The store shows less than it has shown before.
    StoreRegressed => "store-regressed", Retry;
    /// Requests of an earlier tenure were still at the worker, or could be, for too long.
    HandoffTimeout => "handoff-timeout", Retry;
    /// The proxy has not reached the other members of its group for too long.
    OutOfGroup => "out-of-group", Retry;
    /// The proxy is about to stop.
    Draining => "draining", Retry;
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}

/// What the sender of a refused request had better do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Correct the request.
    Fix,
    /// Read its own lock record again and send the revision found there, if it still holds the
    /// lock.
    RefreshToken,
    /// Stop working: somebody else holds the lock.
    Stop,
    /// Acquire the lock first.
    Acquire,
    /// Send the same request again later.
    Retry,
}

impl Action {
    /// The one name of the action.
    pub const fn name(self) -> &'static str {
        match self {
            Action::Fix => "fix",
            Action::RefreshToken => "refresh-token",
            Action::Stop => "stop",
            Action::Acquire => "acquire",
            Action::Retry => "retry",
        }
    }
}

/// Judges a token by what is known of its lock.
///
/// - `final-refusal`: a refusal from old news is right under any later news. Whatever may be our
///   own lag ends in [`Verdict::Confirm`], never in a refusal.
/// - `fresh-admission`: only [`News::Fresh`] and [`News::Confirmed`] admit.
/// - With [`News::Confirmed`] the verdict is never [`Verdict::Confirm`].
pub fn judge<O: AsRef<[u8]>>(token: &FenceToken<O>, known: Known<'_>) -> Verdict {
    let Known { snapshot: Some(snapshot), news } = known else {
        return doubt(known.news, Rejection::Unverifiable);
    };
    match &snapshot.holding {
        Holding::Unreadable => doubt(news, Rejection::Unverifiable),
        Holding::Free if Some(token.revision) <= snapshot.as_of => {
            Verdict::Reject(Rejection::NoOwner)
        }
        Holding::Free => doubt(news, Rejection::NoOwner),
        Holding::Held(tenure) => judge_held(token, snapshot, tenure, news),
    }
}

fn judge_held<O: AsRef<[u8]>>(
    token: &FenceToken<O>,
    snapshot: &Snapshot,
    tenure: &Tenure,
    news: News,
) -> Verdict {
    let claimed = token.owner.as_ref();
    // Old news can still refuse: a tenure that has ended stays ended. Only fresh news can admit, so
    // the order is looked at before the age, and whatever may be our own lag ends in doubt.
    if token.revision < tenure.first {
        return Verdict::Reject(if tenure.owner.is_presented_as(claimed) {
            Rejection::ReplayedTenure
        } else {
            Rejection::StaleTenure
        });
    }
    if Some(token.revision) > snapshot.as_of {
        return doubt(news, Rejection::AheadOfStore);
    }
    let last = match snapshot.layout {
        Layout::Key | Layout::Election => Some(tenure.last),
        Layout::Mutex => snapshot.as_of, // Its holder may have been told any revision up to the present.
    };
    if Some(token.revision) > last {
        // Whoever waits may hold the lock by now; whoever neither held nor waited when that
        // revision was written never will.
        return if snapshot.waiters.iter().any(|waiter| waiter.created == token.revision) {
            doubt(news, Rejection::NotYetOwner)
        } else {
            Verdict::Reject(Rejection::UnknownRevision)
        };
    }
    if tenure.owner.is_presented_as(claimed) {
        return match news {
            News::Fresh | News::Confirmed => Verdict::Admit,
            News::Old => Verdict::Confirm,
            News::Regressed => Verdict::Reject(Rejection::StoreRegressed),
        };
    }
    let may_own_by_now = match snapshot.layout {
        Layout::Key => false,
        Layout::Election => true, // Proclaim changes the name within a tenure.
        Layout::Mutex => {
            snapshot.waiters.iter().any(|waiter| waiter.owner.is_presented_as(claimed))
        }
    };
    if may_own_by_now {
        doubt(news, Rejection::NotOwner)
    } else {
        Verdict::Reject(Rejection::NotOwner)
    }
}

/// Asks the store; if that is done, or can't help, refuses.
fn doubt(news: News, otherwise: Rejection) -> Verdict {
    match news {
        News::Old | News::Fresh => Verdict::Confirm,
        News::Confirmed => Verdict::Reject(otherwise),
        News::Regressed => Verdict::Reject(Rejection::StoreRegressed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Owner, Revision, Waiter};

    fn revision(number: u64) -> Revision {
        Revision::new(number).unwrap()
    }

    fn snapshot(layout: Layout, as_of: u64, holding: Holding, waiters: &[(&str, u64)]) -> Snapshot {
        let waiter = |(name, at): &(&str, u64)| Waiter {
            owner: Owner::new(name.as_bytes()),
            created: revision(*at),
        };
        Snapshot {
            layout,
            as_of: Some(revision(as_of)),
            holding,
            waiters: waiters.iter().map(waiter).collect(),
        }
    }

    fn held_by(owner: &str, first: u64, last: u64) -> Holding {
        Holding::Held(Tenure {
            owner: Owner::new(owner.as_bytes()),
            first: revision(first),
            last: revision(last),
        })
    }

    /// `news` against `(owner, at)`: "admit", "confirm" or the code of the refusal.
    fn verdict(snapshot: Option<&Snapshot>, owner: &str, at: u64, news: News) -> &'static str {
        let token = FenceToken { owner: owner.as_bytes(), revision: revision(at) };
        match judge(&token, Known::new(snapshot, news)) {
            Verdict::Admit => "admit",
            Verdict::Confirm => "confirm",
            Verdict::Reject(rejection) => rejection.code(),
        }
    }

    /// Expected from old, fresh and confirmed news.
    fn check(snapshot: &Snapshot, owner: &str, at: u64, expected: [&str; 3]) {
        let verdicts = [News::Old, News::Fresh, News::Confirmed]
            .map(|news| verdict(Some(snapshot), owner, at, news));
        assert_eq!(verdicts, expected, "({owner}, {at}) against {snapshot:?}");
    }

    #[test]
    fn the_delayed_request_of_an_earlier_tenure_is_refused_though_its_owner_is_right() {
        let third_tenure = snapshot(Layout::Key, 30, held_by("shard-1", 30, 30), &[]);
        check(&third_tenure, "shard-1", 10, ["replayed-tenure"; 3]);
        check(&third_tenure, "shard-2", 20, ["stale-tenure"; 3]);
        check(&third_tenure, "shard-1", 30, ["confirm", "admit", "admit"]);
    }

    #[test]
    fn a_key_lock_is_judged_as_the_contract_has_it() {
        let lock = snapshot(Layout::Key, 20, held_by("a", 10, 12), &[]);
        check(&lock, "a", 9, ["replayed-tenure"; 3]);
        check(&lock, "b", 9, ["stale-tenure"; 3]);
        for at in 10..=12 {
            check(&lock, "a", at, ["confirm", "admit", "admit"]);
            check(&lock, "b", at, ["not-owner"; 3]);
        }
        for owner in ["a", "b"] {
            check(&lock, owner, 13, ["unknown-revision"; 3]);
            check(&lock, owner, 20, ["unknown-revision"; 3]);
            check(&lock, owner, 21, ["confirm", "confirm", "ahead-of-store"]);
        }
    }

    #[test]
    fn an_election_confirms_whatever_proclaim_or_a_waiter_may_have_changed() {
        let lock = snapshot(Layout::Election, 20, held_by("a", 10, 10), &[("b", 14)]);
        check(&lock, "a", 10, ["confirm", "admit", "admit"]);
        check(&lock, "renamed", 10, ["confirm", "confirm", "not-owner"]);
        check(&lock, "b", 14, ["confirm", "confirm", "not-yet-owner"]);
        check(&lock, "b", 15, ["unknown-revision"; 3]);
        check(&lock, "b", 21, ["confirm", "confirm", "ahead-of-store"]);
        check(&lock, "b", 9, ["stale-tenure"; 3]);
    }

    #[test]
    fn a_mutex_holder_may_present_any_revision_since_its_key_was_created() {
        let lock = snapshot(Layout::Mutex, 20, held_by("l/1", 10, 10), &[("l/2", 14)]);
        check(&lock, "l/1", 9, ["replayed-tenure"; 3]);
        for at in [10, 14, 20] {
            check(&lock, "l/1", at, ["confirm", "admit", "admit"]);
            check(&lock, "l/2", at, ["confirm", "confirm", "not-owner"]);
            check(&lock, "l/3", at, ["not-owner"; 3]);
        }
        check(&lock, "l/1", 21, ["confirm", "confirm", "ahead-of-store"]);
    }

    #[test]
    fn a_zombie_that_queued_earlier_is_refused_though_its_revision_is_above_its_successors() {
        // s1 queued at 10, s2 at 14; s1 acquired, was told 20, stalled and lost its lease at 30:
        // now s2 holds.
        let lock = snapshot(Layout::Mutex, 30, held_by("l/s2", 14, 14), &[]);
        check(&lock, "l/s1", 20, ["not-owner"; 3]);
        check(&lock, "l/s2", 25, ["confirm", "admit", "admit"]);
    }

    #[test]
    fn a_free_lock_admits_nobody() {
        for layout in [Layout::Key, Layout::Election, Layout::Mutex] {
            let lock = snapshot(layout, 20, Holding::Free, &[]);
            check(&lock, "a", 20, ["no-owner"; 3]);
            check(&lock, "a", 21, ["confirm", "confirm", "no-owner"]);
        }
    }

    #[test]
    fn what_is_unknown_or_unreadable_is_never_called_stale() {
        let unreadable = snapshot(Layout::Key, 20, Holding::Unreadable, &[]);
        for at in [1, 20, 21] {
            check(&unreadable, "a", at, ["confirm", "confirm", "unverifiable"]);
            assert_eq!(verdict(None, "a", at, News::Old), "confirm");
            assert_eq!(verdict(None, "a", at, News::Confirmed), "unverifiable");
        }
    }

    #[test]
    fn a_store_that_went_back_admits_nobody_and_still_refuses_what_has_ended() {
        let lock = snapshot(Layout::Key, 20, held_by("a", 10, 12), &[]);
        assert_eq!(verdict(Some(&lock), "a", 10, News::Regressed), "store-regressed");
        assert_eq!(verdict(Some(&lock), "a", 21, News::Regressed), "store-regressed");
        assert_eq!(verdict(None, "a", 21, News::Regressed), "store-regressed");
        assert_eq!(verdict(Some(&lock), "a", 9, News::Regressed), "replayed-tenure");
    }

    #[test]
    fn every_reason_has_a_name_of_its_own() {
        let codes: std::collections::BTreeSet<_> =
            Rejection::ALL.iter().map(|rejection| rejection.code()).collect();
        assert_eq!(codes.len(), Rejection::ALL.len());
    }
}
