//! The command line: what can be asked, in the words that `--help` shows.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use fencepost_config::{Address, Flags};
use fencepost_hold::command::HoldSettings;

/// What `--version` shows: which version, of which commit, built how.
pub(crate) const VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (commit ",
    env!("FENCEPOST_COMMIT"),
    ", ",
    env!("FENCEPOST_BUILD"),
    " build)"
);

/// A reverse proxy that lets a request through only while its sender still holds the lock.
#[derive(Debug, Parser)]
#[command(
    name = "fencepost",
    version = VERSION,
    about,
    long_about = "A reverse proxy that lets a request through only while its sender still holds the lock.\n\n\
        Leader election and leases cannot stop a paused master from waking up and writing: the write may already be on \
        the wire. fencepost stands before a worker that cannot check this itself. Each request says who sent it and \
        under which revision of the lock (Fence-Owner, Fence-Revision); fencepost holds that against the lock record in \
        etcd and refuses what an earlier holder sent, however late it arrives.",
    after_help = "Exit codes: 0 right, 1 failed to run, 64 wrong usage or configuration. `hold` passes on its command's, 128 + N if \
        it was ended by signal N, and has more: 75, 76, 126 and 127 (fencepost hold --help).\n\n\
        Try it:        fencepost demo\n\
        Check a file:  fencepost check -c fencepost.toml --live\n\
        Run it:        fencepost serve -c fencepost.toml"
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Says what to log where the command line doesn't.
const LOG_VARIABLE: &str = "FENCEPOST_LOG";

/// The log of a process.
#[derive(Debug, Clone, Args)]
pub struct LogSettings {
    /// What to log: error, warn, info, debug, trace, or a filter such as "info,fencepost=debug";
    /// one by which nothing of fencepost's own is logged has to say "off". Not given: what the
    /// environment has in FENCEPOST_LOG, or "info".
    #[arg(long, value_name = "FILTER")]
    pub log: Option<String>,
    /// How to log.
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
}

impl LogSettings {
    /// What to log, and the name of what says so. A variable that is empty says nothing, as in
    /// files that pass on what may not be set.
    pub fn filter(&self) -> (String, &'static str) {
        let variable = || std::env::var_os(LOG_VARIABLE).filter(|value| !value.is_empty());
        match &self.log {
            Some(log) => (log.clone(), "--log"),
            None => match variable() {
                Some(value) => (value.to_string_lossy().into_owned(), LOG_VARIABLE),
                None => ("info".to_owned(), "--log"),
            },
        }
    }
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the proxy.
    #[command(after_help = "From a file:\n  fencepost serve -c fencepost.toml\n\n\
            The same for one worker, without a file:\n  fencepost serve --listen 127.0.0.1:8080 --upstream http://127.0.0.1:9000 \\\n      \
            --etcd http://127.0.0.1:2379 --lock /shards/2/lock\n\n\
            SIGTERM and SIGINT drain: not ready, go on serving for drain_delay, stop accepting, finish, exit; a second one \
            cuts at once. SIGHUP, and a change of the file, puts what the file says in force, or says why it can't.")]
    Serve {
        /// What to serve.
        #[command(flatten)]
        settings: Settings,
        /// What is written of that.
        #[command(flatten)]
        log: LogSettings,
    },
    /// Is the configuration right, and with --live: do etcd and the workers answer?
    #[command(
        after_help = "Exits 64 and names every problem with its line and key if the configuration is wrong, 1 if something \
            does not answer, else 0."
    )]
    Check {
        /// What to check.
        #[command(flatten)]
        settings: Settings,
        /// Also read each lock and connect to each worker.
        #[arg(long)]
        live: bool,
    },
    /// What would become of a request with this token, and why?
    #[command(
        after_help = "Asks the lock store, not a running proxy. Exits 0 whatever the verdict, also if the store does not answer: what \
            becomes of requests meanwhile is the verdict then. 1 if the store can't be asked, such as for lack of a file, 64 if the \
            question makes no sense.\n\n  fencepost explain -c fencepost.toml --route shards --lock /shards/2/lock \\\n      --owner shard-1 --revision 10"
    )]
    Explain {
        /// The configuration file (TOML).
        #[arg(short, long, value_name = "FILE")]
        config: PathBuf,
        /// What is asked.
        #[command(flatten)]
        question: Question,
    },
    /// Play the story of the delayed write, live, with nothing else installed.
    Demo(DemoSettings),
    /// Hold a lock for as long as a command runs, and end the command before the lock can be lost.
    #[command(after_help = HOLD_HELP)]
    Hold(Box<HoldSettings>),
    /// Is a running fencepost ready for requests? Exits 0 if it is, 1 if it is not.
    #[command(
        after_help = "Asks /readyz of the admin listener, for health checks of containers, scripts and probes. Says why not on standard \
            error.\n\n  fencepost ready\n  fencepost ready http://127.0.0.1:9901\n  fencepost ready -c fencepost.toml"
    )]
    Ready(ReadySettings),
    /// Print what completes commands and options in a shell.
    #[command(
        after_help = "  fencepost completions bash > /usr/share/bash-completion/completions/fencepost\n  \
            fencepost completions zsh > /usr/share/zsh/vendor-completions/_fencepost\n  \
            fencepost completions fish > /usr/share/fish/vendor_completions.d/fencepost.fish"
    )]
    Completions {
        /// The shell.
        shell: Shell,
    },
}

