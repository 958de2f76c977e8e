//! Every interleaving, at small scope, of what threads share: the locks' gates and what is
//! published of them, the clock of a scope, distrust, the slots of confirming reads, the registry.
//! loom runs the files of the product, not copies: only their `crate::sync` is another one here.
//! Unit tests at the end of those files run along.
//!
//! A failure names no seed, for there is no chance in it: the same test fails again in the same
//! place. `LOOM_LOG=trace LOOM_LOCATION=1 cargo test -p fencepost-locks --test interleavings NAME`
//! tells the steps.

#[expect(dead_code, unreachable_pub, reason = "what these files have for the rest of the crate")]
#[path = "../../src/cache"]
mod cache {
    pub(crate) mod cache_view;
    pub(crate) mod common;
    mod health;
    pub(crate) mod identity;
    mod knowledge;
    mod queue;
    pub(crate) mod record;
    mod registry;
    pub(crate) mod scope;
    mod slots;
    mod tenures;
    pub(crate) mod tracked;
    pub(crate) mod trust;
}
#[expect(dead_code, unreachable_pub, reason = "what these files have for the rest of the crate")]
#[path = "../../src/group"]
mod group {
    mod membership;
    mod view;

    pub(crate) use membership::{Membership, Request};
}
#[expect(dead_code, unreachable_pub, reason = "what this file has for the rest of the crate")]
#[path = "../../src/member.rs"]
mod member;
#[expect(dead_code, unreachable_pub, reason = "what this file has for the rest of the crate")]
#[path = "../../src/store.rs"]
mod store;
mod sync;

mod confirming;
mod gate;
mod looking;
mod registry;
mod world;
