//! The command line. Checks what each option may be, and what several options mean together.

mod compare;
mod drive;
pub(crate) mod values;

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use hyper::Uri;

pub(crate) use self::compare::{CompareOptions, PEER_CONNECTIONS_MAX, PeerName, Series, Workload};
pub(crate) use self::drive::{DriveOptions, OpenOptions};
use self::values::{Template, address, path};

/// Drives a running fencepost over the wire and says whether it fences.
#[derive(Debug, Parser)]
#[command(
    name = "fencepost-loadtest",
    version,
    about,
    after_help = "It plays the masters: it takes the lock in etcd, sends requests with the token of \
        that tenure, and sends late what an earlier master would. Start fencepost first, with the \
        same --etcd, --lock and --layout.\n\n\
        Exit codes: 0 all as it should be; 1 not so, or failed to run; 2 nothing was wrong, but \
        the proxy answered some requests with 503; 64 wrong usage; 130 ended by a second Ctrl-C. \
        The first Ctrl-C ends a run early, with a report, and gives its locks back."
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Play the story of the delayed write: R1 must be refused as replayed-tenure.
    ///
    /// shard-1 takes the lock and sends R1, which the network holds back. shard-2 takes the lock
    /// and sends R2, then shard-1 takes it again and sends R3. Now R1 arrives: its owner is the
    /// present owner, its revision is not.
    Story(StoryOptions),
    /// Let the lock change hands many times: no holder may be refused, no former one admitted.
    ///
    /// Each new holder sends its first request as soon as it has the lock. Then its predecessor's
    /// next request, and one of its own earlier tenure, arrive late. In half of the takeovers the
    /// successor waits for the release; with --worker-listen each of these handoffs is measured.
    Takeovers(TakeoverOptions),
    /// Send requests at a constant rate, with locks that may move, and measure.
    ///
    /// Latency counts from the moment a request was due: a stall shows in all requests that it
    /// delayed. The holder must be served, and a superseded request refused once its successor was
    /// served. While a lock changes hands, its former holder may be served or refused.
    Open(Box<OpenOptions>),
    /// Send requests as fast as they are answered, with locks that may move, and measure.
    ///
    /// Each connection, or HTTP/2 stream, sends its next request when the last one is answered.
    Closed(Box<DriveOptions>),
    /// Measure fencepost beside HAProxy, nginx and Envoy, as far as they are installed.
    ///
    /// Each peer compares the two headers with constants, on one thread. The result is CPU time per
    /// request, and its ratio within a round. The measured proxy has one CPU; load, worker and etcd
    /// have another. Judge a ratio only when both were busy for 0.9 of their CPU.
    Compare(CompareOptions),
    /// Be the worker of a comparison: answer with 100 bytes, or as many as `?bytes=` says.
    #[command(hide = true)]
    Worker {
        #[arg(long)]
        listen: SocketAddr,
    },
}

impl Command {
    pub(crate) fn check(&self) -> Result<(), String> {
        match self {
            Command::Story(options) => options.proxy.check(),
            Command::Takeovers(options) => options.proxy.check(),
            Command::Open(options) => options.check(),
            Command::Closed(options) => options.check(),
            Command::Compare(_) | Command::Worker { .. } => Ok(()),
        }
    }
}

/// The whole command line. `story` and `takeovers` cannot do without a lock.
pub(crate) fn command() -> clap::Command {
    ["story", "takeovers"].iter().fold(Cli::command(), |all, name| {
        all.mut_subcommand(*name, |command| {
            command
                .mut_arg("etcd", |etcd| etcd.required(true))
                .mut_arg("lock", |lock| lock.required(true))
        })
    })
}

#[derive(Debug, Args)]
pub(crate) struct ProxyOptions {
    /// The running proxy.
    #[arg(long, value_name = "http[s]://HOST:PORT", value_parser = address)]
    pub(crate) proxy: Uri,
    /// The authorities that signed the certificate of an "https://" proxy (PEM). It trusts no
    /// other.
    #[arg(long)]
    pub(crate) proxy_ca: Option<PathBuf>,
    /// The certificate to present to the proxy (PEM).
    #[arg(long, requires = "proxy_key")]
    pub(crate) proxy_cert: Option<PathBuf>,
    /// Its private key (PEM).
    #[arg(long, requires = "proxy_cert")]
    pub(crate) proxy_key: Option<PathBuf>,
    /// The path of each request; {n} in it stands for the number of the request's lock, from 0.
    #[arg(long, default_value = "/", value_parser = path)]
    pub(crate) path: Template,
    /// Play the worker too, here, and check what reaches it. The proxy's upstream must be this
    /// address.
    #[arg(long)]
    pub(crate) worker_listen: Option<SocketAddr>,
}