/// The script that completes commands and options in that shell.
pub fn completions(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "fencepost", &mut script);
    script
}

/// What `hold` runs this program as. No help names these, and no mistyped command is taken for one.
#[derive(Debug, Parser)]
pub enum HoldPart {
    /// The second process of `hold`.
    HoldWatchdog {
        /// The first one.
        holder: i32,
        /// Children of that one that have nothing to do with the lock.
        others: Vec<i32>,
    },
    /// What becomes the command of `hold`.
    HoldStart {
        /// What it waits for.
        gate: PathBuf,
        /// The command, and its arguments.
        #[arg(required = true, trailing_var_arg = true)]
        command: Vec<OsString>,
    },
}

impl HoldPart {
    /// Whether the arguments of this process are those of a part.
    pub fn is_asked_for() -> bool {
        let name = std::env::args_os().nth(1).unwrap_or_default();
        HoldPart::command().get_subcommands().any(|part| name == part.get_name())
    }
}

/// What `hold` does, for who knows `flock`.
const HOLD_HELP: &str = "\
  fencepost hold --etcd http://127.0.0.1:2379 --lock /shards/2/lock --owner shard-1 -- ./master.sh

The command finds FENCE_LOCK, FENCE_OWNER and FENCE_REVISION in its environment and sends the last two with every request, as \
Fence-Owner and Fence-Revision; or it sends its requests to a --stamp address, where that is done for it.

The lock is renewed every third of the ttl. Without a confirmed renewal for three quarters of it, or when the lock is seen to be \
gone, the command gets SIGTERM, and SIGKILL after --grace, a fifth of the ttl later at the latest: before the lock can have run \
out. Then the lock is taken again and the command run again, unless --once.

Before the command runs for the first time, an etcd that does not answer within 10 s (3 s with --try) is the end; afterwards, unless \
--once, it is asked for as long as it takes.

An etcd with users has to let --etcd-user read and write the key of the lock and, with --queue, what begins with KEY.queue/:
  etcdctl role grant-permission ROLE readwrite /shards/2/lock
  etcdctl role grant-permission ROLE readwrite --prefix /shards/2/lock.queue/

When the command ends, whatever it left running is ended, the lock is given back, and its exit code is passed on. An etcd that \
does not answer for 3 s then is left to free the lock by itself. Each SIGTERM is passed on, and SIGKILL follows --grace after the \
first; SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGWINCH and SIGCONT are passed on. If SIGHUP, SIGINT or SIGQUIT was ignored from \
the beginning (nohup, a shell's background job), it stays so, for the command too.
Ctrl-Z (SIGTSTP) stops this process, with --foreground also the command, and the lock is renewed no more. Unless fg comes first, the \
command is killed before the lock can have run out; fg then takes the lock and runs the command anew, under another revision, or \
exits with 76 (--once).
The command and what it starts are a process group of their own; should this process be killed or stopped, a second one ends it.

Exit codes: the command's own, 128 + N if it was ended by signal N; 75 the lock is held by somebody else (--try), 76 the lock was \
lost (--once), 126 the command cannot be run, 127 there is no such command, 1 failed to run, 64 wrong usage.";

/// A configuration: a file, or flags for one worker.
#[derive(Debug, Clone, Args)]
pub struct Settings {
    /// The configuration file (TOML).
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["listen", "upstream", "etcd", "lock", "layout", "admin", "group", "state_dir", "threads", "freshness", "max_age"])]
    pub config: Option<PathBuf>,
    /// Where to accept requests: "127.0.0.1:8080" or "unix:/run/fencepost.sock".
    #[arg(long, value_name = "ADDRESS", help_heading = "One worker, without a file")]
    pub listen: Vec<String>,
    /// The worker: "http://127.0.0.1:9000", "h2c://127.0.0.1:9000" or "unix:/run/worker.sock".
    #[arg(long, value_name = "URL", help_heading = "One worker, without a file")]
    pub upstream: Option<String>,
    /// A member of the etcd cluster, e.g. "http://127.0.0.1:2379"; may be given several times, or
    /// separated by commas.
    #[arg(
        long,
        value_name = "URL",
        value_delimiter = ',',
        help_heading = "One worker, without a file"
    )]
    pub etcd: Vec<String>,
    /// The key of the lock that guards the worker.
    #[arg(long, value_name = "KEY", help_heading = "One worker, without a file")]
    pub lock: Option<String>,
    /// How the lock's record is laid out: "key", "election" or "mutex".
    #[arg(long, value_name = "LAYOUT", help_heading = "One worker, without a file")]
    pub layout: Option<String>,
    /// Where the admin listener is, or "off".
    #[arg(long, value_name = "ADDRESS", help_heading = "One worker, without a file")]
    pub admin: Option<String>,
    /// The group of processes before this worker, which share the gate of its lock.
    #[arg(long, value_name = "NAME", help_heading = "One worker, without a file")]
    pub group: Option<String>,
    /// Where floors are kept across restarts: an absolute path.
    #[arg(long, value_name = "DIRECTORY", help_heading = "One worker, without a file")]
    pub state_dir: Option<String>,
    /// How many threads serve requests.
    #[arg(long, value_name = "NUMBER", help_heading = "One worker, without a file")]
    pub threads: Option<String>,
    /// Which news admit: "cached" or "linearizable".
    #[arg(long, value_name = "FRESHNESS", help_heading = "One worker, without a file")]
    pub freshness: Option<String>,
    /// News of the lock older than this admit nothing, e.g. "5s".
    #[arg(long, value_name = "DURATION", help_heading = "One worker, without a file")]
    pub max_age: Option<String>,
}

