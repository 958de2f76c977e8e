//! Locks in a real etcd: how they are taken, kept, lost and given back.

mod keeping;
mod outages;
mod store;
mod taking;
