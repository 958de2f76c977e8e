//! The options of `compare`.

use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::numbers::{BODY_MAX, COMPARED_CONNECTIONS_MAX, LOCKS_MAX, THREADS_MAX, TIMES_MAX, count, number};
use super::values::{duration_or_zero, seconds};

/// What to compare, and how.
#[derive(Debug, Args)]
pub(crate) struct CompareSettings {
    /// The fencepost binary, of a release build.
    #[arg(long, value_name = "FILE")]
    pub(crate) fencepost: PathBuf,
    /// What to measure beside it; nothing if no name follows. The first that is installed is what ratios are to.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        num_args = 0..,
        default_value = "haproxy,nginx,envoy",
        value_name = "NAMES"
    )]
    pub(crate) targets: Vec<TargetName>,
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
    #[arg(long, value_enum, conflicts_with = "workloads", value_name = "NAME")]
    pub(crate) series: Option<Series>,
    /// The values of --series, e.g. 1,1000,100000; each series has its own unless given.
    #[arg(long, value_delimiter = ',', requires = "series", value_name = "NUMBERS")]
    pub(crate) values: Vec<usize>,
    /// How often each is measured.
    #[arg(long, default_value = "3", value_name = "NUMBER", value_parser = number::<TIMES_MAX>)]
    pub(crate) rounds: NonZeroU64,
    /// How long each measurement takes.
    #[arg(long, default_value = "4", value_name = "NUMBER", value_parser = seconds)]
    pub(crate) seconds: Duration,
    /// How long to send before that without measuring.
    #[arg(long, default_value = "1s", value_name = "TIME", value_parser = duration_or_zero)]
    pub(crate) warm_up: Duration,
    /// How many connections, of workloads that do not say it.
    #[arg(long, default_value = "64", value_name = "NUMBER", value_parser = count::<COMPARED_CONNECTIONS_MAX>)]
    pub(crate) connections: NonZeroUsize,
    /// How many connections the workload "idle" holds.
    #[arg(long, default_value = "1000", value_name = "NUMBER", value_parser = count::<COMPARED_CONNECTIONS_MAX>)]
    pub(crate) idle_connections: NonZeroUsize,
    /// The etcd binary, if it is not on the search path.
    #[arg(long, default_value = "etcd", value_name = "FILE")]
    pub(crate) etcd_binary: PathBuf,
    /// The HAProxy binary, if it is not on the search path.
    #[arg(long, default_value = "haproxy", value_name = "FILE")]
    pub(crate) haproxy_binary: PathBuf,
    /// The nginx binary, if it is not on the search path.
    #[arg(long, default_value = "nginx", value_name = "FILE")]
    pub(crate) nginx_binary: PathBuf,
    /// The Envoy binary, if it is not on the search path.
    #[arg(long, default_value = "envoy", value_name = "FILE")]
    pub(crate) envoy_binary: PathBuf,
    /// More lines for fencepost's route, as in its file, e.g. 'freshness = "linearizable"'.
    #[arg(long, default_value = "", value_name = "TOML", hide_default_value = true)]
    pub(crate) fencepost_route: String,
    /// Also write every sample to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

impl CompareSettings {
    /// What no single option shows to be wrong.
    pub(crate) fn check(&self) -> Result<(), String> {
        let Some(series) = self.series else { return Ok(()) };
        let (least, most, what) = series.bounds();
        if self.values.iter().all(|value| (least..=most).contains(&(*value as u64))) {
            return Ok(());
        }
        Err(format!("each of --values is from {least} to {most} {what}"))
    }
}

/// Something that stands beside fencepost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TargetName {
    Haproxy,
    Nginx,
    Envoy,
}

/// What is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Workload {
    /// GET over HTTP/1.1, keep-alive.
    Get,
    /// POST of 1 KiB.
    Post1k,
    /// The same in a chunk, without its length.
    #[value(name = "post1k-chunked")]
    Post1kChunked,
    /// POST of 64 KiB.
    Post64k,
    /// GET over HTTP/1.1 that is answered with 64 KiB.
    Get64k,
    /// GET over cleartext HTTP/2: 8 connections with 16 streams each.
    H2c,
    /// The same, each answered with 4 KiB.
    H2c4k,
    /// The same as "stale" over "h2c".
    H2cStale,
    /// GET under a revision that is not the lock's: each is refused.
    Stale,
    /// The same as "stale" with "post1k".
    #[value(name = "stale-post1k")]
    StalePost1k,
    /// GET over HTTP/1.1, each connection closed after 10 requests.
    Churn,
    /// The same as "get" over TLS 1.3.
    GetTls,
    /// The same as "h2c" over TLS 1.3.
    H2Tls,
    /// One GET over HTTP/1.1 on each connection, every one with a whole handshake of TLS 1.3.
    NewTls,
    /// The memory of connections that wait, after a request each.
    Idle,
}

/// What grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Series {
    /// Locks that requests are for, one templated lock each, taken at random: 1, 1,000, 100,000.
    Locks,
    /// Locks that are tracked, of which as many are asked for as there are connections: 1, 1,000, 100,000.
    Tracked,
    /// Keep-alive connections: 1, 64, 1,000, 2,000.
    Connections,
    /// fencepost's threads: 1, 2.
    Threads,
    /// Bytes of each request's body: 0, 1 KiB, 64 KiB, 1 MiB. 0 counts as none.
    Body,
}

impl Series {
    /// The least and the most that each of its values may be, and of what.
    fn bounds(self) -> (u64, u64, &'static str) {
        match self {
            Series::Locks | Series::Tracked => (1, LOCKS_MAX, "locks"),
            Series::Connections => (1, COMPARED_CONNECTIONS_MAX, "connections"),
            Series::Threads => (1, THREADS_MAX, "threads"),
            Series::Body => (0, BODY_MAX, "bytes"),
        }
    }
}
