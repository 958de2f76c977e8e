//! The options of `open` and `closed`.

use std::net::SocketAddr;
use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args};
use hyper::{Method, StatusCode};

use super::etcd::EtcdAccess;
use super::numbers::{
    CONNECTIONS_MAX, LOCKS_MAX, RATE_MAX, THREADS_MAX, TIMES_MAX, body, check_streams, check_threads, count, number,
    owner, revision, status,
};
use super::proxy::ProxyOptions;
use super::values::{Share, Template, duration, duration_or_zero, path};
use crate::lock::Layout;

/// Requests at a constant rate.
#[derive(Debug, Args)]
pub(crate) struct OpenSettings {
    /// How many requests are due each second, over all connections.
    #[arg(long, value_name = "NUMBER", value_parser = number::<RATE_MAX>)]
    pub(crate) rate: NonZeroU64,
    #[command(flatten)]
    pub(crate) drive: DriveSettings,
}

impl OpenSettings {
    /// What no single option shows to be wrong.
    pub(crate) fn check(&self) -> Result<(), String> {
        let length = self.drive.warm_up + self.drive.duration;
        if crate::drive::due_within(length, self.rate) == 0 {
            let length = humantime::format_duration(length);
            return Err(format!("at --rate {} no request is due within --warm-up and --duration, {length}", self.rate));
        }
        self.drive.check()
    }
}

