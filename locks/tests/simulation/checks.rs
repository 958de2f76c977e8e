//! What the proxy promises, held against what is true.

use std::sync::{Arc, Weak};

use fencepost_locks::TrackedLock;
use fencepost_policy::{Admission, EnterError, Layout, Rejection, Revision};
use tokio::time::Instant;

use crate::claim::Claim;
use crate::host::Host;
use crate::proxy::Request;
use crate::truth::Point;
use crate::world::{MAX_AGE, ORPHAN_TIMEOUT, World};

/// What the gate of a lock was seen to be.
pub(crate) struct Seen {
    era: u64,
    lock: Weak<TrackedLock>,
    floor: u64,
    /// The `first` revision of the tenure that was known to hold it.
    holder: Option<u64>,
    /// In which of the store's histories it, or else the gate before it, came to have a floor.
    learnt_in: u64,
}

/// `floor-rises`: it never falls, and is above whatever is known to have ended. A templated lock
/// that nobody holds is forgotten with its floor: it is another one when it comes again. If the
/// store went back meanwhile, and nobody could notice, no floor and no record keeps apart what was
/// then and what is now: that is one of the limits in README.md.
pub(crate) fn gates(world: &World, host: &Host) {
    let Some(proxy) = host.proxy() else { return };
    let mut seen = host.seen.borrow_mut();
    for lock in proxy.source.locks() {
        let described = lock.describe(Instant::now());
        let floor = described.gate.floor;
        let holder = described.holder.map(|(_, first, _)| first.get());
        let (lock_now, history) = (Arc::downgrade(&lock), world.histories.get());
        let mut now =
            Seen { era: world.accepted.get(), lock: lock_now, floor, holder, learnt_in: history };
        assert!(
            holder <= Some(floor),
            "{}: the floor is {floor}, but {holder:?} holds the lock",
            lock.key()
        );
        let key = lock.key().as_str();
        let index = world
            .plan
            .locks
            .iter()
            .position(|(name, _)| *name == key)
            .expect("only those are asked for");
        host.ledger.check(index, &described.gate);
        if seen.get(&index).is_some_and(|before| !before.lock.ptr_eq(&now.lock)) {
            world.count("forgotten");
        }
        if let Some(before) = seen.get(&index) {
            let learns = floor > 0 && !(before.lock.ptr_eq(&now.lock) && before.floor > 0);
            if !learns {
                now.learnt_in = before.learnt_in;
            } else if before.learnt_in < history
                && host.noticed.get().is_none()
                && !world.plan.remembers
            {
                world.begin_anew(index);
            }
        }
        if let Some(before) =
            seen.get(&index).filter(|before| before.era == now.era && before.lock.ptr_eq(&now.lock))
        {
            assert!(
                before.floor <= floor,
                "the floor of {key} fell from {} to {floor}",
                before.floor
            );
            let ended = before.holder.filter(|_| described.as_of.is_some() && holder.is_none());
            assert!(ended < Some(floor), "{key}: the floor is {floor}, but {ended:?} has ended");
        }
        seen.insert(index, now);
    }
}

/// Looks whether the proxy distrusts its store by now, or does not any more.
pub(crate) fn notice(world: &World, host: &Host) {
    let Some(proxy) = host.proxy() else { return };
    let distrusted = proxy.source.status(Instant::now()).distrusted_through;
    if host.distrusted.replace(distrusted).is_some() && distrusted.is_none() {
        world.accepted(host);
    }
    if distrusted > host.noticed.get() {
        host.noticed.set(distrusted);
        world.count("distrusted");
    }
}

/// Once the store was noticed to have gone back, in whichever life of the proxy, only tenures that
/// began above all that had been seen are let in, until an operator accepts it. And
/// `recorded-first`: no tenure is let in that a later life would not know of.
pub(crate) fn let_in(world: &World, claim: &Claim, tenure: Revision) {
    let host = claim.host(world);
    let (name, noticed) = (claim.request.name, host.noticed.get());
    assert!(
        noticed < Some(tenure),
        "#{name} is let in under {tenure}, but the store is distrusted through {noticed:?}"
    );
    if noticed.is_some() {
        world.count("let in above");
    }
    if world.plan.remembers {
        let recorded =
            host.disk.written().recorded.get(claim.lock.key().as_str()).copied().flatten();
        let is_same =
            recorded == Some(tenure) || recorded.is_some_and(|recorded| claim.is_named(recorded));
        assert!(is_same, "#{name} is let in under {tenure}, but what is recorded is {recorded:?}");
    }
}

