//! The configuration as it is written: every key of the file once, none of them judged.

use std::time::Duration;

use toml::de::DeTable;

use crate::config::Config;
use crate::listening::{RawAdmin, RawListener};
use crate::problem::{Notes, Problems};
use crate::reader::Table;
use crate::records::{RawAccessLog, RawDecisions};
use crate::setting::Setting;
use crate::tls::RawClientTls;

/// Reads and checks a file.
pub(crate) fn read_toml(file_name: &str, text: &str) -> Result<Config, Problems> {
    let notes = Notes::for_file(file_name, text);
    let (document, errors) = DeTable::parse_recoverable(text);
    for error in &errors {
        let offset = error.span().map_or(text.len(), |span| span.start);
        // Its message alone does not say which.
        let key = error.span().and_then(|span| text.get(span)).filter(|_| error.message() == "duplicate key");
        let key = key.map(|key| format!(": {key}")).unwrap_or_default();
        notes.syntax_problem(text, offset, &format!("{}{key}", error.message()));
    }
    let config = if errors.is_empty() {
        let mut table = Table::root(&notes, document.get_ref());
        let raw = RawConfig::read(&mut table);
        table.finish();
        crate::check::check(raw, &notes)
    } else {
        None
    };
    let (warnings, places) = notes.finish()?;
    let config = config.expect("a file without problems makes a configuration");
    Ok(Config { warnings, places, ..config })
}

/// The whole file.
pub(crate) struct RawConfig {
    pub(crate) state_dir: Setting<String>,
    pub(crate) threads: Setting<i64>,
    pub(crate) admin: RawAdmin,
    pub(crate) listeners: Setting<Vec<RawListener>>,
    pub(crate) limits: RawLimits,
    pub(crate) decisions: RawDecisions,
    pub(crate) access_log: RawAccessLog,
    pub(crate) sources: Setting<Vec<RawSource>>,
    pub(crate) routes: Setting<Vec<RawRoute>>,
}

impl RawConfig {
    pub(crate) fn read(table: &mut Table<'_>) -> RawConfig {
        RawConfig {
            state_dir: table.string("state_dir"),
            threads: table.integer("threads"),
            admin: whole(table.table_or_empty("admin"), RawAdmin::read),
            listeners: each(table.tables("listener"), RawListener::read),
            limits: whole(table.table_or_empty("limits"), RawLimits::read),
            decisions: whole(table.table_or_empty("decisions"), RawDecisions::read),
            access_log: whole(table.table_or_empty("access_log"), RawAccessLog::read),
            sources: table.named_tables("source").map(|sources| {
                let read = |(name, source)| whole(source, |table| RawSource::read(name, table));
                sources.into_iter().map(read).collect()
            }),
            routes: each(table.tables("route"), RawRoute::read),
        }
    }
}

/// `[limits]`.
pub(crate) struct RawLimits {
    pub(crate) connections_max: Setting<i64>,
    pub(crate) connections_per_client_max: Setting<i64>,
    pub(crate) requests_per_connection_max: Setting<i64>,
    pub(crate) header_bytes_max: Setting<i64>,
    pub(crate) headers_max: Setting<i64>,
    pub(crate) h2_streams_max: Setting<i64>,
    pub(crate) h2_resets_max: Setting<i64>,
    pub(crate) h2_control_frames_max: Setting<i64>,
    pub(crate) handshake_timeout: Setting<Duration>,
    pub(crate) header_timeout: Setting<Duration>,
    pub(crate) idle_timeout: Setting<Duration>,
    pub(crate) body_timeout: Setting<Duration>,
    pub(crate) body_rate_min: Setting<i64>,
    pub(crate) body_bytes_max: Setting<i64>,
    pub(crate) connect_timeout: Setting<Duration>,
    pub(crate) upstream_idle_timeout: Setting<Duration>,
    pub(crate) upstream_connections_max: Setting<i64>,
    pub(crate) buffer_body_max: Setting<i64>,
    pub(crate) confirm_timeout: Setting<Duration>,
    pub(crate) tracked_locks_max: Setting<i64>,
    pub(crate) drain_delay: Setting<Duration>,
    pub(crate) drain_timeout: Setting<Duration>,
}

impl RawLimits {
    pub(crate) fn read(table: &mut Table<'_>) -> RawLimits {
        RawLimits {
            connections_max: table.integer("connections_max"),
            connections_per_client_max: table.integer("connections_per_client_max"),
            requests_per_connection_max: table.integer("requests_per_connection_max"),
            header_bytes_max: table.size("header_bytes_max"),
            headers_max: table.integer("headers_max"),
            h2_streams_max: table.integer("h2_streams_max"),
            h2_resets_max: table.integer("h2_resets_max"),
            h2_control_frames_max: table.integer("h2_control_frames_max"),
            handshake_timeout: table.duration("handshake_timeout"),
            header_timeout: table.duration("header_timeout"),
            idle_timeout: table.duration("idle_timeout"),
            body_timeout: table.duration("body_timeout"),
            body_rate_min: table.size("body_rate_min"),
            body_bytes_max: table.size("body_bytes_max"),
            connect_timeout: table.duration("connect_timeout"),
            upstream_idle_timeout: table.duration("upstream_idle_timeout"),
            upstream_connections_max: table.integer("upstream_connections_max"),
            buffer_body_max: table.size("buffer_body_max"),
            confirm_timeout: table.duration("confirm_timeout"),
            tracked_locks_max: table.integer("tracked_locks_max"),
            drain_delay: table.duration("drain_delay"),
            drain_timeout: table.duration("drain_timeout"),
        }
    }
}

