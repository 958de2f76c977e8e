//! What a right file means, and that no file at all makes the parser panic.

use std::path::Path;
use std::time::Duration;

use fencepost_config::{
    Address, Admin, Config, Difference, Freshness, Limits, Listener, Mode, OnHandoffTimeout,
    OnUnavailable, PartialRequests, Places, Record, SourceKind, StaleStatus, UpstreamProtocol,
};
use proptest::prelude::*;

const SAMPLE: &str = r#"
state_dir = "/var/lib/fencepost"        # optional: remembers floors across restarts
# threads = 4                           # default: what the process may use

[admin]
listen = "127.0.0.1:9901"

[[listener]]
address = "127.0.0.1:8080"              # or "unix:/run/fencepost/http.sock"

[source.main]
kind = "etcd"
endpoints = ["http://127.0.0.1:2379"]

[[route]]
name = "shards"
path = "/shards/{shard}/"               # prefix; {name} captures one segment; first match wins
upstream = "http://127.0.0.1:9000"      # or "unix:/run/worker.sock"
mode = "enforce"                        # enforce | shadow | off
exempt_methods = []                     # e.g. ["GET", "HEAD"]: pass without a token
freshness = "cached"                    # cached | linearizable
max_age = "5s"
handoff_timeout = "10s"
orphan_timeout = "30s"
upstream_timeout = "30s"                # request sent -> response head, and the worker's silence after it
# request_timeout = "5m"                # total; off by default
lock = { source = "main", key = "/shards/{shard}/lock", layout = "key" }
"#;

/// A configuration without any key that has a default.
const SHORTEST: &str = r#"
[[listener]]
address = "127.0.0.1:8080"
[source.main]
kind = "etcd"
endpoints = ["http://127.0.0.1:2379"]
[[route]]
name = "shards"
path = "/shards/{shard}/"
upstream = "http://127.0.0.1:9000"
lock = { source = "main", key = "/shards/{shard}/lock" }
"#;

fn parse(text: &str) -> Config {
    Config::from_toml("fencepost.toml", text).unwrap_or_else(|problems| panic!("{problems}"))
}

#[test]
fn the_sample_names_the_defaults() {
    let sample = parse(SAMPLE);
    let shortest = parse(SHORTEST);
    assert_eq!(sample.warnings, []);
    assert_eq!(sample.state_dir.as_deref(), Some(Path::new("/var/lib/fencepost")));
    assert_eq!(
        Config { state_dir: None, places: Places::default(), ..sample },
        Config { warnings: Vec::new(), places: Places::default(), ..shortest }
    );
}

fn admin(address: Address) -> Admin {
    Admin { address, tls: None, dangerous_unprotected: false }
}

#[test]
fn the_shortest_file_means_the_defaults() {
    let config = parse(SHORTEST);
    assert_eq!((config.threads, &config.state_dir), (None, &None));
    assert_eq!(config.admin, Some(admin(Address::Tcp("127.0.0.1:9901".parse().unwrap()))));
    let address = Address::Tcp("127.0.0.1:8080".parse().unwrap());
    let listener = Listener { address, tls: None, proxies: None };
    assert_eq!(config.listeners, [listener]);
    assert_eq!(config.limits, Limits::default());
    let [source] = &config.sources[..] else { panic!("one source") };
    assert_eq!(source.name, "main");
    let SourceKind::Etcd { endpoints, cluster_id: None, tls: None, user: None } = &source.kind
    else {
        panic!("an etcd cluster")
    };
    assert_eq!(endpoints[0].to_string(), "127.0.0.1:2379");
    let [route] = &config.routes[..] else { panic!("one route") };
    assert_eq!(
        (route.name.as_str(), &route.host, route.path.as_str()),
        ("shards", &None, "/shards/{shard}/")
    );
    assert_eq!(route.upstream.to_string(), "http://127.0.0.1:9000");
    assert_eq!((route.freshness, route.max_age), (Freshness::Cached, Duration::from_secs(5)));
    assert_eq!(
        (route.handoff_timeout, route.orphan_timeout),
        (Duration::from_secs(10), Duration::from_secs(30))
    );
    assert_eq!((route.upstream_timeout, route.request_timeout), (Duration::from_secs(30), None));
    assert_eq!(
        (route.stale_status, route.on_unavailable),
        (StaleStatus::PreconditionFailed, OnUnavailable::Reject)
    );
    assert_eq!(
        (route.on_handoff_timeout, route.partial_requests),
        (OnHandoffTimeout::Reject, PartialRequests::Orphans)
    );
    assert!(!route.streaming);
    let headers = [&route.owner_header, &route.revision_header, &route.lock_header];
    assert_eq!(headers, ["fence-owner", "fence-revision", "fence-lock"]);
    let Mode::Enforce(lock) = &route.mode else { panic!("enforced") };
    assert_eq!(
        (lock.source, lock.key.as_str(), lock.from_header),
        (0, "/shards/{shard}/lock", false)
    );
    assert_eq!(lock.record, Record::Key { free_values: Vec::new(), owner_field: None });
    let [warning] = &config.warnings[..] else { panic!("one warning") };
    assert!(
        warning
            .to_string()
            .starts_with("fencepost.toml:1: state_dir: without it, a start knows nothing")
    );
}