/// `fresh-admission`, and that nothing is admitted that never was.
pub(crate) fn admission(world: &World, claim: &Claim, admission: &Admission) {
    let Request { name, token, .. } = &claim.request;
    let truth = world.truth.borrow();
    let truth = &truth.locks[token.lock];
    let floor = claim.lock.describe(Instant::now()).gate.floor;
    assert!(floor <= admission.tenure().get(), "#{name} is let out below the floor {floor}");
    let_in(world, claim, admission.tenure());
    watched(world, claim);
    let named = truth
        .named_by(token)
        .unwrap_or_else(|| panic!("#{name} is let out, but its token never held the lock"));
    let span = &truth.spans[named];
    let is_trusted = world.trusted.get().is_some_and(|since| since <= claim.arrived);
    if !is_trusted {
        return;
    }
    world.worker.check_order(token.lock, named, *name);
    if !world.plan.stale_reads {
        let since =
            if claim.request.linearizable { claim.arrived.at } else { claim.arrived.at - MAX_AGE };
        assert!(
            span.held_since(since),
            "#{name} is let out, but its tenure had ended by {since:?}: {span:?}"
        );
    }
}

/// `watched-admission`: while no watch is up, cached news admits only if a read that was sent since
/// the loss has failed. While one is up, what admits was read since then.
fn watched(world: &World, claim: &Claim) {
    let now = Instant::now();
    let dated = now - claim.lock.view().age(now).expect("what admits has been read");
    if dated >= claim.arrived.at {
        return; // It is confirmed.
    }
    let (name, watches) = (claim.request.name, claim.host(world).watches.borrow());
    match watches.up_since() {
        Some(since) => {
            assert!(since <= dated, "#{name} is let out by news from before the watch that is up")
        }
        None => {
            assert!(watches.read_failed(), "#{name} is let out by cached news while no watch is up")
        }
    }
    world.count(if watches.up_since().is_some() { "cached" } else { "cached while reads fail" });
}

/// `final-refusal`: a client that held the lock before it sent its request, and still does, is
/// never refused as if it did not.
pub(crate) fn refusal(world: &World, request: &Request, arrived: Point, reason: Rejection) {
    let says_stale = match reason {
        Rejection::NotOwner
        | Rejection::StaleTenure
        | Rejection::ReplayedTenure
        | Rejection::UnknownRevision
        | Rejection::AheadOfStore
        | Rejection::NoOwner
        | Rejection::NotYetOwner => true,
        Rejection::TokenMissing
        | Rejection::TokenMalformed
        | Rejection::LockNotAllowed
        | Rejection::IdentityMismatch
        | Rejection::Unverifiable
        | Rejection::StoreRegressed
        | Rejection::HandoffTimeout
        | Rejection::OutOfGroup
        | Rejection::Draining => false,
    };
    let is_trusted = world.trusted.get().is_some_and(|since| since <= arrived);
    if !says_stale || !is_trusted || world.plan.stale_reads {
        return;
    }
    let truth = world.truth.borrow();
    let lock = &truth.locks[request.token.lock];
    // Where history is compacted away, a holder that has rewritten its key has to present a newer
    // revision.
    let is_compacted = lock.layout == Layout::Key && request.token.revision < world.compacted.get();
    assert!(
        is_compacted || !lock.is_true_since(&request.token, arrived),
        "#{} is told {reason}, but it held the lock when it was sent, and still does",
        request.name
    );
}

/// A request that waits at the gate is woken when it opens. When the request's time is up, the gate
/// is still shut, or opens at this instant.
pub(crate) fn waited(world: &World, claim: &Claim, entry: &Result<Revision, EnterError>) {
    let is_open = match entry {
        Ok(_) | Err(EnterError::Record(_)) => true,
        Err(EnterError::Wait | EnterError::Refused(_) | EnterError::Confirm) => false,
    };
    let (now, host, lock) = (Instant::now(), claim.host(world), claim.request.token.lock);
    let opens_now = host.ledger.opens_at(lock, now) || host.started.get() + ORPHAN_TIMEOUT == now;
    // What opened it may have come while the process stood still.
    let goes_on = host.went_on.get() == Some(now);
    assert!(
        !is_open || opens_now || goes_on,
        "the gate of {} opened, but who waited was not told",
        world.plan.locks[lock].0
    );
}
