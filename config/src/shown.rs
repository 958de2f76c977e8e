//! The settings of a configuration, in the words of the file.

use std::fmt;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use crate::config::{Config, Limits, Source, SourceKind};
use crate::identity::{PeerIdentity, PeerNameKind};
use crate::listening::Listener;
use crate::records::{AccessLog, AccessLogFormat, AccessLogTarget, Decisions};
use crate::route::{Freshness, Lock, Mode, OnHandoffTimeout, OnUnavailable, PartialRequests, Record, Route};
use crate::tls::ClientTls;
use crate::units::show_duration;
use crate::upstream::{UpstreamProtocol, UpstreamTls};

/// A table of the file, with all its keys, defaults included.
pub(crate) struct Table {
    /// `source.main`, `route.shards`, `limits`; empty at the top level.
    pub(crate) name: String,
    pub(crate) settings: Vec<Setting>,
}

/// A key, and what is said of it.
pub(crate) struct Setting {
    pub(crate) key: &'static str,
    pub(crate) value: String,
    /// Whether a running process can follow it.
    pub(crate) follows: bool,
}

impl Table {
    fn new(name: String, follows: Vec<(&'static str, String)>, needs_restart: Vec<(&'static str, String)>) -> Table {
        let settings = |list: Vec<(&'static str, String)>, follows| {
            list.into_iter().map(move |(key, value)| Setting { key, value, follows })
        };
        Table { name, settings: settings(follows, true).chain(settings(needs_restart, false)).collect() }
    }
}

impl Config {
    /// Every setting in force, defaults included: the name of its table (`limits`, `route.shards`; empty at the top level), its key,
    /// and its value in the words of the file, but for the quotes.
    pub fn settings(&self) -> impl Iterator<Item = (String, &'static str, String)> {
        tables(self).into_iter().flat_map(|Table { name, settings }| {
            settings.into_iter().map(move |Setting { key, value, .. }| (name.clone(), key, value))
        })
    }
}

/// What is shown of a key that is not set.
pub(crate) const NONE: &str = "none";

/// As it is written, but for the quotes.
fn time(duration: &Duration) -> String {
    show_duration(duration).trim_matches('"').to_owned()
}

fn or_none(value: Option<impl fmt::Display>) -> String {
    value.map_or_else(|| NONE.to_owned(), |value| value.to_string())
}

/// A name that reads like nothing is quoted, so that it is told from nothing.
fn name_or_none(name: Option<&String>) -> String {
    name.map_or_else(|| NONE.to_owned(), |name| if name == NONE { format!("{name:?}") } else { name.clone() })
}

fn list(values: impl IntoIterator<Item = impl fmt::Display>) -> String {
    let values: Vec<String> = values.into_iter().map(|value| value.to_string()).collect();
    format!("[{}]", values.join(", "))
}

/// Every table. Each key must be said to follow a reload or not: there is no `..` here.
pub(crate) fn tables(config: &Config) -> Vec<Table> {
    let Config {
        state_dir,
        threads,
        admin,
        listeners,
        limits,
        decisions,
        access_log,
        sources,
        routes,
        warnings: _,
        places: _,
    } = config;
    let mut addresses: Vec<String> = listeners.iter().map(|listener| listener.address.to_string()).collect();
    let by_tls = |listener: &Listener| listener.tls.as_ref().map(|tls| format!("{}: {tls}", listener.address));
    let mut tls: Vec<String> = listeners.iter().filter_map(by_tls).collect();
    addresses.sort_unstable(); // In whatever order they are written.
    tls.sort_unstable();
    let process = vec![
        ("state_dir", or_none(state_dir.as_ref().map(|path| path.display()))),
        ("threads", or_none(*threads)),
        ("admin.listen", admin.as_ref().map_or_else(|| "off".to_owned(), |admin| admin.address.to_string())),
        ("admin.tls", or_none(admin.as_ref().and_then(|admin| admin.tls.as_ref()))),
        ("admin.dangerous_unprotected", admin.as_ref().is_some_and(|admin| admin.dangerous_unprotected).to_string()),
        ("listener.address", list(addresses)),
        ("listener.tls", list(tls)),
    ];
    let whole = [
        Table::new(String::new(), Vec::new(), process),
        limits_table(limits),
        decisions_table(decisions),
        access_log_table(access_log.as_ref()),
    ];
    let sources_and_routes =
        sources.iter().map(source_table).chain(routes.iter().map(|route| route_table(route, sources)));
    whole.into_iter().chain(sources_and_routes).collect()
}

