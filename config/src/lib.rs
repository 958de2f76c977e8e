//! The configuration of fencepost: the file as written, checked and typed.
//!
//! [`Config::from_toml`] reads a file and [`Config::from_flags`] the command line. Both report
//! every [`Problem`] at once, each with its place. A [`Config`] needs no more checks.
//! `docs/configuration.md` describes every key.
//!
//! Read in this order: the reader (`reader`), a table of the file (`limits`), the whole file
//! (`config`), routes (`route`, `check_routes`), and which route a request meets (`routing`).

mod flags;
mod foreign;
mod include;
mod places;
mod problem;
mod reader;
mod units;
mod variables;

mod address;
mod captures;
mod lock_template;
mod path_template;
mod percent;
mod prefixes;

mod group;
mod limits;
mod listening;
mod proxies;
mod records;
mod source;
mod tls;
mod upstream;

mod identity;
mod lock;
mod rewrite;
mod route;
mod token_header;

mod check_locks;
mod check_routes;
mod config;
mod difference;

mod index;
mod routes;
mod routing;

#[cfg(test)]
mod reference;

pub use address::{Address, HostPort};
pub use captures::{Capture, Captures};
pub use config::Config;
pub use difference::{Change, Difference};
pub use flags::Flags;
pub use group::Group;
pub use identity::{OwnerPattern, PeerIdentity, PeerNameKind};
pub use include::{Included, included_by};
pub use index::LockIndex;
pub use limits::Limits;
pub use listening::{Admin, Listener};
pub use lock::{Lock, Record};
pub use lock_template::LockTemplate;
pub use path_template::{PathMatch, PathTemplate};
pub use places::Places;
pub use problem::{Problem, Problems};
pub use proxies::{ForwardedFields, Proxies};
pub use records::{AccessLog, AccessLogFormat, AccessLogTarget, Decisions};
pub use rewrite::{HeaderEdits, Rewrite, UpstreamHost};
pub use route::{
    Freshness, Mode, OnHandoffTimeout, OnUnavailable, PartialRequests, Route, StaleStatus,
};
pub use routes::Routes;
pub use routing::Routing;
pub use source::{
    EtcdUser, Lapsed, MysqlSource, PostgresSource, Source, SourceKind, SqlLogin, ZookeeperUser,
};
pub use tls::{ClientCertificates, ClientTls, Identity, ServerTls, TlsVersion};
pub use token_header::{folds_alike, parse_token_header};
pub use upstream::{Upstream, UpstreamAddress, UpstreamProtocol, UpstreamTls};
