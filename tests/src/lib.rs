//! What the tests of fencepost stand on: real etcd members that can be paused and killed, database
//! servers, a relay that breaks, a worker that remembers what reached it, an HTTP client that shows
//! every step, and a browser.
//!
//! Whatever waits has a deadline, [`PATIENCE`], and panics with what it saw instead. Nothing here
//! knows fencepost itself.

mod browser;
mod cluster;
mod consul;
mod database;
mod etcd;
mod etcd_security;
mod etcd_version;
mod grpc_proxy;
mod http;
mod kubernetes;
mod latch;
mod mariadb;
mod network;
mod patience;
mod pki;
mod port;
mod postgres;
mod process;
mod relay;
mod scratch;
mod thread;
mod worker;
mod zookeeper;

pub use browser::Browser;
pub use cluster::Cluster;
pub use consul::Consul;
pub use etcd::{Etcd, EtcdOptions, Requests};
pub use etcd_security::{EtcdSecurity, Tokens};
pub use etcd_version::EtcdVersion;
pub use grpc_proxy::GrpcProxy;
pub use http::{Connection, Endpoint, Response, request};
pub use kubernetes::{ApiServer, LeaseRead};
pub use latch::Latch;
pub use mariadb::Mariadb;
pub use network::Network;
pub use patience::{PATIENCE, eventually, until};
pub use pki::{Authority, Claim, Issued, Subject, replace_file};
pub use port::FreePort;
pub use postgres::Postgres;
pub use process::Process;
pub use relay::Relay;
pub use scratch::Scratch;
pub use worker::{Answer, Behaviour, BodyEnd, Seen, Worker, WorkerTls};
pub use zookeeper::{SESSION_MIN, Zookeeper, ZookeeperEnsemble};