impl ProxyOptions {
    fn check(&self) -> Result<(), String> {
        let is_secure = self.proxy.scheme_str() == Some("https");
        if is_secure && self.proxy_ca.is_none() {
            return Err(format!("--proxy {} needs --proxy-ca: it trusts no other", self.proxy));
        }
        if !is_secure && (self.proxy_ca.is_some() || self.proxy_cert.is_some()) {
            return Err("--proxy-ca, --proxy-cert and --proxy-key need an https:// --proxy".into());
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Layout {
    /// One key; its value is the owner.
    #[default]
    Key,
    /// A queue of keys below the lock's; the oldest one's value is the owner (`etcdctl elect`).
    Election,
    /// A queue of keys below the lock's; the oldest one's name is the owner (`etcdctl lock`).
    Mutex,
}

#[derive(Clone, Debug, Default, Args)]
pub(crate) struct LockOptions {
    /// A member of the etcd cluster, e.g. "http://127.0.0.1:2379"; several separated by commas.
    #[arg(long, value_delimiter = ',', requires = "lock")]
    pub(crate) etcd: Vec<String>,
    /// The authorities that signed the certificates of an etcd at "https://" (PEM).
    #[arg(long, requires = "etcd")]
    pub(crate) etcd_ca: Option<PathBuf>,
    /// The certificate to present to etcd (PEM).
    #[arg(long, requires_all = ["etcd_key", "etcd_ca"])]
    pub(crate) etcd_cert: Option<PathBuf>,
    /// Its private key (PEM).
    #[arg(long, requires = "etcd_cert")]
    pub(crate) etcd_key: Option<PathBuf>,
    /// Log in as this user of etcd.
    #[arg(long, requires_all = ["etcd_password_file", "etcd"])]
    pub(crate) etcd_user: Option<String>,
    /// The file with that user's password, on one line.
    #[arg(long, requires = "etcd_user")]
    pub(crate) etcd_password_file: Option<PathBuf>,
    /// The key of the lock, as the proxy knows it; {n} stands for its number. It must be free.
    #[arg(long, requires = "etcd")]
    pub(crate) lock: Option<Template>,
    /// How the lock is laid out in etcd; the proxy must be told the same.
    #[arg(long, value_enum, default_value_t = Layout::Key, requires = "etcd")]
    pub(crate) layout: Layout,
}

#[derive(Debug, Args)]
pub(crate) struct StoryOptions {
    #[command(flatten)]
    pub(crate) proxy: ProxyOptions,
    #[command(flatten)]
    pub(crate) lock: LockOptions,
}

#[derive(Debug, Args)]
pub(crate) struct TakeoverOptions {
    #[command(flatten)]
    pub(crate) proxy: ProxyOptions,
    #[command(flatten)]
    pub(crate) lock: LockOptions,
    /// How many takeovers.
    #[arg(long, default_value = "10000", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: u64,
    /// Also write the result to this file, as JSON.
    #[arg(long)]
    pub(crate) json: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::FromArgMatches;

    #[test]
    fn command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn commands_of_the_page_on_performance_parse() {
        const PROGRAM: &str = "target/release/fencepost-loadtest ";
        let page = include_str!("../../docs/performance.md").replace("\\\n", "");
        let mut count = 0;
        for line in page.lines().filter_map(|line| line.strip_prefix(PROGRAM)) {
            // A quoted argument is one word.
            let words = line.split('\'').enumerate().flat_map(|(number, part)| match number % 2 {
                0 => part.split_whitespace().collect::<Vec<_>>(),
                _ => vec![part],
            });
            let words = ["fencepost-loadtest"].into_iter().chain(words);
            let matches = command().try_get_matches_from(words);
            let matches = matches.unwrap_or_else(|error| panic!("{line}: {error}"));
            Cli::from_arg_matches(&matches).unwrap().command.check().unwrap();
            count += 1;
        }
        assert!(count > 0);
        let all = page.matches(PROGRAM).count();
        assert_eq!(count, all, "each command begins a line of its own");
    }
}
