//! The same configuration from the flags of the command line, for one worker behind one lock.

use crate::config::Config;
use crate::listening::RawListener;
use crate::problem::{Notes, Place, Problems};
use crate::raw::{RawConfig, RawLock, RawRoute, RawSource};
use crate::reader::Table;
use crate::setting::Setting;
use crate::units;

/// The flags of the command line, as they are written.
#[derive(Debug, Clone, Default)]
pub struct Flags {
    /// `--listen`, once or more: where requests are accepted.
    pub listen: Vec<String>,
    /// `--upstream`: the worker.
    pub upstream: Option<String>,
    /// `--etcd`, once or more: the members of the lock store.
    pub etcd: Vec<String>,
    /// `--lock`: the key of the lock.
    pub lock: Option<String>,
    /// `--layout`: `key`, `election` or `mutex`.
    pub layout: Option<String>,
    /// `--admin`: where the admin listener is.
    pub admin: Option<String>,
    /// `--state-dir`: where floors are kept across restarts.
    pub state_dir: Option<String>,
    /// `--threads`: how many threads serve requests.
    pub threads: Option<String>,
    /// `--freshness`: `cached` or `linearizable`.
    pub freshness: Option<String>,
    /// `--max-age`: news older than this admits nothing.
    pub max_age: Option<String>,
}

/// Reads and checks the flags.
pub(crate) fn read_flags(flags: Flags) -> Result<Config, Problems> {
    let notes = Notes::for_flags();
    let raw = raw_config(flags, &notes);
    let config = crate::check::check(raw, &notes);
    let (warnings, places) = notes.finish()?;
    let config = config.expect("flags without problems make a configuration");
    Ok(Config { warnings, places, ..config })
}

