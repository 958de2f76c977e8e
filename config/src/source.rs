//! `[source.NAME]`: a lock store.

mod consul;
mod etcd;
mod kubernetes;
mod sql;
mod zookeeper;

use std::path::PathBuf;
use std::time::Duration;

pub use self::etcd::EtcdUser;
pub use self::sql::{Lapsed, MysqlSource, PostgresSource, SqlLogin};
pub use self::zookeeper::ZookeeperUser;
use crate::address::HostPort;
use crate::problem::Place;
use crate::reader::{Table, nearest, one_of, parse_name};
use crate::tls::ClientTls;

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
    /// Consul: locks that sessions hold.
    Consul {
        /// An agent, or a server.
        address: HostPort,
        /// What it is reached with; `None`: in cleartext.
        tls: Option<Box<ClientTls>>,
        /// The file of the token; `None`: without one.
        token_file: Option<PathBuf>,
    },
    /// An API server of Kubernetes: Leases.
    Kubernetes {
        /// The server; `None`: that of the cluster in whose pod this process runs.
        address: Option<HostPort>,
        /// What it is reached with; `None`: as pods do.
        tls: Option<Box<ClientTls>>,
        /// The file of the token; `None`: the pod's, or none beside an address.
        token_file: Option<PathBuf>,
    },
    /// A ZooKeeper ensemble.
    Zookeeper {
        /// Its servers; at least one, none twice.
        servers: Vec<HostPort>,
        /// How long the ensemble is to keep a session without contact.
        session_timeout: Duration,
        /// Who we are under the scheme `digest`; `None`: nobody.
        user: Option<ZookeeperUser>,
    },
    /// PostgreSQL: locks in tables.
    Postgres(Box<PostgresSource>),
    /// MySQL or MariaDB: locks in tables.
    Mysql(Box<MysqlSource>),
    /// A store in this process, for demonstrations.
    Memory,
}

/// Reads the keys of one kind; `None` if what is written there makes no source.
type ReadKind = fn(&mut Table<'_>) -> Option<SourceKind>;

const KINDS: &[(&str, ReadKind)] = &[
    ("etcd", etcd::read),
    ("consul", consul::read),
    ("kubernetes", kubernetes::read),
    ("zookeeper", zookeeper::read),
    ("postgres", sql::read_postgres),
    ("mysql", sql::read_mysql),
    ("memory", read_memory),
];

const NO_MEMORY_KEY: &str =
    r#"a source of kind "memory" is in this process and connects to nothing: leave it out"#;

impl SourceKind {
    /// The name of the kind, as the file has it.
    pub fn name(&self) -> &'static str {
        match self {
            SourceKind::Etcd { .. } => "etcd",
            SourceKind::Consul { .. } => "consul",
            SourceKind::Kubernetes { .. } => "kubernetes",
            SourceKind::Zookeeper { .. } => "zookeeper",
            SourceKind::Postgres(_) => "postgres",
            SourceKind::Mysql(_) => "mysql",
            SourceKind::Memory => "memory",
        }
    }

    /// What its servers are reached with; `None`: in cleartext, or it is no server.
    pub fn tls(&self) -> Option<&ClientTls> {
        match self {
            SourceKind::Etcd { tls, .. }
            | SourceKind::Consul { tls, .. }
            | SourceKind::Kubernetes { tls, .. } => tls.as_deref(),
            SourceKind::Postgres(source) => source.tls.as_ref(),
            SourceKind::Zookeeper { .. } | SourceKind::Mysql(_) | SourceKind::Memory => None,
        }
    }

    /// How its records can be laid out. A lock that says nothing has the first of these.
    pub fn layouts(&self) -> &'static [&'static str] {
        match self {
            SourceKind::Etcd { .. } | SourceKind::Zookeeper { .. } | SourceKind::Memory => {
                &["key", "election", "mutex"]
            }
            SourceKind::Consul { .. } => &["key"],
            SourceKind::Kubernetes { .. } => &["lease"],
            SourceKind::Postgres(_) | SourceKind::Mysql(_) => &["counter"],
        }
    }
}

impl Source {
    /// The source, and where it is written. One with a problem is in the list all the same, so that
    /// routes can name it.
    pub(crate) fn read((name, mut t): (String, Table<'_>)) -> (Source, Place) {
        if let Err(problem) = parse_name(&name) {
            t.notes.problem(&t.place, problem);
        }
        let what = "what keeps the locks, like \"etcd\"";
        let read = t.required("kind", what, |kind| one_of(kind, KINDS));
        let kind = read.and_then(|read| read(&mut t)).unwrap_or(SourceKind::Memory);
        if read.is_some() {
            t.finish();
        }
        (Source { name, kind }, t.place)
    }
}

fn read_memory(t: &mut Table<'_>) -> Option<SourceKind> {
    for key in t.written(&etcd::KEYS) {
        t.problem(key, NO_MEMORY_KEY);
    }
    Some(SourceKind::Memory)
}

/// Which of the sources has that name.
pub(crate) fn find_source(name: &str, sources: &[Source]) -> Result<usize, String> {
    sources.iter().position(|source| source.name == name).ok_or_else(|| {
        let near = nearest(name, sources.iter().map(|source| source.name.as_str()));
        let hint = near.map(|near| format!("; did you mean {near:?}?"));
        let hint = hint.unwrap_or_else(|| format!(": [source.{name}] is missing"));
        format!("there is no source {name:?}{hint}")
    })
}