#[test]
fn everything_that_can_be_set_is_set() {
    let config = parse(
        r#"
        state_dir = "/srv/state dir"
        threads = 4
        admin.listen = "unix:/run/admin.sock"
        listener = [{ address = "[::1]:0" }, { address = "unix:/run/http.sock" }, { address = "[::1]:0" }, { address = "systemd:a_b-c.socket@1" }]
        [limits]
        header_bytes_max = 16384
        drain_delay = "0s"
        [source.b]
        kind = "etcd"
        endpoints = ["http://a:1", "http://[::1]:2"]
        cluster_id = "CDF818194e3a8c32"
        [source.a]
        kind = "memory"
        [[route]]
        name = "one"
        path = "/{n}"
        host = "Worker.Example."
        upstream = "unix+h2c:/run/worker.sock"
        mode = "shadow"
        exempt_methods = ["GET", "HEAD", "PURGE"]
        freshness = "linearizable"
        request_timeout = "5m"
        stale_status = 409
        on_unavailable = "dangerous_admit"
        on_handoff_timeout = "dangerous_proceed"
        partial_requests = "harmless"
        streaming = true
        owner_header = "X-Owner"
        revision_header = "X-Revision"
        lock_header = "X-Lock"
        lock = { source = "b", key = "/{n}/{m}", from_header = true, free_values = ["none", ""], owner_field = "holder" }
        [[route]]
        name = "two"
        path = "/"
        upstream = "h2c://worker:1"
        mode = "off"
        lock = { source = "a", key = "/two", layout = "mutex" }
        "#,
    );
    assert_eq!(config.threads.map(usize::from), Some(4));
    assert_eq!(config.state_dir.as_deref(), Some(Path::new("/srv/state dir")));
    assert_eq!(config.admin, Some(admin(Address::Unix("/run/admin.sock".into()))));
    assert_eq!(config.listeners.len(), 4, "the system never chooses one port twice");
    assert_eq!(config.listeners[3].address, Address::Systemd("a_b-c.socket@1".to_owned()));
    assert_eq!(
        (config.limits.header_bytes_max, config.limits.drain_delay),
        (16384, Duration::ZERO)
    );
    assert_eq!(
        config.sources.iter().map(|source| source.name.as_str()).collect::<Vec<_>>(),
        ["a", "b"]
    );
    let SourceKind::Etcd { cluster_id, .. } = config.sources[1].kind else {
        panic!("an etcd cluster")
    };
    assert_eq!(cluster_id, Some(0xcdf8_1819_4e3a_8c32));
    let route = &config.routes[0];
    assert_eq!(route.host.as_deref(), Some("worker.example"));
    assert_eq!(route.exempt_methods, ["GET", "HEAD", "PURGE"]);
    assert_eq!(route.stale_status.status(), 409);
    assert_eq!(route.on_unavailable, OnUnavailable::DangerousAdmit);
    assert_eq!(route.on_handoff_timeout, OnHandoffTimeout::DangerousProceed);
    assert_eq!(route.partial_requests, PartialRequests::Harmless);
    assert!(route.streaming);
    let Mode::Shadow(lock) = &route.mode else { panic!("in shadow mode") };
    assert_eq!((lock.source, lock.from_header), (1, true));
    let free_values = vec![String::new(), "none".to_owned()];
    assert_eq!(lock.record, Record::Key { free_values, owner_field: Some("holder".to_owned()) });
    assert_eq!(config.routes[1].mode, Mode::Off);
}

