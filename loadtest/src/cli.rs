//! The command line, in the words that `--help` shows.

mod compare;
mod drive;
mod etcd;
mod numbers;
mod proxy;
pub(crate) mod values;

use std::net::SocketAddr;
use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use hyper::StatusCode;
use hyper::http::uri::PathAndQuery;

pub(crate) use self::compare::{CompareSettings, Series, TargetName, Workload};
pub(crate) use self::drive::{DriveSettings, OpenSettings};
pub(crate) use self::etcd::EtcdAccess;
pub(crate) use self::numbers::COMPARED_CONNECTIONS_MAX;
use self::numbers::{
    CONNECTIONS_MAX, RATE_MAX, SECONDS_MAX, THREADS_MAX, TIMES_MAX, body, check_streams, check_threads, count, number,
    owner, revision, status,
};
use self::proxy::ProxyOptions;

use crate::lock::Layout;

/// Drives a running fencepost over the wire and says whether it fences.
#[derive(Debug, Parser)]
#[command(
    name = "fencepost-loadtest",
    version,
    about,
    long_about = "Drives a running fencepost over the wire, with a real etcd, and says whether it fences.\n\n\
        It plays the masters: it takes the lock in etcd, sends requests with the token that this gave it (Fence-Owner, \
        Fence-Revision), loses the lock, and sends what an earlier master would send late. Start fencepost first, with \
        the same --etcd, --lock and --layout.",
    after_help = "Exit codes: 0 all as it should be; 1 not so, or failed to run; 2 nothing was wrong, but the proxy put \
        requests off with 503, as it must while it cannot say who holds the lock (\"unverifiable\", \"store-regressed\"), while \
        an earlier holder's requests may be at the worker (\"handoff-timeout\"), when it is about to stop (\"draining\") or has no \
        connection to the worker left; 64 \
        wrong usage.\n\n\
        Ctrl-C ends a run early: what was measured until then is reported, and the locks are given back, with their leases. A second \
        one ends it at once (130), and the locks are free when their leases are over (90 s, and the length of the run).\n\n\
        Try it, with an etcd on its usual port:\n  \
        fencepost serve --listen 127.0.0.1:8080 --upstream http://127.0.0.1:9000 \\\n      \
        --etcd http://127.0.0.1:2379 --lock /shards/2/lock &\n  \
        fencepost-loadtest takeovers --proxy http://127.0.0.1:8080 --worker-listen 127.0.0.1:9000 \\\n      \
        --etcd http://127.0.0.1:2379 --lock /shards/2/lock --count 1000"
)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Play the story of the delayed write: R1 must be refused as replayed-tenure.
    #[command(long_about = "Play the story of the delayed write.\n\n\
            shard-1 takes the lock and sends R1, which the network holds back. shard-1 loses the lock, shard-2 takes it and \
            sends R2. shard-2 crashes, shard-1 takes the lock again and sends R3. Then R1 arrives: its owner is the present \
            owner, its revision is not, and it must be refused with 412 replayed-tenure.\n\n\
            The lock is one plain key (layout \"key\"), taken by a transaction: put, under a lease, if there is no such key.")]
    Story(StorySettings),
    /// Let the lock change hands many times: no true holder may be refused, no former one admitted.
    #[command(long_about = "Let the lock change hands many times.\n\n\
            Each new holder sends its first request the moment the acquire returns: none may be refused. As soon as that is \
            answered, its predecessor sends its next request, and a request of the holder's own tenure before that arrives \
            late: none may be admitted. With --worker-listen it plays the worker too and looks at the order in which requests \
            reach it: revisions never go down.\n\n\
            Half of the takeovers are handoffs: the successor waits, is told by a watch that its predecessor's record is gone, \
            and takes the lock. In the other half nobody waits: with \"key\" one transaction replaces the holder's record, with \
            \"election\" and \"mutex\" etcd's own service gives out the lock after it was released.\n\n\
            With --worker-listen each handoff is measured, from the moment its release is sent to etcd to the moment the \
            successor's first request begins at the worker (\"release to worker\"), when nothing of the predecessor is at the \
            worker any more. Its parts: etcd commits the release and tells the successor (\"release to told\"), etcd gives it \
            the lock (\"told to held\"), its first request gets to the worker through the proxy (\"held to worker\").")]
    Takeovers(TakeoverSettings),
    /// Send many requests with one token and measure.
    #[command(long_about = "Send many requests with one token and measure.\n\n\
            Closed loop by default: each connection sends its next request when the last one is answered. Open loop with \
            --rate: requests are due at a constant rate, and latency counts from the moment a request was due, so that a \
            stall of the proxy shows in all requests that it delayed, not only in those that it happened to.")]
    Load(LoadSettings),
    /// Send requests at a constant rate, with locks that may move, and measure.
    #[command(long_about = "Send requests at a constant rate and measure.\n\n\
            Requests are due at even distances, and latency counts from the moment a request was due: a stall of the proxy shows in all \
            requests that it delayed, not only in those that it happened to. With --etcd the locks are taken in a real etcd, and with \
            --handoff-every they move meanwhile. Each answer is judged: the present holder must be served, whoever presents the \
            revision of a tenure that has ended must be refused once its successor was served, and while a lock changes hands its \
            former holder may be either. Whoever is put off with 503 was judged neither rightly nor wrongly, and is counted apart.")]
    Open(Box<OpenSettings>),
    /// Send requests as fast as they are answered, with locks that may move, and measure.
    #[command(long_about = "Send requests as fast as they are answered and measure.\n\n\
            Each connection (with --h2, each stream) sends its next request when the last one is answered. What is judged is the same as \
            with \"open\".")]
    Closed(Box<DriveSettings>),
    /// Measure fencepost beside HAProxy, nginx and Envoy, as far as they are installed: CPU time per request.
    #[command(long_about = "Measure fencepost beside HAProxy, nginx and Envoy, as far as they are installed.\n\n\
            Each compares the two headers with constants, on one thread; fencepost watches a lock in an etcd that is started for it. \
            They serve the same workloads in turn, round by round, and what counts is CPU time per request by the kernel's own \
            accounting, and its ratio within a round. The proxy measured is on one CPU; load, worker and etcd are on another, where \
            there are two. A ratio is worth judging when both were busy for 0.9 of their CPU.\n\n\
            With --series only fencepost is measured, as one quantity grows.")]
    Compare(CompareSettings),
    /// Be the worker behind a proxy: answer each request with 200 and 100 bytes, or as many as its query says (`?bytes=4096`).
    Worker(WorkerSettings),
}