impl Settings {
    /// Whether neither a file nor any flag is given that there has to be without one.
    pub fn name_nothing(&self) -> bool {
        let flags = [
            self.upstream.is_some(),
            self.lock.is_some(),
            !self.listen.is_empty(),
            !self.etcd.is_empty(),
        ];
        self.config.is_none() && !flags.contains(&true)
    }

    /// The flags, if no file was named.
    pub fn flags(self) -> Flags {
        Flags {
            listen: self.listen,
            upstream: self.upstream,
            etcd: self.etcd,
            lock: self.lock,
            layout: self.layout,
            admin: self.admin,
            group: self.group,
            state_dir: self.state_dir,
            threads: self.threads,
            freshness: self.freshness,
            max_age: self.max_age,
        }
    }
}

/// A request that might be sent.
#[derive(Debug, Clone, Args)]
pub struct Question {
    /// The route; needed only if there are several.
    #[arg(long, value_name = "NAME")]
    pub route: Option<String>,
    /// The owner that it presents; may be left out where the route takes it from the client
    /// certificate.
    #[arg(long, value_name = "OWNER")]
    pub owner: Option<String>,
    /// The revision that it presents.
    #[arg(long, value_name = "REVISION", allow_hyphen_values = true)]
    pub revision: String,
    /// The lock, where the route has more than one or the caller names it.
    #[arg(long, value_name = "KEY")]
    pub lock: Option<String>,
    /// A URI in the subject alternative name of its client certificate; may be given several times.
    #[arg(long, value_name = "URI")]
    pub peer_uri: Vec<String>,
    /// A DNS name in the subject alternative name of its client certificate; may be given several
    /// times.
    #[arg(long, value_name = "NAME")]
    pub peer_dns: Vec<String>,
    /// A common name of the subject of its client certificate; may be given several times.
    #[arg(long, value_name = "NAME")]
    pub peer_cn: Vec<String>,
    /// Answer in JSON.
    #[arg(long)]
    pub json: bool,
}

/// Which process to ask.
#[derive(Debug, Clone, Args)]
pub struct ReadySettings {
    /// The configuration file (TOML) of the process, which says where its admin listener is.
    #[arg(short, long, value_name = "FILE", conflicts_with = "url")]
    pub config: Option<PathBuf>,
    /// Its admin listener: "http://127.0.0.1:9901" or "unix:/run/fencepost/admin.sock".
    #[arg(value_name = "URL", default_value = "http://127.0.0.1:9901")]
    pub url: String,
}

/// How to play the story.
#[derive(Debug, Clone, Args)]
pub struct DemoSettings {
    /// Keep the lock in this etcd instead of a store inside the demo.
    #[arg(long, value_name = "URL", value_parser = etcd_url)]
    pub etcd: Option<String>,
    /// Where the proxy listens; port 0 takes any free port.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0", value_parser = tcp_address)]
    pub listen: SocketAddr,
    /// Keep the proxy, the worker and the lock running at the end, to look around; Ctrl-C ends it.
    #[arg(long)]
    pub stay: bool,
}

/// Takes what `endpoints` of a source takes.
fn etcd_url(text: &str) -> Result<String, String> {
    let text = text.strip_suffix('/').unwrap_or(text);
    let authority = text.strip_prefix("http://").unwrap_or(text);
    match authority.parse::<http::uri::Authority>() {
        Ok(authority) if authority.port_u16().is_some() => Ok(format!("http://{authority}")),
        Ok(_) | Err(_) => Err("must be \"http://host:port\"".to_owned()),
    }
}

/// Takes what `address` of a listener takes, but for what is no TCP address.
fn tcp_address(text: &str) -> Result<SocketAddr, String> {
    match Address::parse(text)? {
        Address::Tcp(address) => Ok(address),
        Address::Unix(_) | Address::Systemd(_) => Err("must be \"ip:port\"".to_owned()),
    }
}
