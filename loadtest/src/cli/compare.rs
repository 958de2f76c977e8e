//! The options of `compare`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::values::{duration_or_zero, seconds, up_to, up_to_a_million};

/// Peers are configured for so many connections. Each may need another one to the worker, and a
/// process has mostly 20,000 descriptors.
pub(crate) const PEER_CONNECTIONS_MAX: u64 = 9_900;

#[derive(Debug, Args)]
pub(crate) struct CompareOptions {
    /// The fencepost binary, of a release build.
    #[arg(long)]
    pub(crate) fencepost: PathBuf,
    /// What to measure beside it, nothing if no name follows. Ratios are to the first one
    /// installed.
    #[arg(long, value_enum, value_delimiter = ',', num_args = 0.., default_value = "haproxy,nginx,envoy")]
    pub(crate) targets: Vec<PeerName>,
    /// What to send.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "get,post1k,post64k,h2c,stale,idle",
        value_name = "NAMES"
    )]
    pub(crate) workloads: Vec<Workload>,
    /// Instead of --workloads: how fencepost's cost grows with this.
    #[arg(long, value_enum, conflicts_with = "workloads")]
    pub(crate) series: Option<Series>,
    /// The values of --series, e.g. 1,1000,100000; each series has its own by default.
    #[arg(long, value_delimiter = ',', requires = "series", value_parser = up_to_a_million)]
    pub(crate) values: Vec<usize>,
    /// How often to measure each.
    #[arg(long, default_value = "3", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) rounds: u64,
    /// How long each measurement takes.
    #[arg(long, default_value = "4", value_parser = seconds)]
    pub(crate) seconds: Duration,
    /// How long to send before that without measuring.
    #[arg(long, default_value = "1s", value_parser = duration_or_zero)]
    pub(crate) warm_up: Duration,
    /// How many connections, of workloads that do not fix it.
    #[arg(long, default_value = "64", value_parser = up_to(PEER_CONNECTIONS_MAX))]
    pub(crate) connections: usize,
    /// How many connections the workload "idle" holds.
    #[arg(long, default_value = "1000", value_parser = up_to(PEER_CONNECTIONS_MAX))]
    pub(crate) idle_connections: usize,
    /// The etcd binary, if it is not on the search path.
    #[arg(long, default_value = "etcd")]
    pub(crate) etcd_binary: PathBuf,
    /// The HAProxy binary, if it is not on the search path.
    #[arg(long, default_value = "haproxy")]
    pub(crate) haproxy_binary: PathBuf,
    /// The nginx binary, if it is not on the search path.
    #[arg(long, default_value = "nginx")]
    pub(crate) nginx_binary: PathBuf,
    /// The Envoy binary, if it is not on the search path.
    #[arg(long, default_value = "envoy")]
    pub(crate) envoy_binary: PathBuf,
    /// More lines for fencepost's route, as in its file, e.g. 'freshness = "linearizable"'.
    #[arg(long, default_value = "")]
    pub(crate) fencepost_route: String,
    /// Also write every sample to this file, as JSON.
    #[arg(long)]
    pub(crate) json: Option<PathBuf>,
}

/// A proxy beside fencepost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PeerName {
    Haproxy,
    Nginx,
    Envoy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Workload {
    /// GET over HTTP/1.1, keep-alive.
    Get,
    Post1k,
    #[value(name = "post1k-chunked")]
    Post1kChunked,
    Post64k,
    /// GET with a response of 64 KiB.
    Get64k,
    /// GET over cleartext HTTP/2: 8 connections with 16 streams each.
    H2c,
    /// "h2c" with responses of 4 KiB.
    H2c4k,
    H2cStale,
    /// GET under a revision that is not the lock's: each is refused.
    Stale,
    #[value(name = "stale-post1k")]
    StalePost1k,
    /// GET over HTTP/1.1; each connection is closed after 10 requests.
    Churn,
    GetTls,
    H2Tls,
    /// One GET on each connection, with a whole handshake of TLS 1.3.
    NewTls,
    /// The memory of connections that wait after one request.
    Idle,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Series {
    /// Locks that requests are for, taken at random: 1, 1,000, 100,000.
    Locks,
    /// Locks that are tracked, while requests are for as many as there are connections.
    Tracked,
    /// Keep-alive connections: 1, 64, 1,000, 2,000.
    Connections,
    /// fencepost's threads: 1, 2.
    Threads,
    /// Bytes of each request's body: 0, 1 KiB, 64 KiB, 1 MiB.
    Body,
}