impl Command {
    /// What no single option shows to be wrong, in words.
    pub(crate) fn check(&self) -> Result<(), String> {
        match self {
            Command::Open(settings) => settings.check(),
            Command::Closed(settings) => settings.check(),
            Command::Story(settings) => settings.proxy.at.check(),
            Command::Takeovers(settings) => settings.proxy.at.check(),
            Command::Load(settings) => settings.check(),
            Command::Compare(settings) => settings.check(),
            Command::Worker(_) => Ok(()),
        }
    }
}

/// Where to be a worker.
#[derive(Debug, Args)]
pub(crate) struct WorkerSettings {
    /// Where to listen.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: SocketAddr,
}

/// Where requests go.
#[derive(Debug, Args)]
pub(crate) struct ProxySettings {
    #[command(flatten)]
    pub(crate) at: ProxyOptions,
    /// The path of each request.
    #[arg(long, default_value = "/", value_name = "PATH", value_parser = path)]
    pub(crate) path: PathAndQuery,
}

/// Which lock.
#[derive(Debug, Args)]
pub(crate) struct LockSettings {
    /// A member of the etcd cluster, e.g. "http://127.0.0.1:2379"; may be given several times, or separated by commas.
    #[arg(long, required = true, value_name = "URL", value_delimiter = ',')]
    pub(crate) etcd: Vec<String>,
    #[command(flatten)]
    pub(crate) access: EtcdAccess,
    /// The key of the lock, as fencepost knows it. It must be free.
    #[arg(long, value_name = "KEY")]
    pub(crate) lock: String,
}

/// How to play the story.
#[derive(Debug, Args)]
pub(crate) struct StorySettings {
    #[command(flatten)]
    pub(crate) proxy: ProxySettings,
    #[command(flatten)]
    pub(crate) lock: LockSettings,
    /// Play the worker too, here, and check what reaches it. fencepost's upstream must be this address.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) worker_listen: Option<SocketAddr>,
}

