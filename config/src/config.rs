//! The configuration as the rest of the program sees it: typed and checked.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use crate::address::HostPort;
use crate::listening::{Admin, Listener};
use crate::places::Places;
use crate::problem::{Problem, Problems};
use crate::records::{AccessLog, Decisions};
use crate::routes::Routes;
use crate::tls::ClientTls;

/// A whole configuration. Whoever has one need not check it again.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Where what must outlive a process is kept, an absolute path; `None`: nowhere.
    pub state_dir: Option<PathBuf>,
    /// How many threads serve requests; `None`: as many as the process may use.
    pub threads: Option<NonZeroUsize>,
    /// Where the admin listener is, if there is one.
    pub admin: Option<Admin>,
    /// Where requests are accepted; at least one address, none twice.
    pub listeners: Vec<Listener>,
    /// What one process takes and how long it waits.
    pub limits: Limits,
    /// Which decisions are kept for operators to look at.
    pub decisions: Decisions,
    /// Where each request that has ended gets a line, if anywhere.
    pub access_log: Option<AccessLog>,
    /// The lock stores, ordered by name.
    pub sources: Vec<Source>,
    /// The routes in the order in which they are asked; at least one.
    pub routes: Routes,
    /// What works and should be known all the same.
    pub warnings: Vec<Problem>,
    /// Where its keys are written.
    pub places: Places,
}

impl Config {
    /// Reads the text of a configuration file. The name of the file is for messages only.
    ///
    /// # Errors
    /// Everything that is wrong with the file, each with its line and key. If it is not TOML, only where it is not.
    pub fn from_toml(file_name: &str, text: &str) -> Result<Config, Problems> {
        crate::raw::read_toml(file_name, text)
    }

    /// The configuration for one worker behind one lock, from the flags of the command line: one route named
    /// `default` that takes and enforces every path.
    ///
    /// # Errors
    /// Everything that is wrong with the flags, each with the flag's name.
    pub fn from_flags(flags: crate::Flags) -> Result<Config, Problems> {
        crate::flags::read_flags(flags)
    }

    /// Whether a process does the same by either. Warnings and places make no difference, nor does the order of the listeners.
    pub(crate) fn does_the_same_as(&self, other: &Config) -> bool {
        let Config {
            state_dir,
            threads,
            admin,
            listeners: _,
            limits,
            decisions,
            access_log,
            sources,
            routes,
            warnings: _,
            places: _,
        } = self;
        self.listens_like(other)
            && (state_dir, threads, admin) == (&other.state_dir, &other.threads, &other.admin)
            && (limits, decisions, access_log) == (&other.limits, &other.decisions, &other.access_log)
            && (sources, routes) == (&other.sources, &other.routes)
    }

    /// Whether requests are accepted at the same addresses and by the same means.
    pub(crate) fn listens_like(&self, other: &Config) -> bool {
        let times = |config: &Config, one: &Listener| config.listeners.iter().filter(|other| *other == one).count();
        self.listeners.len() == other.listeners.len()
            && self.listeners.iter().all(|one| times(self, one) == times(other, one)) // Any number may have port 0.
    }
}

/// A lock store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Its name: `[A-Za-z0-9_-]{1,64}`, a metric label.
    pub name: String,
    /// What it is.
    pub kind: SourceKind,
}

/// The kinds of lock stores.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceKind {
    /// An etcd cluster.
    Etcd {
        /// Its members; at least one, none twice.
        endpoints: Vec<HostPort>,
        /// The cluster that it must be; `None`: any.
        cluster_id: Option<u64>,
        /// What they are reached with; `None`: in cleartext.
        tls: Option<Box<ClientTls>>,
        /// Who logs in; `None`: nobody.
        user: Option<EtcdUser>,
    },
    /// A store in this process, for demonstrations.
    Memory,
}

/// A user of etcd. What the file holds is no part of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdUser {
    /// The name: not empty, no control characters.
    pub name: String,
    /// The file of the password; an absolute path.
    pub password_file: PathBuf,
}

