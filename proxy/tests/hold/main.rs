//! `fencepost hold` from outside: real processes that hold a lock in a real etcd, run commands, are
//! paused and killed.
//!
//! The vocabulary: `holder` (the program), `proxy` (the other one), `stage` (the store, and what
//! must be left of it all: nothing).

mod holder;
mod proxy;
mod stage;

mod commands;
mod contending;
mod door;
mod losing;
mod other_user;
mod secure;
mod secure_proxies;
mod signals;
mod stamp;