/// How to move the lock.
#[derive(Debug, Args)]
pub(crate) struct TakeoverSettings {
    #[command(flatten)]
    pub(crate) proxy: ProxySettings,
    #[command(flatten)]
    pub(crate) lock: LockSettings,
    /// How the lock is laid out in etcd; fencepost must be told the same.
    #[arg(long, value_enum, default_value_t = Layout::Key)]
    pub(crate) layout: Layout,
    /// How many takeovers.
    #[arg(long, default_value = "10000", value_name = "NUMBER", value_parser = number::<TIMES_MAX>)]
    pub(crate) count: NonZeroU64,
    /// Play the worker too, here, and check what reaches it. fencepost's upstream must be this address.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) worker_listen: Option<SocketAddr>,
    /// Also write the result to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// How to load the proxy.
#[derive(Debug, Args)]
pub(crate) struct LoadSettings {
    #[command(flatten)]
    pub(crate) proxy: ProxySettings,
    /// What Fence-Owner says.
    #[arg(long, value_parser = owner)]
    pub(crate) owner: String,
    /// What Fence-Revision says.
    #[arg(long, value_parser = revision)]
    pub(crate) revision: i64,
    /// How many connections.
    #[arg(long, default_value = "64", value_name = "NUMBER", value_parser = count::<CONNECTIONS_MAX>)]
    pub(crate) connections: NonZeroUsize,
    /// For how long.
    #[arg(long, default_value = "10", value_name = "NUMBER", value_parser = number::<SECONDS_MAX>)]
    pub(crate) seconds: NonZeroU64,
    /// Open loop: how many requests are due each second, over all connections.
    #[arg(long, value_name = "NUMBER", value_parser = number::<RATE_MAX>)]
    pub(crate) rate: Option<NonZeroU64>,
    /// Send POST requests with a body of so many bytes instead of GET requests.
    #[arg(long, default_value_t = 0, value_name = "BYTES", hide_default_value = true, value_parser = body)]
    pub(crate) body: usize,
    /// Speak HTTP/2 (cleartext, prior knowledge) instead of HTTP/1.1.
    #[arg(long)]
    pub(crate) h2c: bool,
    /// How many requests at a time on each HTTP/2 connection.
    #[arg(long, default_value = "1", value_name = "NUMBER", requires = "h2c", value_parser = count::<CONNECTIONS_MAX>)]
    pub(crate) streams: NonZeroUsize,
    /// The status that each answer must have, e.g. 412 for a load of stale requests.
    #[arg(long, default_value = "200", value_name = "STATUS", value_parser = status)]
    pub(crate) expect: StatusCode,
    /// How many threads send.
    #[arg(long, default_value = "1", value_name = "NUMBER", value_parser = count::<THREADS_MAX>)]
    pub(crate) threads: NonZeroUsize,
    /// Also write the result to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

impl LoadSettings {
    /// What no single option shows to be wrong.
    fn check(&self) -> Result<(), String> {
        if self.h2c && self.proxy.at.proxy.is_secure() {
            return Err("--h2c is HTTP/2 in the clear: \"closed --h2\" speaks it by TLS".to_owned());
        }
        check_streams(self.connections, self.streams)?;
        check_threads(self.threads, self.connections)?;
        self.proxy.at.check()
    }
}

fn path(text: &str) -> Result<PathAndQuery, String> {
    if !text.starts_with('/') {
        return Err("a path starts with \"/\"".to_owned());
    }
    PathAndQuery::try_from(text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_commands_of_the_page_on_performance_are_commands() {
        const PROGRAM: &str = "target/release/fencepost-loadtest ";
        let page = include_str!("../../docs/performance.md").replace("\\\n", "");
        let commands = page.lines().filter_map(|line| line.strip_prefix(PROGRAM));
        let mut count = 0;
        for command in commands {
            // A quoted argument is one word.
            let words = command.split('\'').enumerate().flat_map(|(number, part)| match number % 2 {
                0 => part.split_whitespace().collect::<Vec<_>>(),
                _ => vec![part],
            });
            let cli = Cli::try_parse_from(["fencepost-loadtest"].into_iter().chain(words));
            cli.unwrap_or_else(|error| panic!("{command}: {error}")).command.check().unwrap();
            count += 1;
        }
        assert!(count > 0);
        assert_eq!(count, page.matches(PROGRAM).count(), "each command begins a line of its own");
    }

    #[test]
    fn a_path_is_absolute() {
        assert!(path("/a?b=c").is_ok());
        assert!(path("a").is_err());
        assert!(path("/a b").is_err());
    }
}