#[test]
fn one_client_gets_all_but_a_hundredth_of_connections() {
    let of_one_client = |all| {
        let limits = parse(&format!("{SHORTEST}\n[limits]\nconnections_max = {all}")).limits;
        assert_eq!(limits.requests_per_client_max, limits.connections_per_client_max);
        limits.connections_per_client_max
    };
    assert_eq!([1, 2, 100, 150, 10_000].map(of_one_client), [1, 1, 99, 148, 9_900]);
}

#[test]
fn the_admin_listener_can_be_off() {
    assert_eq!(parse(&format!("admin.listen = \"off\"\n{SHORTEST}")).admin, None);
}

proptest! {
    #[test]
    fn no_text_makes_the_parser_panic(text in ".*|[\\[\\]a-z=\"{}.,0-9\n #']{0,80}") {
        let _ = Config::from_toml("f.toml", &text).map_err(|problems| problems.to_string());
    }

    #[test]
    fn no_damaged_file_makes_the_parser_panic(at in 0..SAMPLE.len(), length in 0..40_usize, patch in "[\\[\\]a-z=\"{}.,0-9\n #']{0,8}|.{0,4}") {
        let end = (at + length).min(SAMPLE.len());
        let text = [&SAMPLE[..at], &patch, &SAMPLE[end..]].concat();
        let _ = Config::from_toml("f.toml", &text).map_err(|problems| problems.to_string());
    }

    #[test]
    fn no_value_makes_the_checks_panic(line in 1..11_usize, value in "-?[0-9]{1,25}|true|\\[\\]|\\{\\}|\"[^\"\\\\]{0,30}\"|\\[\"[/a-z{}.:]{0,20}\"\\]|\"[/a-z{}.:0-9]{0,20}\"") {
        let with_value = |(number, text): (usize, &str)| match text.split_once('=') {
            Some((key, _)) if number == line => format!("{key} = {value}"),
            _ => text.to_owned(),
        };
        let text: Vec<String> = SHORTEST.lines().enumerate().map(with_value).collect();
        let _ = Config::from_toml("f.toml", &text.join("\n")).map_err(|problems| problems.to_string());
    }
}

/// A route to a worker behind TLS, with these lines.
fn to_tls(upstream: &str, upstream_tls: &str) -> Config {
    let text = format!(
        r#"
        listener = [{{ address = "127.0.0.1:0" }}]
        [[route]]
        name = "all"
        path = "/"
        mode = "off"
        upstream = "{upstream}"
        upstream_tls = {{ {upstream_tls} }}
        "#
    );
    Config::from_toml("f.toml", &text).unwrap_or_else(|problems| panic!("{problems}"))
}

#[test]
fn server_name_of_a_worker_is_its_host_by_default() {
    for (upstream, upstream_tls, name) in [
        ("https://Worker.example:8443", r#"ca = "/ca.pem""#, "worker.example"),
        ("https://127.0.0.1:8443", r#"ca = "/ca.pem""#, "127.0.0.1"),
        ("https://[::1]:8443", r#"ca = "/ca.pem""#, "::1"),
        (
            "https://127.0.0.1:8443",
            r#"ca = "/ca.pem", server_name = "worker.internal""#,
            "worker.internal",
        ),
        (
            "unix+https:/w.sock",
            r#"ca = "/ca.pem", server_name = "worker.internal""#,
            "worker.internal",
        ),
    ] {
        let config = to_tls(upstream, upstream_tls);
        let UpstreamProtocol::Tls(tls) = &config.routes[0].upstream.protocol else {
            panic!("{upstream}")
        };
        assert_eq!(tls.server_name, name);
        assert_eq!(tls.files.ca, Path::new("/ca.pem"));
    }
}

#[test]
fn reload_follows_upstream_tls_and_shows_paths() {
    let before = to_tls("https://worker:1", r#"ca = "/ca.pem""#);
    let after = to_tls(
        "https://worker:1",
        r#"ca = "/ca.pem", crl = "/crl.pem", certificate = "/c.pem", key = "/k.pem", server_name = "other""#,
    );
    let difference = Difference::between(&before, &after);
    assert!(difference.iter().all(|change| change.follows));
    assert_eq!(
        difference.to_string(),
        "route.all.upstream_tls.crl: none → /crl.pem; route.all.upstream_tls.certificate: none → /c.pem; \
         route.all.upstream_tls.key: none → /k.pem; route.all.upstream_tls.server_name: none → other"
    );
}
