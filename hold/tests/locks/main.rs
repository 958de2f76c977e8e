//! Locks in a real etcd: how they are taken, kept, lost and given back.

mod keeping;
mod outages;
mod slow;
mod store;
mod taking;
mod users;