fn limits_table(limits: &Limits) -> Table {
    let Limits {
        connections_max,
        connections_per_client_max,
        requests_per_connection_max,
        header_bytes_max,
        headers_max,
        h2_streams_max,
        h2_resets_max,
        h2_control_frames_max,
        handshake_timeout,
        header_timeout,
        idle_timeout,
        body_timeout,
        body_rate_min,
        body_bytes_max,
        connect_timeout,
        upstream_idle_timeout,
        upstream_connections_max,
        buffer_body_max,
        confirm_timeout,
        tracked_locks_max,
        drain_delay,
        drain_timeout,
    } = limits;
    let follows = vec![
        ("connect_timeout", time(connect_timeout)),
        ("upstream_idle_timeout", time(upstream_idle_timeout)),
        ("upstream_connections_max", upstream_connections_max.to_string()),
        ("buffer_body_max", buffer_body_max.to_string()),
        ("confirm_timeout", time(confirm_timeout)),
        ("drain_delay", time(drain_delay)),
        ("drain_timeout", time(drain_timeout)),
    ];
    // The listeners are made with theirs, and caches with their size.
    let needs_restart = vec![
        ("connections_max", connections_max.to_string()),
        ("connections_per_client_max", connections_per_client_max.to_string()),
        ("requests_per_connection_max", or_none(*requests_per_connection_max)),
        ("header_bytes_max", header_bytes_max.to_string()),
        ("headers_max", headers_max.to_string()),
        ("h2_streams_max", h2_streams_max.to_string()),
        ("h2_resets_max", h2_resets_max.to_string()),
        ("h2_control_frames_max", h2_control_frames_max.to_string()),
        ("handshake_timeout", time(handshake_timeout)),
        ("header_timeout", time(header_timeout)),
        ("idle_timeout", time(idle_timeout)),
        ("body_timeout", time(body_timeout)),
        ("body_rate_min", body_rate_min.to_string()),
        ("body_bytes_max", or_none(*body_bytes_max)),
        ("tracked_locks_max", tracked_locks_max.to_string()),
    ];
    Table::new("limits".to_owned(), follows, needs_restart)
}

fn decisions_table(decisions: &Decisions) -> Table {
    let Decisions { kept, admissions_one_in } = decisions;
    let one_in = admissions_one_in.map_or(0, NonZeroU32::get);
    let follows = vec![("kept", kept.to_string()), ("admissions_one_in", one_in.to_string())];
    Table::new("decisions".to_owned(), follows, Vec::new())
}

fn access_log_table(access_log: Option<&AccessLog>) -> Table {
    let settings = access_log.map(|AccessLog { target, format, one_in, queries }| {
        let path = match target {
            AccessLogTarget::Stdout => "stdout".to_owned(),
            AccessLogTarget::Stderr => "stderr".to_owned(),
            AccessLogTarget::File(path) => path.display().to_string(),
        };
        let format = match format {
            AccessLogFormat::Json => "json",
            AccessLogFormat::Combined => "combined",
        };
        let (one_in, queries) = (one_in.to_string(), queries.to_string());
        vec![("path", path), ("format", format.to_owned()), ("one_in", one_in), ("queries", queries)]
    });
    let settings = settings.unwrap_or_else(|| vec![("path", NONE.to_owned())]);
    Table::new("access_log".to_owned(), settings, Vec::new())
}

fn source_table(source: &Source) -> Table {
    let Source { name, kind } = source;
    let (follows, needs_restart) = match kind {
        SourceKind::Etcd { endpoints, cluster_id, tls, user } => {
            let scheme = if tls.is_some() { "https://" } else { "http://" };
            let endpoints = list(endpoints.iter().map(|endpoint| format!("{scheme}{endpoint}")));
            let access = [("endpoints", endpoints)].into_iter().chain(tls_settings(tls.as_deref())).chain([
                ("username", name_or_none(user.as_ref().map(|user| &user.name))),
                ("password_file", or_none(user.as_ref().map(|user| user.password_file.display()))),
            ]);
            let cluster_id = or_none(cluster_id.map(|id| format!("{id:x}")));
            (access.collect(), vec![("kind", "etcd".to_owned()), ("cluster_id", cluster_id)])
        }
        SourceKind::Memory => (Vec::new(), vec![("kind", "memory".to_owned())]),
    };
    Table::new(format!("source.{name}"), follows, needs_restart)
}

