//! Keys and shapes that other proxies have: names the nearest that there is here.

/// Key names that are foreign in any table, and what to write or know instead.
const FOREIGN: &[(&[&str], &str)] = &[
    (
        &["timeout", "read_timeout", "response_timeout", "proxy_read_timeout", "send_timeout"],
        "the nearest is upstream_timeout, for which the worker may be silent, or request_timeout, for all of a request, in a [[route]]",
    ),
    (&["proxy_connect_timeout", "dial_timeout"], "the nearest is connect_timeout in [limits]"),
    (
        &["keepalive_timeout", "keep_alive"],
        "the nearest is idle_timeout or upstream_idle_timeout in [limits]",
    ),
    (&["client_header_timeout"], "the nearest is header_timeout in [limits]"),
    (&["client_body_timeout"], "the nearest is body_timeout in [limits]"),
    (
        &["retries", "retry", "max_retries", "num_retries", "attempts", "proxy_next_upstream"],
        "the nearest is connect_retries in [limits], for connections; a worker gets a request once at most",
    ),
    (
        &["bind", "port", "listen_address", "addr", "entrypoint", "listeners"],
        "the nearest is address of a [[listener]]",
    ),
    (
        &[
            "backend",
            "backends",
            "server",
            "servers",
            "proxy_pass",
            "target",
            "url",
            "upstreams",
            "targets",
            "service",
            "to",
        ],
        "the nearest is upstream of a [[route]], which is one worker",
    ),
    (
        &["balance", "weight", "lb_policy", "lb_method", "load_balancing", "sticky"],
        "fencepost keeps tenures apart at one worker, so that each worker has its own lock and [[route]]",
    ),
    (
        &["health_check", "healthcheck", "health_checks", "health_uri"],
        "a worker is asked when a request is for it, and check --live tries it once",
    ),
    (
        &[
            "tls_cert",
            "ssl_certificate",
            "ssl_cert",
            "cert",
            "cert_file",
            "certfile",
            "tls_certificate",
            "crt",
        ],
        "the nearest is certificate in tls = { certificate = \"/path\", key = \"/path\" }",
    ),
    (
        &["tls_key", "ssl_certificate_key", "ssl_key", "key_file", "keyfile", "private_key"],
        "the nearest is key in tls = { certificate = \"/path\", key = \"/path\" }",
    ),
    (
        &["ca_file", "cafile", "ca_cert", "ssl_ca", "root_ca", "trusted_ca", "cacert"],
        "the nearest is ca in tls = { ca = \"/path\" }, or client_ca for the clients of a listener",
    ),
    (
        &["location", "path_prefix", "prefix", "match", "rule", "paths"],
        "the nearest is path of a [[route]]",
    ),
    (
        &["server_name", "hosts", "domain", "domains", "hostname"],
        "the nearest is host of a [[route]]",
    ),
    (&["maxconn", "max_connections", "max_conns"], "the nearest is connections_max in [limits]"),
    (
        &["client_max_body_size", "max_body_size", "body_limit"],
        "the nearest is body_bytes_max in [limits]",
    ),
    (&["endpoint", "etcd", "etcd_endpoints"], "the nearest is endpoints of a [source.NAME]"),
    (
        &["lock_key", "lock_name"],
        "the nearest is lock = { source = \"NAME\", key = \"/key\" } of a [[route]]",
    ),
    (
        &["log", "log_level", "loglevel", "error_log"],
        "the nearest is --log on the command line, or FENCEPOST_LOG",
    ),
    (&["log_format"], "the nearest is --log-format on the command line, or format of [access_log]"),
    (
        &["workers", "worker_processes", "nbthread"],
        "the nearest is threads above the first [table] of the file",
    ),
    (
        &["metrics", "stats", "dashboard"],
        "the nearest is listen of [admin], which has metrics and the page",
    ),
    (
        &["password"],
        "the nearest is password_file: a file, so that the password stands in no configuration",
    ),
    (&["user"], "the nearest is username"),
    (
        &["headers", "set_headers", "add_headers", "header_up", "proxy_set_header"],
        "the nearest is request_headers = { set = { NAME = \"value\" } } of a [[route]], or response_headers",
    ),
    (
        &["rewrite", "prefix_rewrite", "path_rewrite", "strip_path", "stripprefix", "replace_path"],
        "the nearest is strip_prefix = \"/prefix\" of a [[route]]",
    ),
    (
        &["host_header", "preserve_host", "pass_host_header", "host_rewrite", "rewrite_host"],
        "the nearest is upstream_host of a [[route]]; without it the worker gets the client's",
    ),
    (&["tls", "ssl"], "the nearest is upstream_tls of a [[route]], or tls of a [[listener]]"),
    (&["keepalive"], "the nearest is upstream_keepalive of a [[route]]"),
    (
        &["buffering", "proxy_buffering", "proxy_request_buffering", "flush_interval"],
        "the nearest is buffer_body_max in [limits], for requests; responses are passed on as they come",
    ),
    (
        &["methods", "method", "exempt", "skip_methods"],
        "the nearest is exempt_methods of a [[route]], which pass without a token",
    ),
    (
        &["websocket", "websockets", "upgrade"],
        "a websocket is passed on where its request is, without a key",
    ),
    (&["http2", "grpc"], "the nearest is h2c:// or https:// in upstream of a [[route]]"),
    (
        &["real_ip_header", "trust_forwarded", "set_real_ip_from", "trustedips"],
        "the nearest is trusted_proxies of a [[listener]]",
    ),
    (&["ttl", "lease"], "a lock's holder chooses it, as with hold --ttl"),
    (
        &["auth", "basic_auth", "cors", "rate_limit", "cache", "compress", "gzip"],
        "a proxy before fencepost does that: see trusted_proxies of a [[listener]]",
    ),
];