/// What one process takes and how long it waits. REFERENCE.md says what happens at each limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Client connections at a time; 1 to 1,000,000, by default 10,000.
    pub connections_max: usize,
    /// Client connections from one IPv4 address or IPv6 /64 at a time; 1 to 1,000,000, by default 99 in
    /// a hundred of `connections_max`.
    pub connections_per_client_max: usize,
    /// Requests on one connection, one after the other or at a time; 1 to 1,000,000, `None`: as many as come.
    pub requests_per_connection_max: Option<u64>,
    /// Bytes of a request's head; 8 KiB to 1 MiB, by default 64 KiB.
    pub header_bytes_max: usize,
    /// Header fields of a request; 16 to 1,000, by default 100.
    pub headers_max: usize,
    /// Requests at a time on one HTTP/2 connection; 1 to 10,000, by default 128.
    pub h2_streams_max: u32,
    /// Requests that an HTTP/2 client may reset within 10 s; 1 to 100,000, by default 1,000.
    pub h2_resets_max: u32,
    /// Frames that carry no part of a request which an HTTP/2 client may send within 10 s, beside those that requests
    /// and data call for; 100 to 1,000,000, by default 10,000.
    pub h2_control_frames_max: u32,
    /// How long a client may take for the TLS handshake; 100 ms to 1 min, by default 5 s.
    pub handshake_timeout: Duration,
    /// How long a client may take for a request's head; 100 ms to 10 min, by default 10 s.
    pub header_timeout: Duration,
    /// How long a connection is kept without a request; 100 ms to 1 h, by default 60 s.
    pub idle_timeout: Duration,
    /// How long a client may be silent in the middle of its body, or leave its response unread; 100 ms to 1 h, by
    /// default 30 s.
    pub body_timeout: Duration,
    /// The least bytes per second at which a client sends a body of known length and reads its response, on average
    /// after the first `body_timeout`; 0 (any) to 1 MiB, by default 128.
    pub body_rate_min: u64,
    /// Bytes of a request's body; 0 to 1,024 GiB, `None`: as many as come.
    pub body_bytes_max: Option<u64>,
    /// How long connecting to a worker may take; 10 ms to 1 min, by default 2 s.
    pub connect_timeout: Duration,
    /// How long an idle connection to a worker is kept; 10 ms to 10 min, by default 1 s.
    pub upstream_idle_timeout: Duration,
    /// Connections per worker thread and upstream; 1 to 100,000, by default 1,024.
    pub upstream_connections_max: usize,
    /// The largest body that is read whole before it is forwarded; 0 B to 16 MiB, by default 64 KiB.
    pub buffer_body_max: usize,
    /// How long a request waits for the lock store at most; 10 ms to 1 min, by default 2 s.
    pub confirm_timeout: Duration,
    /// Templated locks kept in memory per source; 1 to 10,000,000, by default 100,000.
    pub tracked_locks_max: usize,
    /// How long a terminating process goes on accepting; 0 s to 10 min, by default 5 s.
    pub drain_delay: Duration,
    /// How long a terminating process then waits for its requests; 0 s to 1 h, by default 30 s.
    pub drain_timeout: Duration,
}

impl Limits {
    /// What one client address may have of so many connections, where nothing else is said: all but a hundredth, and at least one.
    pub fn all_but_a_few(connections_max: usize) -> usize {
        (connections_max - connections_max.div_ceil(100)).max(1)
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections_max: 10_000,
            connections_per_client_max: 9_900,
            requests_per_connection_max: None,
            header_bytes_max: 64 << 10,
            headers_max: 100,
            h2_streams_max: 128,
            h2_resets_max: 1_000,
            h2_control_frames_max: 10_000,
            handshake_timeout: Duration::from_secs(5),
            header_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(60),
            body_timeout: Duration::from_secs(30),
            body_rate_min: 128,
            body_bytes_max: None,
            connect_timeout: Duration::from_secs(2),
            upstream_idle_timeout: Duration::from_secs(1),
            upstream_connections_max: 1024,
            buffer_body_max: 64 << 10,
            confirm_timeout: Duration::from_secs(2),
            tracked_locks_max: 100_000,
            drain_delay: Duration::from_secs(5),
            drain_timeout: Duration::from_secs(30),
        }
    }
}
