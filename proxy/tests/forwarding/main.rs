//! The data plane between real sockets: clients that write and read exactly what they are told,
//! workers likewise.

mod bodies;
mod chunks;
mod clients;
mod endings;
mod group;
mod handoffs;
mod hostile_workers;
mod http2;
mod http2_connections;
mod messages;
mod panics;
mod pools;
mod quota;
mod seal;
mod shut_windows;
mod slow_readers;
mod stale;
mod support;
mod tls;
mod tls_refusals;
mod tunnels;