/// What a file with this in it would be read as.
fn raw_config(flags: Flags, notes: &Notes) -> RawConfig {
    let Flags { listen, upstream, etcd, lock, layout, admin, state_dir, threads, freshness, max_age } = flags;
    let unwritten = || Table::empty(notes, Place::flag(""));
    let one = |flag: &str, value: String| Setting::given(Place::flag(flag), value);
    let maybe = |flag: &str, value: Option<String>| match value {
        Some(value) => one(flag, value),
        None => Setting::absent(Place::flag(flag)),
    };
    let many =
        |flag: &str, values: Vec<String>| -> Vec<_> { values.into_iter().map(|value| one(flag, value)).collect() };
    // With an example for a command line, not for a file.
    let missing = |flag: &str, what: &str| notes.problem(&Place::flag(flag), format_args!("missing: {what}"));
    let needed = |flag: &str, value: Option<String>, what: &str| match value {
        Some(value) => one(flag, value),
        None => {
            missing(flag, what);
            Setting::broken(Place::flag(flag))
        }
    };

    let mut config = RawConfig::read(&mut unwritten());
    config.threads = maybe("--threads", threads)
        .parse(notes, |text| text.parse().map_err(|_| format!("must be an integer, not {text:?}")));
    config.state_dir = maybe("--state-dir", state_dir);
    config.admin.listen = maybe("--admin", admin);
    config.listeners = match many("--listen", listen) {
        none if none.is_empty() => Setting::absent(Place::flag("--listen")),
        some => {
            let listener = |address| RawListener { address, ..RawListener::read(&mut unwritten()) };
            Setting::given(Place::flag("--listen"), some.into_iter().map(listener).collect())
        }
    };

    let upstream = needed("--upstream", upstream, r#"the worker, like "http://127.0.0.1:9000""#);

    let mut source = RawSource::read("main".to_owned(), &mut unwritten());
    source.kind = one("--etcd", "etcd".to_owned());
    source.endpoints = match many("--etcd", etcd) {
        none if none.is_empty() => {
            missing("--etcd", r#"a member of the etcd cluster, like "http://127.0.0.1:2379""#);
            Setting::broken(Place::flag("--etcd"))
        }
        some => Setting::given(Place::flag("--etcd"), some),
    };
    source.tls = Setting::absent(Place::flag("--etcd"));
    config.sources = Setting::given(Place::flag("--etcd"), vec![source]);

    let mut guard = RawLock::read(&mut unwritten());
    guard.source = one("--lock", "main".to_owned());
    guard.key = needed("--lock", lock, r#"the key of the lock, like "/shards/2/lock""#);
    guard.layout = maybe("--layout", layout);

    let mut route = RawRoute::read(&mut unwritten());
    route.name = one("--upstream", "default".to_owned());
    route.path = one("--upstream", "/".to_owned());
    route.upstream = upstream;
    route.lock = Setting::given(Place::flag("--lock"), guard);
    route.freshness = maybe("--freshness", freshness);
    route.max_age = maybe("--max-age", max_age).parse(notes, |text| units::duration(&text));
    config.routes = Setting::given(Place::flag("--upstream"), vec![route]);
    config
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::places::Places;

    fn flags() -> Flags {
        Flags {
            listen: vec!["127.0.0.1:8080".to_owned()],
            upstream: Some("http://127.0.0.1:9000".to_owned()),
            etcd: vec!["http://127.0.0.1:2379".to_owned()],
            lock: Some("/shards/2/lock".to_owned()),
            ..Flags::default()
        }
    }

    fn check(flags: Flags, problems: &str) {
        assert_eq!(Config::from_flags(flags).unwrap_err().to_string(), problems);
    }

    #[test]
    fn flags_and_file_make_the_same_configuration() {
        let file = r#"
            threads = 2
            admin = { listen = "off" }
            listener = [{ address = "127.0.0.1:8080" }]
            source.main = { kind = "etcd", endpoints = ["http://127.0.0.1:2379"] }
            [[route]]
            name = "default"
            path = "/"
            upstream = "http://127.0.0.1:9000"
            freshness = "linearizable"
            max_age = "2s"
            lock = { source = "main", key = "/shards/2/lock", layout = "mutex" }
        "#;
        let flags = Flags {
            threads: Some("2".to_owned()),
            admin: Some("off".to_owned()),
            freshness: Some("linearizable".to_owned()),
            max_age: Some("2s".to_owned()),
            layout: Some("mutex".to_owned()),
            ..flags()
        };
        // A warning has another place: a file has lines.
        let unwarned = |config: Result<Config, _>| {
            config.map(|config| Config { warnings: Vec::new(), places: Places::default(), ..config })
        };
        assert_eq!(unwarned(Config::from_flags(flags)), unwarned(Config::from_toml("f.toml", file)));
    }

    #[test]
    fn a_problem_names_its_flag() {
        let text = "--listen: missing: at least one address where requests are accepted";
        check(Flags { listen: Vec::new(), ..flags() }, text);
        let listen = vec!["8080".to_owned()];
        let text = r#"--listen: must be "ip:port", "[ipv6]:port", "unix:/path" or "systemd:NAME", not "8080""#;
        check(Flags { listen, ..flags() }, text);
        let text = r#"--etcd: missing: a member of the etcd cluster, like "http://127.0.0.1:2379""#;
        check(Flags { etcd: Vec::new(), ..flags() }, text);
        let text = r#"--upstream: missing: the worker, like "http://127.0.0.1:9000""#;
        check(Flags { upstream: None, ..flags() }, text);
        check(Flags { lock: None, ..flags() }, r#"--lock: missing: the key of the lock, like "/shards/2/lock""#);
        check(Flags { lock: Some(String::new()), ..flags() }, "--lock: a lock key cannot be empty");
        let text = r#"--lock: {n} is not a capture of the path: "/" captures nothing"#;
        check(Flags { lock: Some("/{n}".to_owned()), ..flags() }, text);
        check(
            Flags { layout: Some("x".to_owned()), ..flags() },
            r#"--layout: must be "key", "election" or "mutex", not "x""#,
        );
        check(Flags { threads: Some("x".to_owned()), ..flags() }, r#"--threads: must be an integer, not "x""#);
        check(Flags { threads: Some("0".to_owned()), ..flags() }, "--threads: must be 1 to 1024, not 0");
        check(Flags { max_age: Some("1ms".to_owned()), ..flags() }, r#"--max-age: must be "500ms" to "1h", not "1ms""#);
        check(
            Flags { freshness: Some("x".to_owned()), ..flags() },
            r#"--freshness: must be "cached" or "linearizable", not "x""#,
        );
        let text = "--admin: 10.0.0.1:1 is not on this machine alone: it needs tls with client_ca, so that only those who have a certificate can ask; dangerous_unprotected = true lets anybody";
        check(Flags { admin: Some("10.0.0.1:1".to_owned()), ..flags() }, text);
    }

    #[test]
    fn all_flags_are_looked_at() {
        let (upstream, lock) = (Some("x".to_owned()), Some(String::new()));
        let flags = Flags { listen: vec!["x".to_owned()], upstream, lock, ..flags() };
        assert_eq!(Config::from_flags(flags).unwrap_err().iter().count(), 3);
    }
}
