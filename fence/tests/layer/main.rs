//! The layer before real handlers, over a store in memory and over a real etcd.

mod bodies;
mod building;
mod calls;
mod cluster;
mod etcd;
mod group;
mod handoff;
mod panics;
mod responses;
mod scene;
mod stamped;
mod staying;
mod stress;
mod templated;
mod tokens;
mod uploads;
