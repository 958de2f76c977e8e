//! The options of `open` and `closed`.

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{ArgGroup, Args};
use hyper::{Method, StatusCode};

use super::values::{
    BODY_MAX, CONNECTIONS_MAX, LOCKS_MAX, Share, Template, duration, duration_or_zero, owner, up_to,
};
use super::{LockOptions, ProxyOptions};

/// Small enough to count the requests of a day.
const RATE_MAX: u64 = 10_000_000;

fn rate(text: &str) -> Result<NonZeroU64> {
    let rate = text.parse().ok().filter(|rate: &NonZeroU64| rate.get() <= RATE_MAX);
    rate.with_context(|| format!("it is a whole number from 1 to {RATE_MAX}"))
}

#[derive(Debug, Args)]
pub(crate) struct OpenOptions {
    /// How many requests are due each second, over all connections.
    #[arg(long, value_parser = rate)]
    pub(crate) rate: NonZeroU64,
    #[command(flatten)]
    pub(crate) drive: DriveOptions,
}

impl OpenOptions {
    pub(crate) fn check(&self) -> Result<(), String> {
        let length = self.drive.warm_up + self.drive.duration;
        if crate::drive::due_within(length, self.rate) == 0 {
            return Err(format!("at --rate {} no request is due within {length:?}", self.rate));
        }
        self.drive.check()
    }
}

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("tokens").required(true).args(["etcd", "owner"])))]
pub(crate) struct DriveOptions {
    #[command(flatten)]
    pub(crate) proxy: ProxyOptions,
    #[command(flatten)]
    pub(crate) lock: LockOptions,
    /// How many locks; each request is for one of them at random.
    #[arg(long, default_value = "1", requires = "etcd", value_parser = up_to(LOCKS_MAX))]
    pub(crate) locks: usize,
    /// Name the lock in a Fence-Lock header, for routes that let the caller choose it.
    #[arg(long, requires = "etcd")]
    pub(crate) lock_header: bool,
    /// Instead of --etcd: the value of Fence-Owner.
    #[arg(long, requires = "revision", conflicts_with = "etcd", value_parser = owner)]
    pub(crate) owner: Option<String>,
    /// The value of Fence-Revision.
    #[arg(long, requires = "owner", value_parser = clap::value_parser!(i64).range(1..))]
    pub(crate) revision: Option<i64>,
    /// How many connections.
    #[arg(long, default_value = "64", value_parser = up_to(CONNECTIONS_MAX))]
    pub(crate) connections: usize,
    /// Close each connection after so many requests and open another.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) requests_per_connection: Option<u64>,
    /// Speak HTTP/2 instead of HTTP/1.1: by prior knowledge, with https:// by ALPN.
    #[arg(long)]
    pub(crate) h2: bool,
    /// How many requests at a time on each HTTP/2 connection.
    #[arg(long, default_value = "16", requires = "h2", value_parser = up_to(CONNECTIONS_MAX))]
    pub(crate) streams: usize,
    /// For how long to measure.
    #[arg(long, default_value = "10s", value_parser = duration)]
    pub(crate) duration: Duration,
    /// How long to send before that without measuring. Verdicts count from the start.
    #[arg(long, default_value = "1s", value_parser = duration_or_zero)]
    pub(crate) warm_up: Duration,
    /// The method of each request; the default is GET without a body and POST with one.
    #[arg(long)]
    pub(crate) method: Option<Method>,
    /// The length of each request's body.
    #[arg(long, value_parser = up_to(BODY_MAX))]
    pub(crate) body: Option<usize>,
    /// Send bodies chunked, without their length.
    #[arg(long, requires = "body", conflicts_with = "h2")]
    pub(crate) chunked: bool,
    /// Send so many of the requests, e.g. 5%, under the revision of a tenure that has ended.
    #[arg(long, default_value = "0%")]
    pub(crate) stale: Share,
    /// The status of such a refusal.
    #[arg(long, default_value = "412")]
    pub(crate) stale_status: StatusCode,
    /// Hand one lock after the other to another owner, so often. Each handoff sends two more
    /// requests: the successor's first, and a late one of its predecessor. A body that the proxy
    /// streams (fencepost: over 64 KiB) is cut when its tenure ends, which counts as unexpected.
    #[arg(long, value_parser = duration, requires = "etcd")]
    pub(crate) handoff_every: Option<Duration>,
    /// How long the worker of --worker-listen takes for each request, a part of every latency;
    /// 5ms with --handoff-every, else 0s. Without it no two tenures are ever there at once.
    #[arg(long, value_parser = duration_or_zero, requires = "worker_listen")]
    pub(crate) worker_takes: Option<Duration>,
    /// Also measure the CPU time per request of this process and what it started: the proxy's id.
    #[arg(long)]
    pub(crate) proxy_pid: Option<u32>,
    /// Also write the result to this file, as JSON.
    #[arg(long)]
    pub(crate) json: Option<PathBuf>,
}

/// Long enough that a proxy without a barrier lets two tenures overlap.
const WORKER_TAKES: Duration = Duration::from_millis(5);

impl DriveOptions {
    pub(crate) fn time_at_worker(&self) -> Duration {
        let moving = self.handoff_every.map(|_| WORKER_TAKES);
        self.worker_takes.or(moving).unwrap_or_default()
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        self.proxy.check()?;
        let lock_has_number = self.lock.lock.as_ref().is_some_and(Template::has_number);
        let is_named = self.proxy.path.has_number() || self.lock_header;
        let all = (self.connections as u64).saturating_mul(self.streams as u64);
        let wrong = if self.locks > 1 && !lock_has_number {
            "--locks needs a place for their numbers: --lock /locks/{n}"
        } else if self.locks > 1 && !is_named {
            "with --locks, a request names its lock in --path, by {n}, or by --lock-header"
        } else if self.h2 && all > CONNECTIONS_MAX {
            "--connections with --streams each are more than 1000000 streams"
        } else if self.handoff_every.is_some_and(|every| every >= self.warm_up + self.duration) {
            "--handoff-every is as long as --warm-up and --duration: no lock would move"
        } else if self.revision == Some(1) && !self.stale.is_none() {
            "there is no revision before 1: --stale needs a higher --revision"
        } else {
            return Ok(());
        };
        Err(wrong.to_owned())
    }
}