/// Keys of `[limits]` and of a route that are looked for elsewhere, too.
const IN_LIMITS: [&str; 12] = [
    "body_bytes_max",
    "body_timeout",
    "buffer_body_max",
    "confirm_timeout",
    "connect_retries",
    "connect_timeout",
    "drain_timeout",
    "header_timeout",
    "idle_timeout",
    "upstream_connections_max",
    "upstream_headers_max",
    "upstream_idle_timeout",
];
const IN_ROUTE: [&str; 8] = [
    "exempt_methods",
    "handoff_timeout",
    "max_age",
    "orphan_timeout",
    "request_timeout",
    "stream_idle_timeout",
    "upstream_keepalive",
    "upstream_timeout",
];

/// The table that has a key, where it is not this one.
pub(crate) fn home_of(key: &str) -> Option<&'static str> {
    match key {
        "state_dir" | "threads" | "include" => Some("above the first [table] of the file"),
        _ if IN_LIMITS.contains(&key) => Some("in [limits]"),
        _ if IN_ROUTE.contains(&key) => Some("in a [[route]]"),
        _ => None,
    }
}

/// What is nearest to a key that another proxy has.
pub(crate) fn nearest_offered(key: &str) -> Option<&'static str> {
    let (_, nearest) = FOREIGN.iter().find(|(names, _)| names.contains(&key))?;
    Some(nearest)
}

/// What to write instead of a shape that another proxy has.
pub(crate) fn right_shape(key: &str, found: &str) -> Option<&'static str> {
    match (key, found) {
        ("lock", "a string") => Some("write lock = { source = \"NAME\", key = \"/key\" }"),
        ("upstream", "a list" | "a table") => Some(
            "a route has one worker: write upstream = \"http://host:port\", and a [[route]] for each worker",
        ),
        ("tls" | "upstream_tls", "true or false" | "a string") => {
            Some("write which files it is made of, as in { ca = \"/path\" }")
        }
        ("address" | "listen", "an integer") => {
            Some("write it with its address, as in \"127.0.0.1:8080\"")
        }
        ("endpoints", "a string") => Some("write it in brackets"),
        _ => None,
    }
}