/// What to send, and what to make of the answers.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("tokens").required(true).args(["etcd", "owner"])))]
pub(crate) struct DriveSettings {
    #[command(flatten)]
    pub(crate) proxy: ProxyOptions,
    /// The path of each request; where it has an n in braces, that stands for the number of the request's lock, from 0.
    #[arg(long, default_value = "/", value_name = "PATH", value_parser = path)]
    pub(crate) path: Template,
    /// Take the locks in this etcd, e.g. "http://127.0.0.1:2379"; may be given once for each of its members, or with all separated by commas.
    #[arg(long, value_name = "URL", value_delimiter = ',', requires = "lock")]
    pub(crate) etcd: Vec<String>,
    #[command(flatten)]
    pub(crate) access: EtcdAccess,
    /// The key of the lock, as the proxy knows it; an n in braces stands for its number. It must be free.
    #[arg(long, value_name = "KEY", requires = "etcd")]
    pub(crate) lock: Option<Template>,
    /// How locks are laid out in etcd; the proxy must be told the same.
    #[arg(long, value_enum, default_value_t = Layout::Key, requires = "etcd")]
    pub(crate) layout: Layout,
    /// How many locks; each request is for one of them at random.
    #[arg(long, default_value = "1", value_name = "NUMBER", requires = "etcd", value_parser = count::<LOCKS_MAX>)]
    pub(crate) locks: NonZeroUsize,
    /// Name the lock in a Fence-Lock header, for routes that let the caller choose it.
    #[arg(long, requires = "etcd")]
    pub(crate) lock_header: bool,
    /// Instead of --etcd: what Fence-Owner says.
    #[arg(long, requires = "revision", conflicts_with = "etcd", value_parser = owner)]
    pub(crate) owner: Option<String>,
    /// What Fence-Revision says.
    #[arg(long, requires = "owner", value_parser = revision)]
    pub(crate) revision: Option<i64>,
    /// How many connections.
    #[arg(long, default_value = "64", value_name = "NUMBER", value_parser = count::<CONNECTIONS_MAX>)]
    pub(crate) connections: NonZeroUsize,
    /// Close each connection after so many requests and open another.
    #[arg(long, value_name = "NUMBER", value_parser = number::<TIMES_MAX>)]
    pub(crate) requests_per_connection: Option<NonZeroU64>,
    /// Speak HTTP/2 instead of HTTP/1.1: in the clear by prior knowledge, with https:// by ALPN.
    #[arg(long)]
    pub(crate) h2: bool,
    /// How many requests at a time on each HTTP/2 connection.
    #[arg(long, default_value = "16", value_name = "NUMBER", requires = "h2", value_parser = count::<CONNECTIONS_MAX>)]
    pub(crate) streams: NonZeroUsize,
    /// For how long to measure.
    #[arg(long, default_value = "10s", value_name = "TIME", value_parser = duration)]
    pub(crate) duration: Duration,
    /// How long to send before that without measuring. Verdicts count from the start.
    #[arg(long, default_value = "1s", value_name = "TIME", value_parser = duration_or_zero)]
    pub(crate) warm_up: Duration,
    /// The method of each request; GET without a body and POST with one unless given.
    #[arg(long, value_name = "METHOD")]
    pub(crate) method: Option<Method>,
    /// The length of each request's body.
    #[arg(long, default_value_t = 0, value_name = "BYTES", hide_default_value = true, value_parser = body)]
    pub(crate) body: usize,
    /// Send bodies in one chunk, without saying how long they are, as clients do that have not measured theirs.
    #[arg(long, requires = "body", conflicts_with = "h2")]
    pub(crate) chunked: bool,
    /// Send so many of the requests, e.g. 5%, under the revision of a tenure that has ended: each must be refused.
    #[arg(long, default_value = "0%", value_name = "PERCENT", hide_default_value = true)]
    pub(crate) stale: Share,
    /// The status of such a refusal.
    #[arg(long, default_value = "412", value_name = "STATUS", value_parser = status)]
    pub(crate) stale_status: StatusCode,
    /// Hand one lock after the other to another owner, so often, each with two requests more that count like all others: the
    /// successor's first, and a late one of its predecessor. Bodies that the proxy passes on as they come (fencepost: those over
    /// its 64 KiB) are cut when their tenure ends, which shows as an unexpected answer and makes the successor wait for the worker.
    #[arg(long, value_name = "TIME", value_parser = duration, requires = "etcd")]
    pub(crate) handoff_every: Option<Duration>,
    /// How many threads send, with so many connections each as their share is.
    #[arg(long, default_value = "1", value_name = "NUMBER", value_parser = count::<THREADS_MAX>)]
    pub(crate) threads: NonZeroUsize,
    /// Play the worker too, here, and check in which order requests reach it. The proxy's upstream must be this address.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) worker_listen: Option<SocketAddr>,
    /// How long this worker takes for each request, which is part of every latency: 5ms with --handoff-every unless given, else no time.
    /// A worker that takes none never has requests of two tenures at once, whatever the proxy does.
    #[arg(long, value_name = "TIME", value_parser = duration_or_zero, requires = "worker_listen")]
    pub(crate) worker_takes: Option<Duration>,
    /// Also write the result to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Also write a report with plots to this file: one page of HTML that needs nothing else.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

/// How long the worker takes for a request while locks move, unless told otherwise: so that there are some that the next tenure's can overlap.
const WORKER_TAKES: Duration = Duration::from_millis(5);

impl DriveSettings {
    /// How long the worker that is played here takes for each request.
    pub(crate) fn time_at_worker(&self) -> Duration {
        let usual = if self.handoff_every.is_some() { WORKER_TAKES } else { Duration::ZERO };
        self.worker_takes.unwrap_or(usual)
    }

    /// What no single option shows to be wrong.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.proxy.check()?;
        if self.locks.get() > 1 {
            if !self.lock.as_ref().is_some_and(Template::has_number) {
                return Err("--locks needs a place for their numbers: --lock /locks/{n}".to_owned());
            }
            if !self.path.has_number() && !self.lock_header {
                return Err("with --locks, a request names its lock in --path, by {n}, or by --lock-header".to_owned());
            }
        }
        if self.h2 {
            check_streams(self.connections, self.streams)?;
        }
        check_threads(self.threads, self.connections)?;
        if self.handoff_every.is_some_and(|every| every >= self.warm_up + self.duration) {
            return Err(
                "--handoff-every is as long as --warm-up and --duration together: no lock would move".to_owned()
            );
        }
        if self.revision == Some(1) && !self.stale.is_none() {
            return Err("there is no revision before 1: --stale needs a higher --revision".to_owned());
        }
        Ok(())
    }
}
