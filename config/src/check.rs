//! From what is written to what it means, for everything but routes.

use std::fmt::Display;
use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::check_routes::check_routes;
use crate::check_source::check_source;
use crate::config::{Config, Limits, Source};
use crate::listening::check_listeners;
use crate::places::Places;
use crate::problem::{Notes, Place};
use crate::raw::{RawConfig, RawLimits, RawSource};
use crate::route::{Mode, Route};
use crate::routes::Routes;
use crate::setting::Setting;
use crate::units::{show_duration, show_size};

/// The configuration that is written, without its warnings. Without one, there is at least one problem.
pub(crate) fn check(raw: RawConfig, notes: &Notes) -> Option<Config> {
    let RawConfig { state_dir, threads, admin, listeners, limits, decisions, access_log, sources, routes } = raw;
    let threads = threads.within(notes, 1..=1024, i64::to_string).into_value();
    let admin = admin.check(notes);
    let listeners = check_listeners(listeners, &admin, notes);
    let limits = check_limits(limits, notes);
    let decisions = decisions.check(notes);
    let access_log = access_log.check(notes);
    let sources = check_sources(sources, notes);
    let routes = check_routes(routes, &sources, (&listeners, admin.as_ref()), notes);
    let state_dir = check_state_dir(state_dir, routes.as_deref().unwrap_or_default(), notes);
    Some(Config {
        state_dir,
        threads: threads.and_then(|count| NonZeroUsize::new(usize::try_from(count).ok()?)),
        admin,
        listeners,
        limits,
        decisions,
        access_log,
        sources: sources.into_iter().map(|declared| declared.source).collect::<Option<_>>()?,
        routes: Routes::new(routes?),
        warnings: Vec::new(),
        places: Places::default(),
    })
}

fn check_state_dir(raw: Setting<String>, routes: &[Route], notes: &Notes) -> Option<PathBuf> {
    let fences = routes.iter().any(|route| matches!(route.mode, Mode::Enforce(_)));
    if !raw.is_written() && fences {
        let text =
            "without state_dir a start promises nothing about requests that an earlier process left at the worker";
        notes.warning(&raw.place, text);
    }
    raw.parse(notes, |text| parse_state_dir(&text)).into_value()
}

fn parse_state_dir(text: &str) -> Result<PathBuf, String> {
    let path = Path::new(text);
    // What a relative path means would depend on where the process was started: the next one would find nothing.
    if !path.is_absolute() || text.contains(char::is_control) {
        return Err(format!(r#"must be the absolute path of a directory, like "/var/lib/fencepost", not {text:?}"#));
    }
    Ok(path.to_owned())
}

fn check_limits(raw: RawLimits, notes: &Notes) -> Limits {
    let RawLimits {
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
    } = raw;
    let default = Limits::default();
    let count = |setting, range, default| number(setting, range, i64::to_string, notes).unwrap_or(default);
    let size = |setting, range, default| number(setting, range, show_size, notes).unwrap_or(default);
    let time = |setting: Setting<Duration>, range, default| setting.within(notes, range, show_duration).or(default);
    let connections_max: usize = count(connections_max, 1..=1_000_000, default.connections_max);
    let all_but_a_few = Limits::all_but_a_few(connections_max);
    Limits {
        connections_max,
        connections_per_client_max: count(connections_per_client_max, 1..=1_000_000, all_but_a_few),
        requests_per_connection_max: number(requests_per_connection_max, 1..=1_000_000, i64::to_string, notes),
        header_bytes_max: size(header_bytes_max, 8 << 10..=1 << 20, default.header_bytes_max),
        headers_max: count(headers_max, 16..=1_000, default.headers_max),
        h2_streams_max: number(h2_streams_max, 1..=10_000, i64::to_string, notes).unwrap_or(default.h2_streams_max),
        h2_resets_max: number(h2_resets_max, 1..=100_000, i64::to_string, notes).unwrap_or(default.h2_resets_max),
        h2_control_frames_max: number(h2_control_frames_max, 100..=1_000_000, i64::to_string, notes)
            .unwrap_or(default.h2_control_frames_max),
        handshake_timeout: time(handshake_timeout, millis(100)..=minutes(1), default.handshake_timeout),
        header_timeout: time(header_timeout, millis(100)..=minutes(10), default.header_timeout),
        idle_timeout: time(idle_timeout, millis(100)..=minutes(60), default.idle_timeout),
        body_timeout: time(body_timeout, millis(100)..=minutes(60), default.body_timeout),
        body_rate_min: number(body_rate_min, 0..=1 << 20, show_size, notes).unwrap_or(default.body_rate_min),
        body_bytes_max: number(body_bytes_max, 0..=1 << 40, show_size, notes),
        connect_timeout: time(connect_timeout, millis(10)..=minutes(1), default.connect_timeout),
        upstream_idle_timeout: time(upstream_idle_timeout, millis(10)..=minutes(10), default.upstream_idle_timeout),
        upstream_connections_max: count(upstream_connections_max, 1..=100_000, default.upstream_connections_max),
        buffer_body_max: size(buffer_body_max, 0..=16 << 20, default.buffer_body_max),
        confirm_timeout: time(confirm_timeout, millis(10)..=minutes(1), default.confirm_timeout),
        tracked_locks_max: count(tracked_locks_max, 1..=10_000_000, default.tracked_locks_max),
        drain_delay: time(drain_delay, millis(0)..=minutes(10), default.drain_delay),
        drain_timeout: time(drain_timeout, millis(0)..=minutes(60), default.drain_timeout),
    }
}

fn number<N: TryFrom<i64>, S: Display>(
    setting: Setting<i64>,
    range: RangeInclusive<i64>,
    show: impl Fn(&i64) -> S,
    notes: &Notes,
) -> Option<N> {
    setting.within(notes, range, show).into_value().and_then(|number| N::try_from(number).ok())
}

pub(crate) const fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

pub(crate) const fn minutes(count: u64) -> Duration {
    Duration::from_secs(60 * count)
}

/// A source that the file declares; `None` if something is wrong with it, so that routes can name it all the same.
pub(crate) struct DeclaredSource {
    pub(crate) name: String,
    pub(crate) source: Option<Source>,
    pub(crate) place: Place,
}

fn check_sources(raw: Setting<Vec<RawSource>>, notes: &Notes) -> Vec<DeclaredSource> {
    raw.or(Vec::new()).into_iter().filter_map(|source| check_source(source, notes)).collect()
}

/// What the name of a route or source may be: it is a metric label.
pub(crate) fn is_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
}

pub(crate) const NAME_RULE: &str = "a name has 1 to 64 of A-Z, a-z, 0-9, _ and -: it is a metric label";