/// `tls` of a source.
fn tls_settings(tls: Option<&ClientTls>) -> [(&'static str, String); 5] {
    let path = |path: Option<&PathBuf>| or_none(path.map(|path| path.display()));
    let identity = tls.and_then(|tls| tls.identity.as_ref());
    [
        ("tls.ca", path(tls.map(|tls| &tls.ca))),
        ("tls.crl", path(tls.and_then(|tls| tls.crl.as_ref()))),
        ("tls.certificate", path(identity.map(|identity| &identity.certificate))),
        ("tls.key", path(identity.map(|identity| &identity.key))),
        ("tls.server_name", name_or_none(tls.and_then(|tls| tls.server_name.as_ref()))),
    ]
}

fn route_table(route: &Route, sources: &[Source]) -> Table {
    let Route {
        name,
        host,
        path,
        upstream,
        mode,
        identity,
        exempt_methods,
        freshness,
        max_age,
        handoff_timeout,
        orphan_timeout,
        upstream_timeout,
        request_timeout,
        stale_status,
        on_unavailable,
        on_handoff_timeout,
        partial_requests,
        streaming,
        verdict_header,
        owner_header,
        revision_header,
        lock_header,
    } = route;
    let freshness = match freshness {
        Freshness::Cached => "cached",
        Freshness::Linearizable => "linearizable",
    };
    let on_unavailable = match on_unavailable {
        OnUnavailable::Reject => "reject",
        OnUnavailable::DangerousAdmit => "dangerous_admit",
    };
    let on_handoff_timeout = match on_handoff_timeout {
        OnHandoffTimeout::Reject => "reject",
        OnHandoffTimeout::DangerousProceed => "dangerous_proceed",
    };
    let partial_requests = match partial_requests {
        PartialRequests::Orphans => "orphans",
        PartialRequests::Harmless => "harmless",
    };
    let mut follows = vec![
        ("mode", mode.name().to_owned()),
        ("host", name_or_none(host.as_ref())),
        ("path", path.to_string()),
        ("upstream", upstream.to_string()),
        ("exempt_methods", list(exempt_methods)),
        ("freshness", freshness.to_owned()),
        ("max_age", time(max_age)),
        ("handoff_timeout", time(handoff_timeout)),
        ("orphan_timeout", time(orphan_timeout)),
        ("upstream_timeout", time(upstream_timeout)),
        ("request_timeout", or_none(request_timeout.as_ref().map(time))),
        ("stale_status", stale_status.status().as_u16().to_string()),
        ("on_unavailable", on_unavailable.to_owned()),
        ("on_handoff_timeout", on_handoff_timeout.to_owned()),
        ("partial_requests", partial_requests.to_owned()),
        ("streaming", streaming.to_string()),
        ("verdict_header", verdict_header.to_string()),
        ("owner_header", owner_header.to_string()),
        ("revision_header", revision_header.to_string()),
        ("lock_header", lock_header.to_string()),
    ];
    match mode {
        Mode::Enforce(lock) | Mode::Shadow(lock) => follows.extend(lock_settings(lock, sources)),
        Mode::Off => {}
    }
    if let UpstreamProtocol::Tls(tls) = &upstream.protocol {
        follows.extend(upstream_tls_settings(tls));
    }
    follows.extend(identity.iter().flat_map(identity_settings));
    Table::new(format!("route.{name}"), follows, Vec::new())
}

/// The files by their names alone.
fn upstream_tls_settings(tls: &UpstreamTls) -> [(&'static str, String); 5] {
    let UpstreamTls { files: ClientTls { ca, crl, identity, server_name: _ }, server_name } = tls;
    let path = |path: Option<&PathBuf>| or_none(path.map(|path| path.display()));
    [
        ("upstream_tls.ca", path(Some(ca))),
        ("upstream_tls.crl", path(crl.as_ref())),
        ("upstream_tls.certificate", path(identity.as_ref().map(|identity| &identity.certificate))),
        ("upstream_tls.key", path(identity.as_ref().map(|identity| &identity.key))),
        ("upstream_tls.server_name", server_name.clone()),
    ]
}

fn lock_settings(lock: &Lock, sources: &[Source]) -> Vec<(&'static str, String)> {
    let Lock { source, key, from_header, record } = lock;
    let (free_values, owner_field) = match record {
        Record::Key { free_values, owner_field } => (free_values.as_slice(), owner_field.as_deref()),
        Record::Election | Record::Mutex => (&[][..], None),
    };
    vec![
        ("lock.source", sources[*source].name.clone()),
        ("lock.key", key.to_string()),
        ("lock.from_header", from_header.to_string()),
        ("lock.layout", record.layout().name().to_owned()),
        ("lock.free_values", format!("{free_values:?}")),
        ("lock.owner_field", or_none(owner_field.map(|field| format!("{field:?}")))),
    ]
}

fn identity_settings(identity: &PeerIdentity) -> [(&'static str, String); 2] {
    let PeerIdentity { pattern, take_owner } = identity;
    let key = match pattern.kind() {
        PeerNameKind::Uri => "identity.uri",
        PeerNameKind::Dns => "identity.dns",
        PeerNameKind::CommonName => "identity.common_name",
    };
    [(key, pattern.to_string()), ("identity.take_owner", take_owner.to_string())]
}