/// `[source.NAME]`.
pub(crate) struct RawSource {
    pub(crate) name: Setting<String>,
    pub(crate) kind: Setting<String>,
    pub(crate) endpoints: Setting<Vec<Setting<String>>>,
    pub(crate) cluster_id: Setting<String>,
    pub(crate) tls: Setting<RawClientTls>,
    pub(crate) username: Setting<String>,
    pub(crate) password_file: Setting<String>,
}

impl RawSource {
    pub(crate) fn read(name: String, table: &mut Table<'_>) -> RawSource {
        RawSource {
            name: Setting::given(table.place().clone(), name),
            kind: table.string("kind"),
            endpoints: table.strings("endpoints"),
            cluster_id: table.string("cluster_id"),
            tls: table.table("tls").map(|tls| whole(tls, RawClientTls::read)),
            username: table.string("username"),
            password_file: table.string("password_file"),
        }
    }
}

/// `[[route]]`.
pub(crate) struct RawRoute {
    pub(crate) name: Setting<String>,
    pub(crate) path: Setting<String>,
    pub(crate) host: Setting<String>,
    pub(crate) upstream: Setting<String>,
    pub(crate) upstream_tls: Setting<RawClientTls>,
    pub(crate) mode: Setting<String>,
    pub(crate) lock: Setting<RawLock>,
    pub(crate) identity: Setting<RawIdentity>,
    pub(crate) exempt_methods: Setting<Vec<Setting<String>>>,
    pub(crate) freshness: Setting<String>,
    pub(crate) max_age: Setting<Duration>,
    pub(crate) handoff_timeout: Setting<Duration>,
    pub(crate) orphan_timeout: Setting<Duration>,
    pub(crate) upstream_timeout: Setting<Duration>,
    pub(crate) request_timeout: Setting<Duration>,
    pub(crate) stale_status: Setting<i64>,
    pub(crate) on_unavailable: Setting<String>,
    pub(crate) on_handoff_timeout: Setting<String>,
    pub(crate) partial_requests: Setting<String>,
    pub(crate) streaming: Setting<bool>,
    pub(crate) verdict_header: Setting<bool>,
    pub(crate) owner_header: Setting<String>,
    pub(crate) revision_header: Setting<String>,
    pub(crate) lock_header: Setting<String>,
}

impl RawRoute {
    pub(crate) fn read(table: &mut Table<'_>) -> RawRoute {
        let name = table.string("name");
        if let Some(name) = name.value().filter(|name| crate::check::is_name(name)) {
            table.rename(format!("route.{name}"));
        }
        RawRoute {
            name,
            path: table.string("path"),
            host: table.string("host"),
            upstream: table.string("upstream"),
            upstream_tls: table.table("upstream_tls").map(|tls| whole(tls, RawClientTls::read)),
            mode: table.string("mode"),
            lock: table.table("lock").map(|lock| whole(lock, RawLock::read)),
            identity: table.table("identity").map(|identity| whole(identity, RawIdentity::read)),
            exempt_methods: table.strings("exempt_methods"),
            freshness: table.string("freshness"),
            max_age: table.duration("max_age"),
            handoff_timeout: table.duration("handoff_timeout"),
            orphan_timeout: table.duration("orphan_timeout"),
            upstream_timeout: table.duration("upstream_timeout"),
            request_timeout: table.duration("request_timeout"),
            stale_status: table.integer("stale_status"),
            on_unavailable: table.string("on_unavailable"),
            on_handoff_timeout: table.string("on_handoff_timeout"),
            partial_requests: table.string("partial_requests"),
            streaming: table.boolean("streaming"),
            verdict_header: table.boolean("verdict_header"),
            owner_header: table.string("owner_header"),
            revision_header: table.string("revision_header"),
            lock_header: table.string("lock_header"),
        }
    }
}

/// `lock = { … }` of a route.
pub(crate) struct RawLock {
    pub(crate) source: Setting<String>,
    pub(crate) key: Setting<String>,
    pub(crate) from_header: Setting<bool>,
    pub(crate) layout: Setting<String>,
    pub(crate) free_values: Setting<Vec<Setting<String>>>,
    pub(crate) owner_field: Setting<String>,
}

impl RawLock {
    pub(crate) fn read(table: &mut Table<'_>) -> RawLock {
        RawLock {
            source: table.string("source"),
            key: table.string("key"),
            from_header: table.boolean("from_header"),
            layout: table.string("layout"),
            free_values: table.strings("free_values"),
            owner_field: table.string("owner_field"),
        }
    }
}

/// `identity = { … }` of a route.
pub(crate) struct RawIdentity {
    pub(crate) uri: Setting<String>,
    pub(crate) dns: Setting<String>,
    pub(crate) common_name: Setting<String>,
    pub(crate) take_owner: Setting<bool>,
}

impl RawIdentity {
    pub(crate) fn read(table: &mut Table<'_>) -> RawIdentity {
        RawIdentity {
            uri: table.string("uri"),
            dns: table.string("dns"),
            common_name: table.string("common_name"),
            take_owner: table.boolean("take_owner"),
        }
    }
}

/// A table of the file, read by `read`, which asks for each key that it may have.
pub(crate) fn whole<'t, T>(mut table: Table<'t>, read: impl FnOnce(&mut Table<'t>) -> T) -> T {
    let raw = read(&mut table);
    table.finish();
    raw
}

fn each<'t, T>(tables: Setting<Vec<Table<'t>>>, read: impl Fn(&mut Table<'t>) -> T) -> Setting<Vec<T>> {
    tables.map(|tables| tables.into_iter().map(|table| whole(table, &read)).collect())
}
