//! The configuration of fencepost: as written → checked → typed.
//!
//! [`Config::from_toml`] reads a file and [`Config::from_flags`] the command line. Both make raw settings, each
//! with its place, and check them all, so that every [`Problem`] is known at once; what comes out needs no more
//! checks. `REFERENCE.md` beside this crate describes every key.
//!
//! Read in this order: what comes out ([`Config`], [`Route`], [`PathTemplate`], [`LockTemplate`]); which route a
//! request meets ([`Config::route`]); how a file is read (`reader`, `raw`) and checked (`check` and its kin).

mod config;

mod address;
mod captures;
mod identity;
mod listening;
mod lock_template;
mod path_template;
mod percent;
mod records;
mod route;
mod routes;
mod routing;
mod upstream;

mod index;
mod trie;

mod difference;
mod shown;

mod places;
mod problem;
mod reader;
mod setting;
mod tls;
mod units;

mod flags;
mod raw;

mod check;
mod check_identity;
mod check_lock;
mod check_locks;
mod check_route;
mod check_routes;
mod check_source;
mod check_upstream;

#[cfg(test)]
mod reference;

pub use address::{Address, HostPort};
pub use captures::{Capture, Captures};
pub use check_route::{folds_alike, parse_token_header};
pub use config::{Config, EtcdUser, Limits, Source, SourceKind};
pub use difference::{Change, Difference};
pub use flags::Flags;
pub use identity::{OwnerPattern, PeerIdentity, PeerNameKind};
pub use index::{CoverIndex, LockIndex, OverlapIndex};
pub use listening::{Admin, Listener};
pub use lock_template::LockTemplate;
pub use path_template::{PathMatch, PathTemplate};
pub use places::Places;
pub use problem::{Problem, Problems};
pub use records::{AccessLog, AccessLogFormat, AccessLogTarget, Decisions};
pub use route::{Freshness, Lock, Mode, OnHandoffTimeout, OnUnavailable, PartialRequests, Record, Route, StaleStatus};
pub use routes::Routes;
pub use routing::Routing;
pub use tls::{ClientCertificates, ClientTls, Identity, ServerTls, TlsVersion};
pub use upstream::{Upstream, UpstreamAddress, UpstreamProtocol, UpstreamTls};
